"""The command line: what `alight run` has as well is called and checked as there."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any

from ._say import USAGE, error, leave

PROG = "python -m alight.jax"
MOST_RANKS = 64

EXAMPLES = """\
Examples:
  python -m alight.jax model.gguf "Why is the sky blue?" --tp 2
  python -m alight.jax model.gguf                      a chat; Ctrl-D leaves
  git diff | python -m alight.jax model.gguf - --system "Review this change."

`alight run model.gguf --engine jax --tp 2` is the same. The answer goes to standard output and nothing else does.
Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted by Ctrl-C."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        error(f"{message}\n{self.format_usage().strip()}\nFor more, see --help")
        leave(USAGE)


def number(fits: Callable[[float], bool], what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r}: expected {what}")
        return value

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {least} to {most}")
        return value

    return read


def any_seed() -> int:
    """32 bits that differ from run to run. Short enough to be typed again."""
    return ((time.time_ns() ^ os.getpid() << 32) * 0x9E37_79B9_7F4A_7C15 % 2**64) >> 32


def parser(prog: str = PROG) -> Parser:
    made = Parser(
        prog=prog,
        description="Answer a prompt, or chat, with the JAX engine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("model", help="the model: a .gguf file (of a split model, any shard)")
    add("argument", metavar="PROMPT", nargs="?", help="what to answer; `-` reads standard input")
    add("-p", "--prompt", help="the same as PROMPT")
    add("-f", "--file", help="read the prompt from a file")
    add("--system", "--system-prompt", metavar="TEXT", help="the system message before the conversation")
    add("--raw", action="store_true", help="give the prompt to the model as it is, without the chat template")
    add("--parse-special", action="store_true", help="let special tokens written in the prompt be special")
    add("--json", action="store_true", help="write one line of JSON at the end instead of the streamed text")
    add("--stats", action="store_true", help="say on standard error how long everything took")
    add("-n", "--predict", "--n-predict", metavar="N", type=whole(-1, 2**31 - 1), default=-1,
        help="at most N tokens; -1: until the model ends or the context is full")  # fmt: skip
    add("-c", "--ctx-size", metavar="N", type=whole(0, 2**30), help="tokens that the model can look back on; "
        "0: as many as it was trained for [default: 4096, or what it was trained for if that is less]")  # fmt: skip
    add("--ignore-eos", action="store_true", help="go on when the model would end")
    engine = made.add_argument_group("engine")
    add = engine.add_argument
    add("--tp", metavar="N", type=whole(1, MOST_RANKS), default=1, help="devices that share the work [default: 1]")
    add("--weights", choices=["native", "bf16", "f32"], default="native",
        help="native: where they lie in the file, on the CPU; bf16, f32: as JAX arrays of these")  # fmt: skip
    add("--coordinator", metavar="HOST:PORT", help="where process 0 listens, for a run in several processes; all of them "
        "are given the same arguments, but for --process, and the first one writes the answer")  # fmt: skip
    add("--processes", metavar="N", type=whole(1, MOST_RANKS), default=1, help="how many processes there are")
    add("--process", metavar="I", type=whole(0, MOST_RANKS - 1), help="which of them this is, from 0 on")
    add("--no-cache", action="store_true", help="compile anew, and keep nothing for the next time")
    sampling = made.add_argument_group("sampling")
    add, fraction = sampling.add_argument, number(lambda x: 0 <= x <= 1, "a number from 0 to 1")
    add("--temp", "--temperature", metavar="T", type=number(lambda x: x >= 0, "a number not below 0"), default=0.8,
        help="temperature; 0 always takes the most likely token [default: 0.8]")  # fmt: skip
    add("--top-k", metavar="K", type=whole(0, 2**31 - 1), default=40, help="keep the K most likely; 0: all [default: 40]")
    add("--top-p", metavar="P", type=fraction, default=0.95,
        help="keep the most likely that make up this share of the probability; 1: all [default: 0.95]")  # fmt: skip
    add("--min-p", metavar="P", type=fraction, default=0.05,
        help="keep those at least this likely, relative to the most likely; 0: all [default: 0.05]")  # fmt: skip
    add("-s", "--seed", metavar="N", type=whole(-1, 2**63 - 1), default=-1,
        help="the same seed gives the same answer, for any --tp [default: random]")  # fmt: skip
    return made


def parse(arguments: list[str] | None = None, prog: str = PROG) -> argparse.Namespace:
    made = parser(prog)
    args = made.parse_args(arguments)
    given = [name for name in ("argument", "prompt", "file") if getattr(args, name) is not None]
    if len(given) > 1:
        made.error("there are two prompts: give one of PROMPT, --prompt and --file")
    if args.raw and args.system is not None:
        made.error("--system cannot be used with --raw")
    together = (args.coordinator is not None, args.processes > 1, args.process is not None)
    if any(together) and not all(together):
        made.error("a run in several processes needs --coordinator, --processes and --process")
    if all(together):
        if args.process >= args.processes:
            made.error(f"--process is {args.process}, expected 0 to {args.processes - 1}: there are {args.processes}")
        if args.tp % args.processes:
            made.error(f"--tp is {args.tp}, expected a multiple of the {args.processes} processes: each has as many devices")
        host, colon, port = args.coordinator.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
            made.error(f"--coordinator is {args.coordinator!r}, expected a host and a port, such as 127.0.0.1:7000")
        if args.seed == -1 and args.temp > 0:
            made.error("a run in several processes that draws tokens needs a --seed: all have to draw the same")
    if args.seed == -1:
        args.seed = any_seed()
    return args
