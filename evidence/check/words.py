"""Words of the source's old dialect do not become more.

`CONTRIBUTING.md` has the words that we use. Those below are older ones, with how often they may still stand in Rust's sources: a change that
adds one fails, and one that takes some away lowers its number (`--write`). Reads the repository alone.
"""

import re
import sys
from pathlib import Path

from evidence.lib import common

# Word or pattern → what to write instead, and how often it may be there.
LIMITS = {
    r"\btold\b": ("reported, configured, given", 77),
    r"\bsaid\b": ("reported, printed, given", 109),
    r"\broom\b": ("memory, budget, capacity", 46),
    r"\bbehind\b": ("after", 6),
    r"\bbeside\b": ("next to, besides, compared with", 82),
    r"\bnobody\b": ("the passive voice", 7),
    r"\bsomebody\b": ("the client, the caller", 8),
    r"\bwhoever\b": ("the client, the caller", 0),
    r"\bso many\b": ("the number of, at most", 3),
    r"\bbut for\b": ("except", 0),
    r"\banew\b": ("again", 0),
    r"\bgoes on\b": ("continues", 0),
    r"\bbrain\b": ("bf16", 0),
    r"\b(?:MOST|LEAST|LONGEST|LARGEST|FEWEST)(?:_[A-Z]|\b)": ("MAX_, MIN_", 0),
    r"//[/!]? (?:What|Whether|Who) ": ("a noun", 22),
}


def add_arguments(parser) -> None:
    """Whether to record them."""
    parser.add_argument("--write", action="store_true", help="lower the numbers to what there is now")


def count(pattern: str, texts: list[str]) -> int:
    """How often a pattern is in the sources; words in capitals or not, constants as they are written."""
    flags = 0 if "[A-Z]" in pattern or pattern.startswith("//") else re.IGNORECASE
    return sum(len(re.findall(pattern, text, flags)) for text in texts)


def run(args) -> int:
    """Prints each word that has become more; the exit status."""
    folders = [*common.ROOT.glob("crates/*/src"), common.ROOT / "bindings/python/src"]
    texts = [path.read_text() for folder in folders for path in sorted(folder.rglob("*.rs"))]
    assert count(r"\btold\b", ["Told. told untold"]) == 2 and count(r"\b(?:MOST|LEAST)(?:_[A-Z]|\b)", ["MOST_A most_a LEAST"]) == 2
    source, wrong = Path(__file__), 0
    text = source.read_text()
    for pattern, (better, limit) in LIMITS.items():
        found = count(pattern, texts)
        if found > limit and not args.write:
            wrong += 1
            print(f"{pattern}: {found} times in the sources, and {limit} before. Write instead: {better} (CONTRIBUTING.md, Words)", file=sys.stderr)
        if args.write:
            line = f'    r"{pattern}": ("{better}", '
            text = re.sub(re.escape(line) + r"\d+\)", lambda _, line=line, found=found: f"{line}{found})", text)
    if args.write:
        source.write_text(text)
    return 1 if wrong else 0
