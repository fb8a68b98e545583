"""The whole workspace compiles for macOS, and what differs between systems is in a few places.

Compiled is what `cargo check` compiles: everything but the last step, the linking, for which zig has no frameworks of Apple's. Nothing runs.
Needed: `rustup target add aarch64-apple-darwin x86_64-apple-darwin`, and zig, which is the C compiler for the crates that have C
(`python -m evidence make cross apple` brings both). What is not there is said, and that part is skipped; `--install` brings it.

The places: a line of Rust outside of them that asks for an operating system, or reads /proc or /sys, is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from evidence.lib import common
from evidence.lib.checks import Checks
from evidence.make import cross

TARGETS = ("aarch64-apple-darwin", "x86_64-apple-darwin")
# Where systems may differ, and how.
PLACES = {
    "crates/pages/": "files, maps, and the page cache",
    "crates/rusage/": "what a process took",
    "crates/model/src/threads/": "threads: futexes, and cores",
    "crates/chat/src/grammar/trial.rs": "the limits of a process that is ended; its memory has a limit on Linux alone",
    "crates/kernels/src/isa.rs": "the system's leave to use a part of the processor",
    "crates/collective/": "memory that processes share; JAX on Linux alone",
    "crates/xla/": "CUDA's driver; Linux alone",
    "crates/cli/src/run/packing.rs": "the kind of processor, for a note that needs a measurement of it; elsewhere there is no note",
    "crates/cli/src/bench/experts/": "a control group for what is measured beside slots; without one it says so",
    "bindings/python/src/cuda.rs": "the same",
    "bindings/python/src/staging.rs": "the same",
}
SYSTEM = re.compile(r"target_os|target_vendor|\"/(proc|sys)\b")


def strangers() -> list[str]:
    """Lines outside of the places that look at the system."""
    found = []
    for path in sorted([*common.ROOT.glob("crates/*/src/**/*.rs"), *common.ROOT.glob("bindings/python/src/**/*.rs")]):
        name = str(path.relative_to(common.ROOT))
        if name.startswith(tuple(PLACES)):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if SYSTEM.search(line.split("//")[0]):
                found.append(f"{name}:{number}: {line.strip()}")
    return found


def installed() -> list[str]:
    """The targets whose standard library is here."""
    try:
        done = subprocess.run(["rustup", "target", "list", "--installed"], cwd=common.ROOT, capture_output=True, text=True)
    except OSError:
        return []
    return [target for target in TARGETS if target in done.stdout.split()]


def compiled(target: str) -> str:
    """What went wrong, or nothing."""
    python = cross.zig_python()
    environment = os.environ | cross.environment_of_c(target, python) | {
        "CARGO_TARGET_DIR": str(cross.folder() / "build"),
        f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER": str(cross.make_linker(target, python)),
    }
    environment.pop("RUSTFLAGS", None)
    command = ["cargo", "check", "--quiet", "--workspace", "--locked", "--target", target, "--message-format", "short"]
    done = subprocess.run(command, cwd=common.ROOT, env=environment, capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "error" in line]
    return "" if done.returncode == 0 else "\n    ".join(complaints[:12]) or done.stderr[-2000:]


def add_arguments(parser) -> None:
    parser.add_argument("--install", action="store_true", help="install what is missing")


def run(args) -> int:
    checks = Checks(out=sys.stdout)
    checks.wrong(f"what differs between systems is in {len(PLACES)} places", strangers())
    if args.install:
        for target in TARGETS:
            cross.prepare(target)
    there = installed()
    for target in TARGETS:
        if target not in there:
            print(f"skipped {target}: rustup target add {target}")
        elif not (args.install or (cross.folder() / "venv/stamp").is_file()):
            print(f"skipped {target}: there is no C compiler for it (python -m evidence check macos --install brings one)")
        else:
            checks.wrong(f"the workspace compiles for {target}", compiled(target))
    return checks.status()
