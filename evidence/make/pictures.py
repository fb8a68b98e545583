"""Writes the pictures of docs/pictures from the measured figures of evidence/results/*.jsonl, so that a picture never says another number
than a table; `--check` compares them instead, which `make test` does.

    start.svg          from the start of a process to its first token, by engine
    processes.svg      what several processes on one file take together
    roofline.svg       decoding several sequences, below what memory and the processor allow
    cp-page-cache.svg  what a copy leaves in the page cache, by tool
    speed-*.svg        tokens per second of whole models beside their limits and peers (evidence/lib/speeds.py)

A number that was never measured is in no picture. load-3b.svg and experts.svg are written by `alight bench
load --svg` and `alight bench experts --svg`, page*.png by `check page --pictures`, as the pages that show them say.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from evidence.lib import common, results
from evidence.lib.results import Figure, Result, of_case, of_set
from evidence.lib.speeds import SPEEDS
from evidence.lib.svg import WIDTH, Bar, Line, bars, roofline

PICTURES = common.ROOT / "docs/pictures"


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; the exit status is 1 where a picture is not what the results say")


def time(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def start(found: list[Result]) -> str:
    engines = [
        ("alight, packed file (auto: map)", "Alight, packed file", "ours"),
        ("alight (auto: map in place)", "Alight, the same file", "ours"),
        ("llama.cpp, its best, --no-repack", "llama.cpp, --no-repack, no warm-up", "other"),
        ("llama.cpp, its best (no warm-up, no fit)", "llama.cpp, no warm-up, no fit", "other"),
        ("llama.cpp", "llama.cpp, defaults", "other"),
    ]
    groups = []
    for name, figure in (("the file is in the page cache", "warm"), ("nothing of the file is in the page cache", "cold")):
        of_group = []
        for case, engine, colour in engines:
            one = of_case(found, "start-7b", case).figures[figure]
            of_group.append(Bar(engine, one.middle(), time(one.middle()), colour, one.least, one.most))
        groups.append((name, of_group))
    day = of_set(found, "start-7b")[0].date
    about = [f"a 7B in Q4_0 (3.83 GB), 2 threads, medians with the range; 2 cores of Zen 4, 24 GiB, {day}"]
    return bars("From the start of a process to its first token", about, groups)


def processes(found: list[Result]) -> str:
    groups: dict[str, list[Bar]] = {}
    for line in of_set(found, "processes"):
        count, model = re.match(r"(\d+) of the (?:packed )?(\w+)", line.case).groups()
        one, mib = line.figures["one copy"].middle(), line.figures["all together"].middle()
        of_group = groups.setdefault(model, [Bar("one copy of the weights", one, f"{one:,.0f} MiB", "plain")])
        own = "ours" if "mapped" in line.case else "other"
        of_group.append(Bar(f"{count} processes, {line.case.rpartition(', ')[2]}", mib, f"{mib:,.0f} MiB ({line.figures['ratio'].middle():.2f} ×)", own))
    about = [f"memory of all together, shared pages counted once; 2 cores of Zen 4, 24 GiB, {of_set(found, 'processes')[0].date}"]
    return bars("Several processes on one model file", about, [(f"a {model} in Q4_0", of_group) for model, of_group in groups.items()])


def roof(found: list[Result]) -> str:
    def points(case: str) -> list[tuple[float, float]]:
        return [(float(name), one.middle()) for name, one in of_case(found, "roofline", case).figures.items()]

    lines = [Line("packed", points("random 3B Q4_0, packed"), "ours"), Line("GGUF", points("random 3B Q4_0, GGUF"), "plain")]
    each = of_case(found, "roofline", "limit: memory").figures["each"].middle()
    total = of_case(found, "roofline", "limit: processor").figures["all"].middle()
    meet, last = total / each, max(x for x, _ in lines[0].points)
    walls = [(f"processor: {total:g} t/s", [(meet, total), (last, total)]), (f"memory: {each:g} t/s each", [(1, each), (meet, total)])]
    about = [f"a 3B in Q4_0 (1.92 GB), 16-bit activations, 2 threads; 2 cores of Zen 4, {of_set(found, 'roofline')[0].date}"]
    return roofline("Decoding several sequences at once", about, lines, walls, of_x="sequences", of_y="tokens/s")


def page_cache(found: list[Result]) -> str:
    peak, left = [], []
    for line in of_set(found, "cp"):
        cached = line.figures["peak cached"].middle()
        peak.append(Bar(line.case, cached, f"{cached:,.0f} MiB", "ours" if line.case == "alight cp" else "other"))
    for line in of_set(found, "cp-neighbour"):
        after = line.figures["left of 200 MiB, read once"].middle()
        left.append(Bar(line.case, after, f"{after:.0f} of 200 MiB", "ours" if line.case == "alight cp" else "other"))
    about = [f"a cold source; control group of 512 MiB in the second part; ext4, 2 cores of Zen 4, 24 GiB, {of_set(found, 'cp')[0].date}"]
    return bars("The page cache while 2 GiB are copied", about,
                [("most of source and copy that was cached at any time", peak), ("what was left of another file that was in the cache", left)])


MAKERS = {"start.svg": start, "processes.svg": processes, "roofline.svg": roof, "cp-page-cache.svg": page_cache,
          **{name: of.draw for name, of in SPEEDS.items()}}
# The sets of results that pictures are of.
SETS = {"start-7b", "processes", "roofline", "cp", "cp-neighbour", *(of.set for of in SPEEDS.values())}


def complaints(found: list[Result]) -> list[str]:
    """Pictures that are not what the results say, or that no page shows."""
    wrong = []
    shown = "\n".join(path.read_text() for path in [common.ROOT / "README.md", *sorted((common.ROOT / "docs").rglob("*.md"))])
    for name, make in MAKERS.items():
        path: Path = PICTURES / name
        if not path.is_file() or path.read_text() != make(found):
            wrong.append(f"{path.relative_to(common.ROOT)} is not what evidence/results says: python -m evidence make pictures")
        if not shows(shown, name):
            wrong.append(f"no page shows {path.relative_to(common.ROOT)} with a text in its place")
    return wrong


def shows(pages: str, name: str) -> bool:
    return bool(re.search(rf"!\[[^\]]+\]\([./\w]*pictures/{re.escape(name)}\)", pages))


def unreadable(name: str, drawn: str) -> list[str]:
    """What keeps a picture from being small, safe, and readable on light and on dark pages."""
    root = ElementTree.fromstring(drawn)
    out = [f"{name}: {tag}" for tag in ("script", "image", "foreignObject", "a") if root.findall(f".//{{*}}{tag}")]
    if "prefers-color-scheme: dark" not in drawn:
        out.append(f"{name}: nothing for dark pages")
    if len(drawn.encode()) > 12_000:
        out.append(f"{name}: {len(drawn.encode())} bytes")
    for one in root.findall(".//{*}text"):
        wide = len(one.text or "") * (8 if one.get("class") == "title" else 6.4 if one.get("class") != "group" else 7)
        begin = float(one.get("x")) - wide * {"start": 0, "middle": 0.5, "end": 1}[one.get("text-anchor")]
        if begin < 0 or begin + wide > WIDTH + 24:
            out.append(f"{name}: {one.text!r} does not fit: {begin:.0f} to {begin + wide:.0f}")
    return out


def changed(lines: list[tuple[str, str]], name: str) -> Iterator[tuple[str, str, list[Result]]]:
    """Results in which one figure of a set is another one, figure by figure."""
    for i, (where, line) in enumerate(lines):
        if json.loads(line)["set"] != name:
            continue
        for figure in json.loads(line)["figures"]:
            other = json.loads(line)
            other["figures"][figure] = {"values": [2 * Figure.read(other["figures"][figure]).middle() + 1], "unit": other["figures"][figure]["unit"]}
            yield other["case"], figure, results.read([*lines[:i], (where, json.dumps(other)), *lines[i + 1:]])


def selftest() -> list[str]:
    """Pictures can be read, a wrong figure changes the picture of its case, and a picture without its results is not drawn."""
    lines = list(results.lines())
    found = results.read(lines)
    out = [*complaints(found), *(one for name in SPEEDS for one in unreadable(name, MAKERS[name](found)))]
    for name, of in SPEEDS.items():
        before, noticed = of.draw(found), {}
        for case, figure, other in changed(lines, of.set):
            noticed.setdefault(case, set())
            if of.draw(other) != before:
                noticed[case].add(figure)
        for line in of_set(found, of.set):
            if line.peers and len(noticed[line.case]) < 5:
                out.append(f"{name}: of {line.case} only wrong figures of {sorted(noticed[line.case])} are noticed")
        try:
            of.draw([line for line in found if line.set != of.set])
            out.append(f"{name}: it is drawn without its results")
        except SystemExit:
            pass
    if shows("![a](pictures/a.svg)", "b.svg") or shows("![](pictures/a.svg)", "a.svg") or not shows("![a](../pictures/a.svg)", "a.svg"):
        out.append("a picture that no page shows is not noticed")
    return out


def run(args) -> int:
    """Writes them, or says which are not as the results say; the exit status."""
    found = results.read(list(results.lines()))
    if args.check:
        wrong = complaints(found)
        print("\n".join([*wrong, f"pictures: {len(MAKERS)}, {len(wrong)} differ"]))
        return 1 if wrong else 0
    for name, make in MAKERS.items():
        (PICTURES / name).write_text(make(found))
    print(f"{len(MAKERS)} pictures in {PICTURES}")
    return 0
