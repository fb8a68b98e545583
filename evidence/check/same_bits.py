"""Two commits compute the same bits: hashes of logits, at each SIMD level, on 1 to 4 threads.

    python -m evidence check same-bits --base 98686d2          # that commit beside the working tree

Both are built with the example `logit_hashes` of the working tree (`--example-from REV`: the base with that of this
commit, where the interface of the crate has changed since). The models are the two real ones, a tiny random one of each
architecture and type, and each of them packed by the base's own `alight pack`. Models of an architecture that the base
does not know are left out. Ends with status 1 at the first difference.
"""

import subprocess
from pathlib import Path

from evidence.agree import architectures
from evidence.lib import commits, common, tiny_models

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


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--base", default="98686d2", help="the commit that is taken to be right (default: %(default)s)")
    parser.add_argument("--example-from", metavar="REV", help="take the example for the base from this commit")
    parser.add_argument("--quick", action="store_true", help="every fourth prompt")


def run(args) -> int:
    example = commits.git("show", f"{args.example_from}:{EXAMPLE}") if args.example_from else (common.ROOT / EXAMPLE).read_text()
    base, ours = commits.both(args.base, "logit_hashes", replaced={EXAMPLE: example})
    alight, programs = base / "alight", [folder / "examples/logit_hashes" for folder in (base, ours)]

    folder = common.ROOT / "target" / "same_bits"
    real = [common.model_path(name, args.models) for name in ("smollm2", "gemma3")]
    small = random_models(folder / "models") + smaller(alight, folder / "models")
    models = real + small + packed(alight, real + small, folder / "packed")
    different = lines = 0
    for model in models:
        command = [*(["--quick"] if args.quick else []), model]
        done = [subprocess.run([program, *command], capture_output=True, text=True) for program in programs]
        if "Architecture {" in done[0].stderr:  # the error as Rust shows it
            common.say(f"{model.name}: the base does not run it")
            continue
        found = [one.stdout.splitlines() for one in done]
        lines += len(found[0])
        wrong = [pair for pair in zip(*found) if pair[0] != pair[1]]
        wrong += [] if len(found[0]) == len(found[1]) and found[0] else [(str(len(f)) + " lines" for f in found)]
        different += len(wrong)
        for pair in wrong[:3]:
            print("base {}\nours {}".format(*pair))
        common.say(f"{model.name}: {len(found[0])} hashes, {len(wrong)} differ")
    print(f"{len(models)} models, {lines} lines of hashes, {different} differ from {args.base}")
    return 1 if different else 0

