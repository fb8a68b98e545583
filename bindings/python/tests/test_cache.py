"""Compiled programs kept for the next process: what is found, what is not, and what is wrong with an entry."""

import hashlib
import logging
import os
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alight.jax
from alight.jax import _cache
from conftest import in_process
from jax.experimental.compilation_cache import compilation_cache
from test_model import write_model


@pytest.fixture(autouse=True)
def alone():
    """Without JAX's own cache, for which this one steps aside. JAX keeps the folder of its first compilation until its cache is
    reset. XLA leaves functions out when it serialises a program that JAX has loaded from there."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    _cache._surroundings = None
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()
    _cache._surroundings = None


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
        # The times are set here, since the kernel's clock for files may not move between two entries.
        [first] = entries(folder)
        os.utime(first, (1, 1))
        called("1", Traced(), x)
        [second] = set(entries(folder)) - {first}
        os.utime(second, (2, 2))
        # What is used is not the oldest any more.
        called("0", Traced(), x)
        assert first.stat().st_mtime > 2
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
        assert "others may write" in caplog.text and "chmod go-w" in caplog.text
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


class Harmful:
    """Unpickled, it leaves a file."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")


def harmful(marker):
    """An entry which is whole, and code of somebody else."""
    payload = pickle.dumps(Harmful(marker))
    return _cache.MAGIC + hashlib.sha256(payload).digest() + payload


@pytest.fixture
def filled(folder):
    """The folder, and the one entry in it."""
    called("double", Traced(), np.arange(3.0, dtype=np.float32))
    return folder, entries(folder)[0]


def asked_again():
    again = Traced()
    assert called("double", again, np.arange(3.0, dtype=np.float32)) == ([0, 2, 4], 3)
    return again.count


def test_an_entry_that_others_can_change_is_not_loaded(filled, tmp_path):
    _, entry = filled
    marker, elsewhere = tmp_path / "executed", tmp_path / "elsewhere"
    elsewhere.write_bytes(harmful(marker))

    def link():
        entry.unlink()
        entry.symlink_to(elsewhere)

    def writable():
        entry.write_bytes(harmful(marker))
        entry.chmod(0o666)

    def of_another_user():
        entry.write_bytes(harmful(marker))
        os.chown(entry, 65534, 65534)

    def pipe():
        entry.unlink()
        os.mkfifo(entry)

    changes = [link, writable, pipe] + ([of_another_user] if os.geteuid() == 0 else [])
    for change in changes:
        change()
        assert asked_again() == 1, change.__name__
        assert not marker.exists(), change.__name__
        # Compiled anew, and kept in place of it.
        assert asked_again() == 0 and entry.is_file() and not entry.is_symlink()
    assert elsewhere.read_bytes() == harmful(marker)
    # The trap would have worked.
    pickle.loads(pickle.dumps(Harmful(marker))).close()
    assert marker.exists()


def test_a_folder_that_is_swapped_later_is_neither_read_nor_written(filled, tmp_path):
    folder, entry = filled
    marker = tmp_path / "executed"
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    entry.write_bytes(harmful(marker))
    assert asked_again() == 0 and not marker.exists()
    called("treble", Traced(3), np.arange(3.0, dtype=np.float32))
    assert entries(folder) == [entry] and len(entries(tmp_path / "moved")) == 2


def test_swaps_at_any_time_load_nothing_of_others(filled, tmp_path):
    _, entry = filled
    marker, elsewhere = tmp_path / "executed", tmp_path / "elsewhere"
    elsewhere.write_bytes(harmful(marker))
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            os.symlink(elsewhere, tmp_path / "link")
            os.rename(tmp_path / "link", entry)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(30):
            asked_again()
    finally:
        stop.set()
        swapping.join()
    assert not marker.exists() and elsewhere.read_bytes() == harmful(marker)


def folders_of_others(root):
    """Folders for a cache that another user could change or replace, and what is said of each."""
    open_to_all = root / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    yield open_to_all / "cache", "others may write"
    (open_to_all / "deep" / "cache").mkdir(parents=True)
    yield open_to_all / "deep" / "cache", "others may write"
    # The way to the folder goes by way of a link, through one where others may write.
    (root / "link").symlink_to(open_to_all / "deep")
    yield root / "link" / "cache", "others may write"
    yield open_to_all / "deep" / ".." / ".." / "cache", "others may write"
    (root / "round").symlink_to("round")
    yield root / "round" / "cache", "links"
    group = root / "group"
    group.mkdir()
    group.chmod(0o770)
    yield group, "others may write"
    if os.geteuid() == 0:
        shared = root / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        (shared / "theirs").mkdir()
        os.chown(shared / "theirs", 65534, 65534)
        yield shared / "theirs", "belongs to another user"
        yield shared / "theirs" / "cache", "belongs to another user"
        (root / "ours").mkdir()
        (shared / "link").symlink_to(root / "ours")
        os.chown(shared / "link", 65534, 65534, follow_symlinks=False)
        yield shared / "link" / "cache", "belongs to another user"


def test_folders_that_others_can_change_or_replace_are_not_used(tmp_path, caplog):
    try:
        for folder, said in folders_of_others(tmp_path):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "alight.jax"):
                alight.jax.use_cache(folder)
                assert asked_again() == 1 and asked_again() == 1
            [told] = caplog.messages
            assert said in told and "entries are code" in told, told
            assert not list(tmp_path.rglob("*.program")), folder
    finally:
        _cache._store = None


def test_a_folder_in_one_like_tmp_and_links_of_ones_own_are_used(tmp_path, caplog):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "link").symlink_to("shared/../shared")
    try:
        alight.jax.use_cache(tmp_path / "link" / "of mine" / "cache")
        assert asked_again() == 1 and asked_again() == 0
        assert len(entries(shared / "of mine" / "cache")) == 1
        assert (shared / "of mine").stat().st_mode & 0o777 == 0o700
        # The one like /tmp itself is everybody's.
        alight.jax.use_cache(shared)
        assert asked_again() == 1 and not entries(shared)
        assert "others may write" in caplog.text
    finally:
        _cache._store = None


GENERATE = """
import sys, jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_disable_most_optimizations", True)
import alight.jax
from alight.jax.models import Sampling, load_model
alight.jax.use_cache(sys.argv[1])
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **more: compiled.append(name) if "backend_compile" in name else None
)
for path, tp in zip(sys.argv[2::2], sys.argv[3::2]):
    model = load_model(path, tp=int(tp), weights="f32")
    compiled.clear()
    tokens = list(model.generate([1, 70, 80], max_tokens=12, sampling=Sampling.greedy(), steps_per_launch=4))
    print(tokens, len(compiled))
"""


def test_another_process_compiles_nothing(tmp_path):
    def said(*models):
        lines = in_process(GENERATE, tmp_path / "cache", *models).splitlines()
        return [(tokens, int(count)) for tokens, _, count in (line.rpartition(" ") for line in lines)]

    path, other = write_model(tmp_path / "tiny.gguf"), write_model(tmp_path / "other.gguf", rope__freq_base=500.0)
    [cold] = said(path, 2)
    # Another model, another number of devices: other programs, the right ones.
    warm, changed, one = said(path, 2, other, 2, path, 1)
    assert cold[0] == warm[0] == one[0] and warm[1] == 0 < min(cold[1], changed[1], one[1])
