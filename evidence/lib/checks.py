"""Checks that are counted: what holds is said if asked for, what does not in any case."""

import sys


class Checks:
    """`quiet`: only what fails. What is said goes to standard error, or to `out`."""

    words = ("ok  ", "FAIL")

    def __init__(self, quiet: bool = False, out=None):
        self.quiet, self.out, self.rows = quiet, out or sys.stderr, []

    @property
    def failed(self) -> int:
        return sum(not row["good"] for row in self.rows)

    @property
    def passed(self) -> int:
        return sum(row["good"] for row in self.rows)

    def add(self, good: bool, text: str, **more) -> bool:
        self.rows.append({"good": bool(good), "text": text} | more)
        if not good or not self.quiet:
            print(self.words[not good], text, file=self.out, flush=True)
        return good

    def wrong(self, what: str, wrong: list[str] | str) -> bool:
        """Of something that holds if nothing of it is wrong."""
        wrong = [wrong] if isinstance(wrong, str) and wrong else wrong
        return self.add(not wrong, what + "".join(f": {line}" if len(wrong) == 1 else f"\n    {line}" for line in wrong[:8]))

    def status(self) -> int:
        """The exit status."""
        return int(self.failed > 0)
