"""Tensors and computed numbers as arrays of NumPy and JAX, in place."""

import gc

import alight
import gguf
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import QUANTISED, write_safetensors
from conftest import PATH


def address(array):
    return array.__array_interface__["data"][0]


def where(tensor):
    return tensor.read().address


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "norm"])
def test_plain_tensors_are_shown_in_place(every_type, name):
    path, wanted = every_type
    tensor = alight.open(path)[name]
    array = tensor.numpy()
    assert array.dtype == wanted[name].dtype and np.array_equal(array, wanted[name])
    assert address(array.view(np.uint8)) == where(tensor) and not array.flags.writeable
    assert np.array_equal(tensor.numpy("float32"), wanted[name].astype(np.float32))
    # The array keeps the map.
    copy = array.copy()
    del tensor
    gc.collect()
    assert np.array_equal(array, copy)


@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_are_floats(every_type, name):
    path, wanted = every_type
    tensor = alight.open(path)[name]
    array = tensor.numpy()
    exact = gguf.dequantize(wanted[name][1], gguf.GGMLQuantizationType[name])
    assert array.dtype == np.float32 and array.shape == tensor.shape
    assert np.allclose(array, exact, rtol=1e-6, atol=1e-7)
    assert np.array_equal(tensor.numpy("bfloat16"), array.astype(ml_dtypes.bfloat16))
    # By itself NumPy asks for the bytes.
    assert np.asarray(tensor).tobytes() == wanted[name][1].tobytes()


def test_what_numpy_asks_for(every_type):
    catalog = alight.open(every_type[0])
    plain, blocks = catalog["F32"], catalog["Q4_0"]
    assert address(plain.__array__()) == where(plain) == address(plain.__array__(np.float32, copy=False))
    copy = plain.__array__(copy=True)
    assert copy.flags.writeable and address(copy) != where(plain) and np.array_equal(copy, plain.numpy())
    assert plain.__array__(np.float64).dtype == np.float64 and blocks.__array__("float16").dtype == np.float16
    for call in (lambda: plain.__array__(np.float16, copy=False), lambda: blocks.__array__(copy=False)):
        with pytest.raises(ValueError, match="it is a copy"):
            call()
    with pytest.raises(ValueError, match="cannot be converted to float64"):
        plain.numpy("float64")


def test_every_type_of_safetensors(tmp_path):
    rng = np.random.default_rng(3)
    # The large ones first, so that each is at its place.
    names = ["float64", "int64", "uint64", "float32", "int32", "uint32", "bfloat16", "float16", "int16", "uint16", "int8", "uint8", "bool"]
    kinds = {n: np.dtype(getattr(ml_dtypes, n)) if n == "bfloat16" else np.dtype(n) for n in names}
    tensors = {n: rng.integers(0, 2, (3, 4, 5)).astype(kind) for n, kind in kinds.items()}
    tensors = {"one": np.float64([[7]]).reshape(())} | tensors
    catalog = alight.open(write_safetensors(tmp_path / "a.safetensors", tensors))
    for name, wanted in tensors.items():
        array = catalog[name].numpy()
        assert array.dtype == wanted.dtype and array.shape == wanted.shape and np.array_equal(array, wanted)
        if wanted.dtype != ml_dtypes.bfloat16:
            taken = np.from_dlpack(catalog[name])
            assert taken.dtype == wanted.dtype and np.array_equal(taken, wanted)
            assert address(taken) == where(catalog[name]) and not taken.flags.writeable


