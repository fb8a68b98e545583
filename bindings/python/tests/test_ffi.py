"""XLA's foreign function interface: our structs and constants beside the header of the installed jaxlib, and registering.

No C compiler is needed: the header is plain enough to be read here.
"""

import ctypes
import importlib
import logging
import re
from pathlib import Path

import jax
import pytest
from alight import _alight
from alight.jax import _ffi

SCALARS = {
    "size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
    "int": ctypes.c_int, "XLA_FFI_Handler_Traits": ctypes.c_uint32,
}  # fmt: skip

# What later headers call otherwise; names are not part of the binary interface, places and sizes are.
RENAMED = {
    "XLA_FFI_InternalExtension": "XLA_FFI_Extension_Base",
    "XLA_FFI_InternalExtension_Type": "XLA_FFI_Extension_Type",
    "XLA_FFI_Error_GetDetails": "XLA_FFI_Error_GetMessage",
    "XLA_FFI_InvokeContext_Get": "XLA_FFI_ExecutionContext_Get",
}


def header():
    """The text of the installed header, without comments, in the names of the oldest that is supported."""
    path = Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.S)
    return re.sub(r"\bXLA_FFI_\w+", lambda name: RENAMED.get(name[0], name[0]), text)


def read_structs(text):
    """Every struct of the header as one of ctypes."""
    text = re.sub(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", r"void* \1;", text)
    enums = set(re.findall(r"typedef enum\s*\{[^}]*\}\s*(\w+);", text))
    structs = {}
    for name, body in re.findall(r"struct (XLA_FFI_\w+) \{(.*?)\n\}", text, flags=re.S):
        fields = []
        for field in filter(None, (f.strip() for f in body.split(";"))):
            if function := re.match(r"void \(\*(\w+)\)\(", field):
                fields.append((function[1], ctypes.c_void_p))
                continue
            kind, field_name = re.fullmatch(r"(?:const |struct )*([\w ]+?\s*\**)\s*(\w+)", field).groups()
            kind = kind.strip()
            if kind.endswith("*") or kind == "XLA_FFI_Handler":
                fields.append((field_name, ctypes.c_void_p))
            elif kind in enums:
                fields.append((field_name, ctypes.c_int))
            else:
                fields.append((field_name, SCALARS.get(kind) or structs[kind]))
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return structs


STRUCTS, CONSTANTS = _alight.ffi_interface()


@pytest.mark.parametrize("name, size, fields", STRUCTS, ids=[name for name, *_ in STRUCTS])
def test_structs_are_those_of_the_header(name, size, fields):
    theirs = read_structs(header())[name]
    expected = [(field, getattr(theirs, field).offset) for field, _ in theirs._fields_]
    # A later version may add fields behind ours: it says by struct_size how far it goes.
    assert [(field.removeprefix("r#"), at) for field, at in fields] == expected[: len(fields)]
    assert size <= ctypes.sizeof(theirs)
    if len(fields) == len(expected):
        assert size == ctypes.sizeof(theirs)


def test_constants_are_those_of_the_header():
    text = header()
    theirs = dict(re.findall(r"(XLA_FFI_\w+) = (\d+)", text)) | dict(re.findall(r"#define (XLA_FFI_API_M\w+) (\d+)", text))
    theirs = {name: int(value) for name, value in theirs.items()}
    ours = dict(CONSTANTS)
    # A jaxlib takes handlers of its own version of the interface and of older ones.
    assert ours.pop("XLA_FFI_API_MINOR") <= theirs.pop("XLA_FFI_API_MINOR")
    assert len(ours) > 10 and ours == {name: theirs[name] for name in ours}


def test_registering_again_is_harmless(caplog):
    _ffi.register()
    again = importlib.reload(_ffi)
    with caplog.at_level(logging.WARNING, "alight.jax"):
        again.register()
        again.register()
    assert not caplog.records


def test_a_name_that_is_taken_is_left_to_whom_it_belongs(monkeypatch, caplog):
    _ffi.register()
    (name, platform, stages, _), *_ = _alight.ffi_targets()
    # The same name with a handler of another library.
    other = (name, platform, {"execute": stages["execute"]}, None)
    monkeypatch.setattr(_ffi, "_done", False)
    monkeypatch.setattr(_ffi._alight, "ffi_targets", lambda: [other])
    with caplog.at_level(logging.WARNING, "alight.jax"):
        _ffi.register()
    assert f"{name} is not registered" in caplog.text
