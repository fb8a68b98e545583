"""What is said to the user, on stderr, as `alight run` says it; stdout has the answer and nothing else.

Text that a model or a file made up can hold characters that drive a terminal; none of them reaches one. They are those
of `terminal_text` in the command `alight`.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class Failure(Exception):
    """Something that the user should know, and that ends the command."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status


_DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb]")
"""Controls but newline and tab, and what shows text in another order than it was written in."""


def printable(text: str) -> str:
    return _DRIVES.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text.replace("\r\n", "\n"))


def harmless_json(line: str) -> str:
    """The same JSON with those characters escaped; they stand nowhere but in strings."""
    return _DRIVES.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


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
