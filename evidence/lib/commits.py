"""Another commit of this repository beside the working tree, both built."""

import os
import shutil
import subprocess
from pathlib import Path

from evidence.lib import common, process

WORK = common.ROOT / "target" / "other_commit"


def git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=common.ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def checkout(revision: str) -> Path:
    """A tree of that commit."""
    tree = WORK / "tree"
    if tree.is_dir():
        git("worktree", "remove", "--force", str(tree))
    git("worktree", "prune")
    git("worktree", "add", "--detach", "--force", str(tree), revision)
    return tree


def build(tree: Path, target: Path, *examples: str) -> Path:
    """The folder of the command and of `examples/`. The whole workspace's features, so that nothing is built twice."""
    wanted = [word for name in examples for word in ("--example", name)]
    cargo(tree, target, "--bin", "alight", *wanted)
    return target / "release"


def cargo(tree: Path, target: Path, *what: str) -> None:
    python = process.output(["sh", common.ROOT / "scripts/find_python.sh"]).strip()
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "--workspace", "--target-dir", target, *what],
                   cwd=tree, check=True, env=os.environ | {"PYO3_PYTHON": python})


def package(tree: Path, target: Path) -> Path:
    """The folder of the Python package of a tree, with its extension built, for PYTHONPATH."""
    cargo(tree, target, "--lib")
    whole = target / "package"
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(tree / "bindings/python/python", whole, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(target / "release/lib_alight.so", whole / "alight/_alight.abi3.so")
    return whole


def both(revision: str, *examples: str, replaced: dict[str, str] | None = None) -> tuple[Path, Path]:
    """The programs of that commit, some of whose files may be replaced, and of the working tree."""
    common.say(f"building {revision} and the working tree")
    tree = checkout(revision)
    for name, text in (replaced or {}).items():
        (tree / name).write_text(text)
    return build(tree, WORK / "target", *examples), build(common.ROOT, common.TARGET, *examples)
