"""Runs the `rusage` of other systems here, as far as that goes, and checks how it behaves around a command.

Linux on aarch64 runs under qemu's user emulation (Debian: qemu-user-static), Windows on x86_64 under wine (Debian:
wine64, wine). The programs are those of `make cross`; `--rusage TARGET=FILE` names another. What is missing
is said, and that part is skipped; the exit status is 1 if a check failed. macOS and the BSDs cannot be run here.

Checked is flow: statuses, 126 and 127, standard streams, the report and its JSON, signals (on Linux). The numbers are
not: under an emulator they are the emulator's, and wine makes some up.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from evidence.lib import checks
from evidence.make import cross as cross_rusage

LINUX, WINDOWS = "aarch64-unknown-linux-musl", "x86_64-pc-windows-gnu"
SECONDS = 120


class Checks(checks.Checks):
    """What was checked of one program."""

    def __init__(self, start: list[str], environment: dict[str, str]):
        super().__init__(out=sys.stdout)
        self.start, self.environment = start, os.environ | environment

    def run(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess:
        """Of files, not pipes: what wine leaves in the background keeps those open. Status None: it did not end."""
        with tempfile.TemporaryFile() as into, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            into.write(given)
            into.seek(0)
            child = subprocess.Popen([*self.start, *words], stdin=into, stdout=out, stderr=err, env=self.environment)
            try:
                status = child.wait(SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                status = None
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(words, status, out.read(), err.read())

    def check(self, what: str, holds: bool, seen: object = None) -> None:
        self.add(holds, what + ("" if holds else f": {seen}"))

    def all_systems(self, shell: Callable[[str], list[str]], end: bytes, plain: str) -> None:
        """What holds everywhere. `shell` makes a command line of one for the shell, `end` ends a line."""
        for status in (0, 7):
            done = self.run(*shell(f"exit {status}"))
            self.check(f"status {status} is passed on", done.returncode == status, done)
            self.check(f"after status {status} there is a report", b"rusage: took " in done.stderr, done.stderr)
        done = self.run("no-such-program-anywhere")
        self.check("127, and said, if not found",
                   done.returncode == 127 and (b"not found" in done.stderr or self.emulated), done)
        done = self.run(plain)
        self.check("126 if it cannot be executed", done.returncode == 126, done)
        for words in (["--frob"], ["-n", "0", "x"], []):
            done = self.run(*words)
            self.check(f"125 for {words or 'nothing'}", done.returncode == 125 and b"took " not in done.stderr, done)
        done = self.run(*shell("echo out"))
        self.check("stdout is the command's alone", done.stdout == b"out" + end, done.stdout)
        done = self.run("-o", "report.txt", *shell("echo err>&2"))
        self.check("stderr is too, with -o", done.stderr.strip() == b"err", done.stderr)
        report = Path("report.txt").read_bytes() if Path("report.txt").exists() else b""
        self.check("the report is in the file then", report.startswith(b"rusage: took "), report)
        done = self.run("--json", *shell("exit 3"))
        lines = done.stderr.splitlines()
        told = self.parsed(done)
        self.check("JSON is one line and parses", len(lines) == 1 and told.get("rusage") == 1, done.stderr)
        self.check("JSON has the status", told and told["runs"][0]["exit_code"] == 3, told)
        self.check("JSON has the time", told and told["runs"][0]["wall_us"] > 0, told)
        done = self.run("--json", "-n", "3", "-w", "0", "--vs", " ".join(shell("exit")), *shell("exit"))
        told = self.parsed(done)
        self.check("runs are counted", len(told.get("runs", [])) == 3, told)
        self.check("and pairs", told and told["versus"][0]["wall_ratio"]["pairs"] == 3, told)

    @staticmethod
    def parsed(done: subprocess.CompletedProcess) -> dict:
        """The JSON of a report; nothing if there is none."""
        try:
            return json.loads(done.stderr.splitlines()[-1])
        except (IndexError, ValueError):
            return {}

    # qemu makes of vfork a fork, so that what a child cannot execute is told by its status alone.
    emulated = False


def test_linux(program: Path, qemu: str) -> Checks:
    """Linux: the commands that are run are this machine's own, or emulated where it hands them on."""
    checks = Checks([qemu, str(program)], {})
    checks.emulated = True
    plain = Path("plain")
    plain.write_text("no program\n")
    plain.chmod(0o644)
    checks.all_systems(lambda line: ["sh", "-c", line], b"\n", "./plain")
    done = checks.run("cat", given=b"a\0b")
    checks.check("stdin is the command's", done.stdout == b"a\0b", done.stdout)
    for signal in (9, 15):
        done = checks.run("sh", "-c", f"kill -{signal} $$")
        checks.check(f"signal {signal} of the command ends the wrapper", done.returncode == -signal, done)
        checks.check("and there is a report", b"rusage: took " in done.stderr, done.stderr)
    done = checks.run("--json", "sh", "-c", "kill -9 $$")
    told = checks.parsed(done).get("runs", [{}])[0]
    checks.check("JSON has the signal", told.get("signal") == 9 and told["exit_code"] is None, told)
    done = checks.run("sh", "-c", "(sleep 0.05; exit 4) & wait $!")
    checks.check("a command that forks", done.returncode == 4, done)
    done = checks.run("--tree", "sleep", "0.1")
    checks.check("--tree has a line", b"rusage: whole tree peaked at " in done.stderr, done.stderr)
    Path("cold").write_bytes(bytes(1 << 16))
    done = checks.run("--json", "--cold", "cold", "true")
    told = checks.parsed(done)
    proven = done.returncode == 0 and told and told["runs"][0]["evicted"][0]["cached_after_bytes"] == 0
    # On tmpfs nothing can be evicted.
    checks.check("--cold proves it or refuses", proven or done.returncode == 125, done)
    return checks


