"""Whole processes: from the start to the first token of a five-token prompt, and to the end after that one token.

State: warm (the file is in the page cache), a new process every time, nothing resident. The clock starts before the
process is made and stops at the first byte on its standard output (the prompt is not echoed), and again when it
is gone. llama.cpp twice: as it comes, and at its best for this (no warm-up, no repacking, no fitting). Interleaved,
medians and spread.
"""

import json
import os
import subprocess
import time

from evidence.lib import common

# Five tokens each, the begin-of-text token included where the model has one.
PROMPTS = {
    "smollm2": "The capital of France is",
    "gemma3": "The capital of France",
    "3b": "bat wars sale bat",
    "7b": "bat sale bat",
}
CONTEXT = 2048
# The targets, ms to the first token.
TARGET = {"smollm2": 50, "gemma3": 120, "3b": 250, "7b": 450}


def commands(args, name) -> dict:
    path = common.model_path(name, args.models)
    out = {
        "alight": [common.alight(args.alight), "run", path, "--raw", "--temp", 0, "-n", 1, "-c", CONTEXT,
                   "-t", args.threads, PROMPTS[name]],
    }
    if args.peer:
        base = [common.llama_tool("llama-completion", args.llama), "-m", path, "-no-cnv", "--no-display-prompt",
                "--temp", 0, "-n", 1, "-c", CONTEXT, "-t", args.threads, "-p", PROMPTS[name]]
        out["llama.cpp"] = base
        out["llama.cpp best"] = [*base, "--no-warmup", "--no-repack", "-fit", "off"]
    return {who: [str(c) for c in command] for who, command in out.items()}


def once(command, timeout) -> tuple[float, float]:
    """(ms to the first byte, ms to the end)."""
    start = time.perf_counter_ns()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    first = os.read(process.stdout.fileno(), 1)
    seen = time.perf_counter_ns()
    process.stdout.read()
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SystemExit(f"{' '.join(command)}: not done after {timeout} s") from None
    end = time.perf_counter_ns()
    if status != 0 or not first:
        raise SystemExit(f"{' '.join(command)}: exit status {status}, {'some' if first else 'no'} output")
    return (seen - start) / 1e6, (end - start) / 1e6


def parts(command) -> dict:
    """Where ours says its time goes."""
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    return {k: v for k, v in told["timings"].items() if isinstance(v, (int, float))} | {"prompt": told["prompt_tokens"]}


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(PROMPTS), default=["smollm2", "gemma3"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two processes")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    common.add_arguments(parser)


def run(args) -> int:
    args.peer = not args.alone and common.has_llama("llama-completion", args.llama)
    if not args.peer and not args.alone:
        common.say("llama.cpp is not built (make bench-peer): measuring Alight alone")
    results = []
    for name in args.model:
        run = commands(args, name)
        common.warm(common.model_path(name, args.models))
        first, whole = {who: [] for who in run}, {who: [] for who in run}
        for command in run.values():
            once(command, args.timeout)  # the programs' own pages
        for i in range(args.rounds):
            for who in list(run) if i % 2 == 0 else reversed(list(run)):
                a, b = once(run[who], args.timeout)
                first[who].append(a)
                whole[who].append(b)
                time.sleep(args.pause)
        results.append({
            "model": name,
            "threads": args.threads,
            "first_token_ms": {who: common.summary(v) for who, v in first.items()},
            "process_ms": {who: common.summary(v) for who, v in whole.items()},
            "target_ms": TARGET[name],
            "parts_ms": parts(run["alight"]),
        })
    if args.json:
        print(json.dumps(results))
        return 0
    common.machine()
    rows = [["model", "engine", "first token ms", "whole process ms", "target"]]
    for r in results:
        for who, s in r["first_token_ms"].items():
            target = f"< {r['target_ms']}" if who == "alight" else ""
            rows.append([r["model"], who, common.spread(s), common.spread(r["process_ms"][who]), target])
    common.table(rows)
    for r in results:
        told = ", ".join(f"{k.removesuffix('_ms')} {v:g}" for k, v in r["parts_ms"].items())
        print(f"\n{r['model']}: alight's own account of one run, ms: {told}")
    return 0
