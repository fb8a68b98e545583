"""A mixture of experts in less memory than it takes: Alight by slots, Alight by the map, llama.cpp by mmap.

    python -m evidence bench experts                        about 10 minutes, 6.5 GB of disk for the model, which is kept
    python -m evidence bench experts --part decode --share 0.28 -n 24
    python -m evidence bench experts --packed --part roofs decode    by the packed file, beside which the model is kept

Every process of a round runs in one memory control group (version 1 or 2, as root) with the same limit, so that the same share of the
experts has room, from a file that is not cached. Tokens per second are counted from the first byte of the answer to the last, by the
clock of this script, for all engines alike; an answer that takes longer than `--most` seconds is ended, and what came by then counts.
The peer reads with a read-ahead of 128 KiB, which is what most machines have: the device's setting is changed while it runs (as root), and
put back. Parts:

- roofs: `alight bench experts` with all of the memory and with each budget: hits, bytes read and missed, both roofs.
- decode: tokens per second in the group, the group's peak, bytes that the kernel read, major faults after the first token.
- memory: the peak of a process with `--memory`, in a group that would allow more; and whether a cached file of another process stays.
- first: the first token of a cold file after a short prompt, beside the disk's time for the bytes that were read.
- prompt: 512 tokens of a cold file with `--memory`, beside the disk's time for the bytes and the time of the same prompt in memory.
- served: `alight serve --memory`: prompts of 512 and 2048 tokens by themselves and, the first, beside an answer, by the size of a batch; and what
  of the experts of the tokens right before and right after a prompt was in memory.
- fits: tokens per second where everything fits, as by default and with `--load mmap`.

Nothing that fails ends the others; `--out` has what was measured so far after each process.
"""

import contextlib
import json
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

from evidence.bench.load import read_directly
from evidence.bench.server import Server
from evidence.lib import common, peers
from evidence.lib.cached import MIB, cached_pages, make_cold, make_file, make_warm
from evidence.lib.gguf_files import sizes_of_experts

PARTS = ("roofs", "decode", "memory", "first", "prompt", "served", "fits")
PEER_READ_AHEAD = 128
# Of the memory that can be had, what Alight takes by itself.
FITS_SHARE = 0.9
WORDS = "bat wars sale bat sun"


# --- control groups and devices ------------------------------------------------------------------

class Group:
    """A memory control group of version 1 or 2; `None` by `make` where it cannot be had."""

    ROOTS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
             (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"))

    def __init__(self, path: Path, peak: str):
        self.path, self.peak_file = path, peak

    @classmethod
    def make(cls, limit: int) -> "Group | None":
        reasons = []
        for root, limit_file, peak in cls.ROOTS:
            path = root / f"alight-bench-experts-{os.getpid()}"
            try:
                path.mkdir()
                (path / limit_file).write_text(str(limit))
            except OSError as error:
                reasons.append(str(error))
                with contextlib.suppress(OSError):
                    path.rmdir()
                continue
            return cls(path, peak)
        common.say(f"no memory control group can be made: {'; '.join(reasons)}")
        return None

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.path / self.peak_file).read_text())
        return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / "memory.force_empty").write_text("0")
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)
        common.say(f"{self.path} stays")


@contextlib.contextmanager
def group_of(limit: int):
    group = Group.make(limit)
    try:
        yield group
    finally:
        if group:
            group.remove()


def read_ahead_setting(path: Path) -> Path | None:
    """The file with the read-ahead of the device that a file is on."""
    device = os.stat(path).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for place in (node / "queue", node.resolve().parent / "queue", node / "bdi"):
        if (place / "read_ahead_kb").is_file():
            return place / "read_ahead_kb"
    return None


@contextlib.contextmanager
def read_ahead(path: Path, kib: int):
    """Opens files with that read-ahead; gives what there is in truth."""
    setting = read_ahead_setting(path)
    before = setting.read_text().strip() if setting else None
    try:
        if setting:
            with contextlib.suppress(OSError):
                setting.write_text(str(kib))
        yield int(setting.read_text()) if setting else None
    finally:
        if setting:
            with contextlib.suppress(OSError):
                setting.write_text(before)


