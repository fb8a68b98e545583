"""The collective in JAX beside XLA's own operations, on all GPUs that are here: microseconds per layer of a program of 64
layers, in turns that alternate. `make bench-gpu` runs it.

On one GPU there is nothing to sum: it shows what the call costs beside the same norm by XLA, and nothing of NVLink. On
several, it stands beside each of XLA's own ways that `alight bench collective` has, each in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from evidence.gpu import layers
from evidence.lib import process
from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

jax = lazily("jax")
jnp = lazily("jax.numpy")
_cells = lazily("alight.jax.bench._cells")

LAYERS = 64


def measure(turns: int, hidden: int, numbers: list[int]) -> None:
    """In this process, whose XLA flags are set: prints a line of JSON for each number of rows."""
    over = layers.mesh()
    for rows in numbers:
        for post in (False, True):
            given = layers.arguments(over, LAYERS, rows, hidden, jnp.bfloat16, post)
            programs = {
                "fused": layers.program(layers.fused, over, LAYERS).lower(*given).compile(),
                "unfused": layers.program(layers.unfused, over, LAYERS).lower(*given).compile(),
            }
            times: dict[str, list[float]] = {name: [] for name in programs}
            for turn in range(turns + 5):
                for name, program in programs.items():
                    start = time.perf_counter()
                    # Several at once, so that the GPU and not the host is measured; no more than a few in flight.
                    for _ in range(4):
                        result = program(*given)
                    jax.block_until_ready(result)
                    if turn >= 5:
                        times[name].append((time.perf_counter() - start) / (4 * LAYERS) * 1e6)
            quartiles = {name: statistics.quantiles(values, n=4) for name, values in times.items()}
            ratios = [b / a for a, b in zip(times["fused"], times["unfused"])]
            process.tell_result({
                "gpus": len(jax.devices()), "kind": jax.devices()[0].device_kind, "jax": jax.__version__, "rows": rows,
                "hidden": hidden, "post_norm": post, "calls_in_program": programs["fused"].as_text().count("alight_allreduce_norm"),
                "fused_us": quartiles["fused"], "unfused_us": quartiles["unfused"], "ratio": statistics.median(ratios),
            })  # fmt: skip


def add_arguments(parser) -> None:
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--hidden", type=int, default=4608)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)


def run(arguments) -> None:
    if arguments.measure:
        return measure(arguments.turns, arguments.hidden, arguments.rows)
    failed = 0
    several = None
    print("| baseline | GPUs | rows | hidden | post-norm | XLA's operations, µs a layer | fused | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name, flags in _cells.GPU_OPTIONS.items():
        if several is False:
            print(f"left out on one GPU: {name} ({flags})")
            continue
        env = dict(os.environ, XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip())
        command = [sys.executable, "-m", "evidence", "bench", "gpu-jax", "--measure", "--turns", str(arguments.turns), "--hidden", str(arguments.hidden),
                   "--rows", *map(str, arguments.rows)]
        run = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True)
        results = process.results(run.stdout)
        for r in results:
            several = r["gpus"] > 1
            us = {key: f"{r[key][1]:.2f} ({r[key][0]:.2f}–{r[key][2]:.2f})" for key in ("unfused_us", "fused_us")}
            used = "" if r["calls_in_program"] else " (no custom call!)"
            print(f"| {name if several else 'XLA'} | {r['gpus']} × {r['kind']} | {r['rows']} | {r['hidden']} | {'yes' if r['post_norm'] else 'no'} | "
                  f"{us['unfused_us']} | {us['fused_us']}{used} | {r['ratio']:.2f} |", flush=True)
        if run.returncode != 0:
            print("\n".join(run.stderr.splitlines()[-5:]))
            failed += 1
        several = bool(several)
    sys.exit(failed)
