"""One of several processes of `test_processes.py`: CASE, its number, how many there are, the coordinator's port, and a folder."""

import ctypes
import functools
import logging
import os
import secrets
import signal
import sys
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import alight.jax
from alight import _alight
from alight.jax import _arenas, _connect, _cuda
from collective_oracle import EPSILON, inputs, oracle, ulps

DEVICES = 2
"""Of each process."""


class Messages(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def whole(x, mesh, spec=P()):
    """An array over all processes, of what each of them has in full."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: np.asarray(x)[index])


def mine(array):
    """The parts of this process, by the place of their device."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start)
    return {shard.index[0].start: np.asarray(shard.data)[0] for shard in shards}


def layers(mesh, count, **options):
    """A program of `count` layers, one partial each: `[count, devices, rows, hidden]`."""
    everything = P(mesh.axis_names)

    def run(partials, residual, weight, *post):
        def layer(residual, partial):
            post_weight = post[0] if post else None
            normed, new = alight.jax.allreduce_norm(
                partial[0], residual, weight, mesh=mesh, epsilon=EPSILON, post_weight=post_weight, **options
            )
            return new, normed

        new, normed = lax.scan(layer, residual, partials)
        return normed[-1][None], new[None]

    def wrapped(partials, residual, weight, *post):
        specs = (P(None, mesh.axis_names), P(), P()) + (P(),) * len(post)
        return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=(everything,) * 2, check_vma=False)(
            partials, residual, weight, *post
        )

    return jax.jit(wrapped)


def check(mesh, dtype, rows, hidden, post, count=8, **options):
    """Beside the oracle, on this process's devices. Returns the program and its arguments."""
    at = mesh.axis_names.index("tp")
    ranks = mesh.devices.shape[at]
    devices = mesh.devices.size
    partials = np.stack([inputs(devices, (rows, hidden), dtype, dtype, seed)[0] for seed in range(count)])
    _, residual, weight, post_weight = inputs(devices, (rows, hidden), dtype, dtype, 99)
    last = (post_weight,) if post else ()
    step = layers(mesh, count, **options)
    spec = P(None, mesh.axis_names)
    arguments = (whole(partials, mesh, spec), whole(residual, mesh), whole(weight, mesh), *(whole(x, mesh) for x in last))
    # The limit is for calls, and not for compilers: processes meet before the first.
    lowered = step.lower(*arguments)
    step = lowered.compile()
    _connect._gather(np.zeros(1))
    normed, new = (mine(x) for x in step(*arguments))
    places = np.moveaxis(np.arange(devices).reshape(mesh.devices.shape), at, -1).reshape(-1, ranks)
    for group in places:
        want = residual
        for layer in range(count):
            normed_want, want = oracle(partials[layer][group], want, weight, *last, bias=options["bias"])
        for place in set(group) & set(normed):
            assert post or new[place].tobytes() == want.tobytes(), (mesh, dtype)
            assert ulps(normed[place], normed_want) <= 1 or post, (mesh, dtype)
            # After some layers a post-norm's last bits have gone their own ways.
            near = dict(rtol=0.05, atol=0.05)
            np.testing.assert_allclose(normed[place].astype(np.float64), normed_want.astype(np.float64), **near)
            first = min(set(group) & set(normed))
            assert normed[place].tobytes() == normed[first].tobytes()
    return step, arguments, "alight_allreduce_norm" in lowered.as_text()


def meshes():
    devices = np.array(jax.devices())
    yield Mesh(devices, ("tp",))
    across = devices.reshape(-1, DEVICES)  # [processes, DEVICES]
    yield Mesh(across, ("tp", "dp"))
    yield Mesh(across, ("dp", "tp"))


def works(folder):
    assert alight.jax.connect(Mesh(np.array(jax.devices()), ("tp",)))
    assert alight.jax.connect()
    for mesh in meshes():
        for dtype in (ml_dtypes.bfloat16, np.float32):
            for rows, post in ((1, False), (9, True)):
                *_, handler = check(mesh, np.dtype(dtype), rows, 1024, post, bias=1)
                assert handler
    # One after the other, some in flight.
    step, arguments, _ = check(next(meshes()), np.dtype(np.float16), 2, 100, False, bias=0)
    want = {k: v.tobytes() for k, v in mine(step(*arguments)[1]).items()}
    for _ in range(100):
        results = [step(*arguments)[1] for _ in range(6)]
        assert all({k: v.tobytes() for k, v in mine(x).items()} == want for x in results)
    with open("/proc/self/maps") as maps:
        assert any("/dev/shm/alight-" in line and "(deleted)" in line for line in maps)


