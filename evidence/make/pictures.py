"""Writes the pictures of docs/pictures from the tables of docs/reference/benchmarks.md, so that a picture never says another number than
its table; `--check` compares them instead, which `make test` does.

    start.svg          from the start of a process to its first token, by engine
    processes.svg      what several processes on one file take together
    roofline.svg       decoding several sequences, below what memory and the processor allow
    cp-page-cache.svg  what a copy leaves in the page cache, by tool

A number that was never measured is in no picture. load-3b.svg and experts.svg are written by `alight bench
load --svg` and `alight bench experts --svg`, page*.png by `check page --pictures`, as the pages that show them say.
"""

import re
from pathlib import Path

from evidence.lib import common
from evidence.lib.svg import Bar, Line, bars, roofline

PAGE = common.ROOT / "docs/reference/benchmarks.md"
PICTURES = common.ROOT / "docs/pictures"


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; the exit status is 1 where a picture is not what the tables say")


def plain(cell: str) -> str:
    """What stands in a cell, without emphasis and code."""
    return re.sub(r"\*\*|`", "", cell).strip()


def tables(heading: str, page: str) -> list[list[dict[str, str]]]:
    """The tables below a heading, up to the next one of any level: for each its rows, by the names of columns."""
    section = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", page, re.M | re.S)
    if not section:
        raise SystemExit(f"{PAGE}: there is no heading {heading!r}, which the pictures need: change both")
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", section[1], re.M):
        rows = [[plain(cell) for cell in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([dict(zip(rows[0], row)) for row in rows[2:]])
    return found


def rows_of(heading: str, column: str, page: str) -> dict[str, dict[str, str]]:
    """The rows of the table below a heading whose first column has this name, by what stands in it."""
    for table in tables(heading, page):
        if table and next(iter(table[0])) == column:
            return {row[column]: row for row in table}
    raise SystemExit(f"{PAGE}: below {heading!r} no table begins with the column {column!r}, which the pictures need: change both")


def number(cell: str) -> float:
    """The first number of a cell."""
    return float(re.search(r"[\d.,]*\d", cell)[0].replace(",", ""))


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


MAKERS = {"start.svg": start, "processes.svg": processes, "roofline.svg": roof, "cp-page-cache.svg": page_cache}


def run(args) -> int:
    """Writes them, or says which are not as the tables say; the exit status."""
    page, wrong = PAGE.read_text(), []
    for name, make in MAKERS.items():
        path: Path = PICTURES / name
        made = make(page)
        if not args.check:
            path.write_text(made)
        elif not path.is_file() or path.read_text() != made:
            wrong.append(f"{path.relative_to(common.ROOT)} is not what {PAGE.relative_to(common.ROOT)} says: python -m evidence make pictures")
    print("\n".join([*wrong, f"pictures: {len(MAKERS)}, {len(wrong)} differ" if args.check else f"{len(MAKERS)} pictures in {PICTURES}"]))
    return 1 if wrong else 0
