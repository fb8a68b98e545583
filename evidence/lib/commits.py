"""Another commit of this repository beside the working tree, both built."""

import subprocess
from pathlib import Path

from evidence.lib import common

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
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "--workspace", "--target-dir", target, "--bin", "alight", *wanted],
                   cwd=tree, check=True)
    return target / "release"


def both(revision: str, *examples: str, replaced: dict[str, str] | None = None) -> tuple[Path, Path]:
    """The programs of that commit, some of whose files may be replaced, and of the working tree."""
    common.say(f"building {revision} and the working tree")
    tree = checkout(revision)
    for name, text in (replaced or {}).items():
        (tree / name).write_text(text)
    return build(tree, WORK / "target", *examples), build(common.ROOT, common.TARGET, *examples)
