"""Measured figures: the lines of evidence/results/*.jsonl, from which the tables and pictures of the documentation are made.

A line is one JSON object, for one case of a set:

    set, case    which table it belongs to, and the row's name there
    date         when it was measured
    commit       the version that was measured; where it is not known, the one that first recorded the figures
    machine, command
    peers        the other programs in the figures, and their versions; left out where there are none
    note         rounds, and what else a reader has to know
    figures      by name: `values` (a median, or one of each round, or of what `of` names), `least` and `most`, and the `unit`
    source       where the figures are from: COMMIT:PAGE#HEADING, or a file of the repository

Only the latest figures of a set are kept; git has the earlier ones.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from evidence.check import docs
from evidence.lib import common

FOLDER = common.ROOT / "evidence/results"
REQUIRED = ("set", "case", "date", "commit", "machine", "command", "figures", "source")
OPTIONAL = ("peers", "note")
UNITS = {"tokens/s", "times", "ms", "s", "µs", "MiB", "MB", "GB", "MB/s", "GB/s", "%", "faults", "nats", "million weights/s", "requests", "texts/s"}
# How many days older than the newest commit the commit of a figure may be: in the README, and elsewhere.
MAX_DAYS_README, MAX_DAYS = 30, 120


@dataclass(frozen=True)
class Figure:
    """Numbers with a unit: `values`, the ends of their spread, and what each value is of."""

    values: tuple[float, ...]
    unit: str
    least: float | None = None
    most: float | None = None
    of: tuple[str, ...] = ()

    @classmethod
    def read(cls, found: dict) -> "Figure":
        return cls(tuple(found.get("values", ())), found["unit"], found.get("least"), found.get("most"), tuple(found.get("of", ())))

    def numbers(self) -> list[float]:
        return [*self.values, *(end for end in (self.least, self.most) if end is not None)]

    def middle(self) -> float:
        """One number: the mean of the values, or of the ends of a range."""
        chosen = self.values or self.numbers()
        return sum(chosen) / len(chosen)


@dataclass(frozen=True)
class Result:
    """A line."""

    set: str
    case: str
    date: str
    commit: str
    machine: str
    command: str
    figures: dict[str, Figure]
    source: str
    peers: dict[str, str]
    note: str = ""


@dataclass(frozen=True)
class History:
    """The commits that lead to the one that is checked out, with their dates: full hashes, the newest first."""

    commits: dict[str, date]

    @classmethod
    def here(cls) -> "History | None":
        """`None` where the repository is not a clone with its history, so that no commit can be looked up."""
        if git("rev-parse", "--is-shallow-repository") != "false\n":
            return None
        lines = [line.split() for line in (git("log", "--format=%H %cs") or "").splitlines()]
        return cls({commit: date.fromisoformat(day) for commit, day in lines})

    def find(self, short: str) -> date | None:
        """The date of a commit, of which at least seven digits are given."""
        found = [day for commit, day in self.commits.items() if commit.startswith(short)]
        return found[0] if len(found) == 1 and len(short) >= 7 else None

    def newest(self) -> date:
        return max(self.commits.values())


def git(*command: str) -> str | None:
    """What git prints; `None` if it fails, or is not installed."""
    try:
        done = subprocess.run(["git", *command], cwd=common.ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def measured_commit() -> str:
    """The version that a measurement is of; ends the program where the sources are not those of a commit."""
    commit = git("rev-parse", "--short=8", "HEAD")
    if commit is None or git("status", "--porcelain", "--", "crates", "Cargo.lock"):
        raise SystemExit("results name the version that was measured: commit what has changed in crates/ first")
    return commit.strip()


def kept(before: list[str], new: list[dict]) -> list[str]:
    """The lines of a file with new ones, each in the place of the one with its set and case, or after the last of its set."""
    out = list(before)
    for one in new:
        keys = [(found["set"], found["case"]) for found in map(json.loads, out)]
        at = [i for i, key in enumerate(keys) if key == (one["set"], one["case"])]
        last = [i + 1 for i, key in enumerate(keys) if key[0] == one["set"]]
        begin, end = (at[0], at[0] + 1) if at else (last[-1], last[-1]) if last else (len(out), len(out))
        out[begin:end] = [json.dumps(one, ensure_ascii=False)]
    return out


def record(name: str, new: list[dict]) -> None:
    """Puts lines into the file of this name."""
    path = FOLDER / f"{name}.jsonl"
    before = path.read_text().splitlines() if path.is_file() else []
    path.write_text("".join(f"{line}\n" for line in kept(before, new)))


def lines(folder: Path = FOLDER) -> Iterator[tuple[str, str]]:
    """Every line of the results, with where it is."""
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield f"{path.name}:{number}", line


def read(text: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> list[Result]:
    """The results of lines that `problems` finds nothing wrong with."""
    return [Result(**{"peers": {}} | found | {"figures": {name: Figure.read(one) for name, one in found["figures"].items()}})
            for found in (json.loads(line) for _, line in text)]


def of_set(results: list[Result], name: str) -> list[Result]:
    """The lines of a set, in their order; ends the program if there are none."""
    if found := [one for one in results if one.set == name]:
        return found
    raise SystemExit(f"{FOLDER}: no line has the set {name!r}, which a table or a picture needs: change both")


def of_case(results: list[Result], name: str, case: str) -> Result:
    for one in of_set(results, name):
        if one.case == case:
            return one
    raise SystemExit(f"{FOLDER}: no line of the set {name!r} has the case {case!r}, which a table or a picture needs: change both")


def wrong_shape(found: object) -> str | None:
    """What is wrong with a line by itself."""
    if not isinstance(found, dict):
        return "a line is one JSON object"
    if missing := [name for name in REQUIRED if not found.get(name)]:
        return f"without {', '.join(missing)}"
    if unknown := set(found) - {*REQUIRED, *OPTIONAL}:
        return f"unknown: {', '.join(sorted(unknown))}"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]):
        return f"the date {found['date']!r} is not YYYY-MM-DD"
    for name, one in found["figures"].items():
        figure = Figure.read(one) if isinstance(one, dict) and "unit" in one else None
        if figure is None or not figure.numbers() or not all(isinstance(number, (int, float)) for number in figure.numbers()):
            return f"the figure {name!r} has no number, or no unit"
        if figure.unit not in UNITS:
            return f"the figure {name!r} has the unit {figure.unit!r}, expected one of {', '.join(sorted(UNITS))}"
        if figure.of and len(figure.of) != len(figure.values):
            return f"the figure {name!r} has {len(figure.values)} values of {len(figure.of)} things"
        if figure.least is not None and figure.most is not None and figure.least > figure.most:
            return f"the least of {name!r} is more than its most"
    peers = found.get("peers", {})
    if any(word in name for name in found["figures"] for word in ("llama.cpp", "llama-server")) and not any("llama" in peer for peer in peers):
        return "figures of a peer, whose version is not in `peers`"
    return None


@cache
def section(source: str) -> frozenset[float] | None:
    """The numbers below the heading that a source of the form COMMIT:PAGE#HEADING names; `None` if there is none."""
    commit, page, heading = re.fullmatch(r"(\w+):([\w./-]+)#(.+)", source).groups()
    text, inside, found = git("show", f"{commit}:{page}") or "", False, []
    for line in text.splitlines():
        if line.startswith("#"):
            inside = heading in docs.anchors(line)
        if inside:
            found.append(line)
    numbers = re.findall(r"\d[\d,]*\.?\d*", "\n".join(found))
    return frozenset(float(number.replace(",", "").rstrip(".")) for number in numbers) if found else None


