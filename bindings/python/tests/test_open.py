"""Catalogs: what is in a file, and what is wrong with one."""

import gc
import io
import os

import gguf
import numpy as np
import pytest

import alight
from conftest import COLS, ROWS, in_process, write_gguf, write_safetensors


def test_a_catalog_is_what_the_reference_reads(every_type):
    path, _ = every_type
    catalog, reader = alight.open(path), gguf.GGUFReader(path)
    assert catalog.format == "gguf" and catalog.files == [path]
    assert list(catalog) == list(catalog.tensors) == [t.name for t in reader.tensors]
    for theirs in reader.tensors:
        ours = catalog[theirs.name]
        assert ours.shape == tuple(int(n) for n in reversed(theirs.shape))
        assert (ours.type, ours.offset) == (theirs.tensor_type.name, theirs.data_offset)
        assert (ours.nbytes, ours.file) == (theirs.n_bytes, path)
        assert bytes(ours) == theirs.data.tobytes()
        assert ours.residency().nbytes == ours.nbytes
    assert catalog.nbytes == sum(t.n_bytes for t in reader.tensors)
    assert 0 <= catalog.residency().share <= 1 and catalog.residency().nbytes == path.stat().st_size


def test_metadata_keeps_its_types(every_type):
    metadata = alight.open(every_type[0]).metadata
    assert metadata["general.architecture"] == "llama" and metadata["text"] == "grün"
    assert metadata["words"] == ["a", "b", ""] and metadata["numbers"] == [1, -2, 3]
    assert metadata["halves"] == [0.5, -1.5] and metadata["yes"] is True and metadata["large"] == 2**63
    with pytest.raises(TypeError):
        metadata["text"] = ""


