"""The protocol of the collective among GPUs under PTX's memory model, by Dartagnan, which scripts/build_dartagnan.sh builds.

crates/xla/cuda/litmus has a program for each point of docs/explanation/cuda.md, with what must not happen in any execution. Three things are
required of each: that it cannot happen; that the execution that is meant can, so that nothing is excluded by a slip; and that it does happen
once something is taken away (an acquire, a release, a scope, a barrier, the second buffer, the wait): else the first shows nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from evidence.lib import common
from evidence.lib.checks import Checks

FOLDER = common.ROOT / "crates/xla/cuda/litmus"
# Seconds for a program: they take one to ten.
LIMIT = 300

# --- what is asked ----------------------------------------------------------------------------

# An instruction of a thread, and what stands in its place; or the condition ("exists") and another one.
Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Program:
    """A file, what must be possible in it, and what makes the impossible possible."""

    name: str
    possible: str
    controls: dict[str, list[Edit]]
    ends: bool = False
    """It is required that all threads end, whatever they see."""


def without(barrier: str, *threads: str) -> list[Edit]:
    """A barrier that is not there."""
    return [(thread, barrier, "") for thread in threads]


def weaker(thread: str, what: str, place: str) -> list[Edit]:
    """An access with another order or scope."""
    return [(thread, what, place)]


PROGRAMS = [
    Program("1_number_of_a_call", "P0:r0 == 0 /\\ P1:r0 == 3 /\\ done == 4", {
        "block 0 adds all of CALL": [("P0", "red.relaxed.gpu.add done, 3", "red.relaxed.gpu.add done, 4")],
        "additions within a block only": [("P0", "red.relaxed.gpu.add done, 3", "red.relaxed.cta.add done, 3"),
                                          ("P1", "red.relaxed.gpu.add done, 1", "red.relaxed.cta.add done, 1")],
    }),
    Program("2_operand_is_seen", "P2:r0 == 1 /\\ P3:r1 == 1", {
        "a flag without release": weaker("P1", "st.release.sys arrived, 1", "st.relaxed.sys arrived, 1"),
        "a flag for one GPU": weaker("P1", "st.release.sys arrived, 1", "st.release.gpu arrived, 1"),
        "a wait without acquire": weaker("P2", "ld.acquire.sys r0, arrived", "ld.relaxed.sys r0, arrived"),
        "a wait on one GPU": weaker("P2", "ld.acquire.sys r0, arrived", "ld.acquire.gpu r0, arrived"),
        "no barrier before the flag": without("bar.cta.sync 0", "P0", "P1"),
        "no barrier after the wait": without("bar.cta.sync 1", "P2", "P3"),
        "the flag before the barrier": [("P1", "bar.cta.sync 0", "st.release.sys arrived, 1"),
                                        ("P1", "st.release.sys arrived, 1", "bar.cta.sync 0")],
    }),
    Program("3_slot_is_not_written_while_it_is_read", "P1:r0 == 2 /\\ P2:r0 == 1 /\\ P2:r1 == 2 /\\ P0:r0 == 1", {
        "one buffer": [("P3", "st.weak even, 2", "st.weak odd, 2")],
        "no wait in call 2": [("exists", "P2:r1 >= 2", "P2:r1 >= 0")],
        "a flag of call 2 without release": weaker("P1", "st.release.sys arrived1, 2", "st.relaxed.sys arrived1, 2"),
        "a flag of call 2 for one GPU": weaker("P1", "st.release.sys arrived1, 2", "st.release.gpu arrived1, 2"),
        "a wait in call 2 without acquire": weaker("P2", "ld.acquire.sys r1, arrived1", "ld.relaxed.sys r1, arrived1"),
        "a wait in call 2 on one GPU": weaker("P2", "ld.acquire.sys r1, arrived1", "ld.acquire.gpu r1, arrived1"),
        "no barrier before the flag of call 2": without("bar.cta.sync 2", "P0", "P1"),
        "no barrier after the wait in call 2": without("bar.cta.sync 13", "P2", "P3"),
        "a flag of call 1 without release": weaker("P2", "st.release.sys arrived0, 1", "st.relaxed.sys arrived0, 1"),
    }),
    Program("3_the_grid_changes", "P2:r0 == 2 /\\ P0:r0 == 1", {
        "kernels of a stream at once": without("bar.cta.sync 9", "P0", "P1"),
    }),
    Program("4_flag_is_at_most_one_ahead", "P0:r0 == 2 /\\ P1:r0 >= 1 /\\ P1:r1 >= 2", {
        "no wait in call 2": [("exists", "P1:r1 >= 2", "P1:r1 >= 0")],
        "waits without acquire, of both": [("P0", "ld.acquire.sys r0, arrived0", "ld.relaxed.sys r0, arrived0"),
                                           ("P1", "ld.acquire.sys r1, arrived1", "ld.relaxed.sys r1, arrived1")],
        "flags without release, of both": [("P0", "st.release.sys arrived1, 2", "st.relaxed.sys arrived1, 2"),
                                           ("P1", "st.release.sys arrived0, 3", "st.relaxed.sys arrived0, 3")],
    }),
    Program("4_flag_is_not_missed", "P0:r0 == 2", {
        "a wait for that very number": [("P0", "blt r0, 1, LC00", "bne r0, 1, LC00")],
    }, ends=True),
    Program("5_poisoned_rank_does_not_push", "P0:r0 == 2 /\\ P1:r0 == 0 /\\ slot == 3 /\\ P2:r0 == 1", {
        "poison is not looked at": [("P1", "beq r0, 1, LC01", "beq r0, 7, LC01")],
        "the next kernel begins before the last has ended": without("bar.cta.sync 9", "P0", "P1"),
    }),
    Program("6_two_calls_in_flight", "P0:r0 == 0 /\\ P1:r0 == 1", {
        "exchanges within a block only": [(thread, "atom.relaxed.gpu.exch r0, started, 1", "atom.relaxed.cta.exch r0, started, 1")
                                          for thread in ("P0", "P1")],
    }),
]  # fmt: skip

# --- litmus files -----------------------------------------------------------------------------


def changed(text: str, edits: list[Edit]) -> str:
    """A program with other instructions. An edit that fits no place, or several, is an error."""
    head, rows, condition = re.fullmatch(r"(.*?\n\}\n)(.*?)(~exists\n.*)", text, re.S).groups()
    table = [[cell.strip() for cell in row.rstrip().removesuffix(";").split("|")] for row in rows.splitlines()]
    columns = {cell.split("@")[0]: index for index, cell in enumerate(table[0])}
    made = [list(row) for row in table]
    for where, old, new in edits:
        if where == "exists":
            if condition.count(old) != 1:
                raise SystemExit(f"{old!r} is {condition.count(old)} times in {condition!r}")
            condition = condition.replace(old, new)
            continue
        found = [index for index, row in enumerate(table) if row[columns[where]] == old]
        if len(found) != 1:
            raise SystemExit(f"{where} has {old!r} {len(found)} times, not once")
        made[found[0]][columns[where]] = new
    return head + "".join(" | ".join(row) + " ;\n" for row in made) + condition


# --- Dartagnan --------------------------------------------------------------------------------


class Dartagnan:
    """The checker, where the script has built it."""

    def __init__(self, source: Path):
        self.source, self.target = source, source / "dartagnan/target"
        if not (self.target / "dartagnan.jar").is_file():
            raise SystemExit(f"{self.target}/dartagnan.jar is not there: scripts/build_dartagnan.sh SOURCE, with the source of Dat3M")

    def commit(self) -> str:
        """Of its source."""
        return subprocess.run(["git", "-C", self.source, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()

    def holds(self, path: Path, ends: bool) -> bool:
        """Whether what a program says of its executions is true; with `ends`, whether all its threads end."""
        option = "--property=termination" if ends else "--property=program_spec"
        environment = os.environ | {"DAT3M_HOME": str(self.source), "DAT3M_OUTPUT": str(path.parent / "output"),
                                    "LD_LIBRARY_PATH": str(self.target / "libs")}
        command = ["java", "-jar", self.target / "dartagnan.jar", self.source / "cat/ptx-v7.5.cat", "--target=ptx", path, option, "--bound=4"]
        done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
        found = re.search(r"^Result: (PASS|FAIL)$", done.stdout, re.M)
        if not found:
            raise SystemExit(f"{path.name}: no answer, exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return found[1] == "PASS"


# --- the command ------------------------------------------------------------------------------


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="which programs, by any part of the name (all)")
    parser.add_argument("--dat3m", type=Path, default=common.TARGET / "dat3m", help="where it was built (%(default)s)")
    common.add_folder_argument(parser)


def run(args) -> int:
    """All programs and their controls."""
    files = {path.stem for path in FOLDER.glob("*.litmus")}
    if files != {program.name for program in PROGRAMS}:
        raise SystemExit(f"{FOLDER} has {', '.join(sorted(files))}, which is not what this command knows")
    dartagnan, checks = Dartagnan(args.dat3m), Checks(out=sys.stdout)
    print(f"Dartagnan of Dat3M {dartagnan.commit()}, cat/ptx-v7.5.cat")
    with common.temporary_folder(args, "litmus") as folder:

        def ask(name: str, text: str, ends: bool = False) -> bool:
            path = Path(folder, f"{name}.litmus")
            path.write_text(text)
            return dartagnan.holds(path, ends)

        for program in PROGRAMS:
            if args.names and not any(part in program.name for part in args.names):
                continue
            text = (FOLDER / f"{program.name}.litmus").read_text()
            checks.add(ask(program.name, text), f"{program.name}: does not happen")
            possible = text[: text.index("~exists")] + f"exists\n({program.possible})\n"
            checks.add(ask(program.name, possible), f"{program.name}: what is meant can happen")
            if program.ends:
                checks.add(ask(program.name, text, ends=True), f"{program.name}: all threads end")
            for control, edits in program.controls.items():
                checks.add(not ask(program.name, changed(text, edits), program.ends), f"{program.name}: fails with {control}")
    print(f"{checks.passed} of {len(checks.rows)} hold")
    return checks.status()
