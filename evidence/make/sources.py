"""Writes models as Hugging Face, Meta and llama.cpp before GGUF have them, out of a GGUF file or small random ones.

    python -m evidence make sources FOLDER                          every source of the quick check, small (python -m evidence check convert)
    python -m evidence make sources FOLDER --model smollm2          SmolLM2's dequantised weights in every format (9 GB; --only to choose)
    python -m evidence make sources FOLDER --list                   their names
    python -m evidence make sources FOLDER --big 6 --format meta    a synthetic model of 65B's row lengths in 8 parts, 6 GB (or legacy)

It proves nothing by itself: its files are what the checks of `alight convert` begin with, written by numpy from the
descriptions of the formats. Deterministic: the same arguments give the same bytes.

What is not as in life: SmolLM2 has 9 heads and 3 key/value heads, so its parts of 2, 4 and 8 cut through heads (rows are
dealt out all the same); the small models have 8 heads, or 2 key/value heads of 8 with repeated parts of wk and wv.
"""

import re
import time
from pathlib import Path

from evidence.lib import common
from evidence.lib.sources import big, cases


def add_arguments(parser) -> None:
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="tiny", choices=["tiny", "smollm2", "gemma3"])
    common.add_only_argument(parser, "cases")
    parser.add_argument("--list", action="store_true", help="only say the names")
    parser.add_argument("--big", type=float, metavar="GB", help="the synthetic 65B-shaped source, about so large")
    parser.add_argument("--format", default="meta", choices=["meta", "legacy"], help="of the large source")
    parser.add_argument("--models", type=Path, default=common.ROOT / "models")


def run(args) -> None:
    if args.big:
        start = time.monotonic()
        source, size = big.write(args.folder, args.big, args.format)
        common.say(f"{source}: {size / 1e9:.2f} GB in {time.monotonic() - start:.1f} s")
        return
    listed = cases.quick() if args.model == "tiny" else cases.full(common.model_path(args.model, args.models), args.model)
    for case in listed:
        if not common.is_asked(args, case.name):
            continue
        if args.list:
            print(case.name)
            continue
        folder = args.folder / re.sub(r"[^\w.]+", "-", case.name).lower()
        folder.mkdir(parents=True)
        made = case.make(folder)
        print(f"{case.name}: {made.source} {' '.join(map(str, made.options))}")
