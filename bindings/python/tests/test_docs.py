"""What the documentation shows runs."""

import os
import re
import subprocess
import sys

import pytest
from conftest import PATH, ROOT

PAGES = ["docs/reference/python.md", "README.md", "bindings/python/README.md"]


def blocks_of(page):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    return "\n".join(blocks)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path):
    (tmp_path / "model.gguf").symlink_to(PATH)
    run = subprocess.run(
        [sys.executable, "-"], input=blocks_of(page), capture_output=True, text=True, timeout=300, cwd=tmp_path, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout


def typed(path, code):
    """What mypy says of it."""
    path.write_text(code)
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", path], capture_output=True, text=True).stdout


def test_types(tmp_path):
    shown = blocks_of("docs/reference/python.md").replace("async def both():", "async def both() -> list[alight.Completion]:")
    assert "no issues found" in typed(tmp_path / "shown.py", shown)
    wrong = typed(
        tmp_path / "wrong.py",
        """
import alight
model = alight.Model("model.gguf")
model.generate("x", temp=1)
model.stream("x", top_k="a")
answer: str = model.chat([])
model.chat("text")
alight.Model("model.gguf", load="slowly")
""",
    )
    assert [int(line.split(":")[1]) for line in wrong.splitlines() if ": error: " in line] == [4, 5, 6, 7, 8], wrong


def test_every_class_and_option_is_in_the_documentation():
    """A name that is added is told."""
    page = (ROOT / "docs/reference/python.md").read_text()
    stub = (ROOT / "bindings/python/python/alight/_alight.pyi").read_text()
    errors = re.findall(r"^class (\w+Error)\(", stub, re.MULTILINE)
    options = re.findall(r"^    (\w+): ", stub[stub.index("class Options(") : stub.index("class Logprob(")], re.MULTILINE)
    of_models = re.findall(r"^        (\w+): ", stub[stub.index("class Model:") :].split(") -> Model:")[0], re.MULTILINE)
    assert len(errors) == 9 and len(options) == 18 and len(of_models) > 10
    assert [name for name in errors + options + of_models if name != "path" and f"`{name}`" not in page] == []
