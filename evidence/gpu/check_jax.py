"""The custom call in JAX on the GPUs that are here: it is used, its results are those of the same roundings by XLA, it lives in
CUDA graphs, and where the trial fails the program is `lax.psum` and says so. `make test-gpu` runs it.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from evidence.gpu import layers
from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

jax = lazily("jax")
jnp = lazily("jax.numpy")
np = lazily("numpy")
_alight = lazily("alight._alight")
alight_jax = lazily("alight.jax")
_collective = lazily("alight.jax._collective")
_cuda = lazily("alight.jax._cuda")

LAYERS, RUNS = 8, 1000


def say(text: str) -> None:
    print(text, flush=True)


def ordinal(x) -> np.ndarray:
    """The place of every number among all of its type: neighbours differ by one."""
    x = np.asarray(x)
    kind = {2: np.int16, 4: np.int32}[x.dtype.itemsize]
    bits = x.view(kind).astype(np.int64)
    return np.where(bits < 0, np.iinfo(kind).min - bits, bits)


def trial() -> None:
    ordinals = tuple(_cuda.number(device) for device in jax.devices())
    problem = _cuda.probe(ordinals)
    assert problem is None, problem
    say(f"the trial passes among {ordinals}")


def expected(partials, residual, weight, post_weight):
    """(norm, new residual) of the collective's table in NumPy: sums in float32 in the order of the ranks, means and roots in float64. XLA's
    own float16 is no measure: it takes sums that are subnormal for zeros."""
    dtype = np.asarray(residual).dtype

    def round_to(x):
        return x.astype(np.float32).astype(dtype)

    def norm(x, w):
        wide = x.astype(np.float64)
        scale = (1 / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + layers.EPSILON)).astype(np.float32)
        return round_to(x.astype(np.float32) * scale * (np.float32(1) + w.astype(np.float32)))

    total = np.asarray(partials[0]).astype(np.float32)
    for partial in partials[1:]:
        total = total + np.asarray(partial).astype(np.float32)
    total = round_to(total)
    if post_weight is not None:
        total = norm(total, np.asarray(post_weight))
    new = round_to(np.asarray(residual).astype(np.float32) + total.astype(np.float32))
    return norm(new, np.asarray(weight)), new


def agreement() -> None:
    over = layers.mesh()
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        for rows, hidden, post in ((1, 4608, False), (8, 4608, True), (32, 4608, False), (3, 100, True), (5, 4609, False)):
            given = layers.arguments(over, 1, rows, hidden, dtype, post, seed=rows)
            program = layers.program(layers.fused, over, 1)
            # The one before goes here, and what is told of it.
            compiled = program.lower(*given).compile()
            before = sum(account[0] for account in _alight.cuda_accounts())
            assert "alight_allreduce_norm" in compiled.as_text(), "the program has no custom call"
            found = compiled(*given)
            jax.block_until_ready(found)
            assert sum(account[0] for account in _alight.cuda_accounts()) > before, "no kernel was launched"
            partials, residual, weights, post_weights = given
            norm, new = expected(partials, residual, weights[0], post_weights[0] if post else None)
            # What a layer adds is the norm before it, scaled by XLA: of what is subnormal then, nothing is known.
            norm = norm * np.asarray(0.125, norm.dtype)
            normal = np.abs(norm.astype(np.float32)) >= float(jnp.finfo(dtype).tiny)
            off = [int(np.abs(ordinal(a) - ordinal(b)).max(where=told, initial=0)) for a, b, told in zip(found, (norm, new), (normal, True), strict=True)]
            say(f"{np.dtype(dtype).name:9} [{rows}, {hidden}]{' post-norm' if post else ''}: {off[1]} ulp (new residual), {off[0]} (norm)")
            # A square root that lies on a tie of float32 may fall either way.
            assert max(off) <= 1 and (post or off[1] == 0), "further off than roundings explain"
            again = compiled(*given)
            assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(found, again)), "other bits the second time"
            for array in found:
                parts = [np.asarray(shard.data).tobytes() for shard in array.addressable_shards]
                assert all(part == parts[0] for part in parts), "other bits on another GPU"
    alight_jax.check_collectives()


def graph() -> None:
    """The counters of the GPU's own grow with every run; those of the host stop: the rest are replays."""
    over = layers.mesh()
    ranks = over.devices.size
    given = layers.arguments(over, LAYERS, 8, 4608, jnp.bfloat16, True)
    program = layers.program(layers.fused, over, LAYERS).lower(*given).compile()

    def counts() -> tuple[int, int, int]:
        launched, captured, ended = zip(*_alight.cuda_accounts())
        return sum(launched), sum(captured), sum(ended)

    first = jax.block_until_ready(program(*given))
    for _ in range(20):
        jax.block_until_ready(program(*given))
    launched, captured, ended = counts()
    say(f"after 21 runs of {LAYERS} calls: {launched} launches by the host, {captured} captured, {ended} calls ended on GPU 0")
    for _ in range(RUNS):
        last = program(*given)
        jax.block_until_ready(last)
    later = counts()
    say(f"after {RUNS} more: {later[0]} launches, {later[1]} captured, {later[2]} ended")
    assert later[2] - ended == RUNS * LAYERS, "calls are missing"
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(first, last)), "other bits after many replays"
    by_host = (later[0] - launched) / ranks
    assert captured > 0, "nothing was captured into a graph"
    assert by_host < RUNS * LAYERS / 100, f"{by_host} of {RUNS * LAYERS} calls were launched by the host: not a graph"
    alight_jax.check_collectives()
    say(f"{RUNS * LAYERS - by_host:.0f} of {RUNS * LAYERS} calls were replays of CUDA graphs")


