"""Many LoRA adapters of one model: a server with a folder of them beside one without, and beside llama.cpp's server.

Adapters of all matrices of a model's layers are made in a folder: as many random ones as there are clients, and up to `--count` others that are
zeros, which take no space on the disk. Measured are

- the first answer after a start, with the folder and without;
- an answer of one token while each request names the adapter of the one before, while each names another one that is open, and when an adapter is
  named for the first time;
- tokens a second of `--clients` clients that ask at the same time, all of the base, all with one adapter, each with its own;
- the server's memory before and after.

`--peer` measures the clients with llama.cpp's server as well (that of xllamacpp, in a process of its own), which has as many adapters as there are
clients. It computes requests with different adapters one after the other.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evidence.bench import server as serving
from evidence.lib import common, gguf_files, peers, process, rounds
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
TYPES = {"f16": "float16", "f32": "float32"}
# A peer's process: a server with adapters, all of scale 0.
PEER = """
import sys, time, xllamacpp as x
model, port, threads, places, context, *adapters = sys.argv[1:]
p = x.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = model, int(port), int(places), int(context)
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
p.warmup = False
p.lora_adapters = [x.CommonAdapterLoraInfo(path, 0.0) for path in adapters]
server = x.Server(p)
time.sleep(3600)
"""


def add_arguments(parser) -> None:
    parser.add_argument("--model", default="smollm2", help="name of a model, or a file (default: %(default)s)")
    parser.add_argument("--count", type=int, default=2000, help="adapters in the folder (default: %(default)s)")
    parser.add_argument("--rank", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--type", choices=TYPES, default="f16", help="of the factors (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="at the same time (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=("start", "switch", "clients", "peer"), default=("start", "switch", "clients"))
    parser.add_argument("--folder", type=Path, help="where the adapters are made, and kept")
    rounds.add_arguments(parser, 5, timeout=600)
    common.add_arguments(parser)


def write(path: Path, base: Path, rank: int, ty: str, seed: int | None, of_b: float = 0.02) -> None:
    """A random adapter, whose second factors have numbers of about `of_b`; without a seed, zeros but for a number that makes it another file."""
    reader = gguf_files.quick_reader(base)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_string("general.name", path.stem)
    writer.add_float32("adapter.lora.alpha", float(rank))
    random, arrays = np.random.default_rng(seed), []
    for tensor in reader.tensors:
        if not any(tensor.name.endswith(f".{matrix}.weight") for matrix in MATRICES):
            continue
        cols, rows = (int(n) for n in tensor.shape)
        for suffix, shape, size in (("lora_a", (rank, cols), cols**-0.5), ("lora_b", (rows, rank), of_b)):
            kind = np.dtype(TYPES[ty])
            writer.add_tensor_info(f"{tensor.name}.{suffix}", shape, kind, shape[0] * shape[1] * kind.itemsize)
            arrays.append((shape, size, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    out.seek(-out.tell() % 32, os.SEEK_CUR)
    for shape, size, kind in arrays:
        if seed is None:
            out.seek(shape[0] * shape[1] * kind.itemsize, os.SEEK_CUR)
        else:
            out.write((random.standard_normal(shape, np.float32) * np.float32(size)).astype(kind).tobytes())
        out.seek(-out.tell() % 32, os.SEEK_CUR)
    out.truncate(out.tell())
    writer.close()


def fill(args, folder: Path, base: Path) -> list[str]:
    """Makes the adapters that are missing. Returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names, empty = [f"adapter-{i:05}" for i in range(args.count)], b""
    for i, name in enumerate(names):
        path = folder / f"{name}.gguf"
        if path.exists():
            continue
        if i < args.clients or not empty:
            write(path, base, args.rank, args.type, i if i < args.clients else None)
        if i >= args.clients:
            # The others are as long, and have another name in them.
            if not empty:
                first = int(gguf_files.quick_reader(path).tensors[0].data_offset)
                size, before = path.stat().st_size, name.encode()
                empty = path.read_bytes()[:first]
            with path.open("wb") as out:
                out.write(empty.replace(before, name.encode()))
                out.truncate(size)
    return names


class Failed(serving.Failed):
    """A server has not done what was asked."""


