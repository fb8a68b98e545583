"""How far each engine's log-probabilities are from exact arithmetic on the same weights.

1. `base`: every tensor of the GGUF file is dequantised to F32 with the `gguf` package, and llama.cpp's
   own llama-perplexity computes log-probabilities from that file with an F32 cache and flash attention
   off: the exact answer, up to F32 rounding. It writes them to a base file (16 bits per log-probability,
   second half of each chunk, its format).
2. `run`: llama.cpp on the quantised file, at its default settings (8-bit activations, f16 cache, flash
   attention auto), and `alight perplexity MODEL TEXT --kl-base BASE`, both against that base file.

Ours is measured twice: with the text taken in as a prompt (batches), and one token at a time (as an answer is
made), because the two may use activations of different precision.

Exit status 1 if one of ours has a larger mean KL divergence than llama.cpp. Prints one table: mean, median, 99th percentile and largest KL divergence, how often the most likely
token is the same, and the perplexity over the exact one.

Only `alight` and the base files are needed if llama.cpp's side was measured before (`--peer skip`).
"""

import json
import re
import subprocess
import time
from pathlib import Path

from evidence.lib import common, gguf_files, peers, process

MODELS = ["smollm2", "gemma3"]


def perplexity(args, model: Path, *extra: str) -> str:
    """What llama-perplexity says."""
    command = [peers.LLAMA_CPP.tool(args, "llama-perplexity"), "-m", model, "-f", args.text,
               "-c", args.context, "-b", args.context, "--chunks", args.chunks, "-t", args.threads, *extra]
    return process.output(command, stderr=subprocess.STDOUT)


def base_path(args, name: str) -> Path:
    return args.work / f"{name}-{args.text.name}-c{args.context}-n{args.chunks}.kl"


def make_base(args, name: str) -> Path:
    base = base_path(args, name)
    if base.exists():
        return base
    exact = args.work / f"{name}-f32.gguf"
    if not exact.exists():
        common.say(f"{name}: dequantising to {exact}")
        gguf_files.dequantise(common.model_path(name, args.models), exact)
    common.say(f"{name}: exact log-probabilities into {base}")
    start = time.monotonic()
    part = base.with_suffix(".part")
    perplexity(args, exact, "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--kl-divergence-base", part)
    part.rename(base)
    common.say(f"{name}: {time.monotonic() - start:.0f} s")
    return base


# What llama-perplexity prints after --kl-divergence.
PEER_FIELDS = {
    "mean_kl": r"Mean\s+KLD:\s+(-?[\d.]+)",
    "median_kl": r"Median\s+KLD:\s+(-?[\d.]+)",
    "p99_kl": r"\n99\.0%\s+KLD:\s+(-?[\d.]+)",
    "max_kl": r"Maximum\s+KLD:\s+(-?[\d.]+)",
    "same_top": r"Same top p:\s+([\d.]+)",
    "ppl_ratio": r"Mean PPL\(Q\)/PPL\(base\)\s+:\s+([\d.]+)",
    "ppl": r"Mean PPL\(Q\)\s+:\s+([\d.]+)",
}


def peer(args, name: str, base: Path) -> dict:
    cached = base.with_suffix(".llama.json")
    if args.peer == "skip" or (args.peer == "cached" and cached.exists()):
        return json.loads(cached.read_text()) if cached.exists() else {}
    output = perplexity(args, common.model_path(name, args.models), "--kl-divergence-base", base, "--kl-divergence")
    found = {}
    for key, pattern in PEER_FIELDS.items():
        match = re.search(pattern, output)
        if not match:
            raise SystemExit(f"llama-perplexity printed no {key}:\n{output[-3000:]}")
        found[key] = float(match.group(1))
    found["same_top"] /= 100.0
    cached.write_text(json.dumps(found, indent=1) + "\n")
    return found


def distance(args, model: Path, base: Path, batch: int) -> dict:
    """How far `alight perplexity` is from exact arithmetic."""
    how = ("--decode",) if batch == 1 else ("-b", batch)
    told = process.told([common.alight(args.alight), "perplexity", model, "--kl-base", base, "--json", "-t", args.threads, *how])
    return {
        "mean_kl": told["kl"]["mean"]["value"],
        "mean_kl_error": told["kl"]["mean"]["error"],
        "median_kl": told["kl"]["median"],
        "p99_kl": told["kl"]["p99"],
        "max_kl": told["kl"]["max"],
        "same_top": told["same_top"]["value"],
        "ppl_ratio": told["perplexity_ratio"]["value"],
        "ppl": told["perplexity"]["value"],
        "positions": told["positions"],
    }


def add_text_arguments(parser) -> None:
    """The text, and where the exact log-probabilities of it are kept."""
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--context", type=int, default=512, help="tokens per chunk")
    parser.add_argument("--work", type=Path, default=common.TARGET / "accuracy", help="where the F32 files and bases go")
    common.add_arguments(parser)
    peers.add_arguments(parser)


def add_arguments(parser) -> None:
    parser.add_argument("step", nargs="?", choices=["base", "run", "all"], default="all")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: both")
    parser.add_argument("--peer", choices=["live", "cached", "skip"], default="cached",
                        help="llama.cpp on the quantised file: measure, use the last result, or leave out")
    add_text_arguments(parser)


def run(args) -> int:
    args.work.mkdir(parents=True, exist_ok=True)
    results, worse = {}, False
    for name in args.model or MODELS:
        base = make_base(args, name)
        if args.step == "base":
            results[name] = {"llama.cpp": peer(args, name, base)}
        else:
            results[name] = {
                "llama.cpp": peer(args, name, base),
                "alight, prompt": distance(args, common.model_path(name, args.models), base, args.context),
                "alight, one by one": distance(args, common.model_path(name, args.models), base, 1),
            }
            for way in ("alight, prompt", "alight, one by one"):
                theirs, mine = results[name]["llama.cpp"].get("mean_kl"), results[name][way]["mean_kl"]
                if theirs and mine > theirs:
                    common.say(f"{name}: {way}: mean KL {mine:.6f} is above llama.cpp's {theirs:.6f}")
                    worse = True
    if common.as_json(args, results):
        return int(worse)
    rows = [["model", "engine", "mean KL", "median", "99 %", "max", "same top", "ppl / exact"]]
    for name, engines in results.items():
        for engine, r in engines.items():
            if r:
                rows.append([name, engine] + [f"{r[k]:.6f}" if k in r else "-" for k in ("mean_kl", "median_kl", "p99_kl")]
                            + [f"{r['max_kl']:.4f}", f"{100 * r['same_top']:.2f} %", f"{r['ppl_ratio']:.5f}"])
    common.table(rows)
    return int(worse)
