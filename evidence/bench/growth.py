"""How cost grows: with the depth of an answer, the length of a prompt, the size of a file, the number of sequences, of stored prompts, of experts
and of lines to be embedded.

Each question is one quantity that grows while all else stays, and a cost that is measured at each of its sizes. The exponent is the slope of the
cost on a logarithmic scale, between the last two sizes and over all of them: 0 is a cost that does not grow, 1 one that grows as the quantity does.
A cost with a part that is always there bends: the last exponent is the one to compare with what is expected.

    python -m evidence bench growth                        all of them
    python -m evidence bench growth --only depth start     some
    python -m evidence bench growth --full                 with the largest size of each, which takes minutes
    python -m evidence bench growth --svg FILE             and one picture

Of `start`, files are sparse and of one shape but for the number of their experts, of which a token chooses one: what is measured is what a larger
file costs before the first token. Of `stored`, the other prompts are links to one prompt file, by names of their own.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from evidence.check.clients import serving
from evidence.lib import common, process, sparse, svg, tiny_models
from evidence.lib.svg import Line

SHORT = "The sky is blue because"
# A llama of one layer, whose cache is small enough for a depth of 131,072 tokens.
SHALLOW = tiny_models.Tiny("one layer", "llama", layers=1, embd=256, ff=512, heads=4, kv_heads=1, head_dim=64, vocab=512, context=1 << 18)
# A mixture whose experts are 25 MB each in a layer, and its twin with experts so small that routing shows.
LARGE_EXPERTS = replace(sparse.QWEN3_30B_A3B, name="large experts", layers=4, vocab=4096, experts=10, used=1, expert_ff=4096)
SMALL_EXPERTS = replace(sparse.QWEN3_30B_A3B, name="small experts", layers=4, vocab=4096, experts=8, used=4, expert_ff=64)


@dataclass(frozen=True)
class Question:
    """What grows, by which sizes, what that costs, and what is to be expected of it."""

    name: str
    grows: str
    cost: str
    sizes: tuple[int, ...]
    """The last one with `--full` alone."""
    expected: str
    breaks: str
    measure: Callable[["Bench", list[int]], list[float]]


@dataclass
class Bench:
    """The program and the files."""

    args: object
    folder: Path

    @property
    def model(self) -> Path:
        return common.model_path("smollm2", self.args.models)

    def sparse(self, shape: tiny_models.Tiny, matrices: str = "BF16") -> Path:
        """A file of that shape, whose weights are zeros and take no disk."""
        return sparse.write(shape, self.folder / "sparse.gguf", matrices, tiny_models.add_vocabulary)

    def bench(self, model: Path, *options) -> list[dict]:
        """The rows of `alight bench`."""
        command = [self.args.alight, "bench", model, "-r", self.args.rounds, "-t", self.args.threads, "-o", "json", *options]
        return process.told(command, self.args.timeout)

    def run(self, model: Path, prompt: str, *options) -> dict:
        """What `alight run --json` reports of one token."""
        command = [self.args.alight, "run", model, prompt, "--raw", "--ignore-eos", "-n", 1, "-t", self.args.threads, "--json", *options]
        return process.told(command, self.args.timeout)

    def median(self, measure: Callable[[], float]) -> float:
        return statistics.median(measure() for _ in range(self.args.rounds))


def rates(bench: Bench, model: Path, *options) -> list[float]:
    """Tokens per second of each row."""
    return [row["tokens_per_second"]["median"] for row in bench.bench(model, *options)]


def listed(sizes: list[int]) -> str:
    return ",".join(map(str, sizes))


def depth(bench: Bench, sizes: list[int]) -> list[float]:
    model = bench.sparse(SHALLOW, "F16")
    return [1e3 / rate for rate in rates(bench, model, "-p", 0, "-n", 16, "-d", listed(sizes))]


def prompt(bench: Bench, sizes: list[int]) -> list[float]:
    return [1e3 * size / rate for size, rate in zip(sizes, rates(bench, bench.model, "-n", 0, "-p", listed(sizes)), strict=True)]


def start(bench: Bench, sizes: list[int]) -> list[float]:
    found = []
    of_expert = 3 * 2 * LARGE_EXPERTS.embd * LARGE_EXPERTS.expert_ff * LARGE_EXPERTS.layers
    for size in sizes:
        model = bench.sparse(replace(LARGE_EXPERTS, experts=max(2, round(size * 1e9 / of_expert))))
        bench.run(model, "1")
        found.append(bench.median(lambda model=model: bench.run(model, "1")["timings"]["first_token_ms"]))
    return found


def sequences(bench: Bench, sizes: list[int]) -> list[float]:
    """Of each token of all sequences together: what a step costs."""
    tokens, found = 64, []
    for size in sizes:
        lines = bench.folder / "lines.jsonl"
        lines.write_text("".join(json.dumps({"prompt": f"{SHORT} {i}"}) + "\n" for i in range(size)))

        def seconds(count: int, size: int = size, lines: Path = lines) -> float:
            command = [bench.args.alight, "batch", bench.model, lines, "--raw", "--ignore-eos", "-n", count, "--sequences", size, "-c", 512, "-t", bench.args.threads, "-q"]
            began = time.perf_counter()
            process.output(command, bench.args.timeout)
            return time.perf_counter() - began

        found.append(bench.median(lambda seconds=seconds: 1e3 * (seconds(tokens + 1) - seconds(1)) / tokens))
    return found


def stored(bench: Bench, sizes: list[int], alike: bool = False) -> list[float]:
    """To the first token of a prompt that is stored among others, which begin with the same 64 tokens if they are alike."""
    cache = bench.folder / "prompts"
    cache.mkdir()
    asked = " ".join(f"{i} and" for i in range(400))
    option = f"--cache={cache}"
    bench.run(bench.model, asked, option)
    (one,) = cache.iterdir()
    of_model, text, _ = one.stem.split("-")
    others, found = 0, []
    for size in sizes:
        while others < size - 1:
            # Links of a file are limited in number.
            if others % 30_000 == 0:
                source = bench.folder / f"source{others}"
                source.write_bytes(one.read_bytes())
            beginning = text if alike else f"{others * 0x9e3779b97f4a7c15 % (1 << 64):016x}"
            os.link(source, cache / f"{of_model}-{beginning}-{others:016x}{one.suffix}")
            others += 1
        found.append(bench.median(lambda: bench.run(bench.model, asked, option)["timings"]["first_token_ms"]))
    return found


def alike(bench: Bench, sizes: list[int]) -> list[float]:
    return stored(bench, sizes, alike=True)


def experts(bench: Bench, sizes: list[int]) -> list[float]:
    found = []
    for size in sizes:
        model = bench.sparse(replace(SMALL_EXPERTS, experts=size))
        found += [1e3 / rate for rate in rates(bench, model, "-p", 0, "-n", 16)]
    return found


def embeddings(bench: Bench, sizes: list[int]) -> list[float]:
    found = []
    with serving(bench.args.alight, bench.model, "--threads", bench.args.threads) as address:
        for size in sizes:
            body = json.dumps({"input": [f"{SHORT} it is number {i} of them" for i in range(size)]}).encode()

            def seconds(body: bytes = body) -> float:
                began = time.perf_counter()
                request = urllib.request.Request(f"{address}/v1/embeddings", body, {"content-type": "application/json"})
                urllib.request.urlopen(request, timeout=bench.args.timeout).read()
                return 1e3 * (time.perf_counter() - began)

            found.append(bench.median(seconds))
    return found


QUESTIONS = (
    Question("depth", "tokens before it", "ms for a token (a model of one layer)", (1024, 4096, 16384, 65536, 131072), "1 where attention is most of the work",
             "keys and values are read whole for each token; a window or recurrent layers end it", depth),
    Question("prompt", "tokens of a prompt", "ms for the prompt", (128, 512, 2048, 8192), "1, and up to 2 where attention is most of the work",
             "every token attends to all before it", prompt),
    Question("start", "GB of the file", "ms to the first token (a sparse mixture)", (1, 10, 100), "0", "what has a cost for each tensor or byte of a file", start),
    Question("sequences", "sequences at a time", "ms for a step of all", (1, 2, 4, 8, 16, 32, 64), "0 while weights are read from memory, then 1",
             "multiplications, from some eight sequences on", sequences),
    Question("stored", "stored prompts", "ms to the first token of one of them", (1, 100, 10_000, 100_000), "0", "a listing of the folder", stored),
    Question("alike", "stored prompts that begin alike", "ms to the first token of one of them", (1, 10, 100, 1000, 10_000), "1",
             "each of them is opened, and its tokens are compared", alike),
    Question("experts", "experts in a layer, four of them chosen", "ms for a token", (8, 32, 128, 512), "0 while the router is small", "the router's matrix", experts),
    Question("embeddings", "lines", "ms for all of them", (1, 4, 16, 64, 256), "1", "padding, of which there is none", embeddings),
)


def slope(points: list[tuple[float, float]]) -> float:
    """Of the least squares through the logarithms."""
    xs, ys = ([math.log(point[i]) for point in points] for i in range(2))
    x, y = statistics.mean(xs), statistics.mean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def answer(bench: Bench, question: Question) -> dict:
    sizes = list(question.sizes if bench.args.full else question.sizes[:-1])
    common.say(f"{question.name}: {listed(sizes)} {question.grows}")
    costs = question.measure(bench, sizes)
    points = list(zip(sizes, costs, strict=True))
    return {"question": question.name, "grows": question.grows, "cost": question.cost, "points": points, "exponent": slope(points),
            "last_exponent": slope(points[-2:]), "expected": question.expected, "breaks": question.breaks}


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    common.add_only_argument(parser, "questions")
    common.add_folder_argument(parser)
    parser.add_argument("--full", action="store_true", help="with the largest size of each question")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each size (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one process (default: %(default)s)")
    parser.add_argument("--svg", type=Path, help="write a picture to this file")


def run(args) -> None:
    args.alight = common.alight(args.alight)
    results = []
    for question in QUESTIONS:
        if common.is_asked(args, question.name):
            with common.temporary_folder(args, "growth") as folder:
                results.append(answer(Bench(args, Path(folder)), question))
    if args.svg:
        args.svg.write_text(picture(results))
    if common.as_json(args, {"machine": common.machine_name(), "threads": args.threads, "results": results}):
        return
    common.machine()
    rows = [["", "grows", "cost", "measured", "exponent", "at the end", "expected", "what breaks it"]]
    for r in results:
        measured = ", ".join(f"{size:g}: {cost:.3g}" for size, cost in r["points"])
        rows.append([r["question"], r["grows"], r["cost"], measured, f"{r['exponent']:.2f}", f"{r['last_exponent']:.2f}", r["expected"], r["breaks"]])
    common.table(rows)


def picture(results: list[dict]) -> str:
    panels = [(f"{r['cost']}, by {r['grows']}: exponent {r['exponent']:.2f}, {r['last_exponent']:.2f} at the end", Line(r["question"], r["points"], "ours")) for r in results]
    return svg.growth("How cost grows", [common.machine_name()], panels)
