"""The kernels for NEON pass their tests under qemu's user emulation, and the static `alight` for aarch64 answers real models as llama.cpp does.

Needed: qemu-aarch64 (Debian: qemu-user-static). What else is missing is said, and that part is left out.

The kernels: `rustup target add aarch64-unknown-linux-musl`; the linker is Rust's own. Their tests run on a CPU that has all that qemu knows, and in part on
one without products of matrices (i8mm); a CPU without dot products of bytes gets the portable kernels.

The program: `make dist DIST_TARGETS=aarch64` and `make models`. `--alight FILE` names another program. Prompts of both models are continued by a few tokens, and held against what llama.cpp chose on the same files (tests/data/greedy), by the rule of `agree
greedy`. The answer is the same with one thread and with two, and packed. Speed is the emulator's, and nothing is said of it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from evidence.agree import greedy
from evidence.lib import common, process
from evidence.lib.checks import Checks
from evidence.make import cross

TARGET = "aarch64-unknown-linux-musl"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
# What qemu calls a CPU, the SIMD level that it gets, and which of the kernels' tests run on it: (), all of them.
CPUS = {
    "max": ("i8mm", ()),
    "neoverse-n1": ("neon", ("--test", "integration", "--", "bits::", "float_ops::", "quantize::", "recurrent::")),
    "cortex-a72": ("scalar", ("--test", "integration", "--", "bits::", "float_ops::")),
}


def kernels(checks: Checks, emulator: str) -> None:
    """Builds the kernels' tests for aarch64, and runs them on each of the CPUs."""
    name = TARGET.upper().replace("-", "_")
    for cpu, (level, tests) in CPUS.items():
        environment = cross.environment_of_tests(TARGET, cross.folder() / "build") | {
            "ALIGHT_TEST_FEW": "1",
            f"CARGO_TARGET_{name}_RUNNER": f"{emulator} -cpu {cpu}",
        }

        def cargo(*words):
            command = ["cargo", *words[:1], "--quiet", "--locked", "-p", "alight-kernels", "--target", TARGET, *words[1:]]
            return process.run(command, cwd=common.ROOT, env=environment)

        done = cargo("run", "--example", "levels")
        levels = done.stdout.split()
        checks.add(done.returncode == 0 and levels[-1:] == [level], f"{cpu}: the levels are {' '.join(levels)}{done.stderr[-2000:]}")
        done = cargo("test", *tests)
        told = done.stdout + done.stderr
        passed = sum(int(line.split()[3]) for line in told.splitlines() if line.startswith("test result: ok."))
        checks.add(done.returncode == 0 and passed > 0, f"{cpu}: {passed} tests of the kernels" + (f"\n{told[-4000:]}" if done.returncode else ""))


def add_arguments(parser) -> None:
    parser.add_argument("--alight", type=Path, default=None, help="the program (default: what `make dist` has built)")
    parser.add_argument("--models", type=Path, default=common.models_folder(), help="folder of the model files")
    parser.add_argument("-n", "--tokens", type=int, default=8, help="tokens of each answer (8)")
    parser.add_argument("--programs", action="store_true", help="without the tests of the kernels")
    parser.add_argument("--prompts", type=int, default=3, help="prompts of each model (3)")


def run(args) -> int:
    program = args.alight or cross.program(TARGET, "alight")
    emulator = next(filter(None, map(shutil.which, EMULATORS)), None)
    if not emulator:
        print("skipped: qemu is missing (Debian: apt install qemu-user-static)")
        return 0
    checks = Checks(out=sys.stdout)
    if args.programs:
        print("skipped the kernels: --programs")
    elif TARGET not in process.output(["rustup", "target", "list", "--installed"], cwd=common.ROOT).split():
        print(f"skipped the kernels: rustup target add {TARGET}")
    else:
        kernels(checks, emulator)
    if not program.is_file():
        print(f"skipped the program: {program} is missing: make dist DIST_TARGETS=aarch64")
        return checks.status()

    def alight(*words, timeout: float = 600):
        return process.run([emulator, program, *words], timeout=timeout)

    def answer(path: Path, prompt: str, *more: str) -> tuple[list[int], str]:
        done = alight("run", path, "-p", prompt, "--raw", "--parse-special", "--temp", "0", "-n", str(args.tokens), "--json", *more)
        if done.returncode != 0:
            return [], f"exit status {done.returncode}: {done.stderr.strip()}"
        told = json.loads(done.stdout)
        return told["tokens"] + ([greedy.END] if told["finish"] == "stop" else []), ""

    done = alight("--version")
    checks.add(done.returncode == 0 and done.stdout.startswith("alight "), f"--version: {done.stdout.strip()}")
    for name in greedy.LIMIT:
        path = common.model_path(name, args.models)
        done = alight("inspect", path, "--json")
        checks.add(done.returncode == 0 and bool(json.loads(done.stdout)), f"{name}: inspect --json")
        golden = json.loads((common.ROOT / f"tests/data/greedy/{name}.json").read_text())["answers"]
        for theirs in golden[: args.prompts]:
            # The same words of each list, so that the comparison ends where ours does.
            short = {key: theirs[key][: args.tokens] for key in ("tokens", "top", "exact_here") if key in theirs}
            tokens, trouble = answer(path, theirs["prompt"])
            verdict, why = ("wrong", trouble) if trouble else greedy.compare(tokens, short, greedy.ENDS[name], greedy.LIMIT[name])
            checks.add(verdict != "wrong", f"{name}: {greedy.show(theirs['prompt'])}: {why or 'the tokens of llama.cpp'}")
        prompt = golden[0]["prompt"]
        one, two = (answer(path, prompt, "-t", threads) for threads in ("1", "2"))
        checks.add(one == two and one[0], f"{name}: the same answer with one thread and with two")
    with tempfile.TemporaryDirectory() as folder:
        path, packed, back = common.model_path("smollm2", args.models), Path(folder, "packed.gguf"), Path(folder, "back.gguf")
        done = alight("pack", path, "-o", packed)
        checks.add(done.returncode == 0, f"smollm2: packs {done.stderr.strip() if done.returncode else ''}")
        tokens, trouble = answer(packed, "The capital of France is")
        theirs = json.loads((common.ROOT / "tests/data/greedy/smollm2.json").read_text())["answers"][0]
        short = {key: theirs[key][: args.tokens] for key in ("tokens", "top", "exact_here") if key in theirs}
        verdict, why = ("wrong", trouble) if trouble else greedy.compare(tokens, short, greedy.ENDS["smollm2"], greedy.LIMIT["smollm2"])
        checks.add(verdict != "wrong", f"smollm2, packed: {why or 'the tokens of llama.cpp'}")
        done = alight("unpack", packed, "-o", back)
        checks.add(done.returncode == 0 and back.read_bytes() == path.read_bytes(), "smollm2: unpacked, it is the original to the bit")
    print(f"alight for aarch64 under {Path(emulator).name}: {checks.passed} checks held, {checks.failed} did not")
    return checks.status()
