"""Whole processes from cold and warm to the first token, beside llama.cpp's ways of loading, interleaved.

Times: from before the process is made to the first byte on its standard output (the prompt is not echoed), and to its
end after that one token. States: `cold` is fsync and fadvise(DONTNEED), proven by cachestat(2) == 0 before each run
(a run that could not be made cold is counted in `not cold`); `warm` is all pages cached, a new process every time.
The disk's own time for the bytes is measured in the same rounds, cold too: fio where it is installed (Debian: fio),
else threads that read with O_DIRECT, 8 of them, 1 MiB each time (`--disk-only` does nothing else).
What a process read from the disk and its faults are the kernel's account of it, taken when it has ended; its peak is
its VmHWM (wait4). How its memory is made up is read from a second kind of run, stopped in the middle of an answer.

At the end, `--share` processes (4) on one packed file: the sum of their Pss against one copy and their caches.
"""

import itertools
import json
import mmap
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from evidence.bench.memory import kv_bytes_per_token
from evidence.lib import common, peers, process, rounds
from evidence.lib.cached import MIB, make_cold, make_warm
from evidence.lib.process import Answering

FIO = ["fio", "--name=read", "--readonly", "--rw=read", "--direct=1", "--bs=1M", "--ioengine=io_uring", "--iodepth=32",
       "--invalidate=0", "--output-format=json"]


# --- the disk ------------------------------------------------------------------------------------

