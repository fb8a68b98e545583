"""`alight batch` as a process that is asked by several threads and lives from batch to batch, so that its sequences are never idle while there
are rows.

It is started again when something has ended it, and the lines that had no result are computed again. A line that ends the process by itself has
an error as its result. What always holds: each line that was given has one result, or all of them have the same exception.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from shutil import which
from typing import Any

from .. import AlightError, OptionError

Result = dict[str, Any]

PROBE = "{}"
"""A line without a prompt, which is answered with an error as soon as the model is open."""

DEATHS = 3
"""How often a line may end the process while it is the only one."""


def program() -> Path:
    """The command that has come with this package."""
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent)):
        if (path := Path(folder) / "alight").is_file():
            return path
    if found := which("alight"):
        return Path(found)
    raise AlightError("the command `alight`, which comes with this package, is not installed: `pip install alight` in this environment installs it")


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Options of a command: `{"cache_type": "q8_0", "raw": True}` are `--cache-type=q8_0 --raw`."""
    made = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            made.append(option)
        elif value is not None and value is not False:
            made.append(f"{option}={value}")
    return made


class Line:
    """A line of input, and its result."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.result: Future[Result] = Future()
        self.deaths = 0


class Run:
    """One process. `suspect` is the line that is computed alone, after a probe."""

    def __init__(self, owner: BatchCommand, lines: Sequence[Line], suspect: Line | None = None) -> None:
        self.owner, self.suspect = owner, suspect
        self.answered = 0
        self.sent: dict[int, Line] = {}
        self.queue: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(owner.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)
        for line in lines:
            self.queue.put(line)
        for work in (self._write, self._read):
            threading.Thread(target=work, name="alight-batch", daemon=True).start()

    def _write(self) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        try:
            for number in itertools.count(1):
                line = self.queue.get()
                if line is None:
                    break
                self.sent[number] = line
                stdin.write(line.text.encode() + b"\n")
                stdin.flush()
            stdin.close()
        except OSError:
            # The process has ended, which the other thread sees, too.
            pass

    def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        for bytes in stdout:
            try:
                result = json.loads(bytes)
            except ValueError:
                # The last line of a process that was killed.
                break
            line = self.sent.pop(int(result["id"].removeprefix("batch_req_")))
            self.answered += 1
            self.owner.finish(line, result)
        self.process.kill()
        self.process.wait()
        self.queue.put(None)
        stdout.close()
        self.owner.ended(self)

    def why(self) -> str:
        """How it has ended, in words."""
        self.said.seek(0)
        words = self.said.read().decode(errors="replace").strip()[-2000:]
        status = self.process.returncode
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"`alight batch` has ended with {how}" + (f": {words}" if words else "")


class BatchCommand:
    """Answers lines in the format of `alight batch`. Any thread may ask."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        for name in ("output", "force", "record"):
            if name in options:
                raise OptionError(f"option '{name}' of `alight batch` is about its file of results, and a job has none: leave it out")
        self.command = [str(program()), "batch", *arguments(options), "--unordered", "--quiet", "--", model, "-"]
        self._lock = threading.Lock()
        # Lines without a result, in the order in which they were asked for; the process; lines to be computed alone.
        self._waiting: dict[int, Line] = {}
        self._run: Run | None = None
        self._suspects: list[Line] = []
        self._idle_deaths = 0
        self._has_answered = self._closed = False
        self.answer([PROBE])

    def answer(self, lines: Sequence[str]) -> list[Result]:
        """The results of lines, in their order."""
        made = [Line(text) for text in lines]
        with self._lock:
            if self._closed:
                raise AlightError("the model has been closed")
            self._waiting.update((id(line), line) for line in made)
            if self._run is None:
                self._run = Run(self, made)
            elif self._run.suspect is None:
                for line in made:
                    self._run.queue.put(line)
        return [line.result.result() for line in made]

    def finish(self, line: Line, result: Result) -> None:
        with self._lock:
            self._has_answered = True
            if self._waiting.pop(id(line), None) is None:
                # A probe that nobody waits for.
                return
        line.result.set_result(result)

    def ended(self, run: Run) -> None:
        """Goes on after a process has ended: with all lines, or, if none of them was answered twice in a row, with one at a time."""
        failed: list[Line] = []
        with self._lock:
            why, self._run = run.why(), None
            suspect = run.suspect
            self._idle_deaths = 0 if run.answered or suspect else self._idle_deaths + 1
            if self._closed or not self._has_answered or (suspect is not None and not run.answered):
                # It does not even start: no line is to blame.
                failed, self._waiting, self._suspects = list(self._waiting.values()), {}, []
                suspect = None
            elif suspect is None and self._waiting and self._idle_deaths >= 2:
                self._suspects = list(self._waiting.values())
            guilty = None
            if suspect is not None and id(suspect) in self._waiting:
                suspect.deaths += 1
                if suspect.deaths >= DEATHS:
                    guilty = self._waiting.pop(id(suspect))
            try:
                self._go_on()
            except OSError as problem:
                why = f"{why}, and cannot be started again: {problem}"
                failed, self._waiting, self._suspects = list(self._waiting.values()), {}, []
        if guilty is not None:
            guilty.result.set_result({"error": {"code": "process_ended", "message": f"{why}, {DEATHS} times while this row alone was computed"}})
        error = OptionError if run.process.returncode == 2 else AlightError
        for line in failed:
            line.result.set_exception(error(why))

    def _go_on(self) -> None:
        """Starts the next process, if a line waits for one."""
        self._suspects = [line for line in self._suspects if id(line) in self._waiting]
        if self._suspects:
            first = self._suspects[0]
            self._run = Run(self, [Line(PROBE), first], first)
            self._run.queue.put(None)
        elif self._waiting:
            self._run = Run(self, list(self._waiting.values()))

    def close(self) -> None:
        """Ends the process. Lines without a result have an exception."""
        with self._lock:
            self._closed = True
            run = self._run
        if run is not None:
            run.process.kill()