def test_windows(program: Path, wine: str, prefix: Path) -> Checks:
    """Windows: wine's own cmd.exe is what is run."""
    checks = Checks([wine, str(program)], {"WINEPREFIX": str(prefix), "WINEDEBUG": "-all"})
    print("(wine takes a minute the first time)", flush=True)
    for _ in range(3):
        if checks.run("--version").returncode == 0:
            break
    Path("plain.exe").write_text("no program\n")
    checks.all_systems(lambda line: ["cmd", "/c", line], b"\r\n", ".\\plain.exe")
    # (What filters standard input is an empty shell in wine; the command line itself reads it.)
    done = checks.run("cmd", given=b"exit 6\r\n")
    checks.check("stdin is the command's", done.returncode == 6, done)
    for option in (["--tree"], ["--drop-caches"], ["--cold", "plain.exe"]):
        done = checks.run(*option, "cmd", "/c", "exit")
        refused = done.returncode == 125 and option[0].encode() in done.stderr
        checks.check(f"{option[0]} is refused by name", refused, done)
    done = checks.run("--counters", "cmd", "/c", "exit 5")
    checks.check("--counters is left out, and that said",
                 done.returncode == 5 and b"--counters: only on Linux" in done.stderr, done)
    done = checks.run("cmd", "/c", "exit 0")
    checks.check("no share of page faults is told", b"without the disk" not in done.stderr, done.stderr)
    return checks


def add_arguments(parser) -> None:
    parser.add_argument("--rusage", action="append", default=[], metavar="TARGET=FILE", help="a program to run")
    parser.add_argument("--need-all", action="store_true", help="what is missing is a failure")


def run(arguments) -> int:
    given = {name: Path(path).resolve() for name, path in (one.split("=", 1) for one in arguments.rusage)}
    skipped, done = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for target, runners, package in ((LINUX, ["qemu-aarch64-static", "qemu-aarch64"], "qemu-user-static"),
                                         (WINDOWS, ["wine64", "wine"], "wine64 and wine")):
            program = given.get(target, cross_rusage.program(target))
            runner = next(filter(None, map(shutil.which, runners)), None)
            if not program.is_file() or not runner:
                why = f"{' and '.join(runners)} are missing (Debian: {package})" if program.is_file() else \
                    f"{program} is missing (python -m evidence make cross {target} builds it)"
                print(f"skipped {target}: {why}")
                skipped += 1
                continue
            print(f"{target} under {Path(runner).name}:")
            done.append(test_linux(program, runner) if target == LINUX else
                        test_windows(program, runner, cross_rusage.folder() / "wine"))
        os.chdir("/")
    failed = sum(checks.failed for checks in done) + (skipped if arguments.need_all else 0)
    print(f"rusage of other systems: {sum(checks.passed for checks in done)} checks held, {failed} did not; "
          f"{skipped} of 2 systems skipped")
    return int(failed > 0)
