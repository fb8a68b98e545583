"""Holds our GGUF parser against the `gguf` package's GGUFReader: version, alignment, every metadata
entry (key, type, value bit for bit), every tensor (name, shape, type, absolute offset, bytes).

With --write it also puts what GGUFReader reads into tests/data/gguf_py.json (arrays as length and
hash), which the test `real_models` compares with where there is no Python. Needs `gguf` and `numpy` in the Python that runs it, and cargo. Without arguments it takes the models
in $ALIGHT_MODELS or <workspace>/models. Ends with status 1 at the first difference.
"""

from __future__ import annotations

from evidence.lib import readers
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

TYPES = {
    "UINT8": "u8", "INT8": "i8", "UINT16": "u16", "INT16": "i16", "UINT32": "u32", "INT32": "i32",
    "FLOAT32": "f32", "BOOL": "bool", "STRING": "str", "UINT64": "u64", "INT64": "i64", "FLOAT64": "f64",
}


def bits(part, kind):
    """One stored element as the dump prints it."""
    if kind == "str":
        return bytes(part).hex()
    if kind in ("f32", "f64"):
        return int(part.view(np.uint32 if kind == "f32" else np.uint64)[0])
    return int(part[0])


def theirs(path):
    reader = gguf.GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=None)
    yield {
        "version": int(reader.fields["GGUF.version"].parts[0][0]),
        "alignment": int(reader.alignment),
        "data_start": int(reader.data_offset),
        "data_end": int(reader.data_offset) if end is None else end,
    }
    for name, field in fields.items():
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            kind = TYPES[field.types[1].name] if len(field.types) > 1 else None
            values = [bits(field.parts[i], kind) for i in field.data]
            yield {"key": name, "type": f"[{kind}]", "value": values}
        else:
            kind = TYPES[field.types[0].name]
            yield {"key": name, "type": kind, "value": bits(field.parts[field.data[0]], kind)}
    for tensor in reader.tensors:
        yield {
            "tensor": tensor.name,
            "shape": [int(n) for n in tensor.shape],
            "type": tensor.tensor_type.name,
            "offset": int(tensor.data_offset),
            "nbytes": int(tensor.n_bytes),
        }


def fnv(chunks):
    """FNV-1a of 64 bits over all chunks of bytes."""
    state = 0xCBF29CE484222325
    for chunk in chunks:
        for byte in chunk:
            state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return state


def short(thing):
    """As it goes into the JSON: an array as length and hash of its elements, strings with lengths."""
    if not isinstance(thing.get("value"), list):
        return thing
    kind, values = thing["type"][1:-1], thing["value"]
    if kind == "str":
        texts = (bytes.fromhex(v) for v in values)
        chunks = (len(t).to_bytes(8, "little") + t for t in texts)
    else:
        width = 1 if kind in ("u8", "i8", "bool") else int(kind[1:]) // 8
        chunks = (v.to_bytes(width, "little", signed=kind[0] == "i") for v in values)
    return {"key": thing["key"], "type": thing["type"], "len": len(values), "fnv": f"{fnv(chunks):016x}"}


def add_arguments(parser) -> None:
    readers.add_arguments(parser, "models/*.gguf")


def run(args) -> None:
    written = {}
    for path in readers.files(args, "*.gguf") or args.error("no models to compare"):
        if args.write and path.name.startswith("random-"):
            continue  # made on the spot, not the same everywhere
        mine, other = readers.ours("gguf_dump", path), list(theirs(path))
        readers.compare(path, mine, other, "gguf")
        entries = sum("key" in thing for thing in mine)
        elements = sum(len(t["value"]) for t in mine if "key" in t and isinstance(t["value"], list))
        tensors = sum("tensor" in thing for thing in mine)
        written[path.name] = [short(thing) for thing in other]
        print(f"{path.name}: {entries} entries ({elements} array elements), {tensors} tensors agree")
    if args.write:
        readers.record("gguf_py.json", written)
