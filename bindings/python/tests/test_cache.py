"""Compiled programs kept for the next process: what is found, what is not, and what is wrong with an entry."""

import logging
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alight.jax
from alight.jax import _cache
from conftest import in_process
from test_model import write_model


@pytest.fixture
def folder(tmp_path):
    alight.jax.use_cache(tmp_path / "cache")
    yield tmp_path / "cache"
    _cache._store = None


def entries(folder):
    return sorted(folder.glob("*.program"))


class Traced:
    """A function that counts how often it is traced."""

    def __init__(self, factor=2):
        self.count, self.factor = 0, factor

    def __call__(self, x):
        self.count += 1
        return {"y": x * self.factor, "sum": jnp.sum(x)}


def called(made_from, function, x):
    found = _cache.kept(jax.jit(function), jax.devices()[:1], made_from)(x)
    return np.asarray(found["y"]).tolist(), float(found["sum"])


def test_a_program_is_neither_traced_nor_compiled_again(folder):
    x = np.arange(3.0, dtype=np.float32)
    first, again, other, shape = Traced(), Traced(), Traced(3), Traced()
    assert called("double", first, x) == called("double", again, x) == ([0, 2, 4], 3)
    assert (first.count, again.count) == (1, 0)
    # Made from something else, or for other arguments: another program.
    assert called("treble", other, x) == ([0, 3, 6], 3) and other.count == 1
    assert called("double", shape, np.ones(4, np.float32)) == ([2, 2, 2, 2], 4) and shape.count == 1
    assert len(entries(folder)) == 3
    # Another setting of JAX's may be another program.
    with_other = Traced()
    _cache._surroundings = None
    before = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", "float32")
    try:
        called("double", with_other, x)
    finally:
        jax.config.update("jax_default_matmul_precision", before)
        _cache._surroundings = None
    assert with_other.count == 1


def test_a_broken_entry_is_compiled_anew(folder):
    x = np.arange(3.0, dtype=np.float32)
    called("double", Traced(), x)
    [entry] = entries(folder)
    whole = entry.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    # Whole by its checksum, and yet no program.
    import hashlib

    nonsense = _cache.MAGIC + hashlib.sha256(b"no pickle").digest() + b"no pickle"
    for broken in (b"", whole[:10], whole[:-1], whole[:middle], flipped, b"x" + whole[1:], nonsense):
        entry.write_bytes(broken)
        again = Traced()
        assert called("double", again, x) == ([0, 2, 4], 3) and again.count == 1
        healed = Traced()
        assert called("double", healed, x) == ([0, 2, 4], 3) and healed.count == 0


def test_the_folder_stays_small(tmp_path):
    x = np.arange(3.0, dtype=np.float32)
    folder = tmp_path / "cache"
    try:
        alight.jax.use_cache(folder)
        called("0", Traced(), x)
        size = entries(folder)[0].stat().st_size
        (folder / "somebody's").write_bytes(bytes(10 * size))
        alight.jax.use_cache(folder, largest=int(2.5 * size))
        oldest = entries(folder)[0]
        os.utime(oldest, (1, 1))
        called("1", Traced(), x)
        # What is used is not the oldest any more.
        called("0", Traced(), x)
        time.sleep(0.02)
        called("2", Traced(), x)
        kept = Traced()
        called("0", kept, x)
        assert kept.count == 0 and len(entries(folder)) == 2 and (folder / "somebody's").exists()
        alight.jax.use_cache(folder, largest=10)
        called("3", Traced(), x)
        assert len(entries(folder)) == 2
    finally:
        _cache._store = None


def test_a_folder_of_others_is_not_used(tmp_path, caplog):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    x = np.arange(3.0, dtype=np.float32)
    try:
        with caplog.at_level(logging.WARNING, "alight.jax"):
            alight.jax.use_cache(folder)
        assert "others may write" in caplog.text
        assert called("double", Traced(), x) == ([0, 2, 4], 3) and not entries(folder)
        (tmp_path / "file").write_text("")
        alight.jax.use_cache(tmp_path / "file")
        assert called("double", Traced(), x) == ([0, 2, 4], 3)
        # A disk that is full, or gone.
        alight.jax.use_cache(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        assert called("double", Traced(), x) == ([0, 2, 4], 3)
    finally:
        _cache._store = None


GENERATE = """
import sys, jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
import alight.jax
from alight.jax.models import Sampling, load_model
alight.jax.use_cache(sys.argv[2])
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **more: compiled.append(name) if "backend_compile" in name else None
)
model = load_model(sys.argv[1], tp=int(sys.argv[3]), weights="f32")
compiled.clear()
tokens = list(model.generate([1, 70, 80], max_tokens=12, sampling=Sampling.greedy(), steps_per_launch=4))
print(tokens, len(compiled))
"""


def test_another_process_compiles_nothing(tmp_path):
    path = write_model(tmp_path / "tiny.gguf")
    cold, warm = (in_process(GENERATE, path, tmp_path / "cache", 2).rpartition(" ") for _ in range(2))
    assert cold[0] == warm[0] and (int(cold[2]) > 0, int(warm[2])) == (True, 0)
    # Another model, another number of devices: other programs, the right ones.
    other = write_model(tmp_path / "other.gguf", rope__freq_base=500.0)
    assert int(in_process(GENERATE, other, tmp_path / "cache", 2).rpartition(" ")[2]) > 0
    one = in_process(GENERATE, path, tmp_path / "cache", 1).rpartition(" ")
    assert one[0] == cold[0] and int(one[2]) > 0
