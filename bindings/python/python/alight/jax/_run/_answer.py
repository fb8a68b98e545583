"""One answer: tokens from the model, streamed as text, and what is told about it afterwards."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ... import Tokenizer
from . import _interrupt, _say

if TYPE_CHECKING:
    from ..models import Model

STEPS = 8
"""Tokens per launch, which come together."""

ENDED = {"stop": "the model", "length": "-n", "context": "the full context", "interrupted": "Ctrl-C"}


def process_age() -> float:
    """Seconds since the system made this process, to a hundredth."""
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return 0.0


@dataclass
class Answer:
    """What came of it. Times are those of `time.perf_counter`."""

    prompt_tokens: int
    began: float
    finish: str = "length"
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    written: list[float] = field(default_factory=list)

    @property
    def prompt(self) -> float:
        """Seconds from the first prompt token fed to the first token of the answer."""
        return (self.written[0] if self.written else time.perf_counter()) - self.began

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first."""
        seconds = self.written[-1] - self.written[0] if self.written else 0
        return (len(self.written) - 1) / seconds if seconds > 0 else None


def most(args: argparse.Namespace) -> int:
    """Most tokens, however many the context has room for."""
    return 2**31 - 1 if args.predict == -1 else int(args.predict)


def answer(
    model: Model, tokenizer: Tokenizer, args: argparse.Namespace, ids: list[int], sink: Callable[[str], None]
) -> Answer:
    """Streams what follows `ids` into `sink`, in pieces of whole characters."""
    from ..models import Sampling

    made = Answer(len(ids), time.perf_counter())
    wanted = most(args)
    if wanted == 0:
        return made
    sampling = Sampling(args.temp, args.top_k, args.top_p, args.min_p, args.seed)
    stop = () if args.ignore_eos else tokenizer.ends
    tokens = model.generate(ids, max_tokens=wanted, sampling=sampling, steps_per_launch=STEPS, stop=stop)
    decoder = tokenizer.stream()
    for token in tokens:
        piece = decoder.push(token)
        if piece:
            sink(piece)
        made.text += piece
        made.tokens.append(token)
        made.written.append(time.perf_counter())
        if _interrupt.pressed():
            made.finish = "interrupted"
            break
    else:
        # The last token needs no room.
        full = len(ids) + len(made.tokens) > model.context
        made.finish = "length" if len(made.tokens) == wanted else "context" if full else "stop"
    rest = decoder.finish()
    if rest:
        sink(rest)
        made.text += rest
    return made


def write(piece: str) -> None:
    """A piece of an answer to stdout: a pipe or a file gets its bytes."""
    sys.stdout.buffer.write((_say.printable(piece) if sys.stdout.isatty() else piece).encode())
    sys.stdout.buffer.flush()


def line(args: argparse.Namespace, made: Answer, timings: dict[str, float], since: float) -> str:
    """The line that `--json` writes, with the names that `alight run --json` has. `since`: the process's start."""

    def ms(seconds: float) -> float:
        return round(seconds * 1e3, 3)

    first, last = (made.written[0], made.written[-1]) if made.written else (None, None)
    told: dict[str, Any] = {
        "model": os.fsencode(args.model).decode(errors="replace"),
        "text": made.text,
        "tokens": made.tokens,
        "finish": made.finish,
        "prompt_tokens": made.prompt_tokens,
        "generated_tokens": len(made.tokens),
        "tokens_per_second": made.rate,
        "prompt_tokens_per_second": made.prompt_tokens / max(made.prompt, 1e-9),
        "seed": args.seed,
        "engine": "jax",
        "tp": args.tp,
        "weights": args.weights,
        "timings": {
            **{f"{name}_ms": ms(seconds) for name, seconds in timings.items()},
            "prompt_ms": ms(made.prompt),
            "first_token_ms": None if first is None else ms(first - since),
            "total_ms": ms((time.perf_counter() if last is None else last) - since),
            "token_ms": [ms(b - a) for a, b in zip(made.written, made.written[1:])],
        },
    }
    return _say.harmless_json(json.dumps(told, ensure_ascii=False))


def stats(args: argparse.Namespace, made: Answer, timings: dict[str, float], since: float, what: str) -> str:
    """The lines of `--stats`. The first token's time counts from `since`, which was when `what` came."""

    def shown(seconds: float) -> str:
        return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"

    parts = ", ".join(f"{name} {shown(seconds)}" for name, seconds in timings.items())
    first = f"{shown(made.written[0] - since)} after the {what}" if made.written else "none"
    rate = "too few to time" if made.rate is None else f"{made.rate:.1f} tokens/s"
    prompt_rate = made.prompt_tokens / max(made.prompt, 1e-9)
    return (
        (f"start        {parts}\n" if timings else "")
        + f"prompt       {made.prompt_tokens} tokens in {shown(made.prompt)} = {prompt_rate:.1f} tokens/s\n"
        + f"first token  {first}\n"
        + f"answer       {len(made.tokens)} tokens, {rate}, ended by {ENDED[made.finish]}; "
        + f"JAX, tp {args.tp}, {args.weights} weights"
    )
