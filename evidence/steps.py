"""The steps of `make test` and `make test-all`. Commands of this package are in `commands.py`, which says which of the two runs them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from evidence.commands import ANY, COMMANDS, CUDA, VENV, WHEEL, Command
from evidence.lib import common
from evidence.proof import Inputs, Step, digest

# Everything is built like this, what is run and what is tested: with other options it would be built twice.
BUILD = ["--release", "--locked", "--workspace"]
# Examples that a check runs. `check lints` checks the others, which are built on demand.
EXAMPLES = ["gguf_dump", "safetensors_dump", "torch_dump", "tokenize", "weight_types"]
PYTHONS = {VENV: ".venv/bin/python", CUDA: ".venv-cuda/bin/python", WHEEL: "bindings/python/.venv/bin/python", ANY: sys.executable}
# What makes each of them, and the step in which that happens.
MADE_BY = {VENV: ("fetch .venv", ".venv/stamp"), CUDA: ("fetch .venv-cuda", ".venv-cuda/stamp"), WHEEL: ("fetch bindings/python/.venv", "bindings/python/.venv/stamp")}
# Programs that tests of these packages start.
STARTED = {"alight": ["alight"], "rusage": ["rusage"]}
# Steps that compute with all cores.
HEAVY = ("agree greedy", "agree architectures", "check clients", "check convert", "check notations", "check packed", "check aot-gpu", "python", "rust model tests",
         "rust xla tests", "rust model no_alloc")
# About how long it is from the beginning of those that begin first to the end of all that waits for them.
LONG = {"build": 600.0, "fetch bindings/python/.venv": 500.0, "wheel": 450.0, "fetch .venv": 430.0, "fetch models": 420.0, "build tests": 400.0, "rust alight tests": 250.0,
        "python": 120.0, "rust model tests": 110.0, "check lints": 80.0, "rust pages tests": 50.0}
# Whose result depends on more than the files of the repository: on the compiler.
EACH_TIME = ("check lints",)
# Tests of this package wait for processes and for time more than they compute.
TEST_THREADS = {"alight": "3"}
# Of these packages `make test` leaves some tests to `make test-all`.
LEFT_OUT = {"alight-xla": ["--skip", "cuda_"]}


def release(name: str) -> Path:
    return common.TARGET / "release" / name


def make(target: str) -> list[str]:
    return ["make", "--no-print-directory", target]


def evidence(command: Command, arguments: str) -> list[str]:
    python = [PYTHONS[command.python]] + (["-S"] if command.bare else [])
    return [*python, "-m", "evidence", *command.name.split(), *arguments.format(models=common.models_folder()).split()]


def steps(everything: bool, only: list[str] | None) -> list[Step]:
    """All of them, in the order in which they would begin on one core."""
    inputs = Inputs()
    programs = [release(name) for name in ("alight", "rusage")] + [release("examples") / name for name in EXAMPLES]

    def rust() -> str | None:
        return inputs.repository(lambda name: name.endswith((".rs", ".toml", ".lock")))

    def data() -> str | None:
        """What tests read, beside programs: everything but Rust's sources and pages."""
        return inputs.repository(lambda name: not name.endswith((".rs", ".md", ".svg")) and not name.startswith(("docs/", ".github/")))

    def hashed(what: str | None, *more: str) -> str | None:
        return what and digest(what, everything, *more)

    def of_command(line: list[str], bare: bool) -> str | None:
        built = () if bare else (inputs.models(), *map(inputs.file, programs))
        return hashed(inputs.repository(lambda _: True) if bare else data(), *line, *built)

    found = [
        Step("format", ["sh", "-c", "cargo fmt --all --check && rustfmt --check --edition 2024 crates/kernels/src/blocks/*.rs"],
             inputs=lambda: hashed(rust())),
        Step("evidence selftest", [sys.executable, "-S", "-m", "evidence", "selftest"]),
        Step("build", ["cargo", "build", *BUILD, "--lib", "--bins", *(word for name in EXAMPLES for word in ("--example", name))]),
        Step("build tests", ["cargo", "test", *BUILD, "--tests", "--no-run", "--message-format=json-render-diagnostics"], ("build", "wheel", "fetch models", MADE_BY[VENV][0]),
             env=unoptimised(),
             then=lambda text: programs_of(text, inputs, data, everything, only)),
        Step("documentation tests", ["cargo", "test", *BUILD, "--doc"], ("build tests",), inputs=lambda: hashed(rust())),
        Step("fetch models", make("models")),
    ]
    if everything:
        found += [
            Step("loom", make("loom"), ("build tests",), inputs=lambda: hashed(rust())),
            Step("checked arithmetic", make("checked"), ("build tests", "fetch models"), inputs=lambda: hashed(rust(), inputs.models())),
        ]
    for command in COMMANDS:
        arguments = command.arguments(everything)
        if arguments is None or command.name in BY_A_TEST:
            continue
        line = evidence(command, arguments)
        after = [MADE_BY[command.python][0]] if command.python in MADE_BY else []
        if not command.bare:
            after += ["build", "fetch models"]
        if command.name in ("check aot-gpu",):
            after += ["python"]
        if command.name == "check lints":
            after += ["build"]
        known = command.name not in EACH_TIME
        found.append(Step(command.name, line, tuple(after), inputs=lambda line=line, bare=command.bare, known=known: of_command(line, bare) if known else None))
    # Before the tests are built, since only one cargo builds at a time.
    found.append(Step("wheel", make("installed-wheel"), ("build", MADE_BY[WHEEL][0])))
    which = [] if everything else ["-m", "smoke"]
    line = ["sh", "-c", f"cd bindings/python && .venv/bin/python -m pytest {' '.join(['-n', '2', *which])}"]
    extension = release("lib_alight.so")
    found.append(Step("python", line, ("wheel", "fetch models"), inputs=lambda: hashed(
        data(), inputs.models(), inputs.file(extension), *map(inputs.file, programs), *line)))
    used = {name for step in found for name in step.after}
    found += [Step(name, make(stamp)) for name, stamp in MADE_BY.values() if name in used]
    for step in found:
        step.heavy, step.seconds = step.name in HEAVY, LONG.get(step.name, 0.0)
    return found