def test_shapes_of_bytes(every_type, packed):
    catalog = alight.open(every_type[0])
    assert catalog["Q4_K"].stored_shape == (ROWS, COLS // 256 * 144) and catalog["Q4_K"].grain == 144
    assert catalog["experts"].stored_shape == (4, ROWS, COLS // 32 * 34)
    assert catalog["BF16"].stored_shape == catalog["BF16"].shape == (ROWS, COLS)
    assert (catalog["BF16"].dtype, catalog["Q4_K"].dtype) == ("bfloat16", None)
    tiles = alight.open(packed)["Q4_K"]
    assert tiles.packed and tiles.shape == (ROWS, COLS)
    assert tiles.stored_shape == (ROWS // 16, 16 * COLS // 256 * 144)


def test_bytes_are_shown_in_place_and_read_only(every_type):
    catalog = alight.open(every_type[0])
    view = memoryview(catalog["F32"])
    assert view.readonly and view.format == "B"
    whole = catalog["F32"].read()
    assert whole.mapped and np.frombuffer(view, np.uint8).ctypes.data == whole.address
    with pytest.raises((TypeError, BufferError)):
        io.BytesIO(bytes(8)).readinto(catalog["F32"])


def test_a_view_outlives_the_catalog(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", {"a": np.arange(1 << 20, dtype=np.float32)})
    array = np.frombuffer(alight.open(path)["a"].read(), np.float32)
    path.unlink()
    gc.collect()
    assert (array == np.arange(1 << 20)).all()


def test_safetensors_with_and_without_an_index(tmp_path):
    from test_load import write_model

    tensors = write_model(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        catalog = alight.open(path)
        assert catalog.format == "safetensors" and len(catalog.files) == 2
        assert catalog.metadata == {"format": "pt"}
        assert {name: bytes(t) for name, t in catalog.tensors.items()} == {n: a.tobytes() for n, a in tensors.items()}
    one = alight.open(tmp_path / "model-00002-of-00002.safetensors")
    assert list(one) == ["c", "empty"]
    (tmp_path / "model.safetensors.index.json").unlink()
    assert len(alight.open(tmp_path)) == len(tensors)


def test_shards_of_gguf(tmp_path):
    tensors = {f"t{i}": np.full((4, 32), i, np.float32) for i in range(5)}
    write_gguf(tmp_path / "m.gguf", tensors, alignment=32, split_max_tensors=2)
    catalog = alight.open(tmp_path / "m-00002-of-00003.gguf")
    assert len(catalog.files) == 3 and len(catalog) == 5 and catalog.metadata["text"] == "grün"
    assert [catalog[f"t{i}"].file_index for i in range(5)] == [0, 0, 1, 1, 2]
    assert all(bytes(catalog[name]) == array.tobytes() for name, array in tensors.items())
    assert len(alight.open(tmp_path)) == 5
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(FileNotFoundError, match="m-00003-of-00003"):
        alight.open(tmp_path / "m-00001-of-00003.gguf")


def test_errors_name_the_file_and_what_is_wrong(tmp_path, every_type):
    with pytest.raises(FileNotFoundError, match="nothing.gguf"):
        alight.open(tmp_path / "nothing.gguf")
    with pytest.raises(alight.FormatError, match="folder without a model"):
        alight.open(tmp_path)
    with pytest.raises(OSError, match="expected a regular file"):
        alight.open("/dev/null")
    whole = every_type[0].read_bytes()
    for name, content, wrong in [
        ("empty", b"", "is empty"),
        ("text", b"Once upon a time", "neither GGUF nor safetensors"),
        ("header", whole[:300], "could hold"),
        ("tensors", whole[:1500], "cut short"),
        ("data", whole[:-5000], "past the end of the file"),
        ("old", b"tjgg\1\0\0\0" + bytes(64), "legacy GGML.*alight convert"),
        ("torch", b"PK\3\4" + bytes(64), "PyTorch.*alight convert"),
        ("safe", b"\x0f\0\0\0\0\0\0\0{\"a\": [1, 2, 3]", "expected an object"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(alight.FormatError, match=f"(?s){name}.*{wrong}"):
            alight.open(path)
        path.unlink()
    with pytest.raises(KeyError, match="no tensor 'nothing'"):
        alight.open(every_type[0])["nothing"]
    write_gguf(tmp_path / "a.gguf", {"a": np.zeros(32, np.float32)})
    write_gguf(tmp_path / "b.gguf", {"b": np.zeros(32, np.float32)})
    with pytest.raises(alight.FormatError, match="several models"):
        alight.open(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", {"a": np.zeros(32, np.float32)})
    path.chmod(0)
    with pytest.raises(PermissionError):
        alight.open(path)


def test_random_headers_never_crash(every_type, tmp_path):
    rng = np.random.default_rng(5)
    header = alight.open(every_type[0])["Q4_0"].offset
    whole = np.frombuffer(every_type[0].read_bytes(), np.uint8)
    for i in range(200):
        broken = whole.copy()
        broken[rng.integers(0, header, 1 + i % 5)] = rng.integers(0, 256, 1 + i % 5)
        path = tmp_path / "broken.gguf"
        path.write_bytes(broken.tobytes())
        try:
            catalog = alight.open(path)
            dict(catalog.metadata)
            for tensor in catalog.tensors.values():
                tensor.read(align=64)
        except (alight.FormatError, OSError):
            pass


CUT = """
import os, sys, numpy as np, alight
catalog = alight.open(sys.argv[1])
array = np.frombuffer(catalog["a"].read(), np.float32)
assert array[-1] == 7
os.truncate(sys.argv[1], 1 << 16)
assert array.sum() >= 0
try:
    catalog.check()
except alight.FileChangedError as error:
    print(error)
try:
    catalog["a"].read(dtype="bfloat16")
except alight.FileChangedError as error:
    print("again")
"""


def test_a_file_cut_short_is_an_error_and_no_crash(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", {"a": np.full(1 << 20, 7, np.float32)})
    said = in_process(CUT, path).splitlines()
    assert "a.gguf" in said[0] and "cut short" in said[0] and said[1] == "again"


def test_empty_and_scalar_tensors(tmp_path):
    path = write_safetensors(tmp_path / "a.safetensors", {"e": np.zeros((0, 3), np.float32), "s": np.array(2.5, np.float32)})
    catalog = alight.open(path)
    assert catalog["e"].shape == (0, 3) and bytes(catalog["e"]) == b"" and len(catalog["e"].read(align=64)) == 0
    assert catalog["s"].shape == () and np.frombuffer(catalog["s"].read(dtype="bfloat16"), np.uint16)[0] == 0x4020
