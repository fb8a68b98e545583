"""The account of reading one large file, cold and hot, by every way: the table of docs/explanation/page-cache.md.

Who reads: `cat`; `dd` with direct reads; a program that maps the file and looks at every page (evidence/c/load.c); and
`alight run`, up to its first token, with each way of loading. Every cell is `rusage --json`, cold ones with `--cold FILE`,
which evicts the file before the run and proves it; before a hot one the file is read. The cells take turns, one run each
in every round. Left cached: of the file, after the run, by cachestat.
"""

import json
import subprocess
import tempfile
from pathlib import Path

from evidence.lib import cached, common, peers, rounds, tools
from evidence.lib.cached import MIB


def readers(args, name, path) -> dict:
    # The random model has no words that fit together: any prompt of a few tokens will do.
    run = {how: peers.alight_run(args, path, peers.PROMPTS[name], "--load", how, tokens=1) for how in ("read", "mmap", "direct")}
    return {
        "cat": ["cat", path],
        "dd iflag=direct": ["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct", "status=none"],
        "a map, page by page": [tools.c_program("load"), "map", path],
        **{f"alight --load {how}": command for how, command in run.items()},
    }


def once(rusage, command, path, state) -> dict:
    if state == "hot":
        cached.make_warm(path)
    with tempfile.NamedTemporaryFile() as report:
        line = peers.words(rusage, "--json", "-o", report.name, *(["--cold", path] if state == "cold" else []), "--", *command)
        done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(line)}: {done.returncode}: {done.stderr.decode(errors='replace')}")
        run = json.loads(report.read())["runs"][0]
    io = run.get("io") or {}
    return {"wall_ms": run["wall_us"] / 1e3, "peak_mib": run["max_rss_bytes"] / MIB, "user_ms": run["user_us"] / 1e3,
            "system_ms": run["system_us"] / 1e3, "minor": run["minor_faults"], "major": run["major_faults"],
            "voluntary": run["voluntary_switches"], "involuntary": run["involuntary_switches"],
            "read_mib": run["read_bytes"] / MIB, "asked_mib": io.get("rchar", 0) / MIB, "left_mib": cached.mib(path)}


def show(name, path, cells) -> None:
    print(f"\n{name}: {path.stat().st_size / MIB:.0f} MiB, {len(next(iter(cells.values())))} rounds; medians, of the wall time (least–most)\n")
    rows = [["state", "who reads", "took ms", "ballooned to MiB", "cpu ms: user + kernel", "faults: minor + major",
             "switches: consensual + not", "read from disk MiB", "asked by read MiB", "left cached MiB"]]
    for (state, who), runs in cells.items():
        s = rounds.by_key(runs)
        m = {key: f"{value['median']:,.0f}" for key, value in s.items()}
        rows.append([state, who, common.spread(s["wall_ms"], 0), m["peak_mib"], f"{m['user_ms']} + {m['system_ms']}",
                     f"{m['minor']} + {m['major']}", f"{m['voluntary']} + {m['involuntary']}", m["read_mib"], m["asked_mib"], m["left_mib"]])
    common.table(rows)


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(peers.PROMPTS), default=["smollm2", "3b"])
    parser.add_argument("--state", nargs="+", choices=["cold", "hot"], default=["cold", "hot"])
    parser.add_argument("--rusage", type=Path, metavar="FILE", help="the program (default: what make rusage makes)")
    rounds.add_arguments(parser, 5, pause=0)
    common.add_arguments(parser)


def run(args) -> None:
    rusage = tools.rusage(True, args.rusage) or tools.rusage(False)
    if rusage is None:
        raise SystemExit("rusage is missing: make rusage makes it")
    found = {}
    for name in args.model:
        path = common.model_path(name, args.models).resolve()
        run = readers(args, name, path)
        for command in run.values():
            once(rusage, command, path, "hot")  # the programs' own pages
        cells = [(state, who) for state in args.state for who in run]
        found[name] = (path, rounds.interleaved(args, cells, lambda cell: once(rusage, run[cell[1]], path, cell[0]), name))
    if common.as_json(args, {name: [{"state": state, "who": who, "runs": runs} for (state, who), runs in cells.items()]
                             for name, (_, cells) in found.items()}):
        return
    common.machine()
    for name, (path, cells) in found.items():
        show(name, path, cells)
