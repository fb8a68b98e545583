"""Copying a large file: `alight cp` beside GNU cp, nocache cp and dd; time until it is on the disk, and the page cache.

Time is from before the tool starts until its copy is on the disk: after every tool this script calls fsync on the copy
and its folder, which costs nothing where the tool has done it. The source is cold in every run (fsync, fadvise, proven by
cachestat). In every round each tool runs once, one right after the other, in turning order; ratios are within a round.

- peak cached: source and copy together while the tool runs, sampled every few milliseconds by cachestat, in rounds of
  their own (`--sampled`), because looking costs time. The copy is found among the open files of the tool's processes,
  so that temporary names count too.
- left cached: of source and copy, when the copy is on the disk.
- warm source: how much of a source that was in the page cache is still there afterwards.
- bystander: how much of another file, which was in the page cache before, is still there afterwards: inside a memory
  control group (version 1, needs root) smaller than the file copied, `--group` MiB; and with `--large`, on the whole
  machine, copying a file of more than half of its memory. "read once": as a program reads a file; "in use": read
  twice, which the kernel takes for a sign that it will be needed again.

Asked of alight cp: at most 64 MiB cached at any time, nothing left, warm sources and bystanders unchanged, and at most
1.1 times the time of the fastest of the others (by the median of the rounds). Exit status 1 if not.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

from evidence.lib import cached, common, rounds, tools

OURS = "alight cp"
BYSTANDER_MIB = 200


def copiers(args) -> dict:
    """Name and command, of those that are here; the last two words are the source and the copy."""
    out, program = {}, common.alight(args.alight)
    if subprocess.run([program, "cp", "--help"], capture_output=True).returncode == 0:
        out[OURS] = [program, "cp"]
    else:
        common.say(f"left out: {OURS}, which {program} does not have yet")
    out["cp"] = ["cp"]
    if tools.tool("nocache", "nocache"):
        out["nocache cp"] = ["nocache", "cp"]
    out |= {"dd bs=16M": ["dd", "bs=16M"], "dd bs=16M conv=fsync": ["dd", "bs=16M", "conv=fsync"],
            "dd bs=16M, direct": ["dd", "bs=16M", "iflag=direct", "oflag=direct"]}
    return {name: line for name, line in out.items() if common.is_asked(args, name)}


def command(line, source, copy) -> list[str]:
    last = [f"if={source}", f"of={copy}"] if line[0] == "dd" else [source, copy]
    return [str(part) for part in [*line, *last]]


# --- one copy ------------------------------------------------------------------------------------

def run_tool(line, source, copy, sample=False, group=None) -> dict:
    """Copies and takes away the copy. With `group`, the tool runs in that control group."""
    copy.unlink(missing_ok=True)
    cached.make_durable(source, source.parent)
    sampler = None

    def watch(pid):
        nonlocal sampler
        sampler = cached.Sampler(pid, source.stat().st_dev)
        return sampler

    done = cached.to_disk(command(line, source, copy), lambda: [copy], watch if sample else None, group)
    if copy.stat().st_size != source.stat().st_size:
        raise SystemExit(f"{line}: the copy has another size")
    out = {"tool_s": done["tool_s"], "durable_s": done["durable_s"],
           "left_source_mib": cached.mib(source), "left_copy_mib": done["left_result_mib"]}
    if sampler:
        out |= {"peak_mib": sampler.peak_mib(), "samples": sampler.looks}
    copy.unlink()
    return out


# --- what is asked -------------------------------------------------------------------------------

def timed(args, run_these, source, copy) -> dict:
    runs = {name: [] for name in run_these}
    names = list(run_these)
    for i in range(args.rounds + args.sampled):
        sample = i >= args.rounds
        common.say(f"round {i + 1} of {args.rounds + args.sampled}{', sampled' if sample else ''}")
        turned = names[i % len(names):] + names[:i % len(names)]
        for name in turned if i % 2 == 0 else reversed(turned):
            cached.evict(source)
            runs[name].append(run_tool(run_these[name], source, copy, sample))
            time.sleep(args.pause)
    out = {}
    for name, values in runs.items():
        plain, sampled = values[:args.rounds], values[args.rounds:]
        others = [min(runs[o][i]["durable_s"] for o in names if o != OURS) for i in range(args.rounds)] if len(names) > 1 else []
        out[name] = rounds.by_key(plain)
        if sampled:
            out[name]["peak_mib"] = common.summary([v["peak_mib"] for v in sampled])
        if others:
            out[name]["of_fastest_other"] = common.summary([v["durable_s"] / o for v, o in zip(plain, others)])
    return out


def warm_sources(run_these, source, copy) -> dict:
    """Share of a warm source that is still cached afterwards, and the most MiB that the copy took beside it."""
    out = {}
    for name, line in run_these.items():
        cached.make_warm(source)
        before = cached.mib(source)
        done = run_tool(line, source, copy, sample=True)
        out[name] = {"stays": done["left_source_mib"] / before, "copy_peak_mib": max(0, done["peak_mib"] - before)}
    cached.evict(source)
    return out


def read_in(path, times, group=None) -> None:
    into = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    for _ in range(times):
        subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True, preexec_fn=into)


def bystanders(run_these, source, copy, bystander, group=None) -> dict:
    """Share of the bystander that is cached before and after, by how it was used."""
    out = {}
    for name, line in run_these.items():
        out[name] = {}
        for use, times in (("read once", 1), ("in use", 2)):
            cached.evict(source)
            cached.evict(bystander)
            if group:
                (group / "memory.force_empty").write_text("0")
            read_in(bystander, times, group)
            before = cached.mib(bystander)
            durable = run_tool(line, source, copy, group=group)["durable_s"]
            out[name][use] = {"before_mib": before, "after_mib": cached.mib(bystander), "durable_s": durable}
            common.say(f"{name}: bystander, {use}: {before:.0f} → {cached.mib(bystander):.0f} MiB, {durable:.1f} s")
    return out


def total_mib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * cached.PAGE // cached.MIB


def verdicts(found) -> list[tuple[str, bool]]:
    out = []
    ours = found["timed"].get(OURS) if "timed" in found else None
    if ours:
        if "peak_mib" in ours:
            out.append((f"at most {ours['peak_mib']['max']:.0f} MiB cached at any time (64)", ours["peak_mib"]["max"] <= 64))
        left = max(ours["left_source_mib"]["max"], ours["left_copy_mib"]["max"])
        out.append((f"{left:.1f} MiB left cached (0)", left == 0))
        if "of_fastest_other" in ours:
            medians = {name: row["durable_s"]["median"] for name, row in found["timed"].items() if name != OURS}
            best = min(medians, key=medians.get)
            ratio = ours["durable_s"]["median"] / medians[best]
            out.append((f"median {ratio:.2f} times that of {best}, the fastest of the others (1.1)", ratio <= 1.1))
    if OURS in found.get("warm", {}):
        warm = found["warm"][OURS]
        # The kernel of some virtual machines takes idle pages by itself, one in thousands while this runs.
        out.append((f"{warm['stays']:.2%} of a warm source stays (99.9 %)", warm["stays"] >= 0.999))
        out.append((f"at most {warm['copy_peak_mib']:.0f} MiB cached beside a warm source (64)", warm["copy_peak_mib"] <= 64))
    for where in ("group", "large"):
        for use, seen in found.get(where, {}).get(OURS, {}).items():
            # On the whole machine others take memory too.
            least = seen["before_mib"] * (1 if where == "group" else 0.95)
            out.append((f"bystander ({where}, {use}): {seen['before_mib']:.1f} MiB before, {seen['after_mib']:.1f} after",
                        seen["after_mib"] >= least))
    return out


def show(args, found) -> None:
    common.machine()
    if "timed" in found:
        print(f"{args.size} MiB, cold source, {args.rounds} rounds, {args.sampled} sampled; medians (least–most)\n")
        rows = [["tool", "on the disk after, s", "MB/s", "÷ fastest other", "tool ends after, s", "peak cached MiB",
                 "left cached MiB: source + copy"]]
        for name, row in found["timed"].items():
            fast, peak = row.get("of_fastest_other"), row.get("peak_mib")
            rows.append([name, common.spread(row["durable_s"], 2), f"{args.size * cached.MIB / 1e6 / row['durable_s']['median']:.0f}",
                         common.spread(fast, 2) if fast else "", common.spread(row["tool_s"], 2),
                         common.spread(peak, 0) if peak else "",
                         f"{row['left_source_mib']['median']:.0f} + {row['left_copy_mib']['median']:.0f}"])
        common.table(rows)
    if "warm" in found:
        print("\nOf a warm source stays:\n")
        common.table([["tool", "cached afterwards", "most cached of the copy, MiB"]] + [
            [name, f"{w['stays']:.0%}", f"{w['copy_peak_mib']:.0f}"] for name, w in found["warm"].items()])
    for where in ("group", "large"):
        if where in found:
            what = (f"{args.size} MiB copied in a memory control group of {args.group} MiB" if where == "group" else
                    f"{found['large_mib']} MiB copied on a machine with {total_mib()} MiB of memory")
            print(f"\nA bystander of {BYSTANDER_MIB} MiB, {what}; MiB cached before → after:\n")
            rows = [["tool", "read once", "in use", "on the disk after, s"]]
            for name, uses in found[where].items():
                rows.append([name, *(f"{u['before_mib']:.0f} → {u['after_mib']:.0f}" for u in uses.values()),
                             ", ".join(f"{u['durable_s']:.1f}" for u in uses.values())])
            common.table(rows)
    common.verdicts(found["asked"], OURS)


def add_arguments(parser) -> None:
    common.add_folder_argument(parser)
    parser.add_argument("--size", type=int, default=2048, metavar="MIB", help="of the file copied (default: 2048)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sampled", type=int, default=1, help="more rounds, in which the page cache is watched")
    parser.add_argument("--group", type=int, default=512, metavar="MIB",
                        help="memory of the control group (default: 512); 0: without")
    parser.add_argument("--large", action="store_true",
                        help="also a file of 13/24 of the memory, which takes twice that on the disk")
    common.add_only_argument(parser, "tools")
    parser.add_argument("--part", nargs="+", choices=["timed", "warm", "group", "large"], help="only these parts")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two copies")
    parser.add_argument("--alight", type=Path, help="the binary (default: target/release/alight)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")


def run(args) -> int:
    parts = set(args.part or ["timed", "warm", "group"]) | ({"large"} if args.large else set())
    parent = args.folder or common.TARGET
    large_mib = total_mib() * 13 // 24 if "large" in parts else 0
    free = shutil.disk_usage(parent).free // cached.MIB
    if free < (need := 2 * max(args.size, large_mib) + args.size + 1024):
        raise SystemExit(f"{parent} has {free} MiB free, {need} are needed: --in FOLDER names another place")
    run_these, found = copiers(args), {"size_mib": args.size}
    with common.temporary_folder(args, "bench-cp") as folder:
        source, copy, bystander = (Path(folder) / name for name in ("source", "copy", "bystander"))
        cached.make_file(source, args.size)
        cached.make_file(bystander, BYSTANDER_MIB)
        if "timed" in parts:
            found["timed"] = timed(args, run_these, source, copy)
        if "warm" in parts:
            found["warm"] = warm_sources(run_these, source, copy)
        if "group" in parts and args.group:
            with cached.memory_group(args.group) as group:
                if group:
                    found["group"] = bystanders(run_these, source, copy, bystander, group)
        if "large" in parts:
            cached.make_file(source, large_mib)
            plain = {name: line for name, line in run_these.items() if name in (OURS, "cp", "nocache cp")}
            found |= {"large_mib": large_mib, "large": bystanders(plain, source, copy, bystander)}
    found["asked"] = verdicts(found)
    if not common.as_json(args, found):
        show(args, found)
    return int(not all(so for _, so in found["asked"]))