def disk_rate(path: Path) -> float:
    """Bytes per second of direct reads of a whole file, now."""
    return 1e3 * path.stat().st_size / read_directly(path)


# --- processes -----------------------------------------------------------------------------------

def majors(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[9])


def stream(command, tokens: int, most: float, group: Group | None = None) -> dict:
    """Runs a command that writes an answer of so many tokens. Of what the kernel has counted: bytes read, major faults, peaks."""
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=group.enter if group else None)
    said, answer, first, last, faults = b"", 0, None, None, None
    out, ended = {}, False
    with selectors.DefaultSelector() as both:
        both.register(process.stdout, selectors.EVENT_READ)
        both.register(process.stderr, selectors.EVENT_READ)
        while both.get_map():
            left = start + most - time.perf_counter()
            if left <= 0 and not ended:
                ended = True
                process.send_signal(signal.SIGKILL)
            for key, _ in both.select(timeout=max(0.05, min(left, 1.0))):
                got = os.read(key.fd, 65536)
                if not got:
                    both.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    said += got
                else:
                    last = time.perf_counter()
                    if first is None:
                        first = last
                        with contextlib.suppress(OSError, IndexError):
                            faults = majors(process.pid)
                    answer += len(got)
    # Its counters are there until it is buried.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(OSError, IndexError):
        counted = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
        out["read_bytes"] = int(counted["read_bytes"])
        if faults is not None:
            out["majors_after_first"] = majors(process.pid) - faults
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    process.stderr.close()
    text = said.decode(errors="replace")
    if process.returncode != 0 and not ended:
        return {"error": f"exit status {process.returncode}: {text.strip()[-300:]}"}
    out |= {"peak_rss": usage.ru_maxrss * 1024, "answer_bytes": answer, "ended": ended}
    if group and (peak := group.peak()):
        out["group_peak"] = peak
    if first:
        out["first_token_s"] = first - start
        if last > first and not ended:
            out["tokens_per_second"] = (tokens - 1) / (last - first)
    if ended:
        # No more than this many, since not all of them came.
        out["tokens_per_second_at_most"] = tokens / (most - (first - start if first else 0.0))
    if found := re.search(r"^experts (.*)$", text, re.M):
        out["experts"] = found[1]
    return out


def ours(args, path: Path, tokens: int, *more) -> list:
    return [common.alight(args.alight), "run", path, "--raw", "--temp", 1, "--seed", 3, "--ignore-eos", "-n", tokens, "-c", 1024, "--speculate",
            "off", "-t", args.threads, "--explain-load", *more]


def decoders(args, model) -> dict:
    path, prompt = model.path, f"--prompt={WORDS}"
    out = {"alight, slots": ours(args, path, args.tokens, prompt), "alight, map": ours(args, path, args.tokens, "--load", "mmap", prompt)}
    if peers.LLAMA_CPP in args.peers:
        # Where it has repacked kernels it would copy all experts into memory of its own, and the group would end it.
        out["llama.cpp, mmap"] = [
            peers.LLAMA_CPP.tool(args, "llama-completion"), "-m", model.source, "-no-cnv", "--no-display-prompt", "--no-warmup", "--no-repack", "-fit", "off",
            "--temp", 1, "--seed", 3, "--ignore-eos", "-n", args.tokens, "-c", 1024, "-t", args.threads, "-p", WORDS]
    return out


# --- parts ---------------------------------------------------------------------------------------

