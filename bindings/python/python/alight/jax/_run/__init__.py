"""The command behind `python -m alight.jax` and `alight run --engine jax`: arguments into calls, results into text.

As for `alight run`: the answer goes to stdout and nothing else does; what is said to the user goes to stderr; the exit
status is 0 (done), 1 (failed), 2 (wrong usage) or 130 (interrupted); a reader that closes the pipe ends it quietly.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import os
import time
from typing import NoReturn

from ... import Tokenizer
from ... import open as open_catalog
from . import _answer, _chat, _interrupt, _prompt, _say
from ._args import PROG, parse
from ._say import INTERRUPTED, Failure, leave

MISSING = "jax is not installed for this Python ({}): pip install 'jax>=0.10.2,<0.13'"


def main(arguments: list[str] | None = None, prog: str = PROG) -> NoReturn:
    """Runs the command and ends the process."""
    since = time.perf_counter() - _answer.process_age()
    _interrupt.default()
    args = parse(arguments, prog)
    try:
        leave(run(args, since))
    except Failure as problem:
        _say.error(str(problem))
        leave(problem.status)
    except BrokenPipeError:
        # Nobody is left to tell. What is still in the stream's buffer has nowhere to go either.
        os._exit(0)
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    except OSError as problem:
        known = problem.filename is not None and problem.strerror is not None
        _say.error(f"'{problem.filename}': {problem.strerror}" if known else str(problem))
    except (ValueError, TypeError, RuntimeError, MemoryError) as problem:
        _say.error(str(problem) or type(problem).__name__)
    leave(_say.FAILED)


def run(args: argparse.Namespace, since: float) -> int:
    from . import _start

    timings: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        timings[name], clock = now - clock, now

    # What is wrong with the file is told before JAX is there, which takes a while.
    catalog = open_catalog(args.model)
    chatting = _prompt.is_chat(args)
    if chatting and args.json:
        raise Failure("--json needs a prompt: give one as an argument or pipe one in", _say.USAGE)
    if args.processes > 1 and chatting:
        raise Failure("a run in several processes needs a prompt: give all of them the same", _say.USAGE)
    if importlib.util.find_spec("jax") is None:
        import sys

        raise Failure(MISSING.format(sys.executable))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # Rust's work, beside Python's.
        tokenizers = pool.submit(Tokenizer, catalog)
        lap("open")
        _start.jax(args)
        lap("jax")
        tokenizer = tokenizers.result()
    text = None if chatting else _prompt.read(args)
    ids = None if text is None else _prompt.ids(tokenizer, args, text)
    model = _start.model(args, catalog)
    lap("model")
    if ids is None:
        _chat.chat(model, tokenizer, args)
        return 0
    if args.processes == 1:
        # Of several, all have to stop, and at the same token: there, Ctrl-C ends them at once.
        _interrupt.catch()
    speaks = not args.process
    made = _answer.answer(model, tokenizer, args, ids, _answer.write if speaks and not args.json else lambda piece: None)
    if speaks:
        _answer.write((_answer.line(args, made, timings, since) if args.json else "") + "\n")
    if args.processes > 1:
        _start.shut_down()
    if not speaks:
        return 0
    if args.stats:
        _say.plain(_answer.stats(args, made, timings, since, "start of the process"))
    catalog.check()
    if made.finish == "context":
        _say.note(_chat.full(model.context, model.config.context))
    return INTERRUPTED if made.finish == "interrupted" else 0
