"""`python -m evidence test`: runs the steps of `make test`, or with `--all` of `make test-all`, side by side.

A step begins when those that it names have passed, as soon as a lane is free; there is a lane for each core, and at least two. Its output is in
`target/proof/NAME.log`, and is printed if it fails. What fails does not stop the others: the last lines say all that is wrong.

A step that has passed before with the same inputs is not run again: the programs that it runs, the files of the repository that it may read, the
models, and its command are hashed. `--again` runs it all the same. Everything that decides a result is an input, so the answer is the same; a new
clone has nothing to go by, and runs everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from evidence.lib import common

FOLDER = common.TARGET / "proof"
PASSED = FOLDER / "passed.json"
# Lines in which test programs count: cargo's, pytest's, and our own.
COUNTS = re.compile(rb"test result: \w+\. (\d+) passed|^(\d+) passed.* in [\d.:]+|^\w+: (\d+) (?:checks )?passed, 0 failed", re.M)


@dataclass
class Step:
    """Something that has to pass."""

    name: str
    line: list[str]
    after: tuple[str, ...] = ()
    """Steps that have to pass before."""
    inputs: Callable[[], str | None] = lambda: None
    """A hash of all that decides its result; `None` if it has to run each time."""
    env: dict[str, str] = field(default_factory=dict)
    then: Callable[[str], list[Step]] = lambda _: []
    """The steps that follow from its output."""
    heavy: bool = False
    """Whether it computes with as many threads as there are cores: one such step runs at a time, since threads that wait for each other lose much
    where there are more of them than cores."""
    seconds: float = 0.0
    """About how long it takes, with what waits for it, if that is known: what takes longest begins first."""


@dataclass
class Result:
    step: Step
    status: int
    seconds: float
    count: int
    cached: bool = False
    cpu: float = 0.0
    """Processor time of the step and of all that it has started and waited for."""


class Runner:
    """Runs steps, and keeps what has passed."""

    def __init__(self, steps: list[Step], again: bool, lanes: int):
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.waiting, self.again, self.lanes = list(steps), again, lanes
        self.running: dict[str, subprocess.Popen | None] = {}
        self.heavy: dict[str, bool] = {}
        self.results: dict[str, Result] = {}
        self.known: dict[str, dict] = json.loads(PASSED.read_text()) if PASSED.is_file() else {}
        self.changed, self.stopped = threading.Condition(), False

    def run(self) -> bool:
        """Whether all have passed."""
        began = time.monotonic()
        threads = [threading.Thread(target=self.lane, daemon=True) for _ in range(self.lanes)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            PASSED.write_text(json.dumps(self.known, indent=1))
        return self.summary(time.monotonic() - began)

    def stop(self) -> None:
        """Ends what runs, with all that it has started."""
        with self.changed:
            self.stopped = True
            for child in self.running.values():
                if child is not None:
                    with suppressed():
                        os.killpg(child.pid, signal.SIGTERM)
            self.changed.notify_all()

    def next(self) -> Step | None:
        """The next step that can begin; `None`: there will be none."""
        with self.changed:
            while not self.stopped:
                while step := next((step for step in self.waiting if any(self.has_failed(name) for name in step.after)), None):
                    self.waiting.remove(step)
                    self.results[step.name] = Result(step, -1, 0.0, 0)
                    say(f"{'':9}  {'':13}  left out  {step.name}: it needs {', '.join(n for n in step.after if self.has_failed(n))}")
                busy = any(self.heavy.get(name) for name in self.running)
                ready = [step for step in self.waiting if all(name in self.results for name in step.after) and not (busy and step.heavy)]
                if ready:
                    step = max(ready, key=self.expected)
                    self.waiting.remove(step)
                    self.running[step.name], self.heavy[step.name] = None, step.heavy
                    return step
                if not self.running and not self.waiting:
                    return None
                if not self.running:
                    raise SystemExit(f"these wait for each other: {', '.join(step.name for step in self.waiting)}")
                self.changed.wait()
        return None

    def has_failed(self, name: str) -> bool:
        return name in self.results and self.results[name].status != 0

    def expected(self, step: Step) -> float:
        """Seconds, from last time."""
        return step.seconds or self.known.get(step.name, {}).get("seconds", 0.0)

    def lane(self) -> None:
        while step := self.next():
            try:
                result = self.do(step)
            except BaseException as error:  # A mistake of this file: the others go on, and it is a failure.
                say(f"{step.name}: {error!r}")
                result = Result(step, 1, 0.0, 0)
            with self.changed:
                del self.running[step.name]
                self.results[step.name] = result
                if result.status == 0 and not result.cached:
                    self.waiting += step.then((FOLDER / f"{file_name(step)}.log").read_text(errors="replace"))
                self.changed.notify_all()

    def do(self, step: Step) -> Result:
        """Runs a step, unless it has passed before."""
        digest = step.inputs()
        before = self.known.get(step.name, {})
        if digest and not self.again and before.get("inputs") == digest:
            say(f"{'':9}  {'':13}  as before {step.name}")
            return Result(step, 0, 0.0, before["count"], cached=True)
        log = FOLDER / f"{file_name(step)}.log"
        began = time.monotonic()
        with log.open("wb") as out:
            child = subprocess.Popen(step.line, cwd=common.ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     env=os.environ | step.env, start_new_session=True)
            with self.changed:
                self.running[step.name] = child
            _, ended, usage = os.wait4(child.pid, 0)
            status = child.returncode = os.waitstatus_to_exitcode(ended)
        cpu = usage.ru_utime + usage.ru_stime
        seconds, said = time.monotonic() - began, log.read_bytes()
        count = sum(int(next(filter(None, groups))) for groups in COUNTS.findall(said)) or 1
        with self.changed:
            if status == 0:
                self.known[step.name] = {"inputs": digest, "seconds": round(seconds, 1), "count": count}
            else:
                self.known.get(step.name, {}).pop("inputs", None)
        if status == 0:
            tests = f", {count} tests" if count > 1 else ""
            say(f"{seconds:7.1f} s  {cpu:7.1f} s CPU  passed    {step.name}{tests}")
        elif not self.stopped:
            say(f"{seconds:7.1f} s  {cpu:7.1f} s CPU  FAILED    {step.name}, exit status {status}: {' '.join(step.line)}\n"
                + tail(said.decode(errors="replace")) + f"\n--- all of it: {log}")
        return Result(step, status, seconds, count, cpu=cpu)

    def summary(self, seconds: float) -> bool:
        """Says what took longest, and what has failed. The last line is one that other programs count by."""
        done = list(self.results.values())
        slow = sorted((r for r in done if r.seconds >= 1), key=lambda r: -r.seconds)[:12]
        say(f"\n{seconds:.0f} s altogether, {sum(r.cpu for r in done):.0f} s of processor time; longest: " + ", ".join(f"{r.step.name} {r.seconds:.0f}" for r in slow))
        cached = sum(r.cached for r in done)
        if cached:
            say(f"{cached} of {len(done)} steps have passed before with the same inputs; --again (make ... AGAIN=1) runs them again")
        failed = [r.step.name for r in done if r.status != 0]
        if failed:
            say("failed or left out: " + ", ".join(failed))
        say(f"{sum(r.count for r in done if r.status == 0)} passed, {len(failed)} failed")
        return not failed


class suppressed:
    """A process that has ended meanwhile is no error."""

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        return kind is not None and issubclass(kind, (ProcessLookupError, PermissionError))


def file_name(step: Step) -> str:
    return re.sub(r"\W+", "-", step.name)


def say(text: str) -> None:
    print(text, flush=True)


def tail(text: str, lines: int = 200) -> str:
    """The end of it, where what went wrong is."""
    found = [line for line in text.rstrip().splitlines() if not line.startswith('{"reason":')]  # cargo's messages for programs
    left_out = [f"... {len(found) - lines} lines before"] if len(found) > lines else []
    return "\n".join(left_out + found[-lines:])


class Inputs:
    """Hashes of what a result can depend on. Files are read once."""

    def __init__(self):
        self.hashes: dict[tuple, str] = {}
        self.lock = threading.Lock()

    def file(self, path: Path) -> str:
        """Of a file's bytes; of a model, which is large and does not change under its name, of its size and time."""
        try:
            stat = path.stat()
        except OSError:
            return "missing"
        key = (str(path), stat.st_size, stat.st_mtime_ns)
        with self.lock:
            if key not in self.hashes:
                with path.open("rb") as file:
                    self.hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
            return self.hashes[key]

    def repository(self, chosen: Callable[[str], bool]) -> str | None:
        """Of the files that git tracks or would track, as far as they are chosen; `None` without git."""
        listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=common.ROOT, capture_output=True)
        if listed.returncode != 0:
            return None
        names = sorted(name for name in listed.stdout.decode(errors="surrogateescape").split("\0") if name and chosen(name))
        return digest(*(f"{name} {self.file(common.ROOT / name)}" for name in names))

    def models(self) -> str:
        """Of the real models."""
        found = sorted(common.models_folder().glob("*")) if common.models_folder().is_dir() else []
        return digest(*(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in found))


