"""What the documentation shows runs, and so do the examples, with the model that answers."""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
from conftest import KEEP, PATH, ROOT, mypy
from evidence.lib.common import TARGET

TUTORIAL = "docs/tutorial/first-ten-minutes.md"
PAGES = ["docs/reference/python.md", "README.md", "bindings/python/README.md", TUTORIAL]


def blocks_of(page, language="python"):
    """What is typed on a page, in one text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    return "\n".join(blocks)


def environment(**more):
    """With the command that came with the package in reach, devices of JAX's on the CPU, and nothing of the user's."""
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    mine = {name: value for name, value in os.environ.items() if not name.startswith("ALIGHT_")}
    return mine | {"PATH": path, "JAX_PLATFORMS": "cpu"} | more


def need(*programs):
    """Skips a test whose programs this machine lacks."""
    if missing := [program for program in programs if not shutil.which(program)]:
        pytest.skip(f"not tried: {', '.join(missing)} is not installed here")


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path):
    for name in ("model.gguf", "small.gguf"):
        (tmp_path / name).symlink_to(PATH)
    run = subprocess.run([sys.executable, "-"], input=blocks_of(page), capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment())
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout


def test_the_tutorial_can_be_typed(tmp_path):
    """Its commands, in one shell, where `make run` and the installation have been before."""
    need("bash", "curl")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / PATH.name).symlink_to(PATH)
    shutil.copy(ROOT / "README.md", tmp_path)
    typed = blocks_of(TUTORIAL, "sh").replace("8080", str(free_port()))
    run = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", typed],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, cwd=tmp_path, env=environment(XDG_CACHE_HOME=str(tmp_path)),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "\nthe same\n" in run.stdout and '"object":"chat.completion"' in run.stdout.replace(": ", ":"), run.stdout
    assert (tmp_path / "rivers.txt").read_text().strip() in run.stdout
    assert (tmp_path / "packed.gguf").stat().st_size > PATH.stat().st_size / 2


EXAMPLES = {
    "examples/python/generate.py": (r"Berlin",),
    "examples/python/stream.py": (r"\A5, 6, 7, 8, 9\nleft after 1\d tokens\Z",),
    "examples/python/chat.py": (r"(?s)\A.+\[0 of \d+ tokens were known\]\n.+\[[1-9]\d* of \d+ tokens were known\]\Z", "Hello! My name is Ada.", "What can you do?"),
    "examples/python/batch.py": (r"\A.*Germany\? .*Berlin.*\n.*Egypt\? .*Cairo.*\n.*Japan\? .*Tokyo.*\Z",),
    "examples/python/embed.py": (r"\A[01]\.\d+  A dog.*\n.*\n.*\Z",),
    "examples/python/tasks.py": (r"(?s)\A(?=.*China\? [^\n]*Beijing)(?=.*Greece\? [^\n]*Athens)(?=.*Poland\? [^\n]*Warsaw)",),
    "examples/python/jax_weights.py": (r"(?s)\A272 arrays; output_norm.weight: 576 of float32, mean \d.*in place",),
    "examples/python/jax_model.py": (r"Berlin",),
    "examples/python/jax_forward.py": (r"(?s)\A *-\d+\.\d+  The capital of France is Paris\.\n.*\n.*\n.*Germany\?.*Berlin.*\n.*Japan.*Tokyo",),
    "examples/shell/pipe.sh": (r"Rome",),
    "examples/shell/batch.sh": (r"\AGermany: .*Berlin.*\nEgypt: .*Cairo.*\nJapan: .*Tokyo.*\Z",),
    "examples/shell/server.sh": (r'(?s)"status".*Berlin.*\{\\"city\\": ?\\"Paris\\", ?\\"inhabitants\\": ?\d+\}',),
    "crates/model/examples/answer.rs": (r"Berlin",),
    "crates/model/examples/many_answers.rs": (r"(?s)\A(?=.*Germany: [^\n]*Berlin)(?=.*Egypt: [^\n]*Cairo)",),
}
ARGUMENTS = {"answer.rs": ["What is the capital of Germany?"], "many_answers.rs": ["Germany", "Egypt"]}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example, tmp_path):
    """`EXAMPLES` says what it prints (a regular expression), and which lines it is given."""
    expected, *lines = EXAMPLES[example]
    path = ROOT / example
    match path.suffix:
        case ".py":
            command = [sys.executable, path]
        case ".sh":
            command = ["sh", path]
        case ".rs":
            # As everything else is built, so that little is left to do.
            build = ["cargo", "build", "--release", "--quiet", "--locked", "--workspace", "--example", path.stem]
            subprocess.run(build, check=True, cwd=ROOT)
            command = [TARGET / "release/examples" / path.stem]
    if path.name == "server.sh":
        need("curl")
    more = [str(free_port())] if path.name == "server.sh" else ARGUMENTS.get(path.name, [])
    run = subprocess.run([*command, PATH, *more], input="\n".join(lines), capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment(**KEEP))
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(expected, run.stdout.strip()), run.stdout + run.stderr


def test_every_example_is_run_and_listed():
    listed = (ROOT / "examples/README.md").read_text()
    there = [path for path in (ROOT / "examples").rglob("*.*") if path.suffix in (".py", ".sh", ".rs")]
    for path in [*there, *(ROOT / name for name in EXAMPLES)]:
        name = str(path.relative_to(ROOT))
        assert name in EXAMPLES and f"({os.path.relpath(path, ROOT / 'examples')})" in listed, name


def test_types(tmp_path):
    shown = blocks_of("docs/reference/python.md").replace("async def both():", "async def both() -> list[alight.Completion]:")
    (tmp_path / "shown.py").write_text(shown)
    (tmp_path / "wrong.py").write_text(
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
    said = mypy("docs", tmp_path, "shown.py", "wrong.py").stdout
    errors = [line.split(":")[:2] for line in said.splitlines() if ": error: " in line]
    assert errors == [["wrong.py", str(line)] for line in (4, 5, 6, 7, 8)] and "checked 2 source files" in said, said


def test_every_class_and_option_is_in_the_documentation():
    """Every public name stands in the reference."""
    page = (ROOT / "docs/reference/python.md").read_text()
    stub = (ROOT / "bindings/python/python/alight/_alight.pyi").read_text()
    errors = re.findall(r"^class (\w+Error)\(", stub, re.MULTILINE)
    options = re.findall(r"^    (\w+): ", stub[stub.index("class Options(") : stub.index("class Logprob(")], re.MULTILINE)
    of_models = re.findall(r"^        (\w+): ", stub[stub.index("class Model:") :].split(") -> Model:")[0], re.MULTILINE)
    assert len(errors) == 10 and len(options) == 35 and len(of_models) > 10
    assert [name for name in errors + options + of_models if name != "path" and f"`{name}`" not in page] == []