def killed(folder):
    assert alight.jax.connect()
    mesh = next(meshes())
    step, arguments, _ = check(mesh, np.dtype(np.float32), 2, 64, False, bias=0, limit=3.0)
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    for turn in range(2):
        try:
            jax.block_until_ready(step(*arguments))
        except jax.errors.JaxRuntimeError as error:
            # The devices of this process are ranks 0 and 1.
            assert "these ranks did not come: [2, 3]" in str(error), error
        else:
            raise AssertionError("a process is gone, and nobody says so")
    assert time.monotonic() - start < 20
    # JAX's own end would wait for the process that is gone.
    print("done", flush=True)
    os._exit(0)


def alone(folder, reason):
    """Without memory that is shared it is psum and a norm, and it says why, once."""
    messages = Messages()
    logging.getLogger("alight.jax").addHandler(messages)
    if reason == "hosts":
        _connect._host = lambda: secrets.token_bytes(16)
    if reason == "refused" and jax.process_index() == 1:

        def refuse(*args):
            raise OSError("refused by the test")

        _alight.share_memory = refuse
    if reason != "unconnected":
        assert not alight.jax.connect()
    for mesh in meshes():
        for dtype in (ml_dtypes.bfloat16, np.float32):
            # Sums of gloo have another order, so one layer and no bits.
            partials, residual, weight, _ = inputs(mesh.devices.size, (2, 64), dtype, dtype)
            step = layers(mesh, 1, bias=1)
            spec = P(None, mesh.axis_names)
            arguments = whole(partials[None], mesh, spec), whole(residual, mesh), whole(weight, mesh)
            here = mesh.axis_names[-1] == "tp" and len(mesh.axis_names) == 2
            assert ("alight_allreduce_norm" in step.lower(*arguments).as_text()) == here
            if mesh.axis_names == ("tp",):
                want = oracle(partials, residual, weight, bias=1)[1].astype(np.float64)
                step_size = 4 * float(jnp.finfo(dtype).eps)
                for found in mine(step(*arguments)[1]).values():
                    np.testing.assert_allclose(found.astype(np.float64), want, rtol=step_size, atol=step_size)
    words = {"unconnected": "call alight.jax.connect()", "hosts": "each on a host of its own", "refused": "share no memory"}
    texts = [text for text in messages.texts if "is lax.psum" in text]
    assert len(texts) == 1 and words[reason] in texts[0], messages.texts


class Gpu:
    """One of two of this process, as far as it is looked at; the emulated driver has it."""

    platform = "gpu"

    def __init__(self, number):
        self.local_hardware_id, self.process_index = number, jax.process_index()
        self.id = 2 * self.process_index + number
        self.client = type("Client", (), {"platform_version": "cuda 13000"})()


def gpus(folder, how):
    """Memory of GPUs that processes open from each other, and the trial among them: by the emulated driver, with its own processes."""
    messages = Messages()
    logging.getLogger("alight.jax").addHandler(messages)
    _arenas.BYTES = 4 << 20
    _cuda.PROBE = 2.0 if how == "lost" else 100.0
    if how == "refused" and jax.process_index() == 1 or how == "lost":
        os.environ["ALIGHT_EMULATED_PEERS"] = "no" if how == "refused" else "lost"
        # Among the GPUs of one process it works.
        _cuda.probe = lambda ordinals: None
    if how in ("hosts", "fabric"):
        _connect._host = lambda: secrets.token_bytes(16)
    if how == "fabric":
        os.environ["ALIGHT_EMULATED_FABRIC"] = "yes"
    mine = [Gpu(0), Gpu(1)]
    seen = types.SimpleNamespace(process_count=jax.process_count, process_index=jax.process_index, local_devices=lambda: mine)
    _connect.jax = _arenas.jax = seen
    works = how in ("works", "fabric")
    assert alight.jax.connect() == works == alight.jax.connect()
    assert (_connect.gpus_across([0, 1]) is None) == works, _connect.gpus_across([0, 1])
    assert works == (not messages.texts), messages.texts
    said = {"refused": ("has no access", "another process"), "hosts": ("host of its own",), "lost": ("waited", "wrong results", "given up")}
    assert works or any(words in messages.texts[0] for words in said[how]), messages.texts
    pieces = ctypes.CDLL(os.environ["ALIGHT_LIBCUDA"]).alight_shared_pieces()
    # The own arenas and those of the other, as each GPU has opened them, or mapped once with its allocation; or nothing.
    assert pieces == {"works": 2 + 4, "fabric": 2 + 2}.get(how, 0), pieces


def cached(folder):
    """A compiled program that another run has left works, although everything that is shared is another."""
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
    assert alight.jax.connect()
    mesh = next(meshes())
    for hidden in (64, 96, 64):
        check(mesh, np.dtype(np.float32), 2, hidden, False, bias=0, limit=20.0)
    print("hits", len(hits), flush=True)


def main():
    case, number, count, port, folder = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(number))
    name, *rest = case.split(":")
    {"works": works, "killed": killed, "alone": alone, "cached": cached, "gpus": gpus}[name](Path(folder), *rest)
    print("done", flush=True)


if __name__ == "__main__":
    main()
