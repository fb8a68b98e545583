"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ..._alight import check_new_file, write_new_file
from .._engine import need_jax
from . import _picture, _say, _table
from ._cells import measure
from ._say import FAILED, USAGE, Failure, leave

MAX_RANKS = 64

ABOUT = """\
One program is 64 layers in one jit: what a layer leaves is what the next one sums. Both ways take turns in one process, so
that a busy machine slows both. Microseconds per layer: the median of the turns, and in brackets their lower quartile, which
a neighbour disturbs less; the ratio is the median of the ratios of neighbouring turns.

CPU devices are threads that share this machine's cores: their figures say nothing about a GPU. On GPUs the collective stands
beside each of XLA's own ways (NCCL as it comes and in CUDA graphs, XLA's one-shot kernel, NCCL's symmetric buffers), in a process
for each, and layers follow one another in both programs; on CPU devices they are a loop."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        _say.error(f"{message}\n{self.format_usage().strip()}\nFor more, see --help")
        leave(USAGE)


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


def parse(arguments: list[str] | None, prog: str) -> argparse.Namespace:
    parser = Parser(prog=prog, description=__doc__, allow_abbrev=False)
    of = parser.add_subparsers(dest="what", required=True, parser_class=Parser).add_parser(
        "collective",
        help="the fused collective beside lax.psum + residual + norm",
        description="The fused collective beside lax.psum + residual + norm.",
        epilog=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    ranks, size = whole(2, MAX_RANKS), whole(1, 1 << 20)
    add = of.add_argument
    add("--devices", type=ranks, nargs="+", metavar="N", help="how many [default: 2 4 8; GPUs: as many as there are]")
    add("--rows", type=size, nargs="+", metavar="N", default=[1, 8, 32], help="tokens at once [default: 1 8 32]")
    add("--hidden", type=size, nargs="+", metavar="N", default=[4608], help="widths [default: 4608]")
    add("--processes", type=whole(1, MAX_RANKS), default=1, help="processes that share the devices: psum is Gloo's then")
    add("--turns", type=whole(3, 100_000), default=41, metavar="N", help="of each program [default: 41]")
    add("--platform", choices=["cpu", "gpu"], help="what to measure on [default: GPUs if there are two]")
    add("--json", action="store_true", help="one line of JSON instead of the table")
    add("--svg", metavar="FILE", type=Path, help="a picture as well")
    add("--force", action="store_true", help="replace the file of --svg if it exists")
    args = parser.parse_args(arguments)
    if any(count % args.processes for count in args.devices or ()):
        of.error(f"--devices must be multiples of the {args.processes} processes")
    return args


def main(arguments: list[str] | None = None, prog: str = "python -m alight.jax.bench") -> NoReturn:
    # Ctrl-C ends the process, as it does any other program's, unless it is to be ignored.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    args = parse(arguments, prog)
    try:
        need_jax()
        if args.svg is not None:
            check_new_file(args.svg, force=args.force)
        report = measure(args, say=_say.plain if args.json else _table.start)
        if args.json:
            print(json.dumps(report))
        if args.svg is not None:
            write_new_file(args.svg, _picture.draw(report).encode(), force=args.force)
    except Failure as problem:
        _say.error(str(problem))
        leave(problem.status)
    except BrokenPipeError:
        leave(0)
    except (ImportError, OSError) as problem:
        _say.error(str(problem))
        leave(FAILED)
    leave(0)
