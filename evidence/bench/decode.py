"""Tokens per second beside llama.cpp, in one interleaved run.

Three cases: tg128 (128 tokens, one by one), pp512 (a prompt of 512 tokens), tg32@4096 (32 tokens after 4096 others;
llama.cpp with flash attention auto, on and off, so that its best is known). In every round each engine runs once,
in its own process, one right after the other; the ratio is taken within the round, where both met the same
machine, and the median over the rounds is reported with its spread. With `--packed-in FOLDER` the same weights in a packed
file (FOLDER/MODEL.packed.gguf, made by `alight pack` if it is not there) run as one more engine.

`llama-bench` and `alight bench` both warm up and time the computation alone, without loading. A case at depth takes
minutes on the large models (their prompt of 4096 has to be computed first): choose it with --case.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from evidence.lib import common

# case -> (tokens of prompt, tokens generated, depth, llama.cpp's variants)
CASES = {
    "tg128": (0, 128, 0, {"default": []}),
    "pp512": (512, 0, 0, {"default": []}),
    "tg32@4096": (0, 32, 4096, {"default": ["-fa", "auto"], "fa on": ["-fa", "on"], "fa off": ["-fa", "off"]}),
}
# Where a case is not asked for by name, the depth is measured on the models where it takes seconds.
SMALL = {"smollm2", "gemma3"}


def told_by(command, timeout) -> str:
    command = [str(c) for c in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


def ours(args, path, case) -> dict:
    prompt, generate, depth, _ = CASES[case]
    command = [common.alight(args.alight), "bench", "prefill" if prompt else "decode", path, "--json",
               "-p" if prompt else "-n", prompt or generate, "-r", args.inner, "-t", args.threads]
    if depth:
        command += ["-d", depth]
    return json.loads(told_by(command, args.timeout))


def theirs(args, path, case, extra) -> float:
    prompt, generate, depth, _ = CASES[case]
    output = told_by([common.llama_tool("llama-bench", args.llama), "-m", path, "-p", prompt, "-n", generate, "-d", depth,
                  "-r", args.inner, "-t", args.threads, "-o", "json", *extra], args.timeout)
    [result] = json.loads(output)
    return statistics.median(result["samples_ts"])


def measure(args, name, case) -> dict:
    path = common.model_path(name, args.models)
    variants = CASES[case][3] if args.peer else {}
    files = {"alight": path}
    if args.packed_in and (packed := common.packed_file(common.alight(args.alight), name, path, args.packed_in)):
        files["packed"] = packed
    rates = {engine: [] for engine in [*files, *variants]}
    ratios = {engine: [] for engine in files}
    bests = {engine: [] for engine in files}
    last = {}
    for i in range(args.rounds):
        if sys.stderr.isatty():
            common.say(f"{name} {case}: round {i + 1} of {args.rounds}")
        # Who goes first changes from round to round.
        for step in list(rates) if i % 2 == 0 else reversed(rates):
            if step in files:
                last[step] = ours(args, files[step], case)
                rates[step].append(last[step]["tokens_per_second"]["median"])
            else:
                rates[step].append(theirs(args, path, case, variants[step]))
            time.sleep(args.pause)
        for engine in files if variants else []:
            ratios[engine].append(rates[engine][-1] / rates["default"][-1])
            bests[engine].append(rates[engine][-1] / max(rates[v][-1] for v in variants))
    return {
        "model": name,
        "case": case,
        "threads": args.threads,
        "rates": {who: common.summary(values) for who, values in rates.items()},
        "ratio_to_default": {who: common.summary(r) for who, r in ratios.items() if r},
        "ratio_to_best": {who: common.summary(r) for who, r in bests.items() if r},
        "last": {engine: {k: run.get(k) for k in ("isa", "work", "bytes_per_second", "macs_per_second", "limits",
                                                  "share_of_read_bandwidth", "share_of_int8_peak")}
                 for engine, run in last.items()},
    }


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["smollm2", "gemma3"])
    parser.add_argument("--case", nargs="+", choices=list(CASES), help="default: all, the depth on the small models only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inner", type=int, default=1, help="repetitions inside each process")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two processes")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one process")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--packed-in", type=Path, metavar="FOLDER", help="also with packed files, kept in FOLDER")
    common.add_arguments(parser)


def run(args) -> int:
    args.peer = not args.alone and common.has_llama("llama-bench", args.llama)
    if not args.peer and not args.alone:
        common.say("llama.cpp is not built (make bench-peer): measuring Alight alone")
    results = []
    for name in args.model:
        for case in args.case or [c for c in CASES if name in SMALL or not CASES[c][2]]:
            results.append(measure(args, name, case))
            if args.json:
                continue
            r = results[-1]
            if len(results) == 1:
                rows = [["model", "case", "file", "alight t/s", "llama.cpp t/s", "its best t/s", "ratio", "to its best", "limit"]]
            theirs_only = [r["rates"][v] for v in r["rates"] if v not in r["last"]]
            best = max(theirs_only, key=lambda s: s["median"], default=None)
            for engine, last in r["last"].items():
                share = last["share_of_int8_peak"] if case == "pp512" else last["share_of_read_bandwidth"]
                kind = "of int8 peak" if case == "pp512" else "of bandwidth"
                ratio, to_best = r["ratio_to_default"].get(engine), r["ratio_to_best"].get(engine)
                rows.append([
                    name, case, "packed" if engine == "packed" else "GGUF", common.spread(r["rates"][engine]),
                    common.spread(r["rates"]["default"]) if "default" in r["rates"] else "-",
                    common.spread(best) if best else "-",
                    common.spread(ratio, 2) if ratio else "-",
                    common.spread(to_best, 2) if to_best else "-",
                    f"{100 * share:.0f} % {kind}" if share is not None else "-",
                ])
    if args.json:
        print(json.dumps(results))
    else:
        common.machine()
        common.table(rows)
    return 0
