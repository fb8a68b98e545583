"""Everything that the GPUs of this machine can show of the fused collective and of products with blocks of weights, or how long they take.

Needs .gpu/ (`make gpu-files` makes it where there is a Rust toolchain) and a Python with JAX for CUDA, which is the one that
runs this. One GPU plays all ranks; where there are several, the trial, the checks in JAX and the benchmark use all of them.
With --out the output of each step is kept there; --only runs some of the steps. What a machine lacks is said, and left out.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evidence.lib import common

FILES = common.ROOT / ".gpu"
# Of compute-sanitizer. racecheck looks at shared memory only, the others at all.
TOOLS = ["memcheck", "initcheck", "racecheck", "synccheck"]


def libraries() -> list[str]:
    """Folders of the CUDA libraries that this Python has as wheels."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    folders = [folder for root in roots for folder in (Path(root) / "cu13/lib", Path(root) / "cuda_nvrtc/lib")]
    return [str(folder) for folder in folders if folder.is_dir()]


def environment(package: Path) -> dict[str, str]:
    """For the steps: where the libraries and the package are, and a queue of the GPU for each stream."""
    more = dict(os.environ)
    more["LD_LIBRARY_PATH"] = ":".join([*libraries(), os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")
    more["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    more["PYTHONPATH"] = ":".join([str(package), str(common.ROOT), os.environ.get("PYTHONPATH", "")]).strip(":")
    more["PYTHONUNBUFFERED"] = "1"
    return more


class Steps:
    """Runs commands, keeps what they print, and remembers which failed."""

    def __init__(self, out: Path | None, env: dict[str, str], only: list[str] | None) -> None:
        self.out, self.env, self.only, self.failed = out, env, only, []

    def run(self, name: str, command: list[str], limit: float, env: dict[str, str] | None = None) -> None:
        if self.only and name not in self.only:
            return
        print(f"\n== {name}: {' '.join(str(word) for word in command)}", flush=True)
        start = time.monotonic()
        try:
            done = subprocess.run([str(word) for word in command], cwd=common.ROOT, env=self.env | (env or {}), timeout=limit, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            text, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            text = late.stdout or ""
            text, code = (text.decode(errors="replace") if isinstance(text, bytes) else text), "late"
        print(text, end="", flush=True)
        print(f"== {name}: {'ok' if code == 0 else f'FAILED ({code})'}, {time.monotonic() - start:.1f} s", flush=True)
        if self.out:
            (self.out / f"{name}.log").write_text(text)
        if code != 0:
            self.failed.append(name)


def add_arguments(parser) -> None:
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", help="these steps alone, by the names that they print")


def run(arguments) -> None:
    for file in ("cuda_check", "_alight.abi3.so"):
        if not (FILES / file).is_file():
            sys.exit(f"{FILES / file} is not there: make gpu-files, and carry .gpu to where the GPU is")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(common.ROOT / "bindings/python/python/alight", package / "alight", ignore=shutil.ignore_patterns("*.so"))
        shutil.copy(FILES / "_alight.abi3.so", package / "alight")
        check = package / "cuda_check"
        shutil.copy(FILES / "cuda_check", check)
        check.chmod(0o755)
        steps = Steps(arguments.out, environment(package), arguments.only)
        if shutil.which("nvidia-smi"):
            query = "--query-gpu=name,driver_version,memory.total,clocks.sm,temperature.gpu"
            steps.run("machine", ["nvidia-smi", query, "--format=csv"], 60)
        python = sys.executable
        if arguments.command == "check gpu":
            steps.run("kernel", [check, "test"], 400)
            steps.run("matmul", [check, "matmul", "test"], 200)
            steps.run("pool", [check, "pool"], 100)
            steps.run("jax", [python, "-m", "evidence", "check", "gpu-jax"], 300)
            steps.run("models", [python, "-m", "evidence", "check", "gpu-models"], 400)
            sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
            if Path(sanitizer).exists():
                for tool in TOOLS:
                    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", check, "test", "--together"]
                    steps.run(tool, command, 300)
            else:
                print("\nleft out: compute-sanitizer is not there")
        else:
            steps.run("kernel", [check, "bench"], 300)
            steps.run("matmul", [check, "matmul", "bench"], 200)
            steps.run("jax", [python, "-m", "evidence", "bench", "gpu-jax"], 300)
            steps.run("load", [python, "-m", "evidence", "bench", "gpu-load"], 200)
    print(f"\n{len(steps.failed)} failed" + (f": {', '.join(steps.failed)}" if steps.failed else ""))
    sys.exit(1 if steps.failed else 0)
