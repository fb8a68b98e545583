"""Where the prompt comes from, as for `alight run`: an argument, a file, stdin, or a person at a terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ... import Tokenizer
from . import _say
from ._say import USAGE, Failure

if TYPE_CHECKING:
    from ..._alight import Message


LIMIT = 64 << 20
"""Most bytes of a prompt, as in the command `alight`: a pipe need not end."""


def is_chat(args: argparse.Namespace) -> bool:
    none = args.argument is None and args.prompt is None and args.file is None
    return none and sys.stdin is not None and sys.stdin.isatty()


def read(args: argparse.Namespace) -> str:
    """One newline at the end of a file or of stdin is not part of the prompt."""
    given = args.argument if args.argument is not None else args.prompt
    if given is not None and given != "-":
        return str(given)
    if given is None and args.file not in (None, "-"):
        whence = f"'{args.file}'"
        with open(args.file, "rb") as file:
            found = file.read(LIMIT + 1)
    else:
        whence, found = "standard input", b"" if sys.stdin is None else sys.stdin.buffer.read(LIMIT + 1)
    if len(found) > LIMIT:
        raise Failure(
            f"the prompt on {whence} is longer than {LIMIT >> 20} MiB, the most that alight reads: give a shorter one, such "
            "as a part of it"
        )
    try:
        text = found.decode()
    except UnicodeDecodeError as problem:
        raise Failure(f"the prompt on {whence} is not UTF-8 text: see byte {problem.start}") from None
    if text.endswith("\n"):
        text = text[:-1].removesuffix("\r")
    if not text:
        raise Failure(
            f"there is no prompt: {whence} is empty. Give one as an argument, pipe one in, or run on a terminal to chat",
            USAGE,
        )
    return text


def raw(tokenizer: Tokenizer, args: argparse.Namespace) -> bool:
    """Whether texts are continued as they are; says so where the file decides it."""
    if args.raw or tokenizer.has_chat_template:
        return bool(args.raw)
    if tokenizer.chat_template_error is not None:
        problem = f"the chat template in '{args.model}' cannot be used ({tokenizer.chat_template_error})"
    else:
        problem = f"'{args.model}' has no chat template"
    _say.note(f"{problem}: continuing the text as with --raw")
    if args.system is not None:
        _say.note("--system has no effect without a chat template")
    return True


def ids(tokenizer: Tokenizer, args: argparse.Namespace, text: str) -> list[int]:
    if raw(tokenizer, args):
        return tokenizer.prompt(text, parse_special=args.parse_special)
    return conversation(tokenizer, args, [("user", text)])


def conversation(tokenizer: Tokenizer, args: argparse.Namespace, turns: list[tuple[str, str]]) -> list[int]:
    """The tokens of a conversation, [(role, text)], after the system message."""
    system = [] if args.system is None else [("system", args.system)]
    messages: list[Message] = [{"role": role, "content": content} for role, content in [*system, *turns]]
    return tokenizer.chat(messages, parse_special=args.parse_special)
