"""The account of reading one large file, cold and hot, by every way: the table of docs/page-cache.md.

Who reads: `cat`; `dd` with direct reads; a program that maps the file and looks at every page (evidence/c/load.c); and
`alight run`, up to its first token, with each way of loading. Every cell is `rusage --json`, cold ones with `--cold FILE`,
which evicts the file before the run and proves it; before a hot one the file is read. The cells take turns, one run each
in every round. Left cached: of the file, after the run, by cachestat.
"""

import json
import subprocess
import tempfile
from pathlib import Path

from evidence.bench import load as bench_load
from evidence.lib import common
from evidence.lib import tools as peer_tools

MIB = 2**20
# The random model has no words that fit together: any prompt of a few tokens will do.
PROMPTS = {"smollm2": "The capital of France is", "gemma3": "The capital of France is", "3b": "bat sale bat", "7b": "bat sale bat"}


def readers(args, name, path) -> dict:
    run = [common.alight(args.alight), "run", path, "--raw", "--temp", 0, "-n", 1, "-t", args.threads, PROMPTS[name], "--load"]
    return {
        "cat": ["cat", path],
        "dd iflag=direct": ["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct", "status=none"],
        "a map, page by page": [peer_tools.c_program("load"), "map", path],
        "alight --load read": [*run, "read"],
        "alight --load mmap": [*run, "mmap"],
        "alight --load direct": [*run, "direct"],
    }


def once(rusage, command, path, state) -> dict:
    if state == "hot":
        bench_load.make_warm(path)
    with tempfile.NamedTemporaryFile() as report:
        line = [rusage, "--json", "-o", report.name, *(["--cold", path] if state == "cold" else []), "--", *command]
        done = subprocess.run([str(part) for part in line], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(str(p) for p in line)}: {done.returncode}: {done.stderr.decode(errors='replace')}")
        run = json.loads(report.read())["runs"][0]
    io = run.get("io") or {}
    return {"wall_ms": run["wall_us"] / 1e3, "peak_mib": run["max_rss_bytes"] / MIB, "user_ms": run["user_us"] / 1e3,
            "system_ms": run["system_us"] / 1e3, "minor": run["minor_faults"], "major": run["major_faults"],
            "voluntary": run["voluntary_switches"], "involuntary": run["involuntary_switches"],
            "read_mib": run["read_bytes"] / MIB, "asked_mib": io.get("rchar", 0) / MIB,
            "left_mib": bench_load.cached_pages(path) * 4096 / MIB}


def show(name, path, rounds, cells) -> None:
    print(f"\n{name}: {path.stat().st_size / MIB:.0f} MiB, {rounds} rounds; medians, of the wall time (least–most)\n")
    rows = [["state", "who reads", "took ms", "ballooned to MiB", "cpu ms: user + kernel", "faults: minor + major",
             "switches: consensual + not", "read from disk MiB", "asked by read MiB", "left cached MiB"]]
    for (state, who), runs in cells.items():
        s = {key: common.summary([run[key] for run in runs]) for key in runs[0]}
        m = {key: f"{value['median']:,.0f}" for key, value in s.items()}
        rows.append([state, who, common.spread(s["wall_ms"], 0), m["peak_mib"], f"{m['user_ms']} + {m['system_ms']}",
                     f"{m['minor']} + {m['major']}", f"{m['voluntary']} + {m['involuntary']}", m["read_mib"], m["asked_mib"], m["left_mib"]])
    common.table(rows)


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(PROMPTS), default=["smollm2", "3b"])
    parser.add_argument("--state", nargs="+", choices=["cold", "hot"], default=["cold", "hot"])
    parser.add_argument("--rounds", type=int, default=5)
    common.add_arguments(parser)
    parser.add_argument("--rusage", type=Path, metavar="FILE", help="the program (default: what make rusage makes)")


def run(args) -> int:
    rusage = peer_tools.rusage(True, args.rusage) or peer_tools.rusage(False)
    if rusage is None:
        raise SystemExit("rusage is missing: make rusage makes it")
    found = {}
    for name in args.model:
        path = common.model_path(name, args.models).resolve()
        run = readers(args, name, path)
        cells = {(state, who): [] for state in args.state for who in run}
        for command in run.values():
            once(rusage, command, path, "hot")  # the programs' own pages
        for i in range(args.rounds):
            common.say(f"{name}: round {i + 1} of {args.rounds}")
            for state, who in list(cells) if i % 2 == 0 else reversed(list(cells)):
                cells[state, who].append(once(rusage, run[who], path, state))
        found[name] = (path, cells)
    if args.json:
        print(json.dumps({name: [{"state": state, "who": who, "runs": runs} for (state, who), runs in cells.items()]
                          for name, (_, cells) in found.items()}))
        return 0
    common.machine()
    for name, (path, cells) in found.items():
        show(name, path, args.rounds, cells)
    return 0
