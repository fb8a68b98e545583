#!/usr/bin/env python3
"""Compares our structs of XLA's FFI with the header that an installed jaxlib brings: names, sizes, offsets, constants.

    PYTHON crates/xla/tests/compare_header.py

PYTHON is one that has jaxlib. No C compiler is needed: the header is plain enough to be read here.
"""

import ctypes
import importlib.util
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCALARS = {
    "size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
    "int": ctypes.c_int, "XLA_FFI_Handler_Traits": ctypes.c_uint32,
}
# Constants of ours and their names in the header.
CONSTANTS = {
    "MAJOR": "XLA_FFI_API_MAJOR", "EXTENSION_METADATA": "XLA_FFI_Extension_Metadata",
    "STAGE_INSTANTIATE": "XLA_FFI_ExecutionStage_INSTANTIATE", "BUFFER": "XLA_FFI_ArgType_BUFFER",
    "ATTR_ARRAY": "XLA_FFI_AttrType_ARRAY", "ATTR_SCALAR": "XLA_FFI_AttrType_SCALAR",
    "S64": "XLA_FFI_DataType_S64", "F16": "XLA_FFI_DataType_F16", "F32": "XLA_FFI_DataType_F32",
    "BF16": "XLA_FFI_DataType_BF16", "INVALID_ARGUMENT": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED": "XLA_FFI_Error_Code_DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION": "XLA_FFI_Error_Code_FAILED_PRECONDITION", "INTERNAL": "XLA_FFI_Error_Code_INTERNAL",
}


def header() -> str:
    """The text of the installed header, without comments."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None:
        sys.exit(f"{sys.executable} has no jaxlib")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "include/xla/ffi/api/c_api.h"
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.S)


def read_structs(text: str) -> dict[str, type]:
    """Every struct of the header as one of ctypes."""
    text = re.sub(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", r"void* \1;", text)
    enums = set(re.findall(r"typedef enum\s*\{[^}]*\}\s*(\w+);", text))
    structs: dict[str, type] = {}
    for name, body in re.findall(r"struct (XLA_FFI_\w+) \{(.*?)\n\}", text, flags=re.S):
        fields = []
        for field in filter(None, (f.strip() for f in body.split(";"))):
            if function := re.match(r"void \(\*(\w+)\)\(", field):
                fields.append((function[1], ctypes.c_void_p))
                continue
            kind, field_name = re.fullmatch(r"(?:const |struct )*([\w ]+?\s*\**)\s*(\w+)", field).groups()
            kind = kind.strip()
            if kind.endswith("*") or kind in ("XLA_FFI_Handler",):
                fields.append((field_name, ctypes.c_void_p))
            elif kind in enums:
                fields.append((field_name, ctypes.c_int))
            else:
                fields.append((field_name, SCALARS.get(kind) or structs[kind]))
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return structs


def main() -> None:
    text = header()
    theirs = read_structs(text)
    command = ["cargo", "run", "--quiet", "--locked", "-p", "alight-xla", "--example", "ffi_layouts"]
    ours = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wrong = []
    for line in ours.splitlines():
        name, size, *fields = line.split()
        struct = theirs[name]
        expected = [(f, getattr(struct, f).offset) for f, _ in struct._fields_]
        found = [(f.removeprefix("r#"), int(at)) for f, at in (field.split("=") for field in fields)]
        # A later version may add fields behind ours; the frame and the table of functions are made by XLA.
        if found != expected[: len(found)] or int(size) > ctypes.sizeof(struct):
            wrong.append(f"{name}: ours {size} {found}, the header's {ctypes.sizeof(struct)} {expected}")
    numbers = dict(re.findall(r"(XLA_FFI_\w+) = (\d+)", text))
    numbers |= dict(re.findall(r"#define (XLA_FFI_API_M\w+) (\d+)", text))
    source = (ROOT / "crates/xla/src/api.rs").read_text()
    for name, theirs_name in CONSTANTS.items():
        found = re.search(rf"pub const {name}: c_int = (\d+);", source)[1]
        if found != numbers[theirs_name]:
            wrong.append(f"{name} is {found}, {theirs_name} is {numbers[theirs_name]}")
    minor = int(re.search(r"pub const MINOR: c_int = (\d+);", source)[1])
    if minor > int(numbers["XLA_FFI_API_MINOR"]):
        wrong.append(f"our minor version {minor} is newer than the header's {numbers['XLA_FFI_API_MINOR']}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(ours.splitlines())} structs and {len(CONSTANTS)} constants are those of FFI 0.{numbers['XLA_FFI_API_MINOR']}")


if __name__ == "__main__":
    main()
