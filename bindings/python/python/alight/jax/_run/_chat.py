"""A conversation at the terminal, as that of `alight run`.

The history is rendered anew each turn; the model keeps its cache, so only what was added is computed. When the history no
longer fits, the oldest exchange is dropped, and the user is told.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from ... import Tokenizer
from . import _interrupt, _prompt, _say
from ._answer import answer, stats, write
from ._say import Failure

if TYPE_CHECKING:
    from ..models import Model

ROOM = 512
"""Tokens that an answer should have room for before history is dropped, where the context is not small."""


class Chat:
    def __init__(self, tokenizer: Tokenizer, args: argparse.Namespace, context: int) -> None:
        self.tokenizer, self.args, self.context = tokenizer, args, context
        self.raw = _prompt.raw(tokenizer, args)
        self.turns: list[tuple[str, str]] = []

    def prompt(self, line: str) -> list[int]:
        """The tokens of the conversation, with the oldest exchanges dropped until there is room to answer. On an error
        the line is not part of it."""
        if self.raw:
            return self.tokenizer.prompt(line, parse_special=self.args.parse_special)
        turns = [*self.turns, ("user", line)]
        exchanges = len(turns) // 2
        for dropped in range(exchanges + 1):
            ids = _prompt.conversation(self.tokenizer, self.args, turns[2 * dropped :])
            # With nothing left to drop it may take the whole context, less a token to answer in.
            room = 1 if dropped == exchanges else min(ROOM, self.context // 4)
            if len(ids) + room <= self.context:
                break
        else:
            raise Failure(
                f"this message takes {len(ids)} tokens and the context holds {self.context}: shorten it, or start again "
                "with a larger -c"
            )
        if dropped:
            what = "exchange" if dropped == 1 else f"{dropped} exchanges"
            _say.note(
                f"the conversation no longer fits into {self.context} tokens: the model has forgotten its oldest {what}"
            )
        self.turns = turns[2 * dropped :]
        return ids

    def answered(self, text: str) -> None:
        if not self.raw:
            self.turns.append(("assistant", text))


def asked() -> str | None:
    """A line from the terminal; `None` at its end. The mark goes to stderr where stdout is not the terminal."""
    if sys.stdout.isatty():
        import readline  # noqa: F401: for the keys

        try:
            return input("> ")
        except EOFError:
            write("\n")
            return None
    sys.stderr.write("> ")
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\r\n") or None


def chat(model: Model, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    """Holds a conversation until the user leaves."""
    talk = Chat(tokenizer, args, model.context)
    _say.plain(
        "Ctrl-C stops an answer, Ctrl-D leaves." + (" Each line is continued on its own." if talk.raw else "")
    )
    while True:
        _interrupt.ask()
        try:
            line = asked()
        except KeyboardInterrupt:
            line = None
            write("\n")
        if line is None:
            return
        if not line.strip():
            continue
        since = time.perf_counter()
        try:
            ids = talk.prompt(line)
        except (Failure, ValueError) as problem:
            _say.error(str(problem))
            continue
        _interrupt.catch()
        made = answer(model, tokenizer, args, ids, write)
        write("\n")
        talk.answered(made.text)
        if args.stats:
            _say.plain(stats(args, made, {}, since, "question"))
        if made.finish == "context":
            _say.note(full(model.context, model.config.context))


def full(context: int, trained: int) -> str:
    """What to say when the context is full."""
    if context < trained:
        advice = f"-c {min(2 * context, trained)} would let it go on (up to {trained})"
    else:
        advice = "that is all it was trained for"
    return f"the answer stops here because the context of {context} tokens is full: {advice}"