def unoptimised() -> dict[str, str]:
    """The environment in which cargo compiles test programs without optimisation, and calls a compiler's wrapper that was set before."""
    wrapper = {"RUSTC_WRAPPER": str(common.ROOT / "scripts/rustc_for_tests.sh")}
    before = os.environ.get("RUSTC_WRAPPER")
    return wrapper | ({"ALIGHT_RUSTC_WRAPPER": before} if before else {})


# What a test of Rust's runs.
BY_A_TEST = {"make legacy": "crates/formats/tests/ggml_by_another_hand.rs"}


def programs_of(text: str, inputs: Inputs, data, everything: bool, only: list[str] | None) -> list[Step]:
    """A step for each test program that cargo says it has built."""
    found = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        told = json.loads(line)
        if told.get("reason") != "compiler-artifact" or not told.get("executable") or not told["profile"]["test"]:
            continue
        program, folder = Path(told["executable"]), Path(told["manifest_path"]).parent
        package, target = json_package(told["package_id"], folder), told["target"]
        kind = "units" if {"lib", "bin"} & set(target["kind"]) else target["name"]
        name = f"rust {package.removeprefix('alight-')} {kind if kind != 'integration' else 'tests'}"
        if "bin" in target["kind"] and package != "alight":
            name += " of the command"
        if only and not any(part in name for part in only) and "build tests" not in only:
            continue
        chosen = [] if everything else LEFT_OUT.get(package, [])
        # One thread a model, since as many tests as there are cores run at a time.
        environment = {"CARGO_MANIFEST_DIR": str(folder), "RUST_TEST_THREADS": TEST_THREADS.get(package, "2")} | ({"ALIGHT_TEST_ALL": "1"} if everything else {"ALIGHT_THREADS": "1"})
        started = [release(one) for one in STARTED.get(package, [])]

        def hashed(program=program, chosen=chosen, started=started) -> str | None:
            what = data()
            return what and digest(what, inputs.models(), inputs.file(program), *map(inputs.file, started), *chosen, everything)

        found.append(Step(name, ["env", "-C", str(folder), str(program), *chosen], env=environment, inputs=hashed,
                          heavy=name in HEAVY, seconds=LONG.get(name, 0.0)))
    return found


def json_package(package_id: str, folder: Path) -> str:
    """The name of a package: `path+file:///…/crates/cli#alight@0.1.0`, or `…/crates/rusage#0.1.0` if the folder has its name."""
    name = package_id.partition("#")[2]
    return name.partition("@")[0] if "@" in name else folder.name
