"""What depth costs a model whose layers have windows: the peak of a process that has read so many tokens, what each of them takes of it, and the
processor time of a token after them. With `--base`, the same of another build of the command.

Memory of a depth is the peak at that depth less the peak without one. Processor time is that of the threads, so it is not disturbed by what else
the machine does; a token's is that of the answer, divided by its tokens.

    python -m evidence bench windows --base OTHER/alight --record
"""

import json
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

from evidence.lib import common, results

MIB = 1 << 20
CASES = {"gemma3": "Gemma 3 270M Q4_K_M", "smollm2": "SmolLM2 135M Q4_1"}


def measured(program: Path, model: Path, depth: int, args) -> dict:
    """The peak of a process in MiB, and milliseconds of processor time for a token of the answer."""
    command = [program, "bench", "decode", model, "-d", depth, "-n", args.tokens, "-r", 1, "-t", args.threads, "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
    phases = json.loads(done.stdout)["phases"]
    peak = max(phase["max_rss_bytes"] for phase in phases if phase["name"] in ("open", "warm up", "measure"))
    measure = next(phase for phase in phases if phase["name"] == "measure")
    return {"peak": peak / MIB, "token": (measure["user_us"] + measure["system_us"]) / 1e3 / args.tokens}


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["gemma3"])
    parser.add_argument("--depth", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--base", type=Path, help="another build of the command")
    parser.add_argument("--base-commit", help="its version, for --record")
    parser.add_argument("--record", action="store_true", help="put the figures into evidence/results/memory.jsonl")
    common.add_arguments(parser, threads=1)


def run(args) -> int:
    programs = {"now": common.alight(args.alight)} | ({"before": args.base} if args.base else {})
    commit = results.measured_commit() if args.record else None
    rows, new, document = [["model", "depth", "build", "peak, MiB", "of depth, MiB", "bytes a position", "ms of a token"]], [], []
    for name in args.model:
        path = common.model_path(name, args.models)
        common.warm(path)
        shallow = {build: measured(program, path, 0, args) for build, program in programs.items()}
        for depth in args.depth:
            figures = {}
            for build, program in programs.items():
                found = measured(program, path, depth, args)
                kept = found["peak"] - shallow[build]["peak"]
                document.append({"model": name, "depth": depth, "build": build, "of_depth": kept} | found)
                rows.append([name, str(depth), build, f"{found['peak']:.1f}", f"{kept:.1f}", f"{kept * MIB / depth:.0f}", f"{found['token']:.2f}"])
                figures |= {
                    f"of the depth, {build}": {"values": [round(kept, 1)], "unit": "MiB"},
                    f"processor time of a token, {build}": {"values": [round(found["token"], 2)], "unit": "ms"},
                }
            new.append({
                "set": "windows", "case": f"{CASES.get(name, name)}, depth {depth}", "date": date.today().isoformat(), "commit": commit,
                "machine": common.machine_name(), "command": f"python -m evidence {shlex.join(sys.argv[1:])}",
                "note": f"one run each; before: {args.base_commit or 'not measured'}",
                "figures": figures, "source": "evidence/bench/windows.py",
            })
    if args.record:
        results.record("memory", new)
    if not common.as_json(args, document):
        common.table(rows)
    return 0
