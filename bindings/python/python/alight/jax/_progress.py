"""Saying how far a load is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeAlias

Report: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that are there, and all of them."""

PATIENCE = 1.0
"""Seconds of a load without a word."""


def reporter(progress: Report | bool | None) -> Report:
    """What to call: what was given; on a terminal, a line that is written over."""
    if callable(progress):
        return progress
    if progress or (progress is None and sys.stderr.isatty()):
        return Line(0.0 if progress else PATIENCE)
    return lambda done, of: None


class Line:
    """A line on standard error: share, bytes, rate. Taken away when everything is there."""

    def __init__(self, patience: float) -> None:
        self.began = time.monotonic()
        self.next = self.began + patience
        self.shown = False

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if done >= of:
            if self.shown:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            return
        if now < self.next:
            return
        self.next, self.shown = now + 0.1, True
        rate = done / max(now - self.began, 1e-9) / 1e9
        sys.stderr.write(f"\rloading {100 * done // of:3} %  {done / 1e9:.2f} of {of / 1e9:.2f} GB  {rate:.1f} GB/s")
        sys.stderr.flush()
