"""What is said to the user, on stderr, as the command `alight` says it; stdout has the result and nothing else.

Text that a file or an argument made up can hold characters that drive a terminal; none of them reaches one. They are
those of `terminal_text` in the command.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn

FAILED, USAGE = 1, 2


class Failure(Exception):
    """Something that the user should know, and that ends the command."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status


_DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb]")
"""Controls but newline and tab, and what shows text in another order than it was written in."""


def printable(text: str) -> str:
    return _DRIVES.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """An error is one line, whatever a file that it names is called."""
    broken = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return printable("".join(broken.get(c, c) for c in text))


def plain(text: str) -> None:
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # a closed stderr is silence


def error(text: str) -> None:
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if not colour or sys.stderr is None or not sys.stderr.isatty():
        return plain(f"alight: error: {one_line(text)}")
    try:
        print(f"alight: \x1b[1;31merror:\x1b[0m {one_line(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def leave(status: int) -> NoReturn:
    """Ends the process. Taking JAX apart piece by piece before that would only keep the user waiting."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(status)
