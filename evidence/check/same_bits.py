"""Two commits compute the same bits: hashes of logits, at each SIMD level, on 1 to 4 threads.

    python -m evidence check same-bits --base 98686d2          # that commit beside the working tree

Both are built with the example `logit_hashes` of the working tree (`--example-from REV`: the base with that of this
commit, where the interface of the crate has changed since). With `--jax` it is the JAX engine, on one to three devices of the
CPU, with weights in place and as floats: the two real models and the random ones. The models are the two real ones, a tiny random one of each
architecture and type, and each of them packed by the base's own `alight pack`. Models of an architecture that the base
does not know are left out. Ends with status 1 at the first difference.
"""

import os
import subprocess
from pathlib import Path

from evidence.agree import architectures
from evidence.lib import commits, common, process, tiny_models

EXAMPLE = "crates/model/examples/logit_hashes.rs"


def random_models(folder: Path) -> list[Path]:
    """One of each case of `architectures`, in F32 and in the types that it names for some."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for model, _ in architectures.CASES:
        path = folder / f"{model.name.replace(', ', '-').replace(' ', '_')}.gguf"
        made.append(path if path.is_file() else tiny_models.write(model, path))
    return made


def smaller(alight: Path, folder: Path) -> list[Path]:
    """The models whose rows K-types fit, in every type that `alight quantize` makes."""
    made = []
    types = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k_m", "q5_k_m", "q6_k", "f16", "bf16"]
    for model, _ in architectures.SMALLER:
        wide = tiny_models.write(architectures.other(model, "all types", embd=256, ff=288), folder / "wide.gguf")
        for kind in types:
            out = folder / f"{model.arch}-{kind}.gguf"
            if not out.is_file():
                subprocess.run([alight, "quantize", wide, "-o", out, "--type", kind], check=True, capture_output=True)
            made.append(out)
    return made


def packed(alight: Path, models: list[Path], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for model in models:
        out = folder / model.with_suffix(".packed.gguf").name
        if not out.is_file():
            done = subprocess.run([alight, "pack", model, "-o", out], capture_output=True, text=True)
            if done.returncode != 0:  # Nothing in it can be packed, such as in F32.
                continue
        made.append(out)
    return made


# Hashes of the logits of some prompts, and greedy tokens, in a process of its own: model files on the command line.
JAX = """
import hashlib, sys
from alight.jax.models import Sampling, load_model
for path in sys.argv[1:]:
    for tp, weights in ((1, "native"), (2, "native"), (3, "native"), (1, "f32"), (2, "f32")):
        try:
            model = load_model(path, tp=tp, weights=weights, context=128)
        except Exception as problem:
            print(path, tp, weights, type(problem).__name__)
            continue
        for length in (1, 7, 40, 70):
            ids = [(7 * i + 3 * length) % (model.config.vocab - 1) for i in range(length)]
            hashed = hashlib.sha256(model.logits(ids).tobytes()).hexdigest()
            print(path, tp, weights, length, hashed, list(model.generate(ids, max_tokens=8, sampling=Sampling.greedy())), flush=True)
"""


def jax_hashes(args, models) -> list[list[str]]:
    tree = commits.checkout(args.base)
    trees = ((tree, commits.WORK / "target"), (common.ROOT, common.TARGET))
    folders = [commits.package(*each) for each in trees]
    python = common.ROOT / "bindings/python/.venv/bin/python"
    found = []
    for folder in folders:
        env = os.environ | {"PYTHONPATH": str(folder), "XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"}
        found.append(process.output([python, "-P", "-c", JAX, *models], env=env).splitlines())
    return found


def both_run(found: list[list[str]]) -> list[list[str]]:
    """The lines of the models that the base runs, in JAX: three words name one, and a fourth says how it was refused."""
    refused = {tuple(words[:3]) for words in map(str.split, found[0]) if len(words) == 4}
    return [[line for line in lines if tuple(line.split()[:3]) not in refused] for lines in found]


def compared(found: list[list[str]]) -> int:
    """How many lines of two programs differ; the first three are shown."""
    wrong = [pair for pair in zip(*found) if pair[0] != pair[1]]
    wrong += [] if len(found[0]) == len(found[1]) and found[0] else [tuple(f"{len(lines)} lines" for lines in found)]
    for pair in wrong[:3]:
        print("base {}\nours {}".format(*pair))
    return len(wrong)


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--base", default="98686d2", help="the commit that is taken to be right (default: %(default)s)")
    parser.add_argument("--example-from", metavar="REV", help="take the example for the base from this commit")
    parser.add_argument("--jax", action="store_true", help="the JAX engine")
    parser.add_argument("--quick", action="store_true", help="every fourth prompt")


def run(args) -> int:
    folder = common.ROOT / "target" / "same_bits"
    real = [common.model_path(name, args.models) for name in ("smollm2", "gemma3")]
    if args.jax:
        models = real + random_models(folder / "models")
        found = both_run(jax_hashes(args, models))
        different = compared(found)
        print(f"{len(models)} models in JAX, {len(found[0])} lines of hashes, {different} differ from {args.base}")
        return 1 if different else 0

    example = commits.git("show", f"{args.example_from}:{EXAMPLE}") if args.example_from else (common.ROOT / EXAMPLE).read_text()
    base, ours = commits.both(args.base, "logit_hashes", replaced={EXAMPLE: example})
    alight, programs = base / "alight", [each / "examples/logit_hashes" for each in (base, ours)]
    small = random_models(folder / "models") + smaller(alight, folder / "models")
    models = real + small + packed(alight, real + small, folder / "packed")
    different = lines = 0
    for model in models:
        command = [*(["--quick"] if args.quick else []), model]
        done = [subprocess.run([program, *command], capture_output=True, text=True) for program in programs]
        if "Architecture {" in done[0].stderr or "Unsupported {" in done[0].stderr:  # the errors as Rust shows them
            common.say(f"{model.name}: the base does not run it")
            continue
        found = [one.stdout.splitlines() for one in done]
        wrong = compared(found)
        lines, different = lines + len(found[0]), different + wrong
        common.say(f"{model.name}: {len(found[0])} hashes, {wrong} differ")
    print(f"{len(models)} models, {lines} lines of hashes, {different} differ from {args.base}")
    return 1 if different else 0
