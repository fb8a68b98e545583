"""What measuring a process costs: `rusage` beside a minimal C wrapper, GNU time, bash's time, hyperfine and perf stat.

Every tool runs the same child once in every round, one right after the other, in turning order, with the child alone
among them; each number is taken against the child alone of the same round. A tiny static C program (evidence/c/harness.c)
starts them all and looks at the clock, so that no interpreter is in the loop. Two children: a static one of a few hundred
bytes that only ends (evidence/c/child.c), and /bin/true.

- added outside: how much longer it takes with the tool around it.
- bias: what the tool says the child took, less what it took alone.
- size said of the small child: what the tool itself adds to the peak memory that it tells (the real one is 4 KB or so).

Asked of rusage: added and said at most twice what the C wrapper adds and says (either build for the second, the static
one for the first), size at most 300 kB in the static build. Exit status 1 if not.
With --realtime, all of it runs at real-time priority (root), for machines that are not quiet.
"""

import statistics
import subprocess
from pathlib import Path

from evidence.lib import common
from evidence.lib import tools as peer_tools

ALONE = "child alone"
MAX_RSS_KIB = 300


def rounds(args, commands) -> list[list[tuple[float, str]]]:
    """For each command, microseconds outside and what it said, round by round."""
    line = [peer_tools.c_program("harness"), args.runs, args.warm_ups]
    for command in commands:
        line += ["--", *command]
    if args.realtime:
        line = ["chrt", "-f", args.realtime, *line]
    done = subprocess.run([str(part) for part in line], stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise SystemExit(f"the harness ended with {done.returncode}")
    out, data, at = [[] for _ in commands], done.stdout, 0
    while at < len(data):
        end = data.index(b"\n", at)
        _, which, ns, _, length = (int(word) for word in data[at:end].split())
        out[which].append((ns / 1e3, data[end + 1:end + 1 + length].decode(errors="replace")))
        at = end + 1 + length
    return out


def quartiles(values) -> dict:
    q1, median, q3 = statistics.quantiles(values, n=4)
    return {"median": median, "q1": q1, "q3": q3, "min": min(values), "max": max(values), "n": len(values)}


def measure(args, tools, child) -> list[dict]:
    runs = rounds(args, [[str(child)], *(tool.command([child]) for tool in tools)])
    alone = [us for us, _ in runs[0]]
    rows = [{"tool": ALONE, "outside_us": quartiles(alone)}]
    for tool, seen in zip(tools, runs[1:]):
        row = {"tool": tool.name, "step": tool.step, "outside_us": quartiles([us for us, _ in seen]),
               "added_us": quartiles([us - base for (us, _), base in zip(seen, alone)])}
        said = [tool.wall_us(text) for _, text in seen]
        if None in said:
            raise SystemExit(f"{tool.name}: no wall time in {seen[said.index(None)][1]!r}")
        row["said_us"] = quartiles(said)
        row["bias_us"] = quartiles([us - base for us, base in zip(said, alone)])
        sizes = [tool.rss_kib(text) for _, text in seen]
        if None not in sizes:
            row["rss_kib"] = quartiles(sizes)
        rows.append(row)
    return rows


def verdicts(results) -> list[tuple[str, bool]]:
    """What was asked, and whether it is so."""
    out = []
    for child, rows in results.items():
        by = {row["tool"]: row for row in rows}
        c = by["C wrapper"]
        for name in ("rusage, static", "rusage, default build"):
            if name not in by:
                continue
            ours = by[name]
            for key, what in (("added_us", "added outside"), ("said_us", "wall time said")):
                ratio = ours[key]["median"] / c[key]["median"]
                asked = name == "rusage, static" or key == "said_us"
                limit = "at most 2" if asked else "no limit"
                out.append((f"{child}: {name}: {what} {ratio:.2f} × the C wrapper's ({limit})", ratio <= 2 or not asked))
            if name == "rusage, static" and "rss_kib" in ours and child == "child":
                most = ours["rss_kib"]["max"]
                out.append((f"{child}: {name}: size said at most {most:.0f} kB (at most {MAX_RSS_KIB})", most <= MAX_RSS_KIB))
    return out


def quartile_cell(s, digits=0) -> str:
    return f"{s['median']:,.{digits}f} ({s['q1']:,.{digits}f}–{s['q3']:,.{digits}f})" if s else ""


def show(child, rows) -> None:
    alone = rows[0]["outside_us"]
    print(f"\n{child}: alone {quartile_cell(alone, 1)} µs, {alone['n']} rounds; medians (quartiles), µs\n")
    lines = [["tool", "added outside", "wall time said", "bias", "in steps of", "size said, kB: median (most)"]]
    for row in rows[1:]:
        rss = row.get("rss_kib")
        lines.append([row["tool"], quartile_cell(row["added_us"]), quartile_cell(row["said_us"]), quartile_cell(row["bias_us"]),
                      row["step"], f"{rss['median']:,.0f} ({rss['max']:,.0f})" if rss else "not told"])
    common.table(lines)


def add_arguments(parser) -> None:
    parser.add_argument("--runs", type=int, default=1000, help="rounds (default: 1000)")
    parser.add_argument("--warm-ups", type=int, default=20)
    parser.add_argument("--realtime", type=int, metavar="PRIORITY", help="run all of it so (chrt -f), for example 50")
    common.add_only_argument(parser, "the C wrapper and tools")
    peer_tools.add_arguments(parser)


def run(args) -> int:
    tools = peer_tools.wrappers(args)
    tools = [tool for tool in tools if tool.name == "C wrapper" or common.is_asked(args, tool.name)]
    children = {"child": peer_tools.c_program("child"), "/bin/true": Path("/bin/true")}
    results = {}
    for name, child in children.items():
        common.say(f"{name}: {args.runs} rounds of {len(tools) + 1} commands")
        results[name] = measure(args, tools, child)
    found = verdicts(results)
    if not common.as_json(args, {"results": results, "asked": [{"what": what, "so": so} for what, so in found]}):
        common.machine()
        versions = {t.name: peer_tools.version(t.name, t.prefix[0]) for t in tools}
        print(", ".join(f"{name} {number}".strip() for name, number in versions.items()))
        for name, rows in results.items():
            show(name, rows)
        common.verdicts(found)
    return int(not all(so for _, so in found))
