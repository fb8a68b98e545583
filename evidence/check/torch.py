"""Holds our reader of torch's files against an independent one: Python's zipfile for the container, its
pickle.Unpickler with stand-ins for everything that it looks up, numpy for the bytes. Compared are names, types,
shapes, the SHA-256 of every tensor's bytes, and all other values; files from before the zip must be refused by
both, by ours with words that say what to do.

    python -m evidence check torch [--write] [FILE…]     default: models/torch/*.pth, which python -m evidence fetch models torch fetches

With --write what Python reads goes into crates/formats/tests/data/torch_py.json, which the test `real_torch`
compares with where there is no Python. Needs numpy in the Python that runs it, and cargo. Without files it says so and ends with 0.
"""

from __future__ import annotations

import collections
import hashlib
import pickle
import struct
import sys
import zipfile

from evidence.lib import common, readers
from evidence.lib.lazy import lazily

np = lazily("numpy")


# numpy knows no bfloat16: its bytes are compared as those of uint16.
STORAGES = {
    "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "FloatStorage": "float32", "DoubleStorage": "float64",
    "IntStorage": "int32", "LongStorage": "int64", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8",
}


def np_dtype(name):
    other = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
    return np.dtype(other.get(name, name)).newbyteorder("<")


class Tensor:
    def __init__(self, dtype, array):
        self.dtype, self.array = dtype, array


def strided(storage, dtype, offset, size, stride):
    _, data = storage
    base = np.frombuffer(data, np_dtype(dtype))
    if 0 in size:
        return Tensor(dtype, np.zeros(size, np_dtype(dtype)))
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    assert 0 <= offset and last < len(base), "outside of the storage"
    steps = [s * base.itemsize for s in stride]
    return Tensor(dtype, np.lib.stride_tricks.as_strided(base[offset:], size, steps, writeable=False))


class Unpickler(pickle.Unpickler):
    def __init__(self, archive, root):
        super().__init__(archive.open(f"{root}/data.pkl"))
        self.archive, self.root = archive, root

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return lambda s, offset, size, stride, *_: strided(s, s[0], offset, size, stride)
        if module == "torch._utils" and name == "_rebuild_tensor_v3":
            return lambda s, offset, size, stride, _g, _h, dtype, *_: strided(s, dtype, offset, size, stride)
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
        if module == "torch._tensor" and name == "_rebuild_from_type_v2":
            return lambda function, _class, args, _state: function(*args)
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if module in ("torch", "torch.nn.parameter"):
            return name
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid):
        kind, dtype, key, _location, numel = pid
        data = self.archive.read(f"{self.root}/data/{key}")
        assert kind == "storage" and len(data) == numel * np_dtype(dtype).itemsize, pid
        return dtype, data


def flat(thing, name=""):
    """Names and values, as dotted paths."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield from flat(value, f"{name}.{key}" if name else str(key))
    elif isinstance(thing, (list, tuple)):
        for index, value in enumerate(thing):
            yield from ((n, v) for n, v in flat(value, f"{name}.{index}") if isinstance(v, Tensor))
    else:
        yield name, thing


def theirs(path):
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].split("/")[0]
        loaded = Unpickler(archive, root).load()
    tensors, others = [], []
    for name, value in flat(loaded):
        if isinstance(value, Tensor):
            data = np.ascontiguousarray(value.array).tobytes()
            tensors.append({"tensor": name, "dtype": value.dtype, "shape": list(value.array.shape),
                            "sha256": hashlib.sha256(data).hexdigest()})
        else:
            if isinstance(value, float):
                value = {"f64": struct.unpack("<Q", struct.pack("<d", value))[0]}
            others.append({"name": name, "value": value})
    return tensors, others


def add_arguments(parser) -> None:
    readers.add_arguments(parser, "models/torch/*.pth, which `fetch models torch` fetches")


def run(args) -> None:
    written = {}
    paths = readers.files(args, "torch/*.pth")
    if not paths:
        print(f"skipped: no files in {common.models_folder() / 'torch'}; python -m evidence fetch models torch fetches them")
    for path in paths:
        mine = readers.ours("torch_dump", path)
        if not zipfile.is_zipfile(path):
            reason = mine[0].get("refused", "")
            if "before 1.6" not in reason or "safetensors" not in reason:
                sys.exit(f"{path.name}: expected to be refused with advice, but: {mine[0]}")
            print(f"{path.name}: refused: {reason}")
            continue
        if "refused" in mine[0]:
            sys.exit(f"{path.name}: {mine[0]['refused']}")
        tensors, others = theirs(path)
        found = [thing for thing in mine if "tensor" in thing]
        offsets = [thing.pop("offset") for thing in found]
        readers.compare(path, found, tensors, "Python")
        readers.compare(path, [thing for thing in mine if "name" in thing], others, "Python")
        written[path.name] = tensors
        aligned = sum(offset % 64 == 0 for offset in offsets)
        print(f"{path.name}: {len(found)} tensors ({aligned} at multiples of 64) and {len(others)} other values agree")
    if args.write and written:
        readers.record("torch_py.json", written)
