"""The collective across processes: two real ones, connected by `jax.distributed` on loopback with gloo, as users have them."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import COMPILED, KEEP, ROOT, port_of_a_coordinator

CHILD = Path(__file__).with_name("processes_child.py")
SHARED = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no /dev/shm here, in which processes share memory")


def left():
    return {path.name for path in SHARED.glob("alight-*") if re.fullmatch(r"alight-[0-9a-f]{32}", path.name)}


def run(case, folder, count=2, **more):
    """Runs the processes of a case. Returns their exit statuses and what they said; nothing may be left behind."""
    before = left()
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"} | KEEP | more
    command = [sys.executable, str(CHILD), case]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    said = []
    with port_of_a_coordinator() as port:
        processes = [subprocess.Popen([*command, str(i), str(count), str(port), str(folder)], **pipes) for i in range(count)]
        try:
            for process in processes:
                said.append(process.communicate(timeout=240)[0])
        finally:
            for process in processes:
                process.kill()
    # Processes of another worker may have some meanwhile, which go at once.
    until, stuck = time.monotonic() + 30, left() - before
    while stuck and time.monotonic() < until:
        time.sleep(0.05)
        stuck &= left()
    assert not stuck
    return [process.returncode for process in processes], said


def succeeds(case, folder, **more):
    statuses, said = run(case, folder, **more)
    assert statuses == [0, 0], "\n".join(said)
    assert all("done" in one for one in said)
    return said


def test_results_are_those_of_one_process(tmp_path):
    succeeds("works", tmp_path)


def test_a_process_that_is_killed_is_an_error_in_time(tmp_path):
    statuses, said = run("killed", tmp_path)
    assert statuses == [0, -9], "\n".join(said)
    assert "done" in said[0]


@pytest.mark.parametrize("reason", ["unconnected", "hosts", "refused"])
def test_without_shared_memory_it_is_psum_and_says_why(reason, tmp_path):
    succeeds(f"alone:{reason}", tmp_path)


def test_compiled_programs_can_be_kept(tmp_path):
    hits = [[int(re.search(r"hits (\d+)", one)[1]) for one in succeeds("cached", tmp_path)] for _ in range(2)]
    # JAX keeps those of the first process: it loads what the other one compiles, and their call sites find each other.
    assert hits[0][0] < hits[1][0], hits


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The stand-in for CUDA's driver that crates/xla is tested with."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = ROOT / "crates/xla/cuda"
    options = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w"]
    # Its name says what it is made from.
    made_from = hashlib.sha256(repr((compiler, options)).encode())
    for name in ("allreduce_norm.cu", "gpu.h", "matmul.cu", "emulated/shim.h", "emulated/kernels.h", "emulated/driver.cpp"):
        made_from.update((folder / name).read_bytes())
    kept = COMPILED if KEEP else tmp_path_factory.mktemp("emulated")
    path = kept / f"libcuda_emulated-{made_from.hexdigest()[:16]}.so"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *options, "-o", temporary, folder / "emulated/driver.cpp"], check=True)
        temporary.rename(path)
    return {"ALIGHT_LIBCUDA": str(path), "ALIGHT_LIBNVRTC": str(path)}


@pytest.mark.parametrize("how", ["works", "fabric", "hosts", "refused", "lost"])
def test_gpus_of_processes_share_memory_or_all_say_why_not(how, emulated, tmp_path):
    succeeds(f"gpus:{how}", tmp_path, **emulated)
