"""What two processes on one model cost in memory, and whether a context is paid for before it is used.

Each process answers until it has written some bytes, is stopped (SIGSTOP) and read:
  /proc/PID/smaps_rollup   Rss, Pss (shared pages counted in parts) and the anonymous part
  /proc/PID/smaps          the pages of the model file apart from the rest
Three questions, each with a limit that makes the exit status 1:
  1. two processes share the weights: the sum of their Pss on the model file is at most 1.02 of its size;
  2. the context is not paid for before it is used: anonymous memory after a short answer with -c 4096
     is at most 4 MiB above that with -c 256;
  3. the cache is paid for as it is used: after a prompt of ~1000 tokens, anonymous memory has grown by at most
     1.5 times the bytes that the K and V of those tokens take in f16, and 8 MiB (buffers for a batch).
llama.cpp beside it, where it is built.
"""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from evidence.lib import common

SHORT = "Once upon a time, in a village at the foot of a mountain,"
WORDS = 700  # of the long prompt


def long_prompt() -> str:
    names = ["harbour", "library", "bridge", "market", "mill", "tower", "garden", "station"]
    return " ".join(f"{i} the {names[i % 8]} of the town" for i in range(WORDS // 5)) + ". In short,"


class Answering:
    """A process that answers, stopped after it has written `count` bytes of its answer."""

    def __init__(self, command, count, timeout):
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        fd, seen, end = self.process.stdout.fileno(), 0, time.monotonic() + timeout
        while seen < count:
            if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                self.close()
                raise SystemExit(f"{command[0]}: {seen} bytes after {timeout} s")
            got = os.read(fd, 4096)
            if not got:
                raise SystemExit(f"{command[0]}: ended after {seen} bytes, exit status {self.process.wait()}")
            seen += len(got)
        self.process.send_signal(signal.SIGSTOP)
        # Stopped only when the kernel says so.
        while Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def close(self):
        self.process.kill()
        self.process.wait()

    def memory(self, model: Path) -> dict:
        """MiB."""
        out = {}
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("Rss", "Pss", "Pss_Anon", "Pss_File", "Anonymous"):
                out[key.lower()] = int(value.split()[0]) / 1024
        out["model_rss"] = out["model_pss"] = 0.0
        inside = False
        for line in Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            fields = line.split()
            if not fields[0].endswith(":"):
                inside = line.endswith(str(model))
            elif inside and fields[0] in ("Rss:", "Pss:"):
                out["model_" + fields[0][:-1].lower()] += int(fields[1]) / 1024
        return out


def command(args, who, path, context, prompt):
    if who == "alight":
        return [common.alight(args.alight), "run", path, "--raw", "--temp", 0, "--ignore-eos", "-c", context,
                "-t", args.threads, prompt]
    # One thread: this measures memory, and with more it hardly moves while anything else runs.
    return [common.llama_tool("llama-completion", args.llama), "-m", path, "-no-cnv", "--no-display-prompt", "--temp", 0,
            "--ignore-eos", "-n", -1, "-c", context, "-t", 1, "-p", prompt]


def kv_bytes_per_token(args, path) -> int:
    """f16 K and V of all layers, from the file's metadata."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    arch = reader.get_field("general.architecture").contents()

    def number(key, default=None):
        field = reader.get_field(f"{arch}.{key}")
        return default if field is None else field.contents()

    heads = number("attention.head_count")
    head = number("embedding_length") // heads
    kv = number("attention.head_count_kv", heads)
    both = number("attention.key_length", head) + number("attention.value_length", head)
    return number("block_count") * kv * both * 2


def measure(args, name, who) -> dict:
    path = common.model_path(name, args.models).resolve()
    common.warm(path)

    def one(context, prompt):
        process = Answering(command(args, who, path, context, prompt), args.bytes, args.timeout)
        try:
            return process.memory(path)
        finally:
            process.close()

    first = Answering(command(args, who, path, 4096, SHORT), args.bytes, args.timeout)
    try:
        alone = first.memory(path)
        second = Answering(command(args, who, path, 4096, SHORT), args.bytes, args.timeout)
        try:
            pair = [first.memory(path), second.memory(path)]
        finally:
            second.close()
    finally:
        first.close()
    small, full = one(256, SHORT), one(4096, long_prompt())
    return {"model": name, "engine": who, "file_mib": path.stat().st_size / 2**20, "alone": alone, "pair": pair,
            "context_256": small, "prompt_long": full}


def tokens_of_long_prompt(args, path) -> int:
    done = subprocess.run([str(c) for c in [*command(args, "alight", path, 4096, long_prompt()), "-n", 1, "--json"]],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["prompt_tokens"]


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["smollm2", "gemma3"])
    parser.add_argument("--bytes", type=int, default=40, help="of the answer before a process is stopped")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    common.add_arguments(parser)


def run(args) -> int:
    engines = ["alight"]
    if not args.alone and common.has_llama("llama-completion", args.llama):
        engines.append("llama.cpp")
    results, failed = [], []
    for name in args.model:
        for who in engines:
            r = measure(args, name, who)
            results.append(r)
            if who != "alight":
                continue
            path = common.model_path(name, args.models)
            shared = sum(p["model_pss"] for p in r["pair"])
            if shared > 1.02 * r["file_mib"]:
                failed.append(f"{name}: two processes hold {shared:.1f} MiB of a file of {r['file_mib']:.1f}")
            early = r["alone"]["anonymous"] - r["context_256"]["anonymous"]
            if early > 4:
                failed.append(f"{name}: -c 4096 costs {early:.1f} MiB more than -c 256 before it is used")
            r["long_tokens"] = tokens_of_long_prompt(args, path)
            r["kv_mib"] = kv_bytes_per_token(args, path) * r["long_tokens"] / 2**20
            grown = r["prompt_long"]["anonymous"] - r["alone"]["anonymous"]
            if grown > 1.5 * r["kv_mib"] + 8:
                failed.append(f"{name}: {r['long_tokens']} tokens cost {grown:.1f} MiB, their cache is {r['kv_mib']:.1f}")
    for line in failed:
        common.say(line)
    if args.json:
        print(json.dumps(results))
        return int(bool(failed))
    rows = [["model", "engine", "file MiB", "anonymous, -c 4096", "-c 256", f"after ~{WORDS} words", "their f16 cache",
             "model file, Rss", "Pss of two", "process Pss of two"]]
    for r in results:
        rows.append([
            r["model"], r["engine"], f"{r['file_mib']:.1f}", f"{r['alone']['anonymous']:.1f}",
            f"{r['context_256']['anonymous']:.1f}", f"{r['prompt_long']['anonymous']:.1f}",
            f"{r['kv_mib']:.1f}" if "kv_mib" in r else "", f"{r['alone']['model_rss']:.1f}",
            " + ".join(f"{p['model_pss']:.1f}" for p in r["pair"]), " + ".join(f"{p['pss']:.1f}" for p in r["pair"]),
        ])
    common.table(rows)
    return int(bool(failed))
