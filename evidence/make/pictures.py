"""Writes the pictures of docs/pictures from the tables of docs/reference/benchmarks.md, so that a picture never says another number than
its table; `--check` compares them instead, which `make test` does.

    start.svg          from the start of a process to its first token, by engine
    processes.svg      what several processes on one file take together
    roofline.svg       decoding several sequences, below what memory and the processor allow
    cp-page-cache.svg  what a copy leaves in the page cache, by tool
    speed-*.svg        tokens per second of whole models beside their limits and peers (evidence/lib/speeds.py)

A number that was never measured is in no picture. load-3b.svg and experts.svg are written by `alight bench
load --svg` and `alight bench experts --svg`, page*.png by `check page --pictures`, as the pages that show them say.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from evidence.lib import common
from evidence.lib.speeds import SPEEDS
from evidence.lib.svg import WIDTH, Bar, Line, bars, roofline
from evidence.lib.tables import PAGE, number, rows_of, table_with, tables

PICTURES = common.ROOT / "docs/pictures"


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; the exit status is 1 where a picture is not what the tables say")


def spread(cell: str) -> tuple[float, float | None, float | None]:
    """`2565 (2124–2630)`: the median, the least and the most, which not every cell has."""
    ends = re.search(r"\(([\d.]+)–([\d.]+)\)", cell)
    return (number(cell), *map(float, ends.groups())) if ends else (number(cell), None, None)


def time(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def start(page: str) -> str:
    rows = rows_of("Loading: the whole process to the first token", "7B Q4_0", page)
    engines = [
        ("alight, packed file (auto: map)", "Alight, packed file", "ours"),
        ("alight (auto: map in place)", "Alight, the same file", "ours"),
        ("its best, --no-repack", "llama.cpp, --no-repack, no warm-up", "other"),
        ("its best (no warm-up, no fit)", "llama.cpp, no warm-up, no fit", "other"),
        ("llama.cpp", "llama.cpp, defaults", "other"),
    ]
    groups = []
    for name, column in (("the file is in the page cache", "warm, ms"), ("nothing of the file is in the page cache", "cold, ms")):
        of_group = []
        for row, engine, colour in engines:
            median, least, most = spread(rows[row][column])
            of_group.append(Bar(engine, median, time(median), colour, least, most))
        groups.append((name, of_group))
    about = ["a 7B in Q4_0 (3.83 GB), 2 threads, medians with the range; 2 cores of Zen 4, 24 GiB, 2026-11-22"]
    return bars("From the start of a process to its first token", about, groups)


def processes(page: str) -> str:
    rows = rows_of("Memory", "processes on one file", page)
    groups = {}
    for name, row in rows.items():
        count, model = re.match(r"(\d+) of the (?:packed )?(\w+)", name).groups()
        one, mib = number(row["one copy, MiB"]), number(row["all together, MiB"])
        of_group = groups.setdefault(model, [Bar("one copy of the weights", one, f"{one:,.0f} MiB", "plain")])
        own = "ours" if "mapped" in name else "other"
        of_group.append(Bar(f"{count} processes, {name.rpartition(', ')[2]}", mib, f"{mib:,.0f} MiB ({row['ratio']} ×)", own))
    about = ["memory of all together, shared pages counted once; 2 cores of Zen 4, 24 GiB, 2026-11-22"]
    return bars("Several processes on one model file", about, [(f"a {model} in Q4_0", of_group) for model, of_group in groups.items()])


def roof(page: str) -> str:
    measured = rows_of("Several sequences", "model", page)
    limits = rows_of("Several sequences", "limit of the 3B", page)

    def points(row: str) -> list[tuple[float, float]]:
        return [(float(name), number(cell)) for name, cell in measured[row].items() if name.isdigit() and cell]

    lines = [Line("packed", points("random 3B Q4_0, packed"), "ours"), Line("GGUF", points("random 3B Q4_0, GGUF"), "plain")]
    each, total = number(limits["memory"]["t/s"]), number(limits["processor"]["t/s"])
    meet, last = total / each, max(x for x, _ in lines[0].points)
    walls = [(f"processor: {total:g} t/s", [(meet, total), (last, total)]), (f"memory: {each:g} t/s each", [(1, each), (meet, total)])]
    about = ["a 3B in Q4_0 (1.92 GB), 16-bit activations, 2 threads; 2 cores of Zen 4, 2026-11-23"]
    return roofline("Decoding several sequences at once", about, lines, walls, of_x="sequences", of_y="tokens/s")


def page_cache(page: str) -> str:
    copies, bystander = rows_of("Copying: alight cp", "tool", page.replace("## Copying: `alight cp`", "## Copying: alight cp")), {}
    for table in tables("Copying: alight cp", page.replace("## Copying: `alight cp`", "## Copying: alight cp")):
        if "a warm source stays" in table[0]:
            bystander = {row["tool"]: row for row in table}
    peak, left = [], []
    for tool, row in copies.items():
        colour, cached = ("ours" if tool == "alight cp" else "other"), number(row["peak cached, MiB"])
        peak.append(Bar(tool, cached, f"{cached:,.0f} MiB", colour))
    column = next(name for name in next(iter(bystander.values())) if name.startswith("in a group of 512 MiB"))
    for tool, row in bystander.items():
        after = number(row[column].split("→")[1])
        left.append(Bar(tool, after, f"{after:.0f} of 200 MiB", "ours" if tool == "alight cp" else "other"))
    about = ["a cold source; control group of 512 MiB in the second part; ext4, 2 cores of Zen 4, 24 GiB, 2026-11-22"]
    return bars("The page cache while 2 GiB are copied", about,
                [("most of source and copy that was cached at any time", peak), ("what was left of another file that was in the cache", left)])


MAKERS = {"start.svg": start, "processes.svg": processes, "roofline.svg": roof, "cp-page-cache.svg": page_cache,
          **{name: of.draw for name, of in SPEEDS.items()}}

# Mistakes in what a limit is, which `selftest` makes: what stands in the page, what it becomes, and the one picture that is wrong then.
LIMITS_WRONG = [
    ("| it stays in the caches | 86 % |", "| it stays in the caches | 68 % |", "speed-intel.svg"),
    ("| not stated | not stated | 312 |", "| not stated | not stated | 213 |", "speed-intel.svg"),
    ("| 65 to 74 % | 91 % | 99 % |", "| 65 to 74 % | 91 % | 89 % |", "speed-avx2.svg"),
]


def complaints(page: str) -> list[str]:
    """Pictures that are not what a page says, or that it does not show."""
    wrong = []
    for name, make in MAKERS.items():
        path: Path = PICTURES / name
        if not path.is_file() or path.read_text() != make(page):
            wrong.append(f"{path.relative_to(common.ROOT)} is not what {PAGE.relative_to(common.ROOT)} says: python -m evidence make pictures")
        if not re.search(rf"!\[[^\]]+\]\(\.\./pictures/{re.escape(name)}\)", page):
            wrong.append(f"{PAGE.relative_to(common.ROOT)} does not show {path.relative_to(common.ROOT)}, or not with a text in its place")
    return wrong


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


def changed(row: dict[str, str]) -> Iterator[dict[str, str]]:
    """A row with another first digit in one of its cells, cell by cell."""
    for column, cell in row.items():
        if digit := re.search(r"\d", cell):
            yield row | {column: f"{cell[:digit.start()]}{int(digit[0]) % 9 + 1}{cell[digit.end():]}"}


def selftest() -> list[str]:
    """Pictures of speeds can be read, and deliberate mistakes in the page are found: in a row of a table, in a limit, in what a table is called."""
    page = PAGE.read_text()
    out = [*complaints(page), *(one for name in SPEEDS for one in unreadable(name, MAKERS[name](page)))]
    for name, of in SPEEDS.items():
        def rows(of=of) -> list[dict[str, str]]:
            return table_with(of.heading, of.columns, page, of.which)

        before, noticed = of.read(rows(), page, of), 0
        for i, row in enumerate(rows()):
            for other in changed(row):
                try:
                    noticed += (seen := of.read([*rows()[:i], other, *rows()[i + 1:]], page, of) != before)
                except (ValueError, KeyError, SystemExit):
                    seen = False
                if seen:
                    break
        if noticed < min(len(rows()), sum(len(panel.rows) for panel in before)):
            out.append(f"{name}: a wrong number is noticed in {noticed} rows of the table only")
        try:
            of.draw(page.replace(f"# {of.heading}\n", "# Another\n"))
            out.append(f"{name}: it is drawn without its table")
        except SystemExit:
            pass
    for right, wrong, hit in LIMITS_WRONG:
        found = complaints(page.replace(right, wrong, 1))
        if page.count(right) != 1 or len(found) != 1 or hit not in found[0]:
            out.append(f"{right!r} as {wrong!r} should be a mistake in {hit} alone: {found}")
    if not any("does not show" in one for one in complaints(page.replace("](../pictures/speed-amx.svg)", "](../pictures/speed.svg)"))):
        out.append("a picture that no page shows is not noticed")
    return out


def run(args) -> int:
    """Writes them, or says which are not as the tables say; the exit status."""
    page = PAGE.read_text()
    if args.check:
        wrong = complaints(page)
        print("\n".join([*wrong, f"pictures: {len(MAKERS)}, {len(wrong)} differ"]))
        return 1 if wrong else 0
    for name, make in MAKERS.items():
        (PICTURES / name).write_text(make(page))
    print(f"{len(MAKERS)} pictures in {PICTURES}")
    return 0
