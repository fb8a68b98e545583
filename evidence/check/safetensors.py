"""Holds our safetensors parser against another reader: Python's own `json` and a few lines, and the
`safetensors` package as well where it is installed. Compared are the metadata, and each tensor's name,
dtype, shape, place and the SHA-256 of its bytes.

With --write it also puts what the other reader reads into tests/data/safetensors_py.json, which the test
`real_safetensors` compares with where there is no Python. Needs cargo. Without arguments it takes the
files in $ALIGHT_MODELS or <workspace>/models. Ends with status 1 at the first difference.
"""

import hashlib
import json
import sys

from evidence.lib import readers


def theirs(path):
    bytes_ = path.read_bytes()
    start = 8 + int.from_bytes(bytes_[:8], "little")
    header = json.loads(bytes_[8:start])
    metadata = header.pop("__metadata__", {})
    yield {"data_start": start, "data_end": len(bytes_), "metadata": [list(pair) for pair in metadata.items()]}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = (start + at for at in entry["data_offsets"])
        digest = hashlib.sha256(bytes_[begin:end]).hexdigest()
        yield {"tensor": name, "dtype": entry["dtype"], "shape": entry["shape"],
               "begin": begin, "end": end, "sha256": digest}


def check_package(path, things):
    """The same by the package, as far as it tells: it has no places, and gives numpy arrays."""
    try:
        from safetensors import safe_open
    except ImportError:
        return "without the package, which is not installed"
    tensors = {thing["tensor"]: thing for thing in things if "tensor" in thing}
    skipped = 0
    with safe_open(path, framework="np") as file:
        if set(file.keys()) != set(tensors):
            sys.exit(f"{path.name}: the package has other tensors than we")
        if (file.metadata() or {}) != dict(things[0]["metadata"]):
            sys.exit(f"{path.name}: the package has other metadata than we")
        for name, thing in tensors.items():
            part = file.get_slice(name)
            if (list(part.get_shape()), part.get_dtype()) != (thing["shape"], thing["dtype"]):
                sys.exit(f"{path.name}: {name}: the package has another shape or type than we: {thing}")
            try:
                array = file.get_tensor(name)
            except (TypeError, AttributeError):  # numpy has no bfloat16
                skipped += 1
                continue
            if hashlib.sha256(array.tobytes()).hexdigest() != thing["sha256"]:
                sys.exit(f"{path.name}: {name}: the package reads other bytes than we")
    return f"also with the package (bytes of {skipped} not compared)" if skipped else "also with the package"


def add_arguments(parser) -> None:
    readers.add_arguments(parser, "models/*.safetensors")


def run(args) -> None:
    written = {}
    for path in readers.files(args, "*.safetensors") or args.error("no files to compare"):
        mine, other = readers.ours("safetensors_dump", path), list(theirs(path))
        readers.compare(path, mine, other, "the other")
        written[path.name] = other
        print(f"{path.name}: {len(mine) - 1} tensors agree, {check_package(path, mine)}")
    if args.write:
        readers.record("safetensors_py.json", written)
