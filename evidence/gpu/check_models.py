"""Whole models in JAX on a GPU: they compute what they compute on CPU devices, where `agree jax` holds them against llama.cpp and
exact arithmetic. `make test-gpu` runs it.

1. Small models with random weights, one of each kind that this engine runs, each in a process of its own:
   - float32 weights: log-probabilities of a text within 0.02 of those on CPU devices (keys and values are float16 in both, and are
     rounded after other sums); greedy continuations are the same, or part where the CPU has both tokens within 0.02.
   - bf16 weights, with which the residual stream of a GPU is bf16, too: the root of the mean square, beside float32 weights on CPU
     devices, is at most three times that of bf16 weights there, whose stream is float32. The stream, what is normed and the
     cache are rounded to 2⁻⁹ as the weights are.
   - a batch of prompts of several lengths: each continuation is the one alone, or parts where both tokens are within 0.05.
   - mixtures of experts: nine of ten positions, since rounding may choose another expert where two are as good. The same with experts of
     MXFP4 and the rest of Q8_0 as the blocks of the file: as far from CPU devices as bf16 may be, and continuations, whose steps go another way than
     a text, are the same, or part where both tokens are close.
2. SmolLM2 with its real weights, if its file is there, as float32, as bf16 and as the blocks of the file: the prompts and rules of `agree
   greedy`, beside llama.cpp's recorded tokens.
3. A step of decoding is a part of a CUDA graph, with the collective among one GPU, which models would leave out: the GPU's own counter of
   its calls goes on while the host's launches stand still. The tokens are those without it.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from evidence.agree import architectures, greedy
from evidence.agree.jax import log_probabilities
from evidence.bench import jax_decode
from evidence.gpu import bench_models, layers
from evidence.lib import common, process, tiny_models
from evidence.lib.lazy import lazily

alight = lazily("alight")
_alight = lazily("alight._alight")
jax = lazily("jax")
models = lazily("alight.jax.models")
np = lazily("numpy")

KINDS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "qwen3moe", "gpt-oss", "seed_oss", "ernie4_5", "internlm2")
TEXT, PROMPT, TOKENS, STEPS = 160, 40, 24, 8
F32, BF16, CLOSE = 0.02, 3.0, 0.05
AT_ONCE = 6
"""Processes beside each other: most of the time goes into compiling."""


def cases() -> dict[str, tiny_models.Tiny]:
    """The first small model of each kind."""
    found: dict[str, tiny_models.Tiny] = {}
    for tiny, _ in architectures.CASES:
        if tiny.arch in KINDS:
            found.setdefault(tiny.arch, tiny)
    return found


def mesh(platform: str):
    return layers.mesh(jax.devices(platform)[:1])


def parted(ours: list[int], theirs: list[int], prompt: list[int], reference, limit: float) -> str | None:
    """Why two continuations part where `reference` does not find the choice close; None where they are the same or it does."""
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            row = log_probabilities(reference.logits(prompt + theirs[:step])[-1])
            below = abs(float(row[a] - row[b]))
            return None if below <= limit else f"part at {step}, {below:.3f} apart"
    return None


class Network:
    """One small model on both kinds of devices."""

    def __init__(self, tiny: tiny_models.Tiny, path: Path) -> None:
        self.tiny, self.path = tiny, path
        rng = np.random.default_rng(7)
        self.ids = rng.integers(3, tiny.vocab, TEXT).tolist()
        self.prompts = [rng.integers(3, tiny.vocab, length).tolist() for length in (PROMPT, 3, 17)]
        self.cpu = models.load_model(path, mesh=mesh("cpu"), weights="f32", context=2 * TEXT)
        self.exact = log_probabilities(self.cpu.logits(self.ids))
        self.kept = 0.9 if tiny.experts else 1.0

    def off(self, model):
        """How far each position is off, without those that may be."""
        far = np.sort(np.abs(log_probabilities(model.logits(self.ids)) - self.exact).max(axis=-1))
        return far[: int(len(far) * self.kept)]

    def answers(self, model) -> list[list[int]]:
        return [list(model.generate(prompt, max_tokens=TOKENS, sampling=models.Sampling.greedy())) for prompt in self.prompts]

    def check(self) -> dict:
        gpu = models.load_model(self.path, mesh=mesh("gpu"), weights="f32", context=2 * TEXT)
        found = {"f32": float(self.off(gpu).max())}
        troubles = [f"float32 is {found['f32']:.3f} off"] if not found["f32"] <= F32 else []
        limit = 0.5 if self.tiny.experts else F32
        for prompt, ours, theirs in zip(self.prompts, self.answers(gpu), self.answers(self.cpu), strict=True):
            why = parted(ours, theirs, prompt, self.cpu, limit)
            troubles += [f"float32: continuations {why}"] if why else []
        half = models.load_model(self.path, mesh=mesh("gpu"), weights="bf16", context=2 * TEXT)
        rounded = models.load_model(self.path, mesh=mesh("cpu"), weights="bf16", context=2 * TEXT)
        found["bf16"], found["bf16 on CPU"] = (float(np.sqrt((self.off(model) ** 2).mean())) for model in (half, rounded))
        troubles += [f"bf16 is {found['bf16']:.3f} off"] if not found["bf16"] <= BF16 * found["bf16 on CPU"] else []
        alone, together = self.answers(half), half.generate_batch(self.prompts, max_tokens=TOKENS, sampling=models.Sampling.greedy())
        found["same in a batch"] = sum(a == b for a, b in zip(alone, together, strict=True))
        for prompt, ours, theirs in zip(self.prompts, together, alone, strict=True):
            why = parted(ours, theirs, prompt, half, 0.5 if self.tiny.experts else CLOSE)
            troubles += [f"a batch: continuations {why}"] if why else []
        return {"name": self.tiny.arch, "troubles": troubles, **found}

    def check_blocks(self) -> tuple[dict, list[str]]:
        """Of a mixture: what is found, and what is wrong."""
        blocks = models.load_model(self.path, mesh=mesh("gpu"), weights="native", context=2 * TEXT)
        kinds = {getattr(layer[name], "type", "floats") for layer in blocks.params["matrices"] for name in ("gate_up", "down")}
        troubles = [] if kinds == {"MXFP4"} else [f"experts are {', '.join(sorted(kinds))}"]
        rounded = models.load_model(self.path, mesh=mesh("cpu"), weights="bf16", context=2 * TEXT)
        found, limit = (float(np.sqrt((self.off(model) ** 2).mean())) for model in (blocks, rounded))
        troubles += [f"blocks are {found:.3f} off"] if not found <= BF16 * limit else []
        for prompt, ours, theirs in zip(self.prompts, self.answers(blocks), self.answers(self.cpu), strict=True):
            why = parted(ours, theirs, prompt, self.cpu, 0.5)
            troubles += [f"blocks: continuations {why}"] if why else []
        return {"blocks": found}, troubles


def real(path: Path) -> dict:
    """SmolLM2, beside what llama.cpp said of the same file."""
    golden = json.loads((common.ROOT / "tests/data/greedy/smollm2.json").read_text())["answers"]
    tokenizer, ends = alight.Tokenizer(path), greedy.ENDS["smollm2"]
    troubles, found = [], {}
    for weights in ("f32", "bf16", "native"):
        model = models.load_model(path, mesh=mesh("gpu"), weights=weights, context=2048)
        verdicts = {"same": 0, "close": 0, "exact": 0, "wrong": 0}
        for one in golden:
            prompt = tokenizer.prompt(one["prompt"], parse_special=True)
            ours = list(model.generate(prompt, max_tokens=greedy.TOKENS, sampling=models.Sampling.greedy(), stop=tokenizer.ends))
            ours = ours if len(ours) == greedy.TOKENS else [*ours, greedy.END]
            verdict, why = greedy.compare(ours, one, ends, greedy.LIMIT["smollm2"])
            verdicts[verdict] += 1
            troubles += [f"{weights}: {one['prompt'][:20]!r}: {why}"] if verdict == "wrong" else []
        found[weights] = verdicts
    return {"name": "SmolLM2", "troubles": troubles, **found, "graph": graph(model, troubles)}


def graph(model, troubles: list[str]) -> str:
    """Who launches the collectives of a decode step."""
    plain, model = model, bench_models.variant(model, jax_decode.variants(False)["fused"])

    def counts() -> tuple[int, int]:
        launched, _, ended = zip(*_alight.cuda_accounts(), strict=True)
        return sum(launched), sum(ended)

    def run(model, tokens: int) -> list[int]:
        model._free.clear()
        return list(model.generate([1, 2, 3], max_tokens=tokens, sampling=models.Sampling.greedy(), steps_per_launch=STEPS))

    run(model, 64)
    before = counts()
    found = run(model, 257)
    launched, ended = (b - a for a, b in zip(before, counts(), strict=True))
    # The prompt and the first token are programs of their own, which the host may launch.
    few = launched <= ended / 10
    troubles += [] if few else [f"{launched} of {ended} collectives were launched by the host: a step is not a graph"]
    why = parted(found, run(plain, 257), [1, 2, 3], plain, CLOSE)
    troubles += [f"with the collective tokens {why}"] if why else []
    return f"of {ended} collectives in 257 tokens the host launched {launched}"


def child(name: str) -> None:
    """One model: a line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "smollm2":
            found = real(common.model_path(name, common.ROOT / "models"))
        else:
            tiny = cases()[name]
            found = Network(tiny, tiny_models.write(tiny, Path(folder) / "model.gguf")).check()
            if tiny.experts:
                # Of whole blocks.
                tiny = dataclasses.replace(tiny, expert_ff=64, kind="Q8_0", kinds=(("_exps", "MXFP4"),))
                more, troubles = Network(tiny, tiny_models.write(tiny, Path(folder) / "blocks.gguf")).check_blocks()
                found |= more
                found["troubles"] += troubles
    process.tell_result(found)


def add_arguments(parser) -> None:
    parser.add_argument("--only", action="append", help="only this model")
    parser.add_argument("--child", help="run by this command, for each model")


def run(args) -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if args.child:
        return child(args.child)
    there = (common.ROOT / "models" / common.MODELS["smollm2"]).is_file()
    names = args.only or [*(["smollm2"] if there else []), *cases()]

    def one(name: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "evidence", "check", "gpu-models", "--child", name]
        return subprocess.run(command, cwd=common.ROOT, text=True, capture_output=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for name, done in zip(names, pool.map(one, names), strict=True):
            told = process.results(done.stdout)
            troubles = told[0].pop("troubles") if told else done.stderr.strip().splitlines()[-6:]
            failed += bool(troubles)
            print(f"{'FAILED' if troubles else 'ok'}  {name}: {told[0] if told else ''} {'; '.join(troubles)}", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)
