"""Memory: arrays over the map add none of their own, and processes share it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from conftest import in_process, write_gguf

MEGABYTES = 64

LOAD = """
import json, sys, jax, alight, alight.jax
from pathlib import Path

def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) >> 10

def shared(path):
    "Resident and proportional size of the file's map, in MB."
    rss = pss = 0
    mine = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            mine = line.endswith(path)
        elif mine and first == "Rss:":
            rss += int(line.split()[1])
        elif mine and first == "Pss:":
            pss += int(line.split()[1])
    return rss >> 10, pss >> 10

path = sys.argv[1]
jax.device_put(1.0).block_until_ready()
before = anonymous()
arrays = alight.jax.load(path)
after = anonymous()
print(json.dumps({"added": after - before, "map": shared(path)}), flush=True)
sys.stdin.readline()
print(json.dumps(shared(path)), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(9)
    part = lambda: rng.integers(0, 100, (MEGABYTES << 20) // 4, dtype=np.uint8)  # noqa: E731
    tensors = {f"t{i}": part().view(np.float32).reshape(-1, 1024) for i in range(4)}
    return write_gguf(tmp_path_factory.mktemp("memory") / "large.gguf", tensors)


def start(path):
    return subprocess.Popen([sys.executable, "-c", LOAD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_loading_adds_no_anonymous_memory_and_two_processes_share(file):
    with start(file) as one:
        first = json.loads(one.stdout.readline())
        print(first)
        # The interpreter's own.
        assert first["added"] <= 4, first
        rss, pss = first["map"]
        assert rss >= MEGABYTES and pss > 0.9 * rss, first
        with start(file) as two:
            second = json.loads(two.stdout.readline())
            one.stdin.write("\n")
            one.stdin.flush()
            again = json.loads(one.stdout.readline())
            print(second, again)
            for rss, pss in (second["map"], again):
                assert rss >= MEGABYTES and pss < 0.6 * rss
            two.communicate("\n\n")
        one.communicate("\n")


def test_a_copy_is_one_copy(tmp_path):
    """What is not aligned takes its own size of anonymous memory, not twice that."""
    rng = np.random.default_rng(10)
    tensors = {f"t{i}": rng.standard_normal((1001, 8 * 1024 + 8)).astype(np.float32) for i in range(2)}
    path = write_gguf(tmp_path / "a.gguf", {"odd": np.zeros(8, np.float32)} | tensors, alignment=32)
    size = path.stat().st_size >> 20
    run = subprocess.run([sys.executable, "-c", LOAD, path], input="\n\n", capture_output=True, text=True, check=True)
    added = json.loads(run.stdout.splitlines()[0])["added"]
    assert size // 2 - 2 <= added < 1.3 * size, (added, size)


def test_opening_needs_neither_numpy_nor_jax(file):
    code = "import sys, alight; alight.open(sys.argv[1]).metadata; print('numpy' in sys.modules, 'jax' in sys.modules)"
    assert in_process(code, file) == "False False"