def graph_in_process() -> None:
    """With XLA's own flags first; then asked to put custom calls into graphs. Says which it took, and what XLA dumped."""
    default = os.environ["XLA_FLAGS"]
    asked = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
    for flags in ("", asked):
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, XLA_FLAGS=f"{default} {flags} --xla_dump_to={folder}")
            run = subprocess.run([sys.executable, "-m", "evidence", "check", "gpu-jax", "--graph"], cwd=ROOT, env=env, text=True, capture_output=True, timeout=200)
            thunks = [line for path in Path(folder).glob("*thunk_sequence*") for line in path.read_text().splitlines()
                      if re.search(r"CommandBuffer|alight_allreduce_norm|ustomCall", line)]
        say(f"XLA's flags: {flags or 'its defaults'}")
        say("\n".join(thunks[:12]))
        say(run.stdout.rstrip())
        if run.returncode == 0:
            return
        say("\n".join(run.stderr.splitlines()[-3:]))
    sys.exit("the custom call is not replayed as part of a CUDA graph")


def fallback() -> None:
    """Where the trial fails: XLA's own operations, and the reason once."""
    told: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    listener = Listener()
    logging.getLogger("alight.jax").addHandler(listener)
    right, _cuda.probe = _cuda.probe, lambda ordinals: "as a test"
    try:
        over = layers.mesh()
        given = layers.arguments(over, 2, 4, 512, jnp.bfloat16, False)
        text = layers.program(layers.fused, over, 2).lower(*given).compile().as_text()
    finally:
        _cuda.probe = right
        logging.getLogger("alight.jax").removeHandler(listener)
        _collective._told.clear()
    assert "alight_allreduce_norm" not in text
    assert len(told) == 1 and "as a test" in told[0], told
    say(f"without the handler: {told[0]}")


def add_arguments(parser) -> None:
    parser.add_argument("--graph", action="store_true", help="only whether the call is replayed as part of CUDA graphs")


def run(args) -> None:
    # Rounding where the program says so, in what is compared with.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_allow_excess_precision=false".strip()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    gpus = [device for device in jax.devices() if device.platform == "gpu"]
    if not gpus:
        sys.exit(f"JAX sees no GPU: {jax.devices()}")
    say(f"jax {jax.__version__}, {len(gpus)} × {gpus[0].device_kind}, {gpus[0].client.platform_version.splitlines()[0]}")
    if args.graph:
        return graph()
    trial()
    agreement()
    fallback()
    graph_in_process()
    say("4 passed, 0 failed")
