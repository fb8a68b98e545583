"""What is said to the user, on stderr, as `alight run` says it; stdout has the answer and nothing else.

Text that came from a file can hold control characters; none of them reaches the terminal.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class Failure(Exception):
    """Something that the user should know, and that ends the command."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status


def printable(text: str) -> str:
    def shown(char: str) -> str:
        control = ord(char) < 32 or 127 <= ord(char) < 160
        return f"\\u{{{ord(char):x}}}" if control and char not in "\n\t" else char

    return "".join(map(shown, text))


def plain(text: str) -> None:
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # a closed stderr is silence


def _labelled(label: str, style: str, text: str) -> None:
    colour = (
        not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
        and sys.stderr is not None
        and sys.stderr.isatty()
    )
    if not colour:
        return plain(f"alight: {label}: {text}")
    try:
        print(f"alight: {style}{label}:\x1b[0m {printable(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def error(text: str) -> None:
    _labelled("error", "\x1b[1;31m", text)


def note(text: str) -> None:
    _labelled("note", "\x1b[1;36m", text)


def leave(status: int) -> NoReturn:
    """Ends the process. Taking JAX apart piece by piece before that would only keep the user waiting."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(status)
