"""What is installed."""

import re
import subprocess
import sys
from importlib import metadata

import alight
from conftest import mypy


def test_the_command_comes_with_the_package(command):
    run = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[0] == f"alight {alight.__version__}" == f"alight {metadata.version('alight')}"


def test_jax_and_ray_are_extras():
    assert all(re.search("extra == '(jax|ray)'", need.replace('"', "'")) for need in metadata.requires("alight"))


def test_stubs_say_what_is_there(tmp_path):
    # Of the buffer protocol, Python shows nothing before 3.12.
    hidden = tmp_path / "hidden"
    names = ["Array.__buffer__", "Block.__buffer__", "Staging.__buffer__", "Staging.__release_buffer__", "Tensor.__buffer__"]
    hidden.write_text("".join(f"alight._alight.{name}\n" for name in names))
    run = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "alight._alight", "--allowlist", hidden, "--ignore-unused-allowlist"],
        capture_output=True,
        text=True,
        # It keeps something in the current folder, which may be read-only.
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    run = mypy("package", tmp_path, "-p", "alight")
    assert run.returncode == 0, run.stdout + run.stderr
