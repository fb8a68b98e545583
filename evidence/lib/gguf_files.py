"""GGUF files by the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def know_newer_types() -> None:
    """Makes the `gguf` package read files with Q2_0, which is newer than it."""
    kinds, number = gguf.GGMLQuantizationType, 42
    if number in kinds._value2member_map_:
        return
    member = int.__new__(kinds, number)
    member._name_, member._value_ = "Q2_0", number
    kinds._member_map_["Q2_0"] = kinds._value2member_map_[number] = member
    gguf.GGML_QUANT_SIZES[member] = (64, 18)


def quick_reader(path: Path) -> gguf.GGUFReader:
    """The package's reader, whose values are plain arrays over the file. Its own are slices of `np.memmap`, of which each costs ten times as much,
    and the metadata of a large vocabulary is a million of them."""

    class Quick(gguf.GGUFReader):
        def _get(self, offset, dtype, count=1, override_order=None):
            order = self.byte_order if override_order is None else override_order
            return np.frombuffer(self.data, np.dtype(dtype).newbyteorder(order), int(count), int(offset))

    return Quick(path)


def copy_keys(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, wanted: Callable, other: dict | None = None) -> None:
    """The metadata whose names are `wanted`, with `other` values where it says so."""
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and wanted(name):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            value = (other or {}).get(name)
            writer.add_key_value(name, field.contents() if value is None else value, kind, sub_type=sub)


def difference(ours, theirs) -> str:
    """Two values that differ, in words."""
    if not (isinstance(ours, list) and isinstance(theirs, list)):
        return f"{ours!r:.100} instead of {theirs!r:.100}"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return (f"{len(ours)} elements, {len(theirs)} wanted, {sum(a != b for a, b in zip(ours, theirs))} differ, the first at {at}: "
            f"{ours[at:at + 1]!r} instead of {theirs[at:at + 1]!r}")


def raw(data) -> np.ndarray:
    """The bytes of an array."""
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def dequantise(source: Path, target: Path) -> None:
    """Writes `source` with every tensor as F32, and what multiplies the products of NVFP4 in the weights. Streams: one tensor
    in memory at a time."""
    reader = gguf.GGUFReader(source)
    # One number for a matrix, or one for each of its experts: their weights come in the file's order.
    found = {tensor.name: tensor.data for tensor in reader.tensors if tensor.name.endswith(".scale")}
    scaled = (tensor.name.removesuffix("weight") + "scale" for tensor in reader.tensors if tensor.tensor_type.name == "NVFP4")
    scales = {name: found[name] for name in scaled if name in found}
    tensors = [tensor for tensor in reader.tensors if tensor.name not in scales]
    arch = reader.get_field("general.architecture").contents()
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, arch)
    # The writer has an alignment of its own.
    copy_keys(reader, writer, lambda name: name not in ("general.architecture", "general.alignment"), {"general.file_type": 0})
    for tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        count = int(np.prod(shape))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), count * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        exact = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if (scale := scales.get(tensor.name.removesuffix("weight") + "scale")) is not None:
            exact = (exact.reshape(scale.size, -1) * scale.reshape(-1, 1)).astype(np.float32)
        writer.write_tensor_data(exact.reshape(shape))
    writer.close()
    part.rename(target)


def sizes_of_experts(path: Path) -> tuple[int, int]:
    """Bytes of the tensors that every token reads, and of those that have experts."""
    always = experts = 0
    for tensor in gguf.GGUFReader(path).tensors:
        if "_exps." in tensor.name:
            experts += int(tensor.n_bytes)
        else:
            always += int(tensor.n_bytes)
    return always, experts
