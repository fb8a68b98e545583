"""Decoding a whole model in JAX on CPU devices: tokens per second, the share of the collective, and the native engine.

Its Python is one that has the package with jax, built with optimisation (`make python` makes the wheel; bindings/python/.venv
after `make test-python` has a slower one). For each number of devices, one process; in it all variants in turn, so that
what disturbs one disturbs all:

  fused     `allreduce_norm` in one custom call
  psum      `lax.psum`, post-norm, residual and norm of XLA's own operations
  nothing   what the ranks have of the sums goes on to the next matrices: wrong, and what the rest of the model takes
  ppermute  (--more) `nothing`, but with the barrier that a smallest collective is: an exchange of one number

and, between turns, the native engine (`alight run`) with as many threads as the machine has cores. The share of a collective
is what its variant takes more than `nothing`. Medians, least to most. Weights lie in the map unless --weights says otherwise.
These are figures of a CPU, whose devices share its cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from evidence.lib import common, peers, process

PROMPT = "The history of the lighthouse begins with a storm that nobody in the village had expected, and"


def variants(more: bool) -> dict:
    """Collectives, as `alight.jax.models` calls them."""
    import jax
    from alight.jax import _collective, allreduce_norm
    from jax import lax

    def fused(config, mesh):
        def call(partial, residual, weight, *, post_weight=None):
            return allreduce_norm(partial, residual, weight, mesh=mesh, epsilon=config.rms_eps, post_weight=post_weight)

        return call

    def psum(config, mesh):
        def call(partial, residual, weight, *, post_weight=None):
            return _collective.of_xla(partial, residual, weight, post_weight, "tp", config.rms_eps, 0)

        return call

    def nothing(config, mesh):
        # Bounded, since without norms numbers would grow beyond all bounds.
        return lambda partial, residual, weight, *, post_weight=None: (partial.clip(-1, 1), residual)

    def ppermute(config, mesh):
        def call(partial, residual, weight, *, post_weight=None):
            ranks = mesh.shape["tp"]
            one = lax.ppermute(partial[:1, :1], "tp", [(rank, (rank + 1) % ranks) for rank in range(ranks)])
            return partial.clip(-1, 1) + 0 * one, residual

        return call

    del jax
    return {"fused": fused, "psum": psum, "nothing": nothing} | ({"ppermute": ppermute} if more else {})


def child(job: dict) -> None:
    """One number of devices: a line of JSON per turn, each when it is asked for."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", job["tp"])
    import alight
    from alight.jax.models import Sampling, _load, load_model

    prompt = alight.Tokenizer(job["path"]).prompt(PROMPT)
    models = {}
    for name, make in variants(job["more"]).items():
        _load.collective = make
        models[name] = load_model(job["path"], tp=job["tp"], weights=job["weights"], context=len(prompt) + job["tokens"])

    def turn(model) -> dict:
        model._free.clear()
        start, times = time.perf_counter(), []
        for _ in model.generate(
            prompt, max_tokens=job["tokens"], sampling=Sampling.greedy(), steps_per_launch=job["steps"]
        ):
            times.append(time.perf_counter())
        return {"first": times[0] - start, "token": (times[-1] - times[0]) / (len(times) - 1)}

    for model in models.values():
        turn(model)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps({name: turn(model) for name, model in models.items()}), flush=True)


def engine(args, path: Path) -> dict:
    """The native engine, a process of its own."""
    said = process.told(peers.alight_run(args, path, PROMPT, "--ignore-eos", "--json", tokens=args.tokens, context=1024))
    return {"first": said["timings"]["prompt_ms"] / 1e3, "token": statistics.mean(said["timings"]["token_ms"]) / 1e3}


def measure(args, name: str, path: Path, tp: int) -> list[dict]:
    job = {"path": str(path), "tp": tp, "weights": args.weights, "tokens": args.tokens, "steps": args.steps, "more": args.more}
    worker = subprocess.Popen(
        [sys.executable, "-m", "evidence", "bench", "jax-decode", "--child", json.dumps(job)], cwd=common.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout.readline().strip() == "ready", f"{name}, {tp} devices: failed"
    turns = []
    for _ in range(args.turns):
        worker.stdin.write("\n")
        worker.stdin.flush()
        turns.append(json.loads(worker.stdout.readline()) | ({} if args.no_engine else {"engine": engine(args, path)}))
    worker.stdin.close()
    worker.wait()
    return turns


def report(args, name: str, tp: int, turns: list[dict]) -> tuple[list[list[str]], dict]:
    rows, out = [], {"model": name, "tp": tp, "steps": args.steps, "turns": turns}
    rest = statistics.median(turn["nothing"]["token"] for turn in turns)
    for who in turns[0]:
        token = common.summary([1e3 * turn[who]["token"] for turn in turns])
        first = common.summary([1e3 * turn[who]["first"] for turn in turns])
        share = "" if who in ("nothing", "engine") else f"{100 * (1 - 1e3 * rest / token['median']):.0f} %"
        label = f"native engine, {args.threads} threads" if who == "engine" else f"{who}, {tp} device{'s' if tp > 1 else ''}"
        rows.append([name, label, common.spread(token, 2), f"{1e3 / token['median']:.1f}", share, common.spread(first, 0)])
    return rows, out


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", default=["smollm2", "gemma3"])
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--steps", type=int, default=8, help="steps per launch")
    parser.add_argument("--weights", choices=["native", "bf16", "f32"], default="native")
    parser.add_argument("--more", action="store_true", help="also the smallest collective there is")
    parser.add_argument("--no-engine", action="store_true", help="without the native engine")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    common.add_arguments(parser, threads=os.cpu_count() or 1)


def run(args) -> None:
    if args.child:
        return child(json.loads(args.child))
    rows = [["model", "what", "ms per token", "tokens/s", "share of the collective", "ms to the first token"]]
    results = []
    for name in args.model:
        path = common.model_path(name, args.models)
        common.warm(path)
        for tp in args.tp:
            more, out = report(args, name, tp, measure(args, name, path, tp))
            rows += more
            results.append(out)
    if common.as_json(args, results):
        return
    common.machine()
    common.table(rows)