def untraceable(found: dict) -> str | None:
    """Figures that are not in the page that a line names as their source."""
    source = found["source"]
    if not re.fullmatch(r"\w+:[\w./-]+#.+", source):
        return None if (common.ROOT / source).exists() else f"the source {source!r} is neither COMMIT:PAGE#HEADING nor a file"
    numbers = section(source)
    if numbers is None:
        return f"the source {source!r} is not there: no such commit, page or heading"
    for name, one in found["figures"].items():
        if absent := [number for number in Figure.read(one).numbers() if float(number) not in numbers]:
            return f"{name!r}: {absent[0]:g} is not in {source}"
    return None


def outdated(text: list[tuple[str, str]], history: History | None, in_readme: set[str]) -> list[str]:
    """Results that are to be measured again. `in_readme`: the sets whose figures the README shows."""
    out = []
    for where, found in ((where, json.loads(line)) for where, line in text):
        limit = MAX_DAYS_README if found["set"] in in_readme else MAX_DAYS
        days = (history.newest() - history.find(found["commit"])).days if history else 0
        if days > limit:
            out.append(f"{where}: the commit {found['commit']} is {days} days older than the newest one, and figures"
                       f" {'of the README ' if limit == MAX_DAYS_README else ''}are kept for {limit} days: measure again ({found['command']}), or take the line away")
    return out


def problems(text: list[tuple[str, str]], history: History | None) -> list[str]:
    """What is wrong with the results."""
    out, seen = [], set()
    for where, line in text:
        try:
            found = json.loads(line)
        except ValueError as error:
            out.append(f"{where}: not JSON: {error}")
            continue
        if wrong := wrong_shape(found):
            out.append(f"{where}: {wrong}")
            continue
        key = found["set"], found["case"]
        if key in seen:
            out.append(f"{where}: a second line of the set {key[0]!r} with the case {key[1]!r}; only the latest is kept")
        seen.add(key)
        if history is None:
            continue
        if history.find(found["commit"]) is None:
            out.append(f"{where}: the commit {found['commit']} is not in the history of this one: name the version that was measured")
        if wrong := untraceable(found):
            out.append(f"{where}: {wrong}")
    return out