def roofs(args, model, record) -> None:
    sizes = [64 << 30, *(model.budget(share) for share in args.share)]
    command = [common.alight(args.alight), "bench", "experts", model.path, "--memory", ",".join(map(str, sizes)), "-n", args.tokens, "-t",
               args.threads, "--json"]
    make_warm(model.path)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=6 * args.most)
    for line in done.stdout.splitlines():
        record(json.loads(line))
    if done.returncode != 0:
        record({"error": f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"})


def touch(size: int) -> None:
    """Uses so much memory and frees it: a virtual machine may have given it back to its host, which is slow to give it again."""
    subprocess.run([sys.executable, "-c", f"b'x' * {size}"], check=True)


def decode(args, model, record) -> None:
    runs = decoders(args, model)
    for round_ in range(args.rounds):
        for share in args.share:
            # So that what Alight takes by itself has room for this share.
            limit = int(model.budget(share) / FITS_SHARE)
            for who in runs if round_ % 2 == 0 else reversed(runs):
                file, kib = (model.source, PEER_READ_AHEAD) if who.startswith("llama") else (model.path, args.read_ahead)
                make_cold(file)
                if args.touched:
                    touch(limit)
                with read_ahead(file, kib) as truly, group_of(limit) as group:
                    found = stream(runs[who], args.tokens, args.most, group)
                record({"round": round_, "share": share, "who": who, "limit": limit if group else None, "read_ahead_kib": truly} | found)


def memory(args, model, record) -> None:
    bystander = model.path.with_name("bystander")
    make_file(bystander, 256)
    try:
        for share in args.share:
            budget = model.budget(share)
            make_cold(model.path)
            make_warm(bystander)
            before = cached_pages(bystander)
            with group_of(4 * budget) as group:
                found = stream(ours(args, model.path, args.tokens, "--memory", budget, f"--prompt={WORDS}"), args.tokens, args.most, group)
            peak = found.get("group_peak") or found.get("peak_rss")
            record({"share": share, "budget": budget, "peak_over_budget": peak / budget if peak else None,
                    "bystander_stays": cached_pages(bystander) / before, "model_cached_after": cached_pages(model.path) * 4096} | found)
    finally:
        bystander.unlink(missing_ok=True)


def first(args, model, record) -> None:
    ways = {"by default": [], "--load mmap": ["--load", "mmap"]} | {f"{share:.0%}": ["--memory", model.budget(share)] for share in args.share}
    for round_ in range(args.rounds):
        for who in ways if round_ % 2 == 0 else reversed(ways):
            # Beside each: what the disk gives changes from minute to minute.
            rate = disk_rate(model.path)
            make_cold(model.path)
            with read_ahead(model.path, args.read_ahead) as truly:
                found = stream(ours(args, model.path, 1, *ways[who], f"--prompt={WORDS}"), 1, args.most)
            if "read_bytes" in found and "first_token_s" in found:
                disk_s = found["read_bytes"] / rate
                found = {"disk_s": disk_s, "over_disk": found["first_token_s"] / disk_s, "asked": 1.3} | found
            record({"round": round_, "who": who, "read_ahead_kib": truly} | found)


def prompt(args, model, record) -> None:
    text = model.path.with_name("prompt-512.txt")
    # A word is a token or a few: the engine counts them, and says so.
    text.write_text(" ".join(WORDS.split()[i * 7 % 5] for i in range(args.prompt_words)))
    try:
        make_warm(model.path)
        rates = {}
        ways = {"in memory": ["--load", "mmap"]} | {f"{share:.0%}": ["--memory", model.budget(share)] for share in args.share}
        for who, more in ways.items():
            if who != "in memory":
                make_cold(model.path)
            command = [*ours(args, model.path, 1, *more, "-f", text), "--json"]
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=args.most)
            if done.returncode != 0:
                record({"who": who, "error": f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"})
                continue
            told = json.loads(done.stdout.splitlines()[-1])
            times = told["timings"]
            rates[who] = times["prompt_ms"]
            line = {"who": who, "prompt_tokens": told["prompt_tokens"], "prompt_ms": times["prompt_ms"], "first_token_ms": times["first_token_ms"],
                    "bytes_read": told.get("bytes_read")}
            if found := re.search(r"^experts (.*)$", done.stderr, re.M):
                line["experts"] = found[1]
            if who != "in memory" and rates.get("in memory"):
                # Everything once, or the arithmetic, whichever is longer.
                disk_ms = 1e3 * model.path.stat().st_size / args.disk_rate
                line |= {"disk_ms": disk_ms, "of_the_lesser_roof": max(disk_ms, rates["in memory"]) / times["prompt_ms"]}
            record(line)
    finally:
        text.unlink(missing_ok=True)


def served(args, model, record) -> None:
    draw = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(1000, 30000) for _ in range(count)]

    for share, batch in ((share, batch) for share in args.share for batch in (512, 2048)):
        command = [common.alight(args.alight), "serve", model.path, "--memory", model.budget(share), "--no-cache", "-c", 4096, "-t", args.threads,
                   "-b", batch, "--parallel", 2, "--speculate", "off"]
        with Server([str(word) for word in command], args.most) as server:
            server.wait()

            def experts(server=server) -> dict:
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/alight/memory") as response:
                    return json.load(response)["models"][0]["experts"]

            def ask(prompt: list[int], count: int, server=server, experts=experts) -> dict:
                before, start = experts(), time.perf_counter()
                body = {"prompt": prompt, "max_tokens": count, "temperature": 1, "seed": 3, "ignore_eos": True}
                with server.post("/v1/completions", body) as response:
                    response.read()
                took, after = time.perf_counter() - start, experts()
                change = {name: after[name] - before[name] for name in ("wanted", "hits", "read_bytes")}
                return {"seconds": took, "read_bytes": change["read_bytes"], "hits": change["hits"] / max(1, change["wanted"])}

            ask(tokens(3), 64)
            came, ended = [], threading.Event()

            def stream(server=server, came=came, ended=ended) -> None:
                body = {"prompt": tokens(3), "max_tokens": 3000, "temperature": 1, "seed": 4, "ignore_eos": True, "stream": True}
                with server.post("/v1/completions", body) as response:
                    for _ in response:
                        came.append(time.perf_counter())
                        if ended.is_set():
                            return

            other = threading.Thread(target=stream)
            other.start()
            while len(came) < 32:
                time.sleep(0.01)
            first = len(came) - 1
            beside = ask(tokens(512), 1)
            gaps = [after - before for before, after in zip(came[first:], came[first + 1:], strict=False)]
            ended.set()
            other.join()
            row = {"share": share, "batch": batch, "beside_an_answer_512_s": beside["seconds"], "beside_read_bytes": beside["read_bytes"],
                   "beside_longest_gap_s": max(gaps, default=None)}
            for count in (512, 2048):
                before, alone, after = ask(tokens(3), 32)["hits"], ask(tokens(count), 1), ask(tokens(3), 32)["hits"]
                row |= {f"{count}_s": alone["seconds"], f"{count}_read_bytes": alone["read_bytes"], f"hits_before_{count}": before,
                        f"hits_after_{count}": after}
            record(row | {"peak_rss_mib": server.memory_mib()["peak_rss_mib"]})


def fits(args, model, record) -> None:
    ways = {"by default": [], "--load mmap": ["--load", "mmap"]}
    make_warm(model.path)
    for round_ in range(max(3, args.rounds)):
        for who in ways if round_ % 2 == 0 else reversed(ways):
            record({"round": round_, "who": who} | stream(ours(args, model.path, args.tokens, *ways[who], f"--prompt={WORDS}"), args.tokens, args.most))


# --- all of it -----------------------------------------------------------------------------------

def make_model(args) -> SimpleNamespace:
    path = args.model_file
    if path is None:
        path = (args.folder or common.TARGET / "bench-experts") / f"random-a3b-{args.layers}.gguf"
        if not path.is_file():
            maker = [sys.executable, "-m", "evidence", "make", "random-model", "a3b", path, "--layers", args.layers]
            subprocess.run([str(word) for word in maker], cwd=common.ROOT, check=True)
    always, experts = sizes_of_experts(path)
    source = path.resolve()
    if args.packed:
        path = common.packed_file(common.alight(args.alight), source.stem, source, source.parent)
        if path is None:
            raise SystemExit(f"{source} cannot be packed")
    return SimpleNamespace(path=path.resolve(), source=source, always=always, experts=experts,
                           budget=lambda share: int(always + args.beside * MIB + share * experts))


def show(part: str, rows: list[dict]) -> None:
    print(f"\n## {part}\n")
    if not rows:
        print("nothing was measured")
        return
    keys = list(dict.fromkeys(key for row in rows for key in row))

    def cell(value) -> str:
        match value:
            case None:
                return "-"
            case bool() | str():
                return str(value)
            case float():
                return f"{value:.3g}" if abs(value) < 1e6 else f"{value / 1e9:.3f}e9"
            case int() if value >= 10**7:
                return f"{value / 1e9:.3f}e9"
        return str(value)

    common.table([keys, *([cell(row.get(key)) for key in keys] for row in rows)])


def compared(rows: list[dict]) -> list[dict]:
    """How many times as fast as the others slots are, share by share."""
    out = []
    for share in sorted({row["share"] for row in rows}):
        def best(who, share=share):
            of = [row for row in rows if row["share"] == share and row["who"] == who]
            return max((row.get("tokens_per_second") or row.get("tokens_per_second_at_most") or 0.0 for row in of), default=0.0)
        slots = best("alight, slots")
        for who in sorted({row["who"] for row in rows} - {"alight, slots"}):
            if best(who):
                out.append({"share": share, "slots over": who, "times": slots / best(who)})
                if who.startswith("llama"):
                    out[-1]["asked"] = 5.0 if share < 0.35 else 2.0
    return out


def add_arguments(parser) -> None:
    parser.add_argument("--model-file", type=Path, metavar="FILE", help="a mixture of experts (default: one is made, and kept)")
    parser.add_argument("--layers", type=int, default=16, help="of the model that is made: 16 take 6.5 GB (default: %(default)s)")
    parser.add_argument("--packed", action="store_true", help="Alight computes with the packed file, in which an expert is one run of bytes")
    parser.add_argument("--share", type=float, nargs="+", default=[0.28, 0.45], help="of the experts that fit into memory (default: 0.28 0.45)")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("-n", "--tokens", type=int, default=32, help="of an answer (default: %(default)s)")
    parser.add_argument("--prompt-words", type=int, default=256, help="of the long prompt, about two tokens each (default: %(default)s)")
    parser.add_argument("--touched", action="store_true", help="memory is used and freed right before each process of decoding, as large as its limit")
    parser.add_argument("--read-ahead", type=int, metavar="KIB", default=128, help="for Alight's processes as well (default: %(default)s)")
    parser.add_argument("--beside", type=int, metavar="MIB", default=256,
                        help="of the budget, for what is neither weights nor slots: code, keys and values, buffers (default: %(default)s)")
    parser.add_argument("--most", type=float, default=100, help="seconds for one process (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of decoding (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON document there as well, after each process")
    common.add_folder_argument(parser)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def run(args) -> int:
    args.peers = peers.present(args)
    model = make_model(args)
    args.disk_rate = disk_rate(model.path)
    parts: dict[str, list[dict]] = {}
    result = {"model": str(model.path), "bytes": model.path.stat().st_size, "always": model.always, "experts": model.experts,
              "disk_bytes_per_second": args.disk_rate, "threads": args.threads, "parts": parts}

    def kept() -> None:
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))

    for part in args.part:
        rows = parts.setdefault(part, [])

        def record(row: dict, part=part, rows=rows) -> None:
            rows.append(row)
            common.say(f"{part}: {json.dumps(row)[:300]}")
            kept()

        try:
            globals()[part](args, model, record)
        except (Exception, SystemExit) as error:  # noqa: BLE001: the other parts are worth having
            record({"error": f"{type(error).__name__}: {error}"})
    if "decode" in parts:
        result["compared"] = compared([row for row in parts["decode"] if "share" in row])
        kept()
    if not common.as_json(args, result):
        print(f"{model.path.name}: {result['bytes'] / 1e9:.2f} GB, {model.experts / 1e9:.2f} GB of it experts; the disk {args.disk_rate / 1e9:.2f} GB/s; "
              f"{args.threads} threads")
        for part, rows in parts.items():
            show(part, rows)
        if result.get("compared"):
            show("slots beside the others", result["compared"])
    return 1 if any("error" in row for rows in parts.values() for row in rows) else 0
