"""Decoding a whole model in JAX: tokens per second, the share of the collective, and other engines beside it.

Its Python is one that has the package with jax, built with optimisation (`make python` makes the wheel; bindings/python/.venv
after `make test-python` has a slower one). For each number of devices, one process; in it all variants in turn, so that
what disturbs one disturbs all:

  fused     the collective of models: `allreduce_norm` in one custom call
  psum      `lax.psum`, post-norm, residual and norm of XLA's own operations
  nothing   what the ranks have of the sums goes on to the next matrices: wrong, and what the rest of the model takes
  ppermute  (--more) `nothing`, but with the barrier that a smallest collective is: an exchange of one number

and, between turns, the native engine (`alight run`) with as many threads as the machine has cores. The share of a collective
is what its variant takes more than `nothing`. Medians, least to most. Weights lie in the map unless --weights says otherwise.
These are figures of a CPU, whose devices share its cores.

    python -m evidence bench jax-decode --gpus --shape gemma-2-27b --tp 8

is the same on GPUs, with random weights of a real shape: with CUDA graphs and without; psum also in the graph, as the fused collective is (XLA leaves its own
collectives out of graphs unless it is told), by XLA's one-shot kernel and with NCCL's symmetric buffers, each in a process of its own, since XLA reads its flags once; and vLLM, if it is installed, with weights of the same shape that it makes
itself. A second table has FlashInfer's fused collective of the same shape by itself, if --flashinfer has it, beside what ours and psum add to a step. A model takes its bytes on the GPUs twice while a variant is made. --shape small is for a look at whether all this runs, on CPU devices too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from evidence.lib import common, flashinfer_peer, gpu_peers, peers, process, sparse

PROMPT = "The history of the lighthouse begins with a storm that nobody in the village had expected, and"


SHAPES = {
    "gemma-2-27b": sparse.GEMMA_2_27B,
    "small": replace(sparse.GEMMA_2_27B, name="small shape", layers=2, embd=64, ff=128, heads=4, kv_heads=2, head_dim=16, vocab=300, context=256, window=32),
}
OFF = "--xla_gpu_enable_command_buffer="
COLLECTIVES_TOO = (
    "--xla_gpu_enable_command_buffer=CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,FUSION,WHILE,COLLECTIVES --xla_gpu_graph_min_graph_size=1"
)
"""What models ask of XLA (`GRAPHS` in `alight/jax/models/_programs.py`), and collectives: `check aot-gpu` shows that all of a launch are one graph then."""
SETTINGS = {
    "graphs": ("", None),
    "no graphs": (OFF, None),
    "psum in graphs": (COLLECTIVES_TOO, ["psum", "nothing"]),
    "XLA's one-shot kernel": ("--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=true", ["psum", "nothing"]),
    "NCCL's symmetric buffers": ("--xla_gpu_experimental_enable_nccl_symmetric_buffers=true", ["psum", "nothing"]),
}
"""On GPUs: XLA's flags, and the variants that they matter to; `nothing` is what shares are told by."""


def variants(more: bool) -> dict:
    """Collectives, as `alight.jax.models` calls them."""
    import jax
    from alight.jax import _collective
    from alight.jax.models import _load
    from jax import lax

    fused = _load.collective

    def psum(config, mesh, limit):
        def call(partial, residual, weight, *, post_weight=None):
            return _collective.of_xla(partial, residual, weight, post_weight, "tp", config.rms_eps, 0)

        return call

    def nothing(config, mesh, limit):
        # Bounded, since without norms numbers would grow beyond all bounds.
        return lambda partial, residual, weight, *, post_weight=None: (partial.clip(-1, 1), residual)

    def ppermute(config, mesh, limit):
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

    if not job["gpus"]:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", job["tp"])
    import alight
    from alight.jax.models import Sampling, _load, load_model

    prompt = list(range(3, 3 + job["prompt"])) if job["shape"] else alight.Tokenizer(job["path"]).prompt(PROMPT)
    models = {}
    for name, make in variants(job["more"]).items():
        if job["only"] is not None and name not in job["only"]:
            continue
        _load.collective = make
        models[name] = load_model(job["path"], tp=job["tp"], weights=job["weights"], context=len(prompt) + job["tokens"])
        first = next(iter(models.values()))
        if models[name] is not first:
            # The weights are the same.
            models[name]._params = first._params
        elif job["shape"]:
            first._params = randomised(first._params)

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