def digest(*parts: str | None) -> str:
    return hashlib.sha256("\0".join(str(part) for part in parts).encode(errors="surrogateescape")).hexdigest()


def main(steps: Callable[..., list[Step]], argv: list[str]) -> int:
    """Runs what the arguments ask for; the exit status."""
    import argparse

    parser = argparse.ArgumentParser("python -m evidence test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all steps of `make test-all`")
    parser.add_argument("--again", action="store_true", help="also what has passed before with the same inputs")
    parser.add_argument("--only", nargs="+", metavar="PART", help="only steps whose name has one of these in it, and those that they need")
    parser.add_argument("--list", action="store_true", help="the steps, and what they need; nothing is run")
    parser.add_argument("--lanes", type=int, default=max(2, os.cpu_count() or 2) + 1, help="steps at a time (default: %(default)s)")
    args = parser.parse_args(argv)
    chosen = needed(steps(args.all, args.only), args.only)
    if args.list:
        for step in chosen:
            after = f" (after {', '.join(step.after)})" if step.after else ""
            say(f"{step.name}: {' '.join(step.line)}{after}")
        return 0
    for name in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) != signal.SIG_IGN:
            signal.signal(name, interrupted)
    try:
        return 0 if Runner(chosen, args.again, args.lanes).run() else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def interrupted(*_) -> None:
    raise KeyboardInterrupt


def needed(steps: list[Step], only: list[str] | None) -> list[Step]:
    """The steps that are asked for, and what they need."""
    if not only:
        return steps
    by_name = {step.name: step for step in steps}
    found: dict[str, Step] = {}

    def take(step: Step) -> None:
        if step.name not in found:
            for name in step.after:
                take(by_name[name])
            found[step.name] = step

    for step in steps:
        if any(part in step.name for part in only):
            take(step)
    return list(found.values())
