"""A dense model in less memory than it takes: Alight with streamed layers, Alight by the map, llama.cpp by mmap.

    python -m evidence bench streamed                              about 10 minutes, 2 GB of disk for the model, which is kept
    python -m evidence bench streamed --shape 7b --share 0.8 -n 8

Every process runs in one memory control group (version 1 or 2, as root) whose limit is a share of the file, from a file that is not cached. Tokens per
second are counted from the first byte of the answer to the last, by the clock of this script, for all engines alike; an answer that takes
longer than `--most` seconds is ended, and what came by then counts. Bytes a token are those that the kernel read for the process, less those of the first
reading, by the number of tokens after the first; what cannot fit is the file less the limit. Engines take turns, in the other order every
second round.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from evidence.bench import experts
from evidence.lib import common, peers
from evidence.lib.cached import make_cold

OURS, MAP = "alight, streamed", "alight, map"


def add_arguments(parser) -> None:
    parser.add_argument("--model-file", type=Path, metavar="FILE", help="a dense model (default: one is made, and kept)")
    parser.add_argument("--shape", choices=("3b", "7b", "8b"), default="3b", help="of the model that is made (default: %(default)s)")
    parser.add_argument("--share", type=float, nargs="+", default=[0.6, 0.8, 0.95, 1.1], help="of the file, limits of the group (default: 0.6 0.8 0.95 1.1)")
    parser.add_argument("-n", "--tokens", type=int, default=12, help="of an answer (default: %(default)s)")
    parser.add_argument("--most", type=float, default=120, help="seconds for one process (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="(default: %(default)s)")
    common.add_folder_argument(parser)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def model_of(args) -> Path:
    path = args.model_file or (args.folder or common.TARGET / "bench-streamed") / f"random-{args.shape}.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "evidence", "make", "random-model", args.shape, str(path)], cwd=common.ROOT, check=True)
    return path.resolve()


def engines(args, path: Path) -> dict[str, list]:
    ours = [common.alight(args.alight), "run", path, "--raw", "--temp", 1, "--seed", 3, "--ignore-eos", "-n", args.tokens, "-c", 512, "--speculate", "off",
            "-t", args.threads, f"--prompt={experts.WORDS}"]
    out = {OURS: ours, MAP: [*ours, "--load", "mmap"]}
    if peers.LLAMA_CPP in args.peers:
        # Repacked weights would be a copy, which the group would end.
        out["llama.cpp, mmap"] = [
            peers.LLAMA_CPP.tool(args, "llama-completion"), "-m", path, "-no-cnv", "--no-display-prompt", "--no-warmup", "--no-repack", "-fit", "off",
            "--temp", 1, "--seed", 3, "--ignore-eos", "-n", args.tokens, "-c", 512, "-t", args.threads, "-p", experts.WORDS]
    return out


def run(args) -> int:
    args.peers = peers.present(args)
    path = model_of(args)
    size, rows, commands = path.stat().st_size, [], engines(args, path)
    for round_ in range(args.rounds):
        for share in args.share:
            limit = int(share * size)
            for who in commands if round_ % 2 == 0 else reversed(commands):
                make_cold(path)
                with experts.group_of(limit) as group:
                    if group is None:
                        return 1
                    found = experts.stream(commands[who], args.tokens, args.most, group)
                if (read := found.get("read_bytes")) and not found.get("ended"):
                    found["bytes_per_token"] = max(0, read - size) // (args.tokens - 1)
                row = {"round": round_, "share": share, "who": who, "limit": limit, "cannot_fit": max(0, size - limit)} | found
                rows.append(row)
                common.say(json.dumps(row))
    result = {"machine": common.machine_name(), "model": path.name, "bytes": size, "threads": args.threads, "rows": rows}
    if not common.as_json(args, result):
        show(args, rows)
    return int(any("error" in row for row in rows))


def show(args, rows: list[dict]) -> None:
    """A line for each share and engine: medians."""
    table = [("memory", "engine", "tokens/s", "bytes a token", "cannot fit", "group's peak")]
    for share in args.share:
        for who in dict.fromkeys(row["who"] for row in rows):
            of = [row for row in rows if (row["share"], row["who"]) == (share, who)]

            def middle(key, of=of):
                found = [row[key] for row in of if key in row]
                return statistics.median(found) if found else None

            rate, least = middle("tokens_per_second"), middle("tokens_per_second_at_most")
            cells = [f"{rate:.2f}" if rate else f"at most {least:.2f}" if least else "-"]
            cells += [f"{n / 1e6:.0f} MB" if (n := middle(key)) is not None else "-" for key in ("bytes_per_token", "cannot_fit", "group_peak")]
            table.append((f"{100 * share:.0f} %", who, *cells))
    common.table(table)
