"""What `alight convert` costs: a source shaped as LLaMA 65B in 8 parts (full rows, fewer layers), beside `cp` of the same bytes.

- right: of every tensor of the result some rows, the first and the last among them, are the source's, bit for bit.
- speed: seconds from before the tool starts until the result is on the disk (fsync of the files and the folder after either
  tool, which costs nothing where it has done so). The source is cold in every run, proven by cachestat. Rounds of both, one
  right after the other, in turning order; ratios are within a round. Asked: 0.7 of cp's speed.
- memory, in a run of its own: the most that was resident, as `rusage` has it from the kernel (under this script the kernel
  would count the script's own memory, which a process has until it becomes another program), and of that anonymous and of
  files, sampled every few milliseconds. Asked: under 200 MB.
- system calls of one run, counted by strace: the old way took one small move for every row of every column split, 200,000
  and more. Asked: fewer reads and writes than one per row of a column split, and as much as 128 KiB moved by each.
- page cache: the most of source and result that was in it while converting, what is left of either, and how much of another
  file, which was in use, is still there. With --large the source is more than half of the machine's memory.

Needs twice the size on the disk. Ends with status 1 if something asked is not so.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from evidence.lib import cached, common, process, rounds, tools
from evidence.lib.lazy import lazily
from evidence.lib.sources import big

np = lazily("numpy")

BYSTANDER_MIB = 200
PARTS = ["right", "speed", "memory", "calls", "cache"]
MOVES = {"read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range",
         "sendfile", "splice", "vmsplice", "io_submit", "io_uring_enter"}


class Source:
    def __init__(self, folder, gigabytes, form):
        start = time.monotonic()
        self.form, self.name = form, f"{form}, 8 parts"
        self.path, self.bytes = big.write(folder / form, gigabytes, form)
        self.parts = sorted(p for p in (folder / form).iterdir() if p.suffix == ".pth" or ".bin" in p.name)
        m = self.model = big.shape(gigabytes)
        self.rows = sum(big.of_part(shape, split)[0] for _, _, split, shape in big.shapes(m) if split == "columns") * big.PARTS
        self.layers = m.n_layer
        common.say(f"{self.name}: {self.bytes / 1e9:.2f} GB, {m.n_layer} layers, {self.rows} rows of column splits, "
                   f"made in {time.monotonic() - start:.0f} s")

    def evict(self) -> None:
        for part in self.parts:
            cached.evict(part)

    def mib(self) -> float:
        return sum(cached.mib(part) for part in self.parts)


def run_tool(line, source, target, resident=False, cache=False) -> dict:
    """One conversion or copy into the folder `target`, which is emptied afterwards."""
    target.mkdir()
    seen = []

    def watch(pid):
        seen.append(cached.Resident(pid, "alight") if resident else cached.Sampler(pid, source.parts[0].stat().st_dev))
        return seen[0]

    out = cached.to_disk(line, lambda: [p for p in target.rglob("*") if p.is_file()], watch if resident or cache else None)
    out["left_source_mib"] = source.mib()
    if resident:
        out |= {name: kib * 1024 / 1e6 for name, kib in seen[0].peak.items()} | {"looks": seen[0].looks}
    if cache:
        out["peak_cached_mib"] = seen[0].peak_mib()
    shutil.rmtree(target)
    return out


def right(args, source, target) -> dict:
    """Rows of the result beside those of the parts."""
    import gguf

    target.mkdir()
    process.output(lines(args, source, target)["alight convert"])
    theirs, rng, rows, wrong = big.pieces(source.model, source.parts[0].parent, source.form), np.random.default_rng(1), 0, []
    tensors = {t.name: t for t in gguf.GGUFReader(target / "model.gguf").tensors}
    if set(tensors) != set(theirs):
        wrong.append(f"tensors {sorted(set(tensors) ^ set(theirs))}")
    for name, (split, parts) in theirs.items():
        if split == "whole":
            wrong += [] if np.array_equal(tensors[name].data, parts[0].astype(np.float32)) else [name]
            continue
        ours, each = tensors[name].data, parts[0].shape[0]
        for row in {0, len(ours) - 1, *rng.integers(0, len(ours), 100).tolist()}:
            want = parts[row // each][row % each] if split == "rows" else np.concatenate([part[row] for part in parts])
            wrong += [] if np.array_equal(ours[row].view(np.uint16), want.view(np.uint16)) else [f"{name}, row {row}"]
            rows += 1
    del tensors, theirs
    shutil.rmtree(target)
    return {"rows": rows, "wrong": wrong}


def lines(args, source, target) -> dict:
    convert = [common.alight(args.alight), "convert", source.path, "-o", target / "model.gguf", "-t", args.threads]
    return {"alight convert": convert, "cp": ["cp", *source.parts, target]}


def speed(args, source, target) -> dict:
    line = lines(args, source, target)

    def once(name) -> dict:
        source.evict()
        time.sleep(args.pause)
        done = run_tool(line[name], source, target)
        common.say(f"{source.name}: {name}: {done['durable_s']:.2f} s")
        return done

    runs = rounds.interleaved(args, line, once, source.name)
    seconds = {name: [run["durable_s"] for run in rows] for name, rows in runs.items()}
    return {"ratio": rounds.ratios(seconds["cp"], seconds["alight convert"])} | {
        name: {key: common.summary([run[key] for run in rows]) for key in ("durable_s", "tool_s", "cpu_s")}
        | {"gb_s": source.bytes / 1e9 / statistics.median(seconds[name])} for name, rows in runs.items()}


def memory(args, source, target) -> dict:
    source.evict()
    rusage, line = tools.rusage(False), lines(args, source, target)["alight convert"]
    done = run_tool([rusage, *line] if rusage else line, source, target, resident=True)
    told = re.search(r"ballooned to (?:at most )?([\d,]+)kb", done["said"])
    most = int(told.group(1).replace(",", "")) * 1024 / 1e6 if told else done["VmHWM"]
    return done | {"max_rss_mb": most, "by": "rusage" if told else "VmHWM, sampled"}


def calls(args, source, target) -> dict | None:
    strace = shutil.which("strace")
    if not strace:
        common.say("left out: system calls. Debian: apt install strace")
        return None
    with tempfile.NamedTemporaryFile("r") as told:
        line = [strace, "-f", "-c", "-U", "calls,name", "-o", told.name, *lines(args, source, target)["alight convert"]]
        run_tool(line, source, target)
        counts = {name: int(n) for n, name in re.findall(r"^\s*(\d+)\s+(\w+)\s*$", told.read(), re.M) if name != "total"}
    moves = sum(n for name, n in counts.items() if name in MOVES)
    return {"all": sum(counts.values()), "moves": moves, "most": dict(sorted(counts.items(), key=lambda c: -c[1])[:8])}


def cache(args, source, target, folder) -> dict:
    bystander = folder / "bystander"
    cached.make_file(bystander, BYSTANDER_MIB)
    out = {}
    for name, line in lines(args, source, target).items():
        source.evict()
        cached.evict(bystander)
        for _ in range(2):  # which the kernel takes for a file in use
            subprocess.run(["cat", bystander], stdout=subprocess.DEVNULL, check=True)
        before = cached.mib(bystander)
        out[name] = run_tool(line, source, target, cache=True) | {"bystander_before": before, "bystander_after": cached.mib(bystander)}
        common.say(f"{source.name}, page cache: {name}: bystander {before:.0f} → {cached.mib(bystander):.0f} MiB")
    bystander.unlink()
    return out


def verdicts(source, found) -> list:
    out = []
    if r := found.get("right"):
        out.append((f"{r['rows']} rows looked at, {len(r['wrong'])} wrong{': ' + r['wrong'][0] if r['wrong'] else ''}", not r["wrong"]))
    if s := found.get("speed"):
        ratio = s["ratio"]["median"]
        out.append((f"{ratio:.2f} of cp's speed, by the median of the rounds (0.7)", ratio >= 0.7))
    if m := found.get("memory"):
        out.append((f"at most {m['max_rss_mb']:.0f} MB resident by {m['by']} (200), anonymous {m['RssAnon']:.0f} MB, of files {m['RssFile']:.0f} MB, "
                    f"shared {m['RssShmem']:.0f} MB in {m['looks']} looks", m["max_rss_mb"] < 200))
    if c := found.get("calls"):
        mean = 2 * source.bytes / max(1, c["moves"])
        out.append((f"{c['moves']} system calls that move data, {c['all']} in all, for {source.rows} rows of column splits; "
                    f"{mean / 1024:.0f} KiB read or written by each (128)", c["moves"] < source.rows and mean >= 131072))
    if c := found.get("cache", {}).get("alight convert"):
        kept = c["bystander_after"] / max(1, c["bystander_before"])
        out.append((f"bystander: {c['bystander_before']:.0f} MiB cached before, {c['bystander_after']:.0f} after (95 %)", kept >= 0.95))
        out.append((f"left cached: {c['left_source_mib']:.1f} MiB of the source, {c['left_result_mib']:.1f} of the result (1)",
                    c["left_source_mib"] + c["left_result_mib"] < 1))
        out.append((f"at most {c['peak_cached_mib']:.0f} MiB of both cached at any time (1024)", c["peak_cached_mib"] < 1024))
    return out


def show(source, found, asked) -> None:
    print(f"\n{source.name}: {source.bytes / 1e9:.2f} GB, {source.layers} layers\n")
    if s := found.get("speed"):
        print(f"Cold source, {s['ratio']['n']} rounds; medians (least–most). Ratio of speeds: {common.spread(s['ratio'], 2)}\n")
        common.table([["tool", "on the disk after, s", "GB/s", "tool ends after, s", "CPU, s"]] + [
            [name, common.spread(s[name]["durable_s"], 2), f"{s[name]['gb_s']:.2f}", common.spread(s[name]["tool_s"], 2),
             common.spread(s[name]["cpu_s"], 2)] for name in ("alight convert", "cp")])
    if c := found.get("calls"):
        print("\nSystem calls: " + ", ".join(f"{name} {n}" for name, n in c["most"].items()))
    if c := found.get("cache"):
        print()
        common.table([["tool", "most cached of both, MiB", "left: source + result, MiB", "bystander before → after, MiB", "s"]] + [
            [name, f"{r['peak_cached_mib']:.0f}", f"{r['left_source_mib']:.0f} + {r['left_result_mib']:.0f}",
             f"{r['bystander_before']:.0f} → {r['bystander_after']:.0f}", f"{r['durable_s']:.1f}"] for name, r in c.items()])
    common.verdicts(asked)


def add_arguments(parser) -> None:
    parser.add_argument("--gb", type=float, default=6, help="size of the source (default: 6; whole layers of 1.6 GB are made)")
    parser.add_argument("--format", nargs="+", default=["meta"], choices=["meta", "legacy"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true", help="instead of --gb: more than half of the machine's memory")
    parser.add_argument("--part", nargs="+", default=PARTS, choices=PARTS)
    common.add_folder_argument(parser)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds before each run")
    common.add_arguments(parser)


def run(args) -> int:
    if args.large:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * cached.PAGE
        layers = next(n for n in range(1, 999) if big.size_of(big.shape(layers=n)) > 0.51 * memory_bytes)
        args.gb = big.size_of(big.shape(layers=layers)) / 1e9
    parent = args.folder or common.TARGET
    need, free = 2 * big.size_of(big.shape(args.gb)) / 1e9 + 1.5, shutil.disk_usage(parent).free / 1e9
    if free < need:
        raise SystemExit(f"{parent} has {free:.0f} GB free, {need:.0f} are needed: --in FOLDER names another place, --gb another size")
    common.alight(args.alight)
    whole, fine = {}, True
    if not args.json:
        common.machine()
    for form in args.format:
        with common.temporary_folder(args, "bench-convert") as folder:
            folder = Path(folder)
            source, target, found = Source(folder, args.gb, form), folder / "out", {}
            for name, part in (("right", right), ("speed", speed), ("memory", memory), ("calls", calls)):
                if name in args.part:
                    found[name] = part(args, source, target)
            if "cache" in args.part:
                found["cache"] = cache(args, source, target, folder)
            asked = verdicts(source, found)
            fine = fine and all(so for _, so in asked)
            whole[form] = found | {"bytes": source.bytes, "asked": asked}
            if not args.json:
                show(source, found, asked)
    common.as_json(args, whole)
    return 0 if fine else 1
