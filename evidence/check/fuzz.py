"""All fuzz targets compile, with the program that writes their seeds, and `make fuzz` runs each of them.

They are checked by the ordinary compiler, as the fuzzer's crate sees the others (`--cfg fuzzing`); nothing is linked or run, so neither the nightly
compiler nor a C++ compiler is needed. Needed: cargo, and the network once, for the crates that only `fuzz` has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

from evidence.lib import common
from evidence.lib.checks import Checks

FUZZ = common.ROOT / "fuzz"


def left_out() -> list[str]:
    """Targets that are not named where they have to be."""
    files = {path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs")}
    manifest = {one["name"] for one in tomllib.loads((FUZZ / "Cargo.toml").read_text())["bin"]}
    variable = re.search(r"^FUZZ_TARGETS \?= (.*)$", (common.ROOT / "Makefile").read_text(), re.MULTILINE)
    made = set(variable[1].split()) if variable else set()
    names = {"fuzz/Cargo.toml": manifest, "FUZZ_TARGETS of the Makefile": made}
    return [f"{name} is not in {where}" for where, named in names.items() for name in sorted(files ^ named)]


def compiled() -> str:
    """What went wrong, or nothing."""
    environment = os.environ | {"RUSTFLAGS": "--cfg fuzzing -D warnings", "CARGO_TARGET_DIR": str(common.TARGET / "fuzz-check")}
    environment.pop("RUSTC_WRAPPER", None)
    command = ["cargo", "check", "--quiet", "--locked", "--manifest-path", str(FUZZ / "Cargo.toml"), "--no-default-features", "--bins", "--examples"]
    done = subprocess.run(command, cwd=common.ROOT, env=environment, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr[-6000:]


def add_arguments(parser) -> None:
    """None."""


def run(args) -> int:
    checks = Checks(out=sys.stdout)
    checks.wrong("every fuzz target is named where it is built and run", left_out())
    checks.wrong("the fuzz targets compile", compiled())
    return checks.status()
