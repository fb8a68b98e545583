"""Tables of docs/reference/benchmarks.md, as pictures read them: by headings and by names of columns, and cells as numbers.

What is not found ends the program with a sentence that says so, since then the page and what reads it have come apart.
"""

import re
from statistics import mean

from evidence.lib import common

PAGE = common.ROOT / "docs/reference/benchmarks.md"


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


def table_with(heading: str, columns: tuple[str, ...], page: str, which: int = 0) -> list[dict[str, str]]:
    """The rows of a table below a heading that has all these columns; `which`, if several have them. A first cell that is empty is that of
    the row above it."""
    found = [table for table in tables(heading, page) if table and set(columns) <= set(table[0])]
    if which >= len(found):
        raise SystemExit(f"{PAGE}: below {heading!r} are {len(found)} tables with the columns {columns}, and the pictures need {which + 1}: change both")
    first, name = next(iter(found[which][0])), ""
    for row in found[which]:
        name = row[first] = row[first] or name
    return found[which]


def number(cell: str) -> float:
    """The first number of a cell."""
    return float(re.search(r"[\d.,]*\d", cell)[0].replace(",", ""))


def figures(cell: str) -> list[float]:
    """The numbers of a cell, without what is in brackets: `942, 851 [2]` of two rounds, of a range the middle."""
    bare = re.sub(r"\(.*?\)|\[.*?\]", "", cell)
    return [mean(float(end) for end in re.findall(r"[\d.]*\d", one)) for one in bare.split(", ") if re.search(r"\d", one)]
