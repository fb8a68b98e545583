"""Loading as for a GPU, on CPU devices that are made to copy: the slots through which parts pass, and what comes out."""

import dataclasses
import os
import types

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

import alight
import alight.jax
from alight import _alight
from alight.jax import _upload
from conftest import write_safetensors



@pytest.fixture
def forced(monkeypatch):
    """Every part that can goes through slots; how many were made."""
    monkeypatch.setattr(_upload, "forced", True)
    monkeypatch.setattr(_upload, "SMALLEST", 1)
    monkeypatch.setattr(_alight, "how_to_copy", lambda *_: ("direct", "for a test"))
    made, sent = [], []
    new, send = _upload.Uploader._new, _upload.Uploader.send
    monkeypatch.setattr(_upload.Uploader, "_new", lambda self, nbytes, gpu: made.append(nbytes) or new(self, nbytes, gpu))
    monkeypatch.setattr(_upload.Uploader, "send", lambda self, one, part: sent.append(one.tensor.name) or send(self, one, part))
    return made, sent


def same(a, b):
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert array.dtype == b[name].dtype and array.sharding == b[name].sharding, name
        assert np.asarray(array).tobytes() == np.asarray(b[name]).tobytes(), name


@pytest.mark.parametrize("cut", [False, True])
def test_the_same_arrays_as_from_the_map(every_type, forced, monkeypatch, cut):
    mesh = Mesh(np.array(jax.devices()[:4]), ("tp",)) if cut else None
    rules = [("Q4_0|Q8_0|F16", P("tp", None)), ("F32", P(None, "tp"))] if cut else None
    found = alight.jax.load(every_type[0], mesh, rules, [("Q5_0", "bfloat16")])
    made, sent = forced
    assert len(sent) > 10 and "Q5_0" not in sent
    # Columns do not lie side by side.
    assert ("F32" in sent) == (not cut)
    monkeypatch.setattr(_upload, "forced", False)
    same(found, alight.jax.load(every_type[0], mesh, rules, [("Q5_0", "bfloat16")]))


def test_slots_are_used_again(tmp_path, forced, monkeypatch):
    rng = np.random.default_rng(3)
    # Over 4 MiB, so that there are several pieces of each, and at no multiple of a page.
    tensors = {f"t{i}": rng.standard_normal((1100, 1025), np.float32) for i in range(12)}
    path = write_safetensors(tmp_path / "many.safetensors", tensors)
    arrays = alight.jax.load(path)
    made, sent = forced
    assert len(sent) == 12
    assert len(made) == _upload.SLOTS, made
    for name, expected in tensors.items():
        assert (np.asarray(arrays[name]) == expected).all(), name
    # A part that is larger than all slots together goes alone.
    monkeypatch.setattr(_upload, "ROOM", 1 << 20)
    again = alight.jax.load(path)
    same(arrays, again)


def test_memory_is_not_written_while_it_is_shown(tmp_path):
    data = np.arange(3 << 20, dtype=np.uint8)
    path = write_safetensors(tmp_path / "one.safetensors", {"a": data, "b": data[::-1].copy()})
    catalog = alight.open(path)
    slot = _alight.Staging(data.nbytes)
    for name, direct in [("a", True), ("b", True), ("a", False)]:
        start, stop, _ = catalog[name].extent()
        at = slot.read(catalog, 0, start, stop, direct)
        array = np.frombuffer(slot, np.uint8, data.nbytes, at)
        assert not array.flags.writeable
        assert bytes(array) == bytes(catalog[name])
        with pytest.raises(BufferError, match="1 views"):
            slot.read(catalog, 0, start, stop, direct)
        assert bytes(array) == bytes(catalog[name])
        del array
    start, stop, _ = catalog["a"].extent()
    with pytest.raises(ValueError, match="and it has"):
        slot.read(catalog, 0, 0, stop + data.nbytes, True)
    os.truncate(path, stop - 5)
    with pytest.raises(alight.FileChangedError, match="cut short"):
        slot.read(catalog, 0, start, stop, True)


def test_memory_is_locked_for_the_gpu_that_it_is_sent_to(tmp_path, monkeypatch):
    """A context on another one would take memory there: of several processes, each has a GPU of its own."""
    asked, staging = [], _alight.Staging
    monkeypatch.setattr(_alight, "Staging", lambda nbytes, gpu: asked.append(gpu) or staging(nbytes))
    monkeypatch.setattr(_alight, "how_to_copy", lambda *_: ("read", "for a test"))
    monkeypatch.setattr(jax, "device_put", lambda array, device: array.copy())
    catalog = alight.open(write_safetensors(tmp_path / "one.safetensors", {"a": np.arange(1000, dtype=np.float32)}))
    [one] = alight.jax.plan(catalog).placements
    for devices, gpu in (((jax.devices()[0],), None), ((types.SimpleNamespace(platform="gpu", id=7, local_hardware_id=3),), 3)):
        [sent] = _upload.Uploader(catalog).send(one, dataclasses.replace(one.parts[0], devices=devices))
        assert asked.pop() == gpu and not asked
        np.testing.assert_array_equal(sent, np.arange(1000, dtype=np.float32))
    assert staging(10).unlocked == "it is for no GPU"


def test_what_is_cached_or_small_or_for_a_cpu_is_sent_from_the_map(every_type, monkeypatch):
    catalog = alight.open(every_type[0])
    plan = alight.jax.plan(catalog)
    one = next(one for one in plan.placements if one.tensor.name == "F32")
    uploader = _upload.Uploader(catalog)
    assert not uploader.takes(one, one.parts[0])
    monkeypatch.setattr(_upload, "forced", True)
    assert not uploader.takes(one, one.parts[0])
    monkeypatch.setattr(_upload, "SMALLEST", 1)
    how, why = _alight.how_to_copy(catalog, 0, catalog.nbytes)
    assert how in ("mmap", "direct", "read") and why
    for how in ("mmap", "direct", "read"):
        uploader.methods[0] = how
        assert uploader.takes(one, one.parts[0]) == (how != "mmap")


def test_a_slot_that_is_still_in_use_is_left_alone(tmp_path, forced, monkeypatch):
    """What a CPU shows of it without a copy keeps it, and another one is made."""
    monkeypatch.setattr(_upload, "_apart", lambda array, _: array)
    tensors = {f"t{i}": np.full((64, 1024), i, np.float32) for i in range(8)}
    path = write_safetensors(tmp_path / "used.safetensors", tensors)
    arrays = alight.jax.load(path)
    made, _ = forced
    assert len(made) == 8
    for name, expected in tensors.items():
        assert (np.asarray(arrays[name]) == expected).all(), name