def randomised(params):
    """Random numbers in the place of a hole's zeros, which a GPU multiplies with less power; each on its devices, as large as weights are."""
    import jax
    import jax.numpy as jnp

    def one(number: int, x):
        if not jnp.issubdtype(x.dtype, jnp.floating) or x.ndim < 2:
            return x
        scale = x.shape[-1] ** -0.5
        make = jax.jit(lambda: (jax.random.normal(jax.random.key(number), x.shape) * scale).astype(x.dtype), out_shardings=x.sharding)
        return make()

    # A matrix at a time; norms and angles stay what they are.
    found = dict(params)
    for kind in ("weights", "matrices"):
        leaves, tree = jax.tree.flatten(params[kind])
        found[kind] = jax.tree.unflatten(tree, [one(number, x) for number, x in enumerate(leaves)])
    return found


def vllm(args, shape, tp: int) -> dict | None:
    """vLLM with weights of its own making."""
    config = {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": shape.embd, "intermediate_size": shape.ff,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab, "max_position_embeddings": shape.context, "sliding_window": shape.window, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": shape.attn_cap, "final_logit_softcapping": shape.logit_cap,
        "query_pre_attn_scalar": shape.head_dim, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        return gpu_peers.vllm(folder, tp, args.prompt, args.tokens, args.turns, "--load-format", "dummy")


def collectives(args, name: str, shape, tp: int, results: list[dict]) -> list[list[str]]:
    """Microseconds of a collective: what each adds to a step of one row, by its calls; and FlashInfer's by itself, which goes to `results`, too."""
    rows, calls = [], 2 * shape.layers
    for one in (one for one in results if one["tp"] == tp and one["model"] == name and "nothing" in one["turns"][0]):
        for who in ("fused", "psum"):
            added = [1e6 * (turn[who]["token"] - turn["nothing"]["token"]) / calls for turn in one["turns"] if who in turn]
            if added:
                rows.append([name, f"{who}, {tp} GPUs, {one['setting']}", "1", common.spread(common.summary(added))])
    alone = flashinfer_peer.measured(args.flashinfer, tp, [1, 8], shape.embd, args.turns)
    for count, seconds in (alone or {}).items():
        rows.append([name, f"FlashInfer by itself, {tp} GPUs", str(count), common.spread(common.summary([1e6 * one for one in seconds]))])
        results.append({"model": name, "tp": tp, "setting": "flashinfer", "rows": count, "turns": [{"flashinfer": {"call": one}} for one in seconds]})
    return rows


def engine(args, path: Path) -> dict:
    """The native engine, a process of its own."""
    said = process.told(peers.alight_run(args, path, PROMPT, "--ignore-eos", "--json", tokens=args.tokens, context=1024))
    return {"first": said["timings"]["prompt_ms"] / 1e3, "token": statistics.mean(said["timings"]["token_ms"]) / 1e3}


def measure(args, name: str, path: Path, tp: int, setting: str) -> list[dict]:
    flags, only = SETTINGS[setting] if args.gpus else ("", None)
    job = {"path": str(path), "tp": tp, "weights": args.weights, "tokens": args.tokens, "steps": args.steps, "more": args.more}
    job |= {"gpus": args.gpus, "shape": args.shape is not None, "only": only, "prompt": args.prompt}
    env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    worker = subprocess.Popen(
        [sys.executable, "-m", "evidence", "bench", "jax-decode", "--child", json.dumps(job)], cwd=common.ROOT, env=env, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if worker.stdout.readline().strip() != "ready":
        worker.wait()
        # A flag that this XLA does not know.
        assert flags, f"{name}, {tp} devices: failed"
        common.say(f"{setting}: left out, XLA does not start with {flags}")
        return []
    turns = []
    for _ in range(args.turns):
        worker.stdin.write("\n")
        worker.stdin.flush()
        others = {} if args.no_engine or args.shape or args.gpus else {"engine": engine(args, path)}
        turns.append(json.loads(worker.stdout.readline()) | others)
    worker.stdin.close()
    worker.wait()
    return turns


def report(args, name: str, tp: int, setting: str, turns: list[dict]) -> tuple[list[list[str]], dict]:
    rows, out = [], {"model": name, "tp": tp, "steps": args.steps, "setting": setting, "turns": turns}
    rest = statistics.median(turn["nothing"]["token"] for turn in turns) if "nothing" in turns[0] else None
    kind = "GPU" if args.gpus else "device"
    for who in turns[0]:
        token = common.summary([1e3 * turn[who]["token"] for turn in turns])
        first = common.summary([1e3 * turn[who]["first"] for turn in turns])
        share = "" if who in ("nothing", "engine") or rest is None else f"{100 * (1 - 1e3 * rest / token['median']):.0f} %"
        label = f"native engine, {args.threads} threads" if who == "engine" else f"{who}, {tp} {kind}{'s' if tp > 1 else ''}"
        label += f", {setting}" if args.gpus else ""
        rows.append([name, label, common.spread(token, 2), f"{1e3 / token['median']:.1f}", share, common.spread(first, 0)])
    return rows, out


def chosen(args, folder: Path):
    """Names, files, and shapes if they are shapes."""
    if args.shape is None:
        for name in args.model:
            path = common.model_path(name, args.models)
            common.warm(path)
            yield name, path, None
        return
    shape = SHAPES[args.shape]
    shape = replace(shape, layers=args.layers or shape.layers)
    yield f"{shape.name}, {shape.layers} layers", sparse.write(shape, folder / "model.gguf", "F32" if args.weights == "f32" else "BF16"), shape


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", default=["smollm2", "gemma3"])
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of a real shape instead of models")
    parser.add_argument("--layers", type=int, help="of the shape, fewer than it has")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt, with --shape")
    parser.add_argument("--gpus", action="store_true", help="on CUDA's GPUs, with and without graphs")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), help="on GPUs: only these")
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--steps", type=int, default=8, help="steps per launch")
    parser.add_argument("--weights", choices=["native", "bf16", "f32"], default="native")
    parser.add_argument("--more", action="store_true", help="also the smallest collective there is")
    parser.add_argument("--no-engine", action="store_true", help="without the native engine")
    parser.add_argument("--flashinfer", type=Path, metavar="PYTHON", default=Path(sys.executable), help="a Python that has FlashInfer (default: this one)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    common.add_arguments(parser, threads=os.cpu_count() or 1)


def run(args) -> None:
    if args.child:
        return child(json.loads(args.child))
    if args.shape and args.weights == "native":
        args.weights = "bf16" if args.gpus else "f32"
    rows = [["model", "what", "ms per token", "tokens/s", "share of the collective", "ms to the first token"]]
    results, calls = [], [["model", "collective", "rows", "µs per call"]]
    with tempfile.TemporaryDirectory() as folder:
        for name, path, shape in chosen(args, Path(folder)):
            for tp in args.tp:
                for setting in args.settings if args.gpus else ["graphs"]:
                    if turns := measure(args, name, path, tp, setting):
                        more, out = report(args, name, tp, setting, turns)
                        rows += more
                        results.append(out)
                if shape is not None and args.gpus and (told := vllm(args, shape, tp)) is not None:
                    results.append({"model": name, "tp": tp, "setting": "vllm", "turns": [{"vllm": told}]})
                    rows.append([name, f"vLLM, {tp} GPUs", f"{1e3 * told['token']:.2f}", f"{1 / told['token']:.1f}", "", f"{1e3 * told['first']:.0f}"])
                if shape is not None and args.gpus and tp > 1:
                    calls += collectives(args, name, shape, tp, results)
    if common.as_json(args, results):
        return
    common.machine()
    common.table(rows)
    if len(calls) > 1:
        print()
        common.table(calls)
