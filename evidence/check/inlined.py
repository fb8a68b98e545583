"""No SIMD instruction is a function that is called: in no program, library or example of the release build.

A closure is code of its own, without the features of the function that holds it. Where the compiler does not join the two, each
instruction in the closure becomes a call, and a kernel computes the same bits ten times as slowly. Needs the release build and `nm`.
"""

import subprocess
import sys
from pathlib import Path

from evidence.lib import common

# Modules of the standard library's instructions that ask the CPU what it has.
QUESTIONS = ("cpuid", "xsave")


def add_arguments(parser) -> None:
    """Which programs and libraries."""
    parser.add_argument("files", nargs="*", type=Path, help="default: alight, rusage, Python's extension, and the examples that were built")


def built() -> list[Path]:
    """Everything of the release build that ships or that measures."""
    folder = common.TARGET / "release"
    programs = [common.alight(None), folder / "rusage"]
    extensions = [folder / f"lib_alight{suffix}" for suffix in (".so", ".dylib")]
    # Cargo's name has a hash; the other link to the same file has none.
    examples = [path for path in (folder / "examples").glob("*") if path.is_file() and not path.suffix and "-" not in path.name]
    return programs + [path for path in extensions + sorted(examples) if path.is_file()]


def called(symbols: str) -> list[str]:
    """The instructions among a program's symbols, which `nm` lists: address, kind, name."""
    names = {line.split(" ")[-1] for line in symbols.splitlines()}
    return sorted(name for name in names if "core_arch" in name and not any(q in name for q in QUESTIONS))


def run(args) -> int:
    """Prints each instruction that is a function; the exit status."""
    # Names of both of Rust's manglings.
    add = "_RNvNtNtNtCsgEmfK2I1SDS_4core9core_arch3x864avx216__mm256_add_epi32"
    shift = "_ZN4core9core_arch3x864avx217_mm256_slli_epi3217hd24eca0f96312384E"
    other = "_RNvNtNtNtCsgEmfK2I1SDS_4core9core_arch3x865xsave7__xgetbv"
    assert called(f"10 t {shift}\n20 t {add}\n30 t {other}\n40 T main\n") == [add, shift]
    wrong = False
    for path in args.files or built():
        symbols = subprocess.run(["nm", path], check=True, stdout=subprocess.PIPE, text=True).stdout
        if not symbols:
            print(f"{path} has no symbols, so that this shows nothing", file=sys.stderr)
            wrong = True
        for name in called(symbols):
            print(f"{path}: {name} is a function that is called. What calls it lacks the features of its SIMD level: "
                  "write it without a closure", file=sys.stderr)
            wrong = True
    return int(wrong)