def test_dlpack(every_type):
    path, wanted = every_type
    catalog = alight.open(path)
    tensor = catalog["F32"]
    assert tensor.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(tensor)
    assert np.array_equal(array, wanted["F32"]) and address(array) == where(tensor) and not array.flags.writeable
    copy = np.from_dlpack(tensor, copy=True)
    assert np.array_equal(copy, array) and address(copy) != where(tensor)
    copy[0, 0] = 5
    # What nobody takes over is let go; what somebody has keeps the map.
    for _ in range(100):
        tensor.__dlpack__(max_version=(1, 0))
        tensor.__dlpack__(copy=True)
    del tensor, catalog
    gc.collect()
    assert np.array_equal(array, wanted["F32"])
    # bfloat16, and a library that takes version 0: a copy is its own.
    catalog = alight.open(path)
    tensor = catalog["BF16"]
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 1))) and "dltensor_versioned" not in repr(tensor.__dlpack__(copy=True))

    class Copy:
        """What asks for a copy."""

        def __dlpack__(self, **keywords):
            return tensor.__dlpack__(copy=True)

        def __dlpack_device__(self):
            return tensor.__dlpack_device__()

    taken = jnp.from_dlpack(Copy())
    assert taken.dtype == jnp.bfloat16 and np.array_equal(np.asarray(taken), wanted["BF16"])
    # A consumer that knows no version has no word for "read-only": it gets a copy of its own.
    for keywords in ({}, {"max_version": (0, 8)}):
        assert "dltensor_versioned" not in repr(tensor.__dlpack__(**keywords))
    assert np.array_equal(np.asarray(jnp.from_dlpack(tensor)), wanted["BF16"])
    for keywords, said in [({"copy": False}, "read-only"), ({"max_version": (0, 8), "copy": False}, "read-only"), ({"max_version": (1, 0), "dl_device": (2, 0)}, "memory of the host"), ({"max_version": (1, 0), "stream": 1}, "no streams")]:
        with pytest.raises(BufferError, match=said):
            tensor.__dlpack__(**keywords)
    with pytest.raises(BufferError, match="Q4_0, which DLPack has no type for"):
        catalog["Q4_0"].__dlpack__(max_version=(1, 0))


def test_jax_takes_tensors(every_type):
    path, wanted = every_type
    catalog = alight.open(path)
    for name in ("F32", "F16", "BF16", "norm"):
        for take in (jnp.asarray, jnp.array):
            array = take(catalog[name])
            assert array.dtype == wanted[name].dtype and np.array_equal(np.asarray(array), wanted[name])
            assert array.unsafe_buffer_pointer() != where(catalog[name])
    assert np.array_equal(np.asarray(jnp.asarray(catalog["Q4_0"])), catalog["Q4_0"].numpy())
    assert jnp.asarray(catalog["F32"], jnp.bfloat16).dtype == jnp.bfloat16


def test_an_element_that_is_not_at_its_place(tmp_path):
    path = write_safetensors(tmp_path / "odd.safetensors", {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, padding=1)
    tensor = alight.open(path)["a"]
    assert tensor.offset % 4 and tensor.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BufferError, match="ask for a copy"):
        np.from_dlpack(tensor)
    assert np.from_dlpack(tensor, copy=True).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_numbers_that_were_computed():
    with alight.Model(PATH, threads=2) as model:
        numbers = model.logits([1, 2, 3], all=True)
    array = numbers.numpy()
    assert array.shape == numbers.shape == (3, 49152) and array.nbytes == numbers.nbytes and numbers.dtype == "float32"
    assert not array.flags.writeable and np.isfinite(array).all() and array.std() > 0.5
    shown = [np.asarray(numbers), np.from_dlpack(numbers), np.asarray(memoryview(numbers))]
    assert {address(one) for one in shown} == {address(array)}
    assert np.from_dlpack(numbers[1]).tolist() == array[1].tolist() == numbers.tolist()[1]
    assert address(np.asarray(numbers[1])) == address(array) + array.strides[0]
    with pytest.raises((BufferError, ValueError)):
        np.frombuffer(numbers, np.uint8)[0] = 1
    # Some want one dimension, and no format.
    assert bytes(numbers) == array.tobytes() and np.frombuffer(numbers, np.float32).size == 3 * 49152
    del numbers
    gc.collect()
    assert all(np.array_equal(one, array) for one in shown)
    assert isinstance(jnp.asarray(array), jax.Array)


def test_jax_takes_numbers_that_were_computed(model):
    numbers = model.logits([1, 2, 3], all=True)
    for take in (jnp.asarray, jnp.array, jnp.from_dlpack):
        array = take(numbers)
        assert array.dtype == jnp.float32 and np.array_equal(np.asarray(array), numbers.numpy())
    assert jnp.stack([numbers[0], numbers[1]]).shape == (2, 49152)
