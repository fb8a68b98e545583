"""Holds all our crates to clippy's lints and to the compiler's: libraries, programs, tests and examples, and a warning is an error.

It is `cargo clippy --all-targets -- -D warnings`, in half of its time. That checks every crate below ours once more, although all of them have been
compiled. Here they are linked from `target/release` into `target/lints`, where cargo finds them as it has left them, and calls clippy for our own
(`scripts/lint_alone.sh`). What is not there yet is compiled.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from evidence.lib import common

COMPILED, LINTS = common.TARGET / "release", common.TARGET / "lints/release"


def add_arguments(parser) -> None:
    """None."""


def own_packages() -> set[str]:
    """The names of the packages of the workspace."""
    line = ["cargo", "metadata", "--no-deps", "--locked", "--format-version", "1"]
    found = subprocess.run(line, cwd=common.ROOT, check=True, stdout=subprocess.PIPE).stdout
    return {package["name"] for package in json.loads(found)["packages"]}


def link(source: Path, target: Path) -> None:
    """Makes `target` what `source` is, unless it is newer. What cargo writes in place is copied: the original stays what it is."""
    if target.exists() and target.stat().st_mtime_ns >= source.stat().st_mtime_ns:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if source.suffix in (".rlib", ".rmeta", ".so"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def link_others(own: set[str]) -> None:
    """Links the crates that are not ours, with what cargo knows about them."""
    units = [unit.name for unit in COMPILED.glob(".fingerprint/*") if unit.name[:-17] not in own]
    for unit in units:
        for folder in (f".fingerprint/{unit}", f"build/{unit}"):
            for path in (COMPILED / folder).rglob("*"):
                if path.is_file():
                    link(path, LINTS / path.relative_to(COMPILED))
    # Names end with a hash and perhaps a suffix.
    hashes = {unit[-16:] for unit in units}
    for path in COMPILED.glob("deps/*"):
        if path.name.partition(".")[0][-16:] in hashes:
            link(path, LINTS / "deps" / path.name)


def run(args) -> int:
    """The exit status of cargo, which prints what is wrong."""
    link_others(own_packages())
    line = ["cargo", "build", "--release", "--locked", "--workspace", "--all-targets", "--keep-going", "--target-dir", LINTS.parent]
    return subprocess.run(line, cwd=common.ROOT, env=os.environ | {"RUSTC_WORKSPACE_WRAPPER": str(common.ROOT / "scripts/lint_alone.sh")}).returncode
