"""Both commands that become Python's, run in a folder of somebody else: nothing in it is executed."""

import subprocess
import sys

import pytest

from test_model import write_model
from test_run import ENVIRONMENT

INSTALLED = ["alight", "jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy"]
LOOKED_FOR = ["jax_plugins", "libtpu", "nvidia", "sitecustomize", "usercustomize"]


@pytest.fixture
def hostile(tmp_path):
    """A folder with a module of every name that anything may import, a `python3`, and where these leave their names."""
    folder, marker = tmp_path / "hostile", tmp_path / "executed"
    folder.mkdir()
    leave = f"import sys\nwith open({str(marker)!r}, 'a') as file:\n    file.write(__name__ + chr(10))\n"
    for name in sorted(sys.stdlib_module_names) + INSTALLED + LOOKED_FOR:
        if name in INSTALLED or name in ("encodings", "importlib", "jax_plugins", "nvidia"):
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(leave)
        else:
            (folder / f"{name}.py").write_text(leave)
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\necho python3 >> '{marker}'\n")
    program.chmod(0o755)
    return folder, marker


def test_the_trap_works(hostile):
    folder, marker = hostile
    subprocess.run([sys.executable, "-c", "import importlib, json, numpy"], cwd=folder, capture_output=True)
    assert "importlib" in marker.read_text()


@pytest.mark.parametrize("more", [{}, {"PYTHONPATH": ":.::sub", "PYTHONUSERBASE": "."}], ids=["plain", "relative"])
def test_nothing_in_the_current_folder_is_executed(hostile, more, command, tmp_path):
    folder, marker = hostile
    model = write_model(folder / "tiny.gguf")
    environment = ENVIRONMENT | {"XDG_CACHE_HOME": str(tmp_path)} | more
    small = ["--devices", "2", "--rows", "1", "--hidden", "64", "--turns", "3"]
    for arguments in [
        ["run", model.name, "the", "--engine", "jax", "-n", "1", "--temp", "0", "--raw"],
        ["bench", "collective", *small],
    ]:
        told = subprocess.run([command, *arguments], capture_output=True, text=True, env=environment, cwd=folder, timeout=300)
        assert not marker.exists(), marker.read_text()
        assert told.returncode == 0, told.stderr
