"""A release is the same bytes wherever it is built: clones the commit into another folder, builds there, and compares with target/dist.

`make dist` comes first, from a clean checkout. What differs is named, file by file. Takes as long as `make dist` does.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from evidence.lib import common
from evidence.lib.checks import Checks
from evidence.make import dist


def add_arguments(parser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which, by any part of the name (every archive that is there)")
    common.add_folder_argument(parser)


def members(archive: Path) -> dict[str, tuple]:
    """Everything of an archive that could differ."""
    with tarfile.open(archive) as tar:
        return {entry.name: (entry.mode, entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.type,
                             hashlib.sha256(tar.extractfile(entry).read()).hexdigest() if entry.isfile() else "")
                for entry in tar}


def compare(checks: Checks, here: Path, there: Path) -> None:
    """One archive of two."""
    if here.read_bytes() == there.read_bytes():
        checks.add(True, f"{here.name}: the same {here.stat().st_size:,} bytes in {there.parent}")
        return
    one, other = members(here), members(there)
    wrong = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    checks.wrong(f"{here.name}: not the same", wrong or "only in how it is packed")


def run(args) -> int:
    """Builds each archive that is in target/dist once more."""
    targets = [target for target in dist.TARGETS if any(part in target for part in args.targets or [""])]
    targets = [target for target in targets if (dist.folder() / f"alight-{target}.tar.gz").is_file()]
    if not targets:
        raise SystemExit(f"no archive in {dist.folder()}: make dist")
    if dist.git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("the working tree has changes, which a clone has not: commit them, then make dist")
    checks = Checks(out=sys.stdout)
    with common.temporary_folder(args, "dist-elsewhere") as folder:
        source, built = Path(folder, "elsewhere/source"), Path(folder, "built")
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", common.ROOT, source], check=True)
        environment = os.environ | {"CARGO_TARGET_DIR": str(built)}
        subprocess.run([sys.executable, "-m", "evidence", "make", "dist", *targets], cwd=source, check=True, env=environment,
                       stdout=subprocess.DEVNULL)
        for target in targets:
            name = f"alight-{target}.tar.gz"
            compare(checks, dist.folder() / name, built / "dist" / name)
    return checks.status()
