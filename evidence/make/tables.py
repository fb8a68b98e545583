"""Writes the tables of the documentation from the measured figures of evidence/results/*.jsonl; `--check` compares instead, which
`make test` does.

`--check` fails as well where a line of the results cannot be read, where its commit is not in the history, where its figures are not in
the page that it names as their source, where no table and no picture shows a set, and where a page has more words or longer cells than
it may have. Figures that are too old are printed; they fail with `--fresh` alone, so that no commit fails because time passes.

    evidence/lib/results.py    what a line has, and how old it may be
    evidence/lib/tables.py     which table is on which page, and what its columns are
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta

from evidence.lib import common, results, tables
from evidence.lib.results import History
from evidence.make import pictures

Lines = list[tuple[str, str]]


def add_arguments(parser) -> None:
    parser.add_argument("--fresh", action="store_true", help="with --check: the exit status is 1 where a result is too old as well")
    parser.add_argument("--check", action="store_true", help="write nothing; the exit status is 1 where a table is not what the results say, or a result cannot be relied on")


def complaints(lines: Lines, pages: dict[str, str], history: History | None) -> list[str]:
    """What is wrong with the results, and then with the pages."""
    used = tables.used()
    if wrong := results.problems(lines, history):
        return wrong
    found = results.read(lines)
    out = [f"evidence/results: no table and no picture shows the set {name!r}" for name in sorted({one.set for one in found} - set(used) - pictures.SETS)]
    for page, text in pages.items():
        try:
            if tables.filled(page, text, found) != text:
                out.append(f"{page}: a table is not what evidence/results says: python -m evidence make tables")
        except SystemExit as error:
            out.append(str(error))
        out += tables.long(page, text)
    return out


def old(lines: Lines, history: History | None) -> list[str]:
    """Results that are to be measured again."""
    return results.outdated(lines, history, {name for name, shown in tables.used().items() if tables.README in shown})


def edited(change: Callable[[dict], object], which: str = "zen4") -> Callable[[Lines], Lines]:
    """Lines of which the first one of a set is changed."""
    def edit(lines: Lines) -> Lines:
        at = next(i for i, (_, line) in enumerate(lines) if json.loads(line)["set"] == which)
        found = json.loads(lines[at][1])
        change(found)
        return [*lines[:at], (lines[at][0], json.dumps(found)), *lines[at + 1:]]
    return edit


def selftest() -> list[str]:
    """Deliberate mistakes in the results, in the pages and in the history, each of which has to be found, and nothing else beside it."""
    lines, pages = list(results.lines()), {page: path.read_text() for page, path in tables.pages().items()}
    history = History.here()
    out = complaints(lines, pages, history)
    benchmarks = pages[tables.BENCHMARKS]
    in_results = [
        ("another figure", edited(lambda found: found["figures"]["alight, packed"].update(values=[987_654])), "is not in" if history else "is not what"),
        ("another commit", edited(lambda found: found.update(commit="0123456789")), "is not in the history" if history else "is not what"),
        ("no machine", edited(lambda found: found.pop("machine")), "without machine"),
        ("another unit", edited(lambda found: found["figures"]["alight, packed"].update(unit="bananas")), "has the unit"),
        ("no version of a peer", edited(lambda found: found.pop("peers")), "a peer, whose version"),
        ("a figure without a number", edited(lambda found: found["figures"]["alight, packed"].update(values=[], least=None, most=None)), "no number"),
        ("a second line of a case", lambda lines: [*lines, lines[0]], "a second line"),
        ("no JSON", lambda lines: [*lines, ("x.jsonl:1", "{")], "not JSON"),
        ("a set that nothing shows", edited(lambda found: found.update(set="lost"), "drafts"), "the set 'lost'"),
    ]
    for name, edit, expected in in_results:
        found = complaints(edit(lines), pages, history)
        if not found or expected not in found[0]:
            out.append(f"results with {name}: expected {expected!r}, found {found[:2]}")
    in_pages = [
        ("another number in a table", benchmarks.replace("| 242 |", "| 243 |"), "a table is not what"),
        ("a table that is not there", benchmarks.replace("<!--results:zen4-->", ""), "has to be there once"),
        ("a table that is not known", benchmarks.replace("<!--results:zen4-->", "<!--results:zen5-->"), "no table of this page"),
        ("too many words", f"{benchmarks}\n{'word ' * tables.MAX_WORDS[tables.BENCHMARKS]}\n", "words, and at most"),
        ("a long cell", f"{benchmarks}\n| {'x' * 201} |\n", "a cell of"),
    ]
    for name, text, expected in in_pages:
        found = complaints(lines, pages | {tables.BENCHMARKS: text}, history)
        if len(found) != 1 or expected not in found[0]:
            out.append(f"a page with {name}: expected {expected!r}, found {found[:2]}")
    if history:
        for days, some in ((results.MAX_DAYS_README + 1, True), (results.MAX_DAYS + 1, False)):
            later = replace(history, commits={"f" * 40: history.newest() + timedelta(days=days), **history.commits})
            found = old(lines, later)
            if not found or (some and any("of the README" not in one for one in found)):
                out.append(f"a history of {days} days more: {found[:2]}")
        if history.find("f" * 6) or History({"ab" * 20: date(2026, 1, 1)}).find("ab" * 4) != date(2026, 1, 1):
            out.append("a commit is not found by its first digits")
    return out


def run(args) -> int:
    """Writes them, or says what is wrong; the exit status."""
    lines, pages, history = list(results.lines()), {page: path.read_text() for page, path in tables.pages().items()}, History.here()
    if not args.check:
        found = results.read(lines)
        for page, text in pages.items():
            (common.ROOT / page).write_text(tables.filled(page, text, found))
        print(f"{len(tables.TABLES)} tables in {len(pages)} pages")
        return 0
    wrong = complaints(lines, pages, history)
    aged = [] if wrong else old(lines, history)
    if args.fresh:
        wrong += aged
        aged = []
    unknown = "" if history else "; commits and sources were not looked up, since this is no clone with its history"
    print("\n".join([*wrong, *aged, f"tables: {len(tables.TABLES)} from {len(lines)} lines, {len(wrong)} problems, {len(aged)} to be measured again{unknown}"]))
    return 1 if wrong else 0
