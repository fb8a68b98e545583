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

import ctypes
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

from evidence.bench import memory as bench_memory
from evidence.bench import start as bench_start
from evidence.lib import common

MIB = 2**20
CONTEXT = 2048
FIO = ["fio", "--name=read", "--readonly", "--rw=read", "--direct=1", "--bs=1M", "--ioengine=io_uring", "--iodepth=32",
       "--invalidate=0", "--output-format=json"]


# --- the page cache ------------------------------------------------------------------------------

def cached_pages(path: Path) -> int:
    """By cachestat(2), which is number 451 everywhere but on Alpha; not on overlayfs, where it always says 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    asked, told = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    with path.open("rb") as file:
        if libc.syscall(451, file.fileno(), asked, told, 0) != 0:
            raise SystemExit(f"cachestat: {os.strerror(ctypes.get_errno())} (it needs Linux 6.5 and the file's owner)")
    return told[0]


def make_cold(path: Path) -> int:
    """Pages that stayed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        for pause in (0, 0.001, 0.01, 0.05, 0.2):
            time.sleep(pause)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            left = cached_pages(path)
            if left == 0:
                break
    return left


def make_warm(path: Path) -> int:
    """Pages that are missing."""
    pages = -(-path.stat().st_size // mmap.PAGESIZE)
    if cached_pages(path) < pages:
        common.warm(path)
    return pages - cached_pages(path)


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

def commands(args, name, packed) -> dict:
    """What runs, and the file it runs on."""
    path = common.model_path(name, args.models).resolve()
    prompt = bench_start.PROMPTS[name]
    ours = [common.alight(args.alight), "run"]
    tail = ["--raw", "--temp", 0, "-c", CONTEXT, "-t", args.threads, prompt]
    out = {
        "alight": (path, [*ours, path, *tail]),
        "alight --repack off": (path, [*ours, path, "--repack", "off", *tail]),
        "alight --repack on": (path, [*ours, path, "--repack", "on", *tail]),
        "alight --load direct": (path, [*ours, path, "--load", "direct", *tail]),
    }
    if packed:
        out["alight packed"] = (packed, [*ours, packed, *tail])
    if args.peer:
        base = [common.llama_tool("llama-completion", args.llama), "-m", path, "-no-cnv", "--no-display-prompt", "--temp", 0,
                "-c", CONTEXT, "-t", args.threads, "-p", prompt]
        best = [*base, "--no-warmup", "-fit", "off"]
        out |= {
            "llama.cpp": (path, base),
            "llama.cpp best": (path, best),
            "llama.cpp best --no-repack": (path, [*best, "--no-repack"]),
            "llama.cpp best -lm none": (path, [*best, "-lm", "none"]),
            "llama.cpp best -lm dio": (path, [*best, "-lm", "dio"]),
        }
    if args.only:
        out = {who: what for who, what in out.items() if any(part in who for part in args.only)}
    return {who: (path, [str(c) for c in command]) for who, (path, command) in out.items()}


def account(pid) -> dict:
    """Of a process that has ended and is not buried yet."""
    io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return {"read_mib": int(io["read_bytes"]) / MIB, "minor_faults": int(stat[7]), "major_faults": int(stat[9])}


def once(command, timeout) -> dict:
    start = time.perf_counter_ns()
    process = subprocess.Popen([*command, "-n", "1"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
    timer = threading.Timer(timeout, process.kill)
    timer.start()
    first = os.read(process.stdout.fileno(), 1)
    seen = time.perf_counter_ns()
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    end = time.perf_counter_ns()
    timer.cancel()
    out = account(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not first:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}, {'some' if first else 'no'} output")
    return out | {"first_token_ms": (seen - start) / 1e6, "process_ms": (end - start) / 1e6,
                  "peak_rss_mib": usage.ru_maxrss / 1024}


def memory(command, timeout) -> dict:
    """MiB in the middle of an answer."""
    process = bench_memory.Answering([*command, "-n", "-1", "--ignore-eos"], 20, timeout)
    try:
        out = {}
        for line in Path(f"/proc/{process.process.pid}/smaps_rollup").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("Rss", "Pss", "Anonymous"):
                out[key.lower() + "_mib"] = int(value.split()[0]) / 1024
        out["file_mib"] = out["rss_mib"] - out.pop("anonymous_mib")
        out["anonymous_mib"] = out["rss_mib"] - out["file_mib"]
        return out
    finally:
        process.close()


def shared(args, name, packed) -> dict:
    """`--share` processes on one packed file, all stopped in the middle of an answer."""
    _, command = commands(args, name, packed)["alight packed"]
    canonical = common.model_path(name, args.models)
    make_warm(packed)
    running, tokens = [], 20
    done = subprocess.run([*command, "-n", "1", "--json"], capture_output=True, text=True, check=True)
    tokens += json.loads(done.stdout)["prompt_tokens"]
    kv = bench_memory.kv_bytes_per_token(args, canonical) * tokens / MIB
    try:
        for _ in range(args.share):
            running.append(bench_memory.Answering([*command, "-n", "-1", "--ignore-eos"], 20, args.timeout))
        parts = [process.memory(packed) for process in running]
    finally:
        for process in running:
            process.close()
    size, total = packed.stat().st_size / MIB, sum(p["pss"] for p in parts)
    return {"model": name, "processes": args.share, "file_mib": size, "kv_mib_each_at_most": kv, "pss_mib": total,
            "pss_of_file_mib": sum(p["model_pss"] for p in parts), "ratio": total / (size + args.share * kv)}


# --- all of it -----------------------------------------------------------------------------------

def measure(args, name, packed) -> dict:
    run = commands(args, name, packed)
    path = common.model_path(name, args.models).resolve()
    runs = {(state, who): [] for state in args.state for who in run}
    disks = {}
    missed = dict.fromkeys(runs, 0)
    for _, command in run.values():
        once(command, args.timeout)  # the programs' own pages
    for i in range(args.rounds):
        common.say(f"{name}: round {i + 1} of {args.rounds}")
        if "cold" in args.state:
            for how, ms in disk(path).items():
                disks.setdefault(how, []).append(ms)
        for state, who in list(runs) if i % 2 == 0 else reversed(list(runs)):
            file, command = run[who]
            missed[state, who] += bool(make_cold(file) if state == "cold" else make_warm(file))
            runs[state, who].append(once(command, args.timeout))
            time.sleep(args.pause)
    rows = []
    for (state, who), values in runs.items():
        row = {"state": state, "engine": who, "missed": missed[state, who]}
        row |= {key: common.summary([v[key] for v in values]) for key in values[0]}
        rows.append(row)
    make_warm(path)
    parts = {}
    for who, (file, command) in run.items():
        make_warm(file)
        parts[who] = memory(command, args.timeout)
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
    parser.add_argument("--model", nargs="+", choices=list(bench_start.PROMPTS), default=["smollm2", "gemma3"])
    parser.add_argument("--state", nargs="+", choices=["cold", "warm"], default=["cold", "warm"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two processes")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--only", nargs="+", metavar="PART", help="only engines whose name has one of these in it")
    parser.add_argument("--share", type=int, default=4, help="processes on one packed file at the end; 0: none")
    parser.add_argument("--packed-in", type=Path, metavar="FOLDER",
                        help="keep packed files here, and use those that are there (default: a temporary folder beside the models)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON document there as well")
    parser.add_argument("--disk-only", action="store_true", help="measure the disk and nothing else")
    common.add_arguments(parser)


def run(args) -> int:
    if args.disk_only:
        for name in args.model:
            path = common.model_path(name, args.models).resolve()
            print(name, json.dumps(disk(path)))
        return 0
    args.peer = not args.alone and common.has_llama("llama-completion", args.llama)
    if not args.peer and not args.alone:
        common.say("llama.cpp is not built (make bench-peer): measuring Alight alone")
    results = []
    with tempfile.TemporaryDirectory(prefix=".bench-load-", dir=args.models) as folder:
        for name in args.model:
            model = common.model_path(name, args.models)
            packed = common.packed_file(common.alight(args.alight), name, model, args.packed_in or Path(folder))
            result = measure(args, name, packed)
            if packed and args.share and (not args.only or any(part in "alight packed" for part in args.only)):
                result["shared"] = shared(args, name, packed)
            results.append(result)
    document = json.dumps(results)
    if args.out:
        args.out.write_text(document + "\n")
    if args.json:
        print(document)
        return 0
    common.machine()
    for result in results:
        show(result)
        if s := result.get("shared"):
            print(f"\n{s['processes']} processes on one packed file of {s['file_mib']:.0f} MiB: Pss together {s['pss_mib']:.0f} MiB, "
                  f"{s['ratio']:.3f} of one copy and their caches ({s['kv_mib_each_at_most']:.1f} MiB each at most)")
    return 0
