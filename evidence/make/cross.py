"""Builds `rusage` for Linux, Windows, macOS, FreeBSD, NetBSD and OpenBSD, on x86_64 and aarch64, from one machine.

Needed: rustup and Python; everything else comes from the package registries. For Linux the linker and the C library are those that Rust
has for its musl targets. For the ten others both are zig's, from the Python package `ziglang`, in an environment of its own; what packages have of C
and assembler is compiled by zig for all of them. Eight targets have a standard
library to install (`rustup target add`); for the others it is built from source (`rustup component add rust-src`; that
takes cargo's `-Z build-std`, which RUSTC_BOOTSTRAP=1 allows a stable compiler).

Everything made lies under target/cross/ (or $CARGO_TARGET_DIR/cross/), the programs as target/cross/bin/TARGET/rusage.
A table on stdout says of each target whether it was linked, or why not. The exit status is 1 if one was not.

No part of `make build` or `make test`; `make cross` calls it. What was built is run by `check cross`,
as far as this machine can run it.
"""

import argparse
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from evidence.lib import common

ZIG = "ziglang==0.17.1"
# Static programs for Linux by Rust's own linker and C library.
OWN_LINKER = "-C linker-flavor=ld.lld -C link-self-contained=yes"
# The profile of `make rusage`: the size of what is measured begins with its own.
PROFILE = "small"
# Rust's name of a target: zig's name of it, and whether its standard library can be installed.
TARGETS = {
    "x86_64-unknown-linux-musl": ("x86_64-linux-musl", True),
    "aarch64-unknown-linux-musl": ("aarch64-linux-musl", True),
    "x86_64-pc-windows-gnu": ("x86_64-windows-gnu", True),
    "aarch64-pc-windows-gnullvm": ("aarch64-windows-gnu", True),
    "x86_64-apple-darwin": ("x86_64-macos.11.0", True),
    "aarch64-apple-darwin": ("aarch64-macos.11.0", True),
    "x86_64-unknown-freebsd": ("x86_64-freebsd", True),
    "aarch64-unknown-freebsd": ("aarch64-freebsd", False),
    "x86_64-unknown-netbsd": ("x86_64-netbsd", True),
    "aarch64-unknown-netbsd": ("aarch64-netbsd", False),
    "x86_64-unknown-openbsd": ("x86_64-openbsd", False),
    "aarch64-unknown-openbsd": ("aarch64-openbsd", False),
}
# Libraries that Rust names for a target though nothing of ours calls them, and that zig does not carry: if something
# did call them, the link would fail for want of the symbol. Windows: zig brings its own C runtime and threads.
NOT_CARRIED = {
    "freebsd": ["kvm", "memstat", "procstat", "devstat"],
    "darwin": ["iconv"],
    "windows": ["msvcrt", ":libpthread.a", "gcc_s", "gcc"],
}
# The same thing under zig's name.
NAMED = {"-lgcc_eh": "-lunwind"}


def folder() -> Path:
    return common.TARGET / "cross"


def program(target: str, package: str = "rusage") -> Path:
    """Where the program for a target is, once it was built."""
    return folder() / "bin" / target / (f"{package}.exe" if "windows" in target else package)


# --- the linker ----------------------------------------------------------------------------------

def zig_python() -> Path:
    """The Python of an environment that has zig in it, made the first time."""
    venv = folder() / "venv"
    python, stamp = venv / "bin/python", venv / "stamp"
    if not stamp.is_file() or stamp.read_text() != ZIG:
        common.say(f"installing {ZIG} into {venv}")
        shutil.rmtree(venv, ignore_errors=True)
        # Without ensurepip, which some systems package apart: pip installs into it from outside.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
                        "--disable-pip-version-check", "--only-binary", ":all:", ZIG], check=True)
        stamp.write_text(ZIG)
    return python


def make_tool(name: str, command: str) -> Path:
    """A file that Rust can call, since it wants a path and no arguments."""
    path = folder() / "tools" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def make_linker(target: str, python: Path) -> Path:
    """This module, as `link`."""
    return make_tool(f"link-{target}", f'env PYTHONPATH="{common.ROOT}" "{python}" -m evidence.make.cross {target}')


def link(target: str, arguments: list[str]) -> int:
    """Stands in for the C compiler that Rust would link with, or that compiles what a package has of C."""
    dropped = {f"-l{name}" for key, names in NOT_CARRIED.items() if key in target for name in names}
    # Rust's name of the target, which zig does not know.
    kept = [NAMED.get(a, a) for a in arguments if a not in dropped and not a.startswith("--target=")]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[target][0], *kept]
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(folder() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder() / "zig")}
    return subprocess.run(command, env=os.environ | environment).returncode


# --- one target ----------------------------------------------------------------------------------

def prepare(target: str) -> None:
    """Installs the target's standard library, or the source of one."""
    what = ["target", "add", target] if TARGETS[target][1] else ["component", "add", "rust-src"]
    subprocess.run(["rustup", *what], cwd=common.ROOT, check=True, capture_output=True, text=True)


