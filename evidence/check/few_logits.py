"""Answers that read the output matrix by its high bits have the tokens of answers that read all of it.

The model as GGUF, of which every token reads all logits, beside its packed file, whose output matrix is in planes: the same prompts and
seeds, greedy and with the default sampler, token by token. Says how many positions were compared and how many rows a token read whole. Ends with status 1
at the first difference. `--positions` is the number for each model and sampler.
"""

import json
import re
import tempfile
from pathlib import Path

from evidence.lib import common, process

PROMPTS = [
    "Once upon a time, in a village by the sea,", "The capital of France is", "def quicksort(items):\n    ", "Dear Sir or Madam,",
    "The three laws of thermodynamics are", "Das Wetter in Berlin ist heute", "Il était une fois", "1, 1, 2, 3, 5, 8,",
    "<html>\n<head>\n<title>", "Question: Why is the sky blue?\nAnswer:", "SELECT name, count(*) FROM", "To bake bread, you need",
]
SAMPLERS = {"greedy": ["--temp", "0"], "default": []}
# Tokens of an answer.
LENGTH = 250


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--model", nargs="*", default=["gemma3"])
    parser.add_argument("--positions", type=int, default=10_000)


def tokens(program, path: Path, number: int, sampler: list[str], threads: int) -> tuple[list[int], str]:
    """The tokens of an answer, and what `--stats` says of the output matrix."""
    line = [program, "run", path, "--raw", PROMPTS[number % len(PROMPTS)], "-n", LENGTH, "--ignore-eos", "--seed", number, *sampler]
    line = [str(word) for word in [*line, "-t", threads, "--json", "--stats", "--no-cache"]]
    done = process.run(line)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(line)}: exit status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)["tokens"], done.stderr


def run(args) -> int:
    program, wrong = common.alight(args.alight), 0
    with tempfile.TemporaryDirectory() as folder:
        for name in args.model:
            model = common.model_path(name, args.models)
            packed = common.packed_file(program, f"{name}.planes", model, Path(folder), "--planes")
            for sampler, options in SAMPLERS.items():
                compared, read = 0, []
                while compared < args.positions and not wrong:
                    number = compared // LENGTH
                    [whole, _], [few, said] = (tokens(program, path, number, options, args.threads) for path in (model, packed))
                    found = re.search(r"output +.* a token: ([\d,]+) of ([\d,]+) rows whole", said)
                    if found is None:
                        raise SystemExit(f"{name}: {packed} has no output matrix in planes:\n{said}")
                    read.append([int(n.replace(",", "")) for n in found.groups()])
                    if whole != few:
                        at = next((i for i, both in enumerate(zip(whole, few)) if both[0] != both[1]), min(len(whole), len(few)))
                        print(f"{name}, {sampler}, prompt {number}: token {at} is {few[at:at + 1]}, expected {whole[at:at + 1]}")
                        wrong = 1
                    compared += len(few)
                rows = [n for n, _ in read]
                mean, most, of = sum(rows) / len(rows), max(rows), read[0][1]
                print(f"{name}, {sampler}: {compared} tokens compared, {'a difference' if wrong else 'all equal'}; {100 * mean / of:.2f} % "
                      f"of {of} rows read whole on average, {100 * most / of:.2f} % for the answer with the most", flush=True)
    return wrong
