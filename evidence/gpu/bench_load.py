"""Loading a safetensors file onto a GPU: `alight.jax.load` beside the ways people use. `make bench-gpu` runs it.

A file of random bf16 matrices is written (--size), then loaded in turns, out of the page cache and, where the kernel drops the file
when it is asked to, from the disk: seconds until every array is on the GPU, GB/s, and the growth of the process's peak memory, for which every
load is a process of its own that has started JAX already. The safetensors library has two ways: `safetensors.flax.load_file`, which
makes JAX arrays, and `safe_open(…, device="cuda:0")` of PyTorch, where these are installed.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evidence.lib import common, process, random_safetensors
from evidence.lib.lazy import lazily

alight = lazily("alight")
jax = lazily("jax")
np = lazily("numpy")

ROWS, COLUMNS = 4096, 14336


def write(path: Path, size: int) -> None:
    """Matrices of a large model's shape, with numbers around 1."""
    count = max(1, size // (2 * ROWS * COLUMNS))
    random_safetensors.write(path, {f"layer.{n}.weight": (ROWS, COLUMNS) for n in range(count)}, 0x3F00)


def ours(path: str):
    import alight.jax

    return jax.block_until_ready(alight.jax.load(path, progress=False))


def flax(path: str):
    from safetensors.flax import load_file

    return jax.block_until_ready(jax.device_put(load_file(path), jax.devices()[0]))


def torch(path: str):
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cuda:0") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118: it is no dict
    torch.cuda.synchronize()
    return found


WAYS = {"alight.jax.load": ours, "safetensors.flax + device_put": flax, "safetensors to PyTorch": torch}


def started(name: str) -> None:
    """What is not a part of loading: the library, its context on the GPU, and a first copy there."""
    if name == "safetensors to PyTorch":
        import torch

        torch.ones(1 << 20, device="cuda").sum().item()
    else:
        import alight.jax  # noqa: F401

        if name != "alight.jax.load":
            import safetensors.flax  # noqa: F401
        jax.block_until_ready(jax.device_put(np.ones(1 << 20, np.float32), jax.devices()[0]))


def measure(args) -> None:
    started(args.measure)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    found = WAYS[args.measure](str(args.file))
    seconds = time.perf_counter() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    process.tell_result({"seconds": seconds, "arrays": len(found), "grown": grown * 1024})


def cold(path: Path) -> bool:
    """Drops the file from the page cache, and says whether that left no more of it there than the header, which is read to ask."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return alight.open(path).residency().cached < 1 << 20


def add_arguments(parser) -> None:
    parser.add_argument("--size", type=float, default=4.0, help="GB (default: 4)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--measure", help="run by this command, for each way")
    parser.add_argument("--file", type=Path)


def run(args) -> None:
    if args.measure:
        return measure(args)
    missing = {"safetensors.flax + device_put": ("safetensors", "flax"), "safetensors to PyTorch": ("safetensors", "torch")}
    ways = [name for name in WAYS if all(importlib.util.find_spec(module) for module in missing.get(name, ()))]
    failed = 0
    print("| where the file is | way | s | GB/s | peak memory grows by MB |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write(path, int(args.size * 1e9))
        size = path.stat().st_size
        for where in ("page cache", "disk"):
            found: dict[str, list[dict]] = {name: [] for name in ways}
            for _ in range(args.turns):
                for name in ways:
                    if where == "page cache":
                        path.read_bytes()
                    elif not cold(path):
                        sys.exit("the kernel keeps the file in the page cache: nothing is known of a load from the disk")
                    command = [sys.executable, "-m", "evidence", "bench", "gpu-load", "--measure", name, "--file", str(path)]
                    env = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false")
                    done = subprocess.run(command, cwd=common.ROOT, env=env, text=True, capture_output=True)
                    told = process.results(done.stdout)
                    if not told:
                        print(f"{name}: failed\n" + "\n".join(done.stderr.splitlines()[-6:]), flush=True)
                        failed += 1
                        break
                    found[name].append(told[0])
            for name, turns in found.items():
                if turns:
                    seconds = [turn["seconds"] for turn in turns]
                    middle = statistics.median(seconds)
                    grown = statistics.median(turn["grown"] for turn in turns) / 1e6
                    print(f"| {where} | {name} | {middle:.2f} ({min(seconds):.2f}–{max(seconds):.2f}) | {size / middle / 1e9:.1f} | {grown:.0f} |", flush=True)
    sys.exit(failed)
