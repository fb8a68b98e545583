"""`alight.jax.models` against llama.cpp and the native engine.

Python is one that has the package with jax (`make test-python` makes it); llama.cpp comes from .venv, without which parts 1
and 2 are still run.

1. Both real models, the prompts and rules of `agree greedy`: greedy tokens are identical to llama.cpp's (recorded), or
   part where the choice is close for it, or where exact arithmetic on the same weights puts ours first or nearly so. With
   float32 weights the continuation has to be the exact one, or part from it where that has both tokens within 0.02, and
   has to be the same for every number of ranks. With weights in place (prompts with 8-bit activations, as the native
   engine) limits are those of `agree greedy`, but for 0.25 instead of 0.2 beside exact arithmetic; how many are the native
   engine's, and how many the same for every number of ranks, is said. With 16-bit activations (`chunks=(1,)`) short prompts
   have the limits of float32, and the same tokens for every number of ranks.
2. Log-probabilities of what llama.cpp lists at each step of its continuation: float32 within 0.05 of exact arithmetic
   (float16 keys and values here, float32 there); in place, a token at a time (16-bit activations), within 0.1 of it.
3. Small models with random weights of every architecture (`gguf` package): as `agree architectures`, within 0.02 of llama.cpp
   at every position (of a mixture of experts at nine of ten), for both ways to compute and 1, 2, 4 and 8 ranks. What this
   engine does not run is refused by name.
4. What may not pass: windows of one more or less, other caps, another pairing, no norm, no sinks... leave that tolerance
   fivefold.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from evidence.agree import architectures, greedy
from evidence.lib import common, tiny_models
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily
from evidence.lib.llama import CONTEXT

alight = lazily("alight")
models = lazily("alight.jax.models")
np = lazily("numpy")

# Of a choice with weights in place, beside exact arithmetic.
EXACT_LIMIT = 0.25
# Of two continuations by float32 weights, and of log-probabilities beside exact ones.
SAME, F32_TOLERANCE, NATIVE_TOLERANCE = 0.02, 0.05, 0.1
# Positions whose log-probabilities are compared: a token at a time takes long.
NATIVE_POSITIONS = 400
# Tokens of a prompt that is computed a token at a time.
SHORT = 24


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def close(ours: list, theirs: list, top: list, ends: set, limit: float) -> str | None:
    """Why two continuations part at a choice that is not close; None if they do not."""
    verdict, why = greedy.compare(ours, {"tokens": theirs, "top": top}, ends, limit)
    return why if verdict == "wrong" else None


def real(args, report: Checks, name: str) -> None:
    path = common.model_path(name, args.models)
    tokenizer = alight.Tokenizer(path)
    golden = json.loads((common.ROOT / f"tests/data/greedy/{name}.json").read_text())["answers"]
    golden = golden[:: 6 if args.quick else 1]
    ends, limit = greedy.ENDS[name], greedy.LIMIT[name]
    prompts = [tokenizer.prompt(one["prompt"], parse_special=True) for one in golden]
    native = [greedy.alight(args, path, one["prompt"]) for one in golden]
    for _, trouble in native:
        if trouble:
            raise SystemExit(f"{name}: alight: {trouble}")
    everything = golden, prompts, native
    short = [[one for one, prompt in zip(part, prompts, strict=True) if len(prompt) <= SHORT] for part in everything]
    for weights, chunks in [(weights, models._model.CHUNKS) for weights in args.weights] + [("native", (1,))] * ("native" in args.weights):
        first, tight = None, weights == "f32" or chunks == (1,)
        golden, prompts, native = short if chunks == (1,) else everything
        for ranks in args.tp:
            what, start = f"{name}, {weights}{', 16 bits' if chunks == (1,) else ''}, {ranks} ranks", time.monotonic()
            model = models.load_model(path, tp=ranks, weights=weights, context=CONTEXT, chunks=chunks)
            found = [continuation(model, prompt, tokenizer) for prompt in prompts]
            verdicts = {"same": 0, "close": 0, "exact": 0, "wrong": 0}
            engine, exact, troubles = 0, 0, []
            for one, ours, (theirs, _) in zip(golden, found, native, strict=True):
                verdict, why = greedy.compare(ours, one, ends, limit)
                verdicts[verdict] += 1
                engine, exact = engine + (ours == theirs), exact + (ours == one["exact"]["tokens"])
                troubles += [f"llama.cpp: {why}"] if verdict == "wrong" else []
                far = close(ours, one["exact"]["tokens"], one["exact"]["top"], ends, SAME if tight else EXACT_LIMIT)
                troubles += [f"exact: {far}"] if far else []
            report.add(
                not troubles,
                f"{what}: {len(found)} continuations, llama.cpp: {verdicts['same']} identical, {verdicts['close']} part where close, "
                f"{verdicts['exact']} where exact arithmetic sides with ours; exact: {exact} identical; native engine: {engine} "
                f"identical; {time.monotonic() - start:.0f} s{'; '.join(['', *troubles])}",
            )
            if first is None:
                first = found
                if tight:
                    probabilities(report, model, what, weights, golden, prompts)
            else:
                same = sum(a == b for a, b in zip(first, found))
                # Sums are in another order, and 8 bits then differ: any close choice may fall otherwise.
                report.add(not tight or same == len(found), f"{what}: {same} of {len(found)} as with {args.tp[0]}")


def continuation(model, prompt: list, tokenizer) -> list:
    ends = tokenizer.ends
    found = list(model.generate(prompt, max_tokens=greedy.TOKENS, sampling=models.Sampling.greedy(), stop=ends))
    return found if len(found) == greedy.TOKENS else [*found, greedy.END]


def probabilities(report: Checks, model, what: str, weights: str, golden: list, prompts: list) -> None:
    """What is listed at each step of the exact continuation."""
    tolerance = F32_TOLERANCE if weights == "f32" else NATIVE_TOLERANCE
    most, squares, positions = 0.0, [], 0
    for one, prompt in zip(golden, prompts, strict=True):
        tokens = [token for token in one["exact"]["tokens"] if token != greedy.END]
        if weights != "f32" and positions + len(prompt) + len(tokens) > NATIVE_POSITIONS:
            continue
        positions += len(prompt) + len(tokens)
        model._free.clear()
        rows = log_probabilities(model.logits(prompt + tokens)[len(prompt) - 1 :])
        for row, top in zip(rows, one["exact"]["top"]):
            off = [abs(row[token] - listed) for token, listed in top]
            most, squares = max(most, *off), squares + [x * x for x in off]
    mean = float(np.sqrt(np.mean(squares)))
    text = f"{what}: {len(squares)} log-probabilities within {most:.4f} of exact arithmetic (root of the mean square {mean:.5f})"
    report.add(most <= tolerance, text, most=most)


def tiny(args, report: Checks, m: tiny_models.Tiny, controls: dict, folder: Path) -> None:
    """A small model, and what may not pass for it."""
    path = tiny_models.write(m, folder / "model.gguf")
    try:
        models.load_model(path, weights="f32", context=architectures.CONTEXT)
    except alight.FormatError as why:
        report.add(f"'{m.arch}' is not supported by the JAX engine" in str(why), f"{m.name}: {why}")
        return
    left_out = architectures.near_ties(m)
    text = folder / "text.txt"
    text.write_text(tiny_models.text(200, m.seed))
    tokens, engine = architectures.ours(args, path, text, 1)
    with architectures.peer(m, path, exact=True) as llama:
        exact = architectures.theirs(args, llama, m.vocab, tokens, architectures.CANDIDATES)

    def rows(model) -> np.ndarray:
        found = log_probabilities(model.logits(tokens))
        return found[architectures.FIRST : architectures.LAST + 1 : args.step]

    for weights in args.weights:
        for ranks in args.tp:
            model = models.load_model(path, tp=ranks, weights=weights, context=architectures.CONTEXT)
            found = rows(model)
            off, from_engine = (architectures.apart(exact, one, left_out)[0] for one in (found, found - engine + exact))
            good = max(off, from_engine) <= architectures.TOLERANCE
            report.add(good, f"{m.name}, {weights}, {ranks} ranks: {off:.5f} from llama.cpp, {from_engine:.5f} from the native engine", most=off)
    for what, change in controls.items():
        wrong = tiny_models.write(dataclasses.replace(m, **change), folder / "control.gguf")
        made = rows(models.load_model(wrong, weights="f32", context=architectures.CONTEXT))
        off = architectures.apart(exact, made, left_out)[0]
        report.add(off > architectures.CONTROL, f"{m.name}, with a mistake: {what}: {off:.5f}", control=off)


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="*", choices=list(greedy.LIMIT), default=list(greedy.LIMIT))
    parser.add_argument("--tp", type=int, nargs="+", help="ranks (default: 1 2 4 8, quick: 1 2)")
    parser.add_argument("--weights", nargs="+", default=["native", "f32"])
    parser.add_argument("--quick", action="store_true", help="every sixth prompt, Gemma 2 and gpt-oss alone of the small models")
    parser.add_argument("--small", nargs="+", metavar="NAME", help="these of the small models, as `agree architectures` calls them")
    parser.add_argument("--step", type=int, default=4, help="of the small models, compare every N-th position")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what fails, and the sum")
    common.add_arguments(parser, threads=1)


def run(args) -> int:
    # Before JAX is imported; and llama.cpp comes from .venv, behind what this Python has itself.
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path += [str(path) for path in (common.ROOT / ".venv/lib").glob("python*/site-packages")]
    args.tp = args.tp or ([1, 2] if args.quick else [1, 2, 4, 8])
    start, report = time.monotonic(), Checks(args.quiet)
    for name in args.model:
        real(args, report, name)
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        common.say("llama.cpp is not there (`make .venv/stamp`): without the small models")
    else:
        with tempfile.TemporaryDirectory() as folder:
            for m, controls in architectures.CASES:
                if m.name in ("gemma2", "gpt-oss") if args.quick else not args.small or m.name in args.small:
                    tiny(args, report, m, controls, Path(folder))
    if not common.as_json(args, report.rows):
        print(f"jax: {report.passed} passed, {report.failed} failed, {time.monotonic() - start:.0f} s")
    return report.status()
