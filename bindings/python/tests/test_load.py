"""Arrays: in place where that can be, cut over eight devices, and errors before anything is read."""

import gc
import json
import re
import subprocess

import gguf
import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

import alight
import alight.jax
from conftest import COLS, QUANTISED, ROWS, in_process, write_gguf, write_safetensors


def mesh(*shape, names=("tp",)):
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)


def write_model(folder):
    """Two safetensors files and their index."""
    rng = np.random.default_rng(6)
    first = {"a": rng.standard_normal((16, 64)).astype(ml_dtypes.bfloat16), "b": rng.standard_normal((64,)).astype(np.float16)}
    second = {"c": rng.integers(0, 9, (8, 16)).astype(np.int32), "empty": np.zeros((0, 4), np.float32)}
    write_safetensors(folder / "model-00001-of-00002.safetensors", first)
    write_safetensors(folder / "model-00002-of-00002.safetensors", second)
    where = {n: f"model-0000{i}-of-00002.safetensors" for i, file in ((1, first), (2, second)) for n in file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return first | second


def addresses(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def expected(what, dtype=None):
    """What a tensor of `every_type` is as an array."""
    if not isinstance(what, tuple):
        return what
    return what[1] if dtype is None else gguf.dequantize(what[1], gguf.GGMLQuantizationType[what[0]]).astype(np.dtype(dtype))


def same(array, wanted):
    array = np.asarray(array)
    return array.dtype == wanted.dtype and array.shape == wanted.shape and array.tobytes() == wanted.tobytes()


def test_arrays_are_the_bytes_of_the_file(every_type):
    path, tensors = every_type
    catalog = alight.open(path)
    arrays = alight.jax.load(catalog)
    assert list(arrays) == list(catalog)
    for name, array in arrays.items():
        assert same(array, expected(tensors[name])), name
        assert array.unsafe_buffer_pointer() == catalog[name].read().address, name
    plan = alight.jax.plan(catalog)
    assert plan.mapped == plan.nbytes == catalog.nbytes and plan.copied() == {}
    # They are ordinary arrays.
    assert float(jax.jit(lambda x: x.astype(np.float32).sum())(arrays["BF16"])) == pytest.approx(
        float(tensors["BF16"].astype(np.float32).sum()), rel=1e-3, abs=1e-2
    )


def test_arrays_keep_the_map(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", {"a": np.arange(1 << 20, dtype=np.float32)})
    array = alight.jax.load(path)["a"]
    path.unlink()
    gc.collect()
    assert (np.asarray(array) == np.arange(1 << 20)).all()
    mapped = lambda: str(path) in open("/proc/self/maps").read()  # noqa: E731
    assert mapped()
    del array
    gc.collect()
    jax.device_put(0).block_until_ready()
    gc.collect()
    assert not mapped()


def test_what_is_not_aligned_is_copied_and_said(tmp_path, command):
    rng = np.random.default_rng(7)
    tensors = {f"t{i}": rng.standard_normal((3, 40)).astype(np.float32) for i in range(6)}
    path = write_gguf(tmp_path / "a.gguf", tensors, alignment=32)
    catalog = alight.open(path)
    crooked = [name for name in catalog if not catalog[name].aligned]
    assert crooked and crooked == [name for name in catalog if catalog[name].offset % 64]
    arrays = alight.jax.load(catalog)
    for name, array in arrays.items():
        assert same(array, tensors[name])
        assert (array.unsafe_buffer_pointer() == catalog[name].read().address) == catalog[name].aligned
    plan = alight.jax.plan(catalog)
    assert plan.copied() == {alight.jax._plan.UNALIGNED: sum(catalog[name].nbytes for name in crooked)}
    assert f"alight convert {path}" in str(plan)
    # The advice is true.
    subprocess.run([command, "convert", path, "-o", tmp_path / "b.gguf"], check=True, capture_output=True)
    plan = alight.jax.plan(tmp_path / "b.gguf")
    assert plan.copied() == {} and all(one.tensor.aligned for one in plan.placements)
    assert {n: np.asarray(a).tobytes() for n, a in alight.jax.load(tmp_path / "b.gguf").items()} == {
        name: array.tobytes() for name, array in tensors.items()
    }


@pytest.mark.parametrize("dequantize", [None, "bfloat16"])
@pytest.mark.parametrize("file", ["rows", "tiles"])
def test_shards_over_devices(every_type, packed, dequantize, file):
    path, tensors = (every_type[0] if file == "rows" else packed), every_type[1]
    catalog = alight.open(path)
    # Tiles are cut between each other only, and of each matrix there are four.
    columns = P(None, "tp") if file == "rows" else P("tp")
    rules = [("experts", P(None, "tp")), ("Q", P("tp")), ("F32", P("tp", None)), ("F16", columns), ("norm", P())]
    arrays = alight.jax.load(catalog, mesh(4), rules, dequantize)
    for name, array in arrays.items():
        tensor = catalog[name]
        in_bytes = tensor.dtype is None and not dequantize
        if in_bytes:
            assert np.asarray(array).tobytes() == bytes(tensor) and array.shape == tensor.stored_shape, name
        else:
            wanted = expected(tensors[name], "float32" if tensor.dtype is None else None)
            assert same(array, wanted.astype(dequantize) if tensor.dtype is None else wanted), name
        spec = next((spec for pattern, spec in rules if re.search(pattern, name)), P())
        assert array.sharding.spec == spec and len(array.addressable_shards) == 4
        start, found = tensor.read().address, addresses(array)
        copied = not in_bytes and tensor.dtype is None
        if spec[:1] == ("tp",) and not copied:
            # Each device shows its own rows of the map.
            assert found == [start + i * tensor.nbytes // 4 for i in range(4)], name
        elif spec == P() and not copied:
            assert set(found) == {start}, name
        else:
            assert not any(start <= at < start + tensor.nbytes for at in found), name
            assert len(set(found)) == (1 if spec == P() else 4), name


def test_eight_devices_in_two_dimensions(every_type):
    path, tensors = every_type
    two = mesh(2, 4, names=("dp", "tp"))
    rules = [("^Q8_0$", P("tp", "dp")), ("^F32$", P(("dp", "tp"))), ("^BF16$", P("dp"))]
    arrays = alight.jax.load(path, two, rules)
    for name, array in arrays.items():
        assert np.asarray(array).tobytes() == expected(tensors[name]).tobytes(), name
        assert len(array.addressable_shards) == 8
    assert arrays["Q8_0"].addressable_shards[0].data.shape == (ROWS // 4, COLS // 32 * 34 // 2)
    # Copies of one part are one.
    assert len(set(addresses(arrays["BF16"]))) == 2 and len(set(addresses(arrays["Q8_0"]))) == 8
    copied = alight.jax.plan(path, two, rules).copied()
    assert copied == {alight.jax._plan.STRIDED: alight.open(path)["Q8_0"].nbytes}


def test_each_device_reads_its_own_bytes(every_type):
    plan = alight.jax.plan(every_type[0], mesh(8), [("Q|F32", P("tp", None))])
    for one in plan.placements:
        whole = one.tensor.nbytes
        if one.sharding.spec == P("tp", None):
            assert len(one.parts) == 8 and sum(part.nbytes for part in one.parts) == whole
            extents = [one.tensor.extent(part.ranges)[:2] for part in one.parts]
            assert all(stop - start == whole // 8 for start, stop in extents)
            assert all(a[1] == b[0] for a, b in zip(extents, extents[1:]))


@pytest.mark.parametrize("kind", QUANTISED)
def test_dequantised_is_the_reference(every_type, kind):
    path, tensors = every_type
    for dtype in (jax.numpy.bfloat16, np.float16, "float32"):
        array = alight.jax.load(path, dequantize=[(f"^{kind}$", dtype)])[kind]
        assert same(array, expected(tensors[kind], dtype))


def test_safetensors_with_an_index(tmp_path):
    tensors = write_model(tmp_path)
    catalog = alight.open(tmp_path / "model.safetensors.index.json")
    arrays = alight.jax.load(catalog, mesh(8), [("^a$|^c$", P("tp"))])
    assert set(arrays) == set(tensors)
    assert all(same(arrays[name], tensors[name]) for name in tensors)
    assert addresses(arrays["a"]) == [catalog["a"].read().address + 256 * i for i in range(8)]


def test_every_dtype_of_safetensors(tmp_path):
    rng = np.random.default_rng(8)
    names = ["bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32"]
    tensors = {name: rng.integers(0, 2, (4, 64)).astype(np.dtype(name)) for name in names}
    path = write_safetensors(tmp_path / "a.safetensors", tensors)
    catalog = alight.open(path)
    for name, array in alight.jax.load(catalog).items():
        assert same(array, tensors[name])
        assert array.unsafe_buffer_pointer() == catalog[name].read().address, name


def test_progress_is_told(every_type, capfd):
    seen = []
    alight.jax.load(every_type[0], progress=lambda done, of: seen.append((done, of)))
    total = alight.open(every_type[0]).nbytes
    assert seen[-1] == (total, total) and seen == sorted(seen)
    alight.jax.load(every_type[0])
    assert capfd.readouterr().err == ""
    alight.jax.load(every_type[0], progress=True)
    assert "loading" in capfd.readouterr().err


def test_an_interrupted_load_ends(every_type):
    def stop(done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alight.jax.load(every_type[0], progress=stop)


def test_the_mesh_of_the_context(every_type):
    """Where none is handed in: with rules, and without, when everything is on each of its devices."""
    path, tensors = every_type
    four, rules = Mesh(np.array(jax.devices()[2:6]), ("tp",)), [("Q4_K", P("tp"))]
    with jax.set_mesh(four):
        weights, whole, made = alight.jax.load(path, rules=rules), alight.jax.load(path), alight.jax.plan(path, rules=rules)
        eight = alight.jax.load(path, mesh(8), rules)
    assert all(array.sharding.mesh.devices.tolist() == four.devices.tolist() for array in [*weights.values(), *whole.values()])
    assert {one.tensor.name: one.sharding for one in made.placements} == {name: array.sharding for name, array in weights.items()}
    assert [shard.data.shape[0] for shard in weights["Q4_K"].addressable_shards] == [ROWS // 4] * 4
    assert whole["Q4_K"].sharding.spec == P() and same(weights["Q4_K"], tensors["Q4_K"][1])
    assert len(eight["Q4_K"].sharding.device_set) == 8
    assert alight.jax.load(path)["Q4_K"].sharding.device_set == {jax.devices()[0]}


def test_what_cannot_work_is_said_before_anything_is_read(every_type, tmp_path):
    path, _ = every_type
    eight = mesh(8)

    def said(kind, text, *args, **more):
        with pytest.raises(kind, match=text):
            alight.jax.plan(path, *args, **more)

    said(ValueError, r"'norm'.*2 dimensions.*\(512,\)", eight, [("norm", P(None, "tp"))])
    said(ValueError, r"'F32'.*axis 'dp'.*'tp'", eight, [("F32", P("dp"))])
    said(ValueError, r"'F32'.*'tp' twice", eight, [("F32", P("tp", "tp"))])
    said(ValueError, r"'experts': dimension 0 \(4\).*8 equal parts", eight, [("experts", P("tp"))])
    said(ValueError, r"'Q4_K': dimension 1 \(288 bytes in blocks of 144\)", eight, [("Q4_K", P(None, "tp"))])
    said(ValueError, "open", eight, [("F32", P(P.UNCONSTRAINED))])
    said(ValueError, "rules without a mesh", None, [("F32", P("tp"))])
    said(ValueError, r"rules\[0\].*no pattern", eight, [("(", P("tp"))])
    said(TypeError, r"rules\[0\].*PartitionSpec", eight, [("a", "tp")])
    said(TypeError, r"rules\[0\].*\(pattern, value\)", eight, [P("tp")])
    said(TypeError, "Mesh", jax.devices())
    said(ValueError, "int8 is none of", dequantize="int8")
    said(ValueError, "dequantize", dequantize="q4")
    # What activations are packed in, and no weights are: there is no code for it.
    more = {"odd": ("Q8_K", np.zeros((4, 292), np.uint8))}
    odd = write_gguf(tmp_path / "odd.gguf", more)
    with pytest.raises(ValueError, match="'odd'.*Q8_K cannot be dequantised"):
        alight.jax.plan(odd, dequantize="bfloat16")
    assert same(alight.jax.load(odd, dequantize=[("odd", None), ("", "bfloat16")])["odd"], more["odd"][1])
    wide = write_safetensors(tmp_path / "wide.safetensors", {"wide": np.zeros(4, np.int64)})
    with pytest.raises(ValueError, match="'wide'.*I64.*jax_enable_x64"):
        alight.jax.plan(wide)
    with pytest.raises(FileNotFoundError):
        alight.jax.load(tmp_path / "nothing.gguf")


CUT = """
import os, sys, jax, alight, alight.jax
catalog = alight.open(sys.argv[1])
array = alight.jax.load(catalog)["a"]
os.truncate(sys.argv[1], 1 << 16)
assert float(jax.jit(lambda x: x.sum())(array)) >= 0
try:
    catalog.check()
except alight.FileChangedError as error:
    print(error)
for prefetch in (True, False):
    try:
        alight.jax.load(catalog, prefetch=prefetch)
    except alight.FileChangedError as error:
        print("again")
"""


def test_a_file_cut_short_under_arrays_is_an_error_and_no_crash(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", {"a": np.full(1 << 20, 7, np.float32)})
    said = in_process(CUT, path).splitlines()
    assert "a.gguf" in said[0] and "cut short" in said[0] and said[1:] == ["again"] * 2