def read_directly(path: Path, threads: int = 8, block: int = MIB) -> float:
    """Milliseconds for the whole file past the page cache; the unaligned tail comes short, as it should."""
    size, blocks, failed = path.stat().st_size, itertools.count(), []
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def work():
        buffer = mmap.mmap(-1, block)
        try:
            while (at := next(blocks) * block) < size:
                got = 0
                while got < min(block, size - at):
                    n = os.preadv(fd, [memoryview(buffer)[got:]], at + got)
                    if n == 0 or (got + n) % 512 and at + got + n < size:
                        raise OSError(f"{n} bytes at {at + got} of {size}")
                    got += n
        except OSError as error:
            failed.append(error)

    start = time.perf_counter()
    pool = [threading.Thread(target=work) for _ in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    end = time.perf_counter()
    os.close(fd)
    if failed:
        raise SystemExit(f"{path}: cannot be read directly: {failed[0]}")
    return (end - start) * 1e3


def disk(path: Path) -> dict:
    """Milliseconds by each means."""
    make_cold(path)
    out = {"O_DIRECT reader": read_directly(path)}
    if shutil.which("fio"):
        make_cold(path)
        done = subprocess.run([*FIO, f"--filename={str(path).replace(':', chr(92) + ':')}"], capture_output=True, text=True)
        job = json.loads(done.stdout)["jobs"][0] if done.returncode == 0 else {"error": done.returncode}
        if job["error"] == 0:
            out["fio"] = float(job["read"]["runtime"])
    return out


# --- processes -----------------------------------------------------------------------------------

def commands(args, name, packed, tokens: int | None = 1) -> dict:
    """What runs, and the file it runs on."""
    path, prompt = common.model_path(name, args.models).resolve(), peers.PROMPTS[name]
    ours = {"alight": (path, []), "alight --repack off": (path, ["--repack", "off"]), "alight --repack on": (path, ["--repack", "on"]),
            "alight --load direct": (path, ["--load", "direct"])} | ({"alight packed": (packed, [])} if packed else {})
    out = {who: (file, peers.alight_run(args, file, prompt, *more, tokens=tokens)) for who, (file, more) in ours.items()}
    best = ["--no-warmup", "-fit", "off"]
    variants = {"": [], " best": best, " best --no-repack": [*best, "--no-repack"], " best -lm none": [*best, "-lm", "none"],
                " best -lm dio": [*best, "-lm", "dio"]}
    for peer in args.peers:
        for what, more in variants.items() if peer is peers.LLAMA_CPP else [("", [])]:
            out[peer.name + what] = (path, peers.peer_run(args, peer, path, prompt, *more, tokens=tokens))
    return {who: what for who, what in out.items() if common.is_asked(args, who)}


def memory(path, command, timeout) -> dict:
    """MiB in the middle of an answer."""
    with Answering(command, 20, timeout) as process:
        told = process.memory(path)
    return {"rss_mib": told["rss"], "pss_mib": told["pss"], "anonymous_mib": told["anonymous"], "file_mib": told["rss"] - told["anonymous"]}


def shared(args, name, packed) -> dict:
    """`--share` processes on one packed file, all stopped in the middle of an answer."""
    make_warm(packed)
    _, command = commands(args, name, packed)["alight packed"]
    tokens = 20 + process.told([*command, "--json"])["prompt_tokens"]
    kv = kv_bytes_per_token(common.model_path(name, args.models)) * tokens / MIB
    _, command = commands(args, name, packed, None)["alight packed"]
    running = []
    try:
        for _ in range(args.share):
            running.append(Answering(command, 20, args.timeout))
        parts = [one.memory(packed) for one in running]
    finally:
        for one in running:
            one.__exit__()
    size, total = packed.stat().st_size / MIB, sum(p["pss"] for p in parts)
    return {"model": name, "processes": args.share, "file_mib": size, "kv_mib_each_at_most": kv, "pss_mib": total,
            "pss_of_file_mib": sum(p["model_pss"] for p in parts), "ratio": total / (size + args.share * kv)}


# --- all of it -----------------------------------------------------------------------------------

def measure(args, name, packed) -> dict:
    run, disks = commands(args, name, packed), {}
    path = common.model_path(name, args.models).resolve()
    cells = [(state, who) for state in args.state for who in run]
    missed = dict.fromkeys(cells, 0)
    for _, command in run.values():
        process.answer(command, args.timeout)  # the programs' own pages

    def read_disk() -> None:
        for how, ms in disk(path).items() if "cold" in args.state else ():
            disks.setdefault(how, []).append(ms)

    def once(cell) -> dict:
        file, command = run[cell[1]]
        missed[cell] += bool(make_cold(file) if cell[0] == "cold" else make_warm(file))
        return process.answer(command, args.timeout)

    runs = rounds.interleaved(args, cells, once, name, read_disk)
    rows = [{"state": state, "engine": who, "missed": missed[state, who]} | rounds.by_key(runs[state, who]) for state, who in cells]
    make_warm(path)
    parts = {}
    for who, (file, command) in commands(args, name, packed, None).items():
        make_warm(file)
        parts[who] = memory(file, command, args.timeout)
    return {"model": name, "bytes": path.stat().st_size, "threads": args.threads, "rounds": args.rounds, "rows": rows,
            "disk_ms": {how: common.summary(v) for how, v in disks.items()}, "memory_warm": parts}


def show(result) -> None:
    print(f"\n{result['model']}: {result['bytes'] / 1e9:.3f} GB, {result['threads']} threads, {result['rounds']} rounds\n")
    for how, s in result["disk_ms"].items():
        print(f"- the disk by {how}: {common.spread(s, 0)} ms, {result['bytes'] / s['median'] / 1e6:.2f} GB/s")
    known = result["disk_ms"].get("fio") or result["disk_ms"].get("O_DIRECT reader")
    rows = [["state", "engine", "first token ms", "of disk", "process ms", "read MiB", "peak RSS MiB", "faults minor + major",
             "not reached"]]
    for r in result["rows"]:
        of_disk = f"{r['first_token_ms']['median'] / known['median']:.2f}" if known and r["state"] == "cold" else ""
        rows.append([r["state"], r["engine"], common.spread(r["first_token_ms"]), of_disk, common.spread(r["process_ms"]),
                     f"{r['read_mib']['median']:.0f}", f"{r['peak_rss_mib']['median']:.0f}",
                     f"{r['minor_faults']['median']:.0f} + {r['major_faults']['median']:.0f}", r["missed"] or ""])
    print()
    common.table(rows)
    print("\nIn the middle of an answer, warm:\n")
    common.table([["engine", "Rss MiB", "anonymous", "of files", "Pss"]] + [
        [who, *(f"{m[key]:.0f}" for key in ("rss_mib", "anonymous_mib", "file_mib", "pss_mib"))]
        for who, m in result["memory_warm"].items()])


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(peers.PROMPTS), default=["smollm2", "gemma3"])
    parser.add_argument("--state", nargs="+", choices=["cold", "warm"], default=["cold", "warm"])
    common.add_only_argument(parser, "engines")
    parser.add_argument("--share", type=int, default=4, help="processes on one packed file at the end; 0: none")
    parser.add_argument("--packed-in", type=Path, metavar="FOLDER",
                        help="keep packed files here, and use those that are there (default: a temporary folder beside the models)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON document there as well")
    parser.add_argument("--disk-only", action="store_true", help="measure the disk and nothing else")
    rounds.add_arguments(parser, 5)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def run(args) -> None:
    if args.disk_only:
        for name in args.model:
            print(name, json.dumps(disk(common.model_path(name, args.models).resolve())))
        return
    args.peers = peers.present(args)
    results = []
    with tempfile.TemporaryDirectory(prefix=".bench-load-", dir=args.models) as folder:
        for name in args.model:
            model = common.model_path(name, args.models)
            packed = common.packed_file(common.alight(args.alight), name, model, args.packed_in or Path(folder))
            results.append(measure(args, name, packed))
            if packed and args.share and common.is_asked(args, "alight packed"):
                results[-1]["shared"] = shared(args, name, packed)
    if args.out:
        args.out.write_text(json.dumps(results) + "\n")
    if common.as_json(args, results):
        return
    common.machine()
    for result in results:
        show(result)
        if s := result.get("shared"):
            print(f"\n{s['processes']} processes on one packed file of {s['file_mib']:.0f} MiB: Pss together {s['pss_mib']:.0f} MiB, "
                  f"{s['ratio']:.3f} of one copy and their caches ({s['kv_mib_each_at_most']:.1f} MiB each at most)")
