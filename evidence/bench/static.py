"""What the static program of a release costs beside the ordinary one: another C library, whose allocator and memcpy are slower.

Each runs the same prompt, most likely tokens only, in turns; the table has medians and ranges, and the answers must be the same.
Build both of the same commit, or other changes are measured, too.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from evidence.lib import common
from evidence.make import cross

ROWS = {
    "answer, tokens/s": lambda told: told["tokens_per_second"],
    "prompt, tokens/s": lambda told: told["prompt_tokens_per_second"],
    "opening the file, ms": lambda told: told["timings"]["open_ms"],
    "of that the tokenizer, ms": lambda told: told["timings"]["tokenizer_ms"],
    "page faults": lambda told: told["faults"]["minor"],
    "anonymous, MB": lambda told: told["memory"]["rss_anon"] / 1e6,
    "peak, MB": lambda told: told["memory"]["peak_rss"] / 1e6,
}


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--static", type=Path, default=None, help="the static program (default: that of `make dist`)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompt", type=Path, default=common.ROOT / "CONTRIBUTING.md", help="a text; its first 6000 characters")
    parser.add_argument("--short", action="store_true", help="one word as a prompt: what is resident before an engine has computed much")
    parser.add_argument("-n", "--pairs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)


def run(args) -> int:
    """The table; status 1 if an answer differs."""
    static = args.static or cross.program(f"{os.uname().machine}-unknown-linux-musl", "alight")
    if not static.is_file():
        raise SystemExit(f"{static} is missing: make dist")
    programs = {"ordinary": common.alight(args.alight), "static": static}
    model, prompt = common.model_path(args.model, args.models), "Hi" if args.short else args.prompt.read_text()[:6000]
    told = {name: [] for name in programs}
    for turn in range(args.pairs):
        for name in list(programs) if turn % 2 else list(programs)[::-1]:
            done = subprocess.run([programs[name], "run", model, prompt, "-n", str(args.tokens), "--temp", "0", "--threads",
                                   str(args.threads), "--json"], capture_output=True, check=True)
            told[name].append(json.loads(done.stdout))
    numbers = {row: {name: common.summary([of(one) for one in told[name]]) for name in programs} for row, of in ROWS.items()}
    same = len({one["answer"] for runs in told.values() for one in runs}) == 1
    if args.json:
        print(json.dumps({"numbers": numbers, "same_answers": same}))
    else:
        common.table([["", *programs], *([row, *(common.spread(by[name]) for name in programs)] for row, by in numbers.items())])
        print("the answers are the same" if same else "THE ANSWERS DIFFER")
    return int(not same)
