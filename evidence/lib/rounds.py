"""Measurements in turn: every candidate once in each round, so that what disturbs one disturbs all."""

import sys
import time
from collections.abc import Callable, Iterable

from evidence.lib import common


def add_arguments(parser, rounds: int, pause: float = 0.1, timeout: float = 300) -> None:
    parser.add_argument("--rounds", type=int, default=rounds, help="(default: %(default)s)")
    parser.add_argument("--pause", type=float, default=pause, help="seconds between two processes (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=timeout, help="seconds for one process (default: %(default)s)")


def interleaved(args, names: Iterable, measure: Callable, label: str = "", before: Callable = lambda: None) -> dict:
    """What `measure(name)` gives of each name, a value a round. Who goes first changes from round to round; `before` is
    called at the beginning of each."""
    names = list(names)
    found = {name: [] for name in names}
    for i in range(args.rounds):
        if label and sys.stderr.isatty():
            common.say(f"{label}: round {i + 1} of {args.rounds}")
        before()
        for name in names if i % 2 == 0 else reversed(names):
            found[name].append(measure(name))
            time.sleep(args.pause)
    return found


def ratios(over: list[float], under: list[float]) -> dict:
    """Of two lists of measurements, round by round: both met the same machine."""
    return common.summary([a / b for a, b in zip(over, under, strict=True)])


def by_key(runs: list[dict]) -> dict:
    """The summary of each number that the runs have."""
    return {key: common.summary([run[key] for run in runs]) for key in runs[0]}