def ask(server: serving.Server, tokens: int, text: str, **more) -> float:
    """The milliseconds of an answer that is not streamed."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}
    start = time.perf_counter()
    with server.post("/v1/chat/completions", body) as response:
        told = json.load(response)
    if response.status != 200 or told["usage"]["completion_tokens"] != tokens:
        raise Failed(f"status {response.status}: {str(told)[:300]}")
    return (time.perf_counter() - start) * 1e3


def together(server: serving.Server, args, which) -> float:
    """Tokens a second of all clients, `which(client)` being what its requests have besides."""
    def client(number: int) -> None:
        ask(server, args.tokens, serving.prompt(number), **which(number))

    seconds = serving.threads([lambda number=number: client(number) for number in range(args.clients)])
    return args.clients * args.tokens / seconds


def clients(server: serving.Server, args, loads: dict) -> dict:
    """Tokens a second of each kind of load, in turns."""
    for which in loads.values():
        together(server, args, which)
    runs = rounds.interleaved(args, loads, lambda name: together(server, args, loads[name]))
    out = {f"{name}_tokens_s": common.summary(values) for name, values in runs.items()}
    base = next(iter(runs.values()))
    return out | {f"{name}_share": rounds.ratios(values, base) for name, values in runs.items()}


def switching(server: serving.Server, names: list[str], args) -> dict:
    """Milliseconds of answers of one token."""
    few, found = names[: args.clients], {"first_use": [], "same": [], "another": []}
    for name in names[args.clients : args.clients + 20]:
        found["first_use"].append(ask(server, 1, "Hi", model=name))
    for name in few:
        ask(server, 1, "Hi", model=name)
    for i in range(20 * args.rounds):
        found["same"].append(ask(server, 1, "Hi", model=few[0]))
        if i % len(few) == 0:
            found["another"].extend(ask(server, 1, "Hi", model=name) for name in [*few[1:], few[0]])
    return {f"{name}_ms": common.summary(values) for name, values in found.items() if values}


def run(args) -> None:
    base = common.model_path(args.model, args.models)
    common.warm(base)
    with tempfile.TemporaryDirectory() as place:
        folder = args.folder or Path(place) / "adapters"
        names = fill(args, folder, base)
        command = peers.words(common.alight(args.alight), "serve", base, "--no-cache", "--ctx-size", 1024, "--parallel", args.clients, "-t", args.threads)
        commands = {"without": command, "with": [*command, "--lora-folder", str(folder)]}
        found: dict = {"model": args.model, "adapters": len(names), "rank": args.rank, "type": args.type}

        def first(name: str) -> float:
            with serving.Server(commands[name], args.timeout) as server:
                return server.first_answer_ms()

        if "start" in args.only:
            runs = rounds.interleaved(args, commands, first)
            found |= {f"start_{name}_ms": common.summary(values) for name, values in runs.items()}
            found["start_later_ms"] = common.summary([a - b for a, b in zip(runs["with"], runs["without"], strict=True)])
        own = {"base": lambda _: {}, "one": lambda _: {"model": names[0]}, "each its own": lambda i: {"model": names[i]}}
        if "switch" in args.only or "clients" in args.only:
            with serving.Server(commands["with"], args.timeout) as server:
                server.wait()
                ask(server, 1, "Hi")
                found |= {f"before_{key}": value for key, value in server.memory_mib().items()}
                if "clients" in args.only:
                    found |= clients(server, args, own)
                    found |= {f"after_{key}": value for key, value in server.memory_mib().items()}
                if "switch" in args.only:
                    found |= switching(server, names, args)
        if "peer" in args.only:
            found["peer"] = peer(args, base, [folder / f"{name}.gguf" for name in names[: args.clients]])
        if common.as_json(args, found):
            return
        common.machine()
        for key, value in found.items():
            print(f"{key:28} {common.spread(value) if isinstance(value, dict) and 'median' in value else value}")


def peer(args, base: Path, files: list[Path]) -> dict:
    """The same clients of llama.cpp's server."""
    port = process.free_port()
    command = peers.words(sys.executable, "-c", PEER, base, port, args.threads, args.clients, 1024 * args.clients, *files)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            server = serving.Server([], args.timeout)
            server.port, server.process, server.began = port, started, time.perf_counter()
            server.wait()
            loads = {"base": lambda _: {}, "one": lambda _: {"lora": [{"id": 0, "scale": 1.0}]},
                     "each its own": lambda i: {"lora": [{"id": i, "scale": 1.0}]}}
            return {key: round(value["median"], 3) for key, value in clients(server, args, loads).items()}
        finally:
            started.kill()
