"""Parts of tensors, as they are and as floats, beside NumPy and the gguf package."""

import gguf
import ml_dtypes
import numpy as np
import pytest

import alight
from conftest import COLS, QUANTISED, ROWS, write_safetensors


def test_parts_are_what_numpy_cuts(tmp_path):
    rng = np.random.default_rng(2)
    shapes = [(), (7,), (5, 6), (3, 1, 4), (2, 3, 4, 5), (1, 1), (64, 33)]
    tensors = {f"t{i}": rng.integers(0, 1 << 16, shape).astype(np.uint16) for i, shape in enumerate(shapes)}
    catalog = alight.open(write_safetensors(tmp_path / "a.safetensors", tensors, padding=3))
    copies = 0
    for i in range(600):
        name = f"t{i % len(shapes)}"
        array = tensors[name]
        ranges = [tuple(sorted(rng.integers(0, n + 1, 2).tolist())) for n in array.shape]
        align = 1 << int(rng.integers(0, 7))
        block = catalog[name].read(ranges, align=align)
        part = array[tuple(slice(*one) for one in ranges)]
        assert bytes(block) == part.tobytes() and tuple(block.shape) == part.shape
        assert len(block) == 0 or block.address % align == 0
        copies += not block.mapped
        # What is shown in place is exactly what lies together and where it should.
        start, stop, together = catalog[name].extent(ranges)
        if block.mapped and len(block):
            assert together and stop - start == len(block)
        elif len(block):
            assert not together or start % align
    assert 100 < copies < 500


def test_ranges_that_do_not_fit(every_type):
    tensor = alight.open(every_type[0])["F32"]
    for ranges in ([(0, 1)], [(0, ROWS + 1), (0, COLS)], [(5, 4), (0, COLS)]):
        with pytest.raises(ValueError, match="'F32'"):
            tensor.read(ranges)
        with pytest.raises(ValueError, match="'F32'"):
            tensor.read(ranges, dtype="float16")
    with pytest.raises(OverflowError):
        tensor.read([(-1, 1), (0, COLS)])
    with pytest.raises(ValueError, match="align"):
        tensor.read(align=3)
    with pytest.raises(ValueError, match="int8"):
        tensor.read(dtype="int8")


@pytest.mark.parametrize("kind", [*QUANTISED, "F32", "F16", "BF16"])
@pytest.mark.parametrize("file", ["rows", "tiles"])
def test_floats_are_the_reference(every_type, packed, kind, file):
    path, tensors = every_type
    tensor = alight.open(path if file == "rows" else packed)[kind]
    if kind in QUANTISED:
        expected = gguf.dequantize(tensors[kind][1], gguf.GGMLQuantizationType[kind])
    else:
        expected = tensors[kind].astype(np.float32)
    rng = np.random.default_rng(3)
    for dtype in ("float32", "float16", "bfloat16"):
        wanted = expected.astype(np.dtype(dtype))
        found = np.frombuffer(tensor.read(dtype=dtype), dtype).reshape(ROWS, COLS)
        assert found.tobytes() == wanted.tobytes()
        for _ in range(5):
            rows, cols = (tuple(sorted(rng.integers(0, n + 1, 2).tolist())) for n in (ROWS, COLS))
            block = tensor.read([rows, cols], dtype=dtype)
            assert not block.mapped and (len(block) == 0 or block.address % alight.ALIGNMENT == 0)
            assert bytes(block) == wanted[slice(*rows), slice(*cols)].tobytes()


def test_large_parts_are_the_same_with_several_threads(tmp_path):
    rng = np.random.default_rng(4)
    array = rng.standard_normal((3000, 2000)).astype(np.float32)
    tensor = alight.open(write_safetensors(tmp_path / "a.safetensors", {"a": array}))["a"]
    assert bytes(tensor.read([(0, 3000), (1, 1999)])) == array[:, 1:1999].tobytes()
    assert bytes(tensor.read([(1, 3000), (3, 2000)], "bfloat16")) == array[1:, 3:].astype(ml_dtypes.bfloat16).tobytes()


def test_experts(every_type):
    path, tensors = every_type
    expected = gguf.dequantize(tensors["experts"][1], gguf.GGMLQuantizationType.Q8_0)
    part = alight.open(path)["experts"].read([(1, 3), (10, 20), (5, 300)], dtype="float32")
    assert bytes(part) == expected[1:3, 10:20, 5:300].tobytes()
