"""A whole model on one GPU in JAX: tokens per second, and what share of the GPU's bandwidth its weights take. `make bench-gpu` runs it.

One process for each way to compute with weights; in it decoding after a prompt of 512 tokens, several times, and batches. With
`--variants`, those of `bench jax-decode` in turn, on the same weights:

  fused     `allreduce_norm` in one custom call
  psum      `lax.psum`, post-norm, residual and norm of XLA's own operations: XLA alone, and what `load_model` takes on one GPU
  nothing   what the ranks have of the sums goes on as it is: wrong, and what the rest of the model takes

One GPU has nothing to sum: what is seen is the call and the norms beside XLA's.
Other engines come last, with the same file: llama.cpp, if `--llama` names the folder of a llama-bench that was built for CUDA, and vLLM, if it is
installed and takes the file (`--vllm` names another form of the model). The bandwidth is that of a copy of 4 GB within the GPU, in the same process. `--steps-apart` leaves loops out of CUDA graphs: a step is one
then, and not all steps of a launch.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from evidence.bench import jax_decode
from evidence.gpu import layers
from evidence.lib import common, gpu_peers, process
from evidence.lib.lazy import lazily

jax = lazily("jax")
jnp = lazily("jax.numpy")
models = lazily("alight.jax.models")
np = lazily("numpy")

APART = "--xla_gpu_enable_command_buffer=CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,FUSION"
PROMPT, TOKENS, STEPS = 512, 128, 32


def bandwidth() -> float:
    """Bytes per second, read and written, of a copy of 4 GB."""
    x = jnp.ones((1 << 30,), jnp.float32)
    more = jax.jit(lambda x: x + 1)
    jax.block_until_ready(more(x))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(more(x))
        times.append(time.perf_counter() - start)
    return 2 * x.nbytes / min(times)


def variant(model, make):
    """The same model and weights with another collective."""
    other = copy.copy(model)
    programs = model._programs
    net = dataclasses.replace(programs.net, collective=make(model.config, model.mesh))
    other._programs = type(programs)(net, programs.mesh, programs.specs)
    other._free = []
    return other


def bytes_per_token(model) -> int:
    """Of weights that every token reads: all but the rows of the embedding, which are also the output where both are one."""
    def size(tree) -> int:
        return sum(x.nbytes for x in {id(x): x for x in jax.tree.leaves(tree)}.values())

    embedding, output = (model.params["weights"][name] for name in ("embedding", "output"))
    return size(model.params) - (0 if embedding is output else size(embedding))


def measure(args) -> None:
    """In this process: a line of JSON."""
    began = time.perf_counter()
    mesh = layers.mesh(jax.devices()[:1])
    started = time.perf_counter()
    model = models.load_model(args.model, mesh=mesh, weights=args.weights, context=2048, chunks=(8, PROMPT))
    jax.block_until_ready(model.params)
    loaded = time.perf_counter()
    made = {"ours": model}
    if args.variants:
        made |= {name: variant(model, make) for name, make in jax_decode.variants(False).items()}
    greedy = models.Sampling.greedy()
    prompt = np.random.default_rng(1).integers(3, model.config.vocab, PROMPT).tolist()

    def decode(one) -> tuple[float, float]:
        """Seconds to the first token, and of a token after it."""
        one._free.clear()
        start, times = time.perf_counter(), []
        for _ in one.generate(prompt, max_tokens=TOKENS + 1, sampling=greedy, steps_per_launch=STEPS):
            times.append(time.perf_counter())
        return times[0] - start, (times[-1] - times[0]) / (len(times) - 1)

    compiled = {}
    for name, one in made.items():
        start = time.perf_counter()
        decode(one)
        compiled[name] = time.perf_counter() - start
    turns = [{name: decode(one) for name, one in made.items()} for _ in range(args.turns)]
    batches = {}
    for batch in args.batches:
        prompts = [prompt[:8]] * batch
        generate = model.generate_batch
        generate(prompts, max_tokens=TOKENS + 1, sampling=greedy, steps_per_launch=STEPS)
        times = []
        for _ in range(3):
            seconds = []
            for tokens in (1, TOKENS + 1):
                start = time.perf_counter()
                generate(prompts, max_tokens=tokens, sampling=greedy, steps_per_launch=STEPS)
                seconds.append(time.perf_counter() - start)
            times.append((seconds[1] - seconds[0]) / TOKENS)
        batches[batch] = batch / statistics.median(times)
    process.tell_result({
        "jax_s": started - began, "load_s": loaded - started, "compile_s": compiled, "bandwidth": bandwidth(), "bytes": bytes_per_token(model),
        "first": {name: statistics.median(turn[name][0] for turn in turns) for name in made},
        "token": {name: statistics.quantiles([turn[name][1] for turn in turns], n=4) for name in made},
        "batches": batches, "kind": jax.devices()[0].device_kind, "jax": jax.__version__,
    })  # fmt: skip


def beside(args) -> list[str]:
    """Rows of other engines: how long a prompt takes, and tokens per second. What is `–` they do not tell."""
    rows = []
    if (found := gpu_peers.llama_bench(args.llama, args.model, PROMPT, TOKENS, args.turns)) is not None:
        low, middle, high = statistics.quantiles(found["rates"], n=4) if len(found["rates"]) > 1 else found["rates"] * 3
        rows.append(f"| llama.cpp | – | {found['first'] * 1e3:.1f} | {middle:.1f} ({low:.1f}–{high:.1f}) | – | – | – | – |")
    if (found := gpu_peers.vllm(args.vllm or args.model, 1, PROMPT, TOKENS + 1, args.turns)) is not None:
        rows.append(f"| vLLM | – | {found['first'] * 1e3:.1f} | {1 / found['token']:.1f} | – | – | – | – |")
    return rows


def add_arguments(parser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--weights", nargs="+", default=["bf16"], help="ways to compute with weights (default: bf16)")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", nargs="*", type=int, default=[8, 32], help="sequences at a time (default: 8 32)")
    parser.add_argument("--variants", action="store_true", help="other ways to sum beside ours")
    parser.add_argument("--steps-apart", action="store_true", help="a CUDA graph for each step instead of one for a launch")
    parser.add_argument("--llama", type=Path, metavar="FOLDER", help="of llama.cpp's binaries that were built for CUDA")
    parser.add_argument("--vllm", type=Path, metavar="MODEL", help="what vLLM loads (default: the file)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)


def run(args) -> None:
    if args.measure:
        args.weights = args.weights[0]
        return measure(args)
    failed = 0
    print("| weights | load s | first token of 512, ms | tokens/s | GB/s | of a copy's | tokens/s of batches | fused, psum, nothing t/s |")
    print("|---|---|---|---|---|---|---|---|")
    for weights in args.weights:
        env = dict(os.environ)
        if args.steps_apart:
            env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {APART}".strip()
        command = [sys.executable, "-m", "evidence", "bench", "gpu-models", "--measure", "--model", args.model, "--weights", weights,
                   "--turns", args.turns, "--batches", *args.batches, *(["--variants"] if args.variants else [])]
        done = subprocess.run([*map(str, command)], cwd=common.ROOT, env=env, text=True, capture_output=True)
        found = process.results(done.stdout)
        if not found:
            print(f"{weights}: failed\n" + "\n".join(done.stderr.splitlines()[-12:]), flush=True)
            failed += 1
            continue
        r = found[0]
        low, middle, high = r["token"].pop("ours")
        others = ", ".join(f"{1 / times[1]:.1f}" for times in r["token"].values())
        batches = ", ".join(f"{count}: {speed:.0f}" for count, speed in r["batches"].items())
        rate = r["bytes"] / middle
        print(f"| {weights}{', steps apart' if args.steps_apart else ''} | {r['load_s']:.1f} | {r['first']['ours'] * 1e3:.1f} | {1 / middle:.1f} ({1 / high:.1f}–{1 / low:.1f}) | "
              f"{rate / 1e9:.0f} | {rate / r['bandwidth']:.0%} | {batches} | {others} |", flush=True)  # fmt: skip
        compiling = ", ".join(f"{name} {seconds:.1f}" for name, seconds in r["compile_s"].items())
        print(f"{r['kind']}, jax {r['jax']}, a copy moves {r['bandwidth'] / 1e9:.0f} GB/s; compiled in {compiling} s", flush=True)
    for row in beside(args):
        print(row, flush=True)
    sys.exit(failed)