def build(target: str, package: str, manifest: Path, python: Path, profile: str = PROFILE, remap: tuple[str, ...] = (),
          more: dict[str, str] | None = None) -> str:
    """Builds for one target; returns what went wrong, in a line, or nothing. `remap`: folders whose names the program must not
    have in it, as rustc takes them (FROM=TO). `more`: of the environment."""
    try:
        prepare(target)
    except (OSError, subprocess.CalledProcessError) as error:
        return last_line(getattr(error, "stderr", None) or str(error))
    name = target.upper().replace("-", "_")
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(folder() / "build"),
        f"CARGO_TARGET_{name}_LINKER": "rust-lld" if is_linux(target) else str(make_linker(target, python)),
        f"CARGO_TARGET_{name}_RUSTFLAGS": " ".join([flags(target, python), *(f"--remap-path-prefix={one}" for one in remap)]),
    } | (more or {})
    environment.pop("RUSTFLAGS", None)
    command = ["cargo", "build", "--profile", profile, "--locked", "--manifest-path", manifest,
               "-p", package, "--bin", package, "--target", target]
    if not TARGETS[target][1]:
        environment["RUSTC_BOOTSTRAP"] = "1"
        command += ["-Z", "build-std=std,panic_abort"]
    log = folder() / "logs" / f"{target}-{package}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        done = subprocess.run(command, env=environment, stdout=out, stderr=out, cwd=common.ROOT)
    if done.returncode != 0:
        return f"{reason(log)} (all of it: {log})"
    path = program(target, package)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(folder() / "build" / target / profile / path.name, path)
    return ""


def environment_of_c(target: str, python: Path, maps: str = "") -> dict[str, str]:
    """What the build scripts of packages with C or assembler take: ring has both. `maps`: more flags for the compiler."""
    name = target.replace("-", "_")
    return {
        f"CC_{name}": str(make_linker(target, python)),
        f"AR_{name}": str(make_tool("ar", f'"{python}" -m ziglang ar')),
        f"CFLAGS_{name}": f"-g0 -fno-sanitize=undefined {maps}".strip(),
        "ZIG_GLOBAL_CACHE_DIR": str(folder() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder() / "zig"),
    }


def environment_of_tests(target: str, folder: Path) -> dict[str, str]:
    """What cargo builds the kernels' tests for Linux with, as static programs that an emulator runs: into `folder`, by Rust's own linker."""
    name = target.upper().replace("-", "_")
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(folder),
        # Names and lines would take longer to compile than to be of use.
        "CARGO_PROFILE_DEV_DEBUG": "0",
        f"CARGO_TARGET_{name}_LINKER": "rust-lld",
        f"CARGO_TARGET_{name}_RUSTFLAGS": OWN_LINKER,
    }
    environment.pop("RUSTFLAGS", None)
    return environment


def is_linux(target: str) -> bool:
    """Whether Rust's own linker and C library make the program: zig's make those for other systems."""
    return "linux" in target


def flags(target: str, python: Path) -> str:
    """What rustc is told about a target. For Linux the start files and the C library are Rust's own, else zig's."""
    if is_linux(target):
        # Rust's own musl: the `calloc` of zig's writes zeros into pages that the kernel has just handed out as zeros, so all buffers of an
        # engine were resident before its first token (22 MB and 25 ms with SmolLM2).
        # Not to be relocated, as by `make rusage`: relocated pages are the program's own, and count.
        return f"{OWN_LINKER} -C relocation-model=static"
    if target.endswith("windows-gnu"):
        # That of zig, for the calls of Windows that no library of Rust's has.
        tool = make_tool("dlltool", f'"{python}" -m ziglang dlltool')
        return f"-C link-self-contained=no -C dlltool={tool}"
    return ""


def reason(log: Path) -> str:
    """The first complaint of a failed build."""
    lines = log.read_text(errors="replace").splitlines()
    complaints = [line.strip() for line in lines if "error:" in line and "linking with" not in line]
    return (complaints or lines or ["it said nothing"])[0][:160]


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def kind(path: Path) -> str:
    """What the file is, in the words of file(1) where that is installed."""
    if not shutil.which("file"):
        return "(file(1) is not installed)"
    told = subprocess.run(["file", "--brief", path], capture_output=True, text=True).stdout.strip()
    dull = ("version 1", "BuildID", "stripped", "with debug_info", "for NetBSD")
    return ", ".join(part for part in told.split(", ") if not part.startswith(dull))


def add_arguments(parser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which to build, by any part of the name (all)")
    parser.add_argument("--manifest", type=Path, default=common.ROOT / "Cargo.toml", help=argparse.SUPPRESS)
    parser.add_argument("--package", default="rusage", help=argparse.SUPPRESS)


def run(arguments) -> int:
    asked = arguments.targets or [""]
    chosen = [target for target in TARGETS if any(part in target for part in asked)]
    if not chosen:
        arguments.error(f"no such target; there are: {' '.join(TARGETS)}")
    python = zig_python()
    rows = [["target", "result", "bytes", "kind"]]
    for target in chosen:
        common.say(f"building for {target}" + ("" if TARGETS[target][1] else ", with its standard library"))
        path = program(target, arguments.package)
        path.unlink(missing_ok=True)
        wrong = build(target, arguments.package, arguments.manifest, python)
        rows.append([target, f"NOT LINKED: {wrong}", "", ""] if wrong else
                    [target, "linked", f"{path.stat().st_size:,}", kind(path)])
    common.table(rows)
    return int(any(row[1] != "linked" for row in rows[1:]))


if __name__ == "__main__":
    # As the linker that rustc calls: TARGET, then what it hands to a linker.
    sys.exit(link(sys.argv[1], sys.argv[2:]))
