#!/usr/bin/env python3
"""Compiles the CUDA kernels for every architecture that is supported, without a GPU, and says what they take of one.

    python scripts/compile_cuda.py [--out DIR] [--arch sm_90 ...] [--nvrtc LIBRARY]

NVRTC is the one of the PyPI package nvidia-cuda-nvrtc, or of --nvrtc. Fails if a kernel does not compile, spills registers, or
has more of them than a block of 1024 threads may. With --out the cubins are written there, for a disassembler.
"""

import argparse
import ctypes
import importlib.util
import pathlib
import re
import struct
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crates/xla/cuda/allreduce_norm.cu"
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
# As crates/xla/src/cuda/nvrtc.rs has them.
OPTIONS = ["--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"]
# The programs: what the package compiles, one kernel at a time, in one; then the test variants of one kernel.
ONE = ["-DALIGHT_ELEMENT=Bf16", "-DALIGHT_WEIGHT=Bf16", "-DALIGHT_VECTORS=1", "-DALIGHT_WHOLE=true"]
CONTROLS = ["ALIGHT_NO_WAIT", "ALIGHT_ONE_BUFFER", "ALIGHT_NO_RELEASE", "ALIGHT_EARLY_FLAG"]
# 65536 registers of a multiprocessor for the 1024 threads of a block.
MOST_REGISTERS = 64


def find_nvrtc() -> pathlib.Path:
    """The library that a package of this Python has brought."""
    found = []
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        found += [p for p in pathlib.Path(folder).glob("**/libnvrtc.so.*") if ".alt." not in p.name]
    if not found:
        sys.exit(f"{sys.executable} has no NVRTC: make cuda installs it, or pip install nvidia-cuda-nvrtc==13.0.88")
    return sorted(found)[-1]


class Nvrtc:
    """The few functions that are needed."""

    def __init__(self, path: pathlib.Path) -> None:
        # NVRTC looks for this one by its name only: it is found if it has been loaded.
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
        self.library = ctypes.CDLL(str(path))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(self.library.nvrtcGetErrorString(code).decode())

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.library, f"nvrtcGet{what}")(program, data))
        return data.raw

    def compile(self, source: str, options: list[str]) -> tuple[bytes, str]:
        """(cubin, log)"""
        program = ctypes.c_void_p()
        self.check(self.library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), SOURCE.name.encode(), 0, None, None))
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self.library.nvrtcCompileProgram(program, len(options), array)
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
        if code:
            sys.exit(f"{SOURCE}: does not compile with {' '.join(options)}\n{log}")
        cubin = self.text(program, "CUBIN")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin, log


def sections(cubin: bytes) -> dict[str, tuple[bytes, int, int]]:
    """The sections of an ELF file: contents, and the fields link and info of the header."""
    if cubin[:4] != b"\x7fELF":
        sys.exit("the cubin is not an ELF file")
    start, = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    names = heads[names_at]
    text = cubin[names[4]:names[4] + names[5]]
    # Type 8 (NOBITS) has no contents in the file.
    return {text[h[0]:].split(b"\0", 1)[0].decode(): (b"" if h[1] == 8 else cubin[h[4]:h[4] + h[5]], h[5], h[7]) for h in heads}


def usage(cubin: bytes) -> dict[str, dict[str, int]]:
    """By kernel: bytes of code, registers (the upper byte of the code section's info), shared memory and stack."""
    found = sections(cubin)
    kernels = {}
    for name, (contents, _, info) in found.items():
        if name.startswith(".text."):
            kernel = name.removeprefix(".text.")
            shared = found.get(f".nv.shared.{kernel}", (b"", 0, 0))[1]
            kernels[kernel] = {"code": len(contents), "registers": info >> 24, "shared": shared}
    return kernels


def from_log(log: str) -> dict[str, dict[str, int]]:
    """By kernel: what ptxas says with -v."""
    kernels, name = {}, None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
        if name and (match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            kernels[name] = {"stack": int(match[1]), "spilled": int(match[2]) + int(match[3])}
        if name and (match := re.search(r"Used (\d+) registers", line)):
            kernels[name]["registers"] = int(match[1])
    return kernels


def report(cubin: bytes, log: str, what: str) -> list[str]:
    """Prints a line for each kernel; what is wrong with them."""
    wrong, said = [], from_log(log)
    for name, kernel in sorted(usage(cubin).items()):
        said_here = said.get(name, {})
        kernel |= said_here
        print(f"{what:8} {name:44} {kernel['registers']:4} registers {kernel['shared']:6} B shared "
              f"{kernel.get('stack', -1):4} B stack {kernel.get('spilled', -1):4} B spilled {kernel['code']:7} B code")
        if not said_here:
            wrong.append(f"{what} {name}: nothing is said of its registers")
        if kernel.get("spilled") or kernel.get("stack"):
            wrong.append(f"{what} {name}: {kernel['stack']} bytes of stack, {kernel['spilled']} spilled")
        if kernel["registers"] > MOST_REGISTERS:
            wrong.append(f"{what} {name}: {kernel['registers']} registers, at most {MOST_REGISTERS} for 1024 threads")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--nvrtc", type=pathlib.Path)
    arguments = parser.parse_args()
    nvrtc = Nvrtc(arguments.nvrtc or find_nvrtc())
    source = SOURCE.read_text()
    wrong, start, count = [], time.monotonic(), 0
    for arch in arguments.arch:
        options = [*OPTIONS, f"--gpu-architecture={arch}", "--ptxas-options=-v"]
        cubin, log = nvrtc.compile(source, options)
        found = report(cubin, log, arch)
        wrong += found
        count += len(usage(cubin))
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"allreduce_norm.{arch}.cubin").write_bytes(cubin)
        for control in CONTROLS:
            nvrtc.compile(source, [*options, *ONE, f"-D{control}", "-DALIGHT_DELAYS"])
            count += 1
    print(f"NVRTC {nvrtc.version}: {count} kernels in {time.monotonic() - start:.1f} s")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
