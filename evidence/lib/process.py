"""Other programs as processes: run to their end, up to their first byte, or stopped in the middle of an answer."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

MIB = 2**20


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run(command, timeout: float | None = None, stderr: int = subprocess.PIPE, **more) -> subprocess.CompletedProcess:
    """Runs a command to its end; what it printed, as text."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=timeout, **more)


def output(command, timeout: float | None = None, **more) -> str:
    """Standard output of a command that succeeds; the program ends if it does not."""
    done = run(command, timeout, **more)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(done.args)}: exit status {done.returncode}\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stdout


def told(command, timeout: float | None = None, **more):
    """The JSON document that a command prints."""
    return json.loads(output(command, timeout, **more))


RESULT = "RESULT "
"""Before each document of a process whose libraries print lines of their own."""


def tell_result(document) -> None:
    """Prints a document for `results`."""
    print(RESULT + json.dumps(document), flush=True)


def results(text: str) -> list:
    """The documents of `tell_result` among what a process has printed."""
    return [json.loads(line.removeprefix(RESULT)) for line in text.splitlines() if line.startswith(RESULT)]


def account(pid: int) -> dict:
    """What the kernel has counted of a process that has ended and is not buried yet."""
    io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return {"read_mib": int(io["read_bytes"]) / MIB, "minor_faults": int(stat[7]), "major_faults": int(stat[9])}


def answer(command, timeout: float, env: dict | None = None) -> dict:
    """Runs a command to its end. Milliseconds from before the process is made to the first byte on its standard output and
    to its end; its peak in MiB; where the system has it, the kernel's account of it."""
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter_ns()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=env)
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        first = os.read(process.stdout.fileno(), 1)
        seen = time.perf_counter_ns()
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        end = time.perf_counter_ns()
        timer.cancel()
        out = {"first_token_ms": (seen - start) / 1e6, "process_ms": (end - start) / 1e6}
        with contextlib.suppress(OSError):
            out |= account(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.stdout.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0 or not first:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}, {'some' if first else 'no'} output, after "
                             f"{(end - start) / 1e9:.1f} s\n{said.read().decode(errors='replace')[-2000:]}")
    return out | {"peak_rss_mib": usage.ru_maxrss / 1024}


class Answering:
    """A process that answers, stopped after it has written `count` bytes of its answer."""

    def __init__(self, command, count: int, timeout: float):
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        fd, seen, end = self.process.stdout.fileno(), 0, time.monotonic() + timeout
        while seen < count:
            if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                self.__exit__()
                raise SystemExit(f"{command[0]}: {seen} bytes after {timeout} s")
            got = os.read(fd, 4096)
            if not got:
                raise SystemExit(f"{command[0]}: ended after {seen} bytes, exit status {self.process.wait()}")
            seen += len(got)
        self.process.send_signal(signal.SIGSTOP)
        # Stopped only when the kernel says so.
        while Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()

    def memory(self, model: Path) -> dict:
        """MiB, by /proc/PID/smaps_rollup; `model_rss` and `model_pss` of the pages of the model file."""
        out = {}
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("Rss", "Pss", "Pss_Anon", "Pss_File", "Anonymous"):
                out[key.lower()] = int(value.split()[0]) / 1024
        out["model_rss"] = out["model_pss"] = 0.0
        inside = False
        for line in Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            fields = line.split()
            if not fields[0].endswith(":"):
                inside = line.endswith(str(model))
            elif inside and fields[0] in ("Rss:", "Pss:"):
                out["model_" + fields[0][:-1].lower()] += int(fields[1]) / 1024
        return out
