"""Files in the page cache: what is there, what a process brings in, how it gets out; and files on the disk."""

import contextlib
import ctypes
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from evidence.lib import common

MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")
GROUPS = Path("/sys/fs/cgroup/memory")


def cached_pages(path: Path) -> int:
    """By cachestat(2), which is number 451 everywhere but on Alpha; not on overlayfs, where it always says 0."""
    with path.open("rb") as file:
        return _cachestat(file.fileno())


def _cachestat(fd: int, missing_is_zero: bool = False) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    asked, told = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    if libc.syscall(451, fd, asked, told, 0) != 0 and not missing_is_zero:
        raise SystemExit(f"cachestat: {os.strerror(ctypes.get_errno())} (it needs Linux 6.5 and the file's owner)")
    return told[0]


def mib(path) -> float:
    return cached_pages(Path(path)) * PAGE / MIB


def make_cold(path: Path) -> int:
    """Pages that stayed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        for pause in (0, 0.001, 0.01, 0.05, 0.2):
            time.sleep(pause)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            left = cached_pages(path)
            if left == 0:
                break
    return left


def make_warm(path: Path) -> int:
    """Pages that are missing."""
    pages = -(-path.stat().st_size // PAGE)
    if cached_pages(path) < pages:
        common.warm(path)
    return pages - cached_pages(path)


def evict(path) -> None:
    if left := make_cold(Path(path)):
        raise SystemExit(f"{path}: {left} pages stay in the page cache")


def make_durable(*paths) -> None:
    """On the disk when this returns, which costs nothing where it was before."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def make_file(path, mib) -> None:
    """Random bytes (the same again in every 64 MiB) on the disk, and none of them in the page cache."""
    block = os.urandom(min(64, mib) * MIB)
    with path.open("wb", buffering=0) as file:
        for at in range(0, mib, 64):
            file.write(block[:(mib - at) * MIB])
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    evict(path)


class Watch(threading.Thread):
    """Looks at a process every few milliseconds, from its start to `stop`."""

    every = 0.004

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.looks, self.over = pid, 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(self.every):
            self.look()

    def stop(self) -> None:
        self.over.set()
        self.join()

    def children(self) -> list[str]:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return []


class Sampler(Watch):
    """The peak of what is cached of the regular files that a process and its children have open, on one file system."""

    def __init__(self, pid: int, device: int):
        self.device, self.peak, self.files = device, 0, {}
        super().__init__(pid)

    def look(self) -> None:
        for pid in [self.pid, *self.children()]:
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    name = f"/proc/{pid}/fd/{fd}"
                    with contextlib.suppress(OSError):
                        about = os.stat(name)
                        if about.st_dev == self.device and about.st_mode & 0o170000 == 0o100000 and about.st_ino not in self.files:
                            self.files[about.st_ino] = os.open(name, os.O_RDONLY)
        self.peak = max(self.peak, sum(_cachestat(fd, missing_is_zero=True) for fd in self.files.values()))
        self.looks += 1

    def stop(self) -> None:
        super().stop()
        for fd in self.files.values():
            os.close(fd)

    def peak_mib(self) -> float:
        if len(self.files) < 2:
            raise SystemExit(f"of source and copy, {len(self.files)} were seen open in {self.looks} looks: the peak is not known")
        return self.peak * PAGE / MIB


class Resident(Watch):
    """The most of memory that the child of a process has, in KiB: at any time (VmHWM), and of each kind as seen."""

    every = 0.005

    def __init__(self, pid: int, program: str):
        self.program, self.peak = program, {"VmHWM": 0, "RssAnon": 0, "RssFile": 0, "RssShmem": 0}
        super().__init__(pid)

    def look(self) -> None:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{[*self.children(), self.pid][0]}/status").read_text()
            if self.program in text.split("\n", 1)[0]:
                self.looks += 1
                for name, value in re.findall(r"^(Rss\w+|VmHWM):\s+(\d+)", text, re.M):
                    self.peak[name] = max(self.peak[name], int(value))


def to_disk(line, results: Callable[[], list[Path]], watch: Callable[[int], Watch] | None = None, group: Path | None = None) -> dict:
    """Runs a tool that makes files: seconds from before it starts until it ends, and until the files are on the disk. With
    `group`, it runs in that control group; `watch` makes what looks at it."""
    line = [str(word) for word in line]
    into = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    with tempfile.TemporaryFile() as said_to:
        start = time.perf_counter()
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=said_to, preexec_fn=into)
        watching = watch(process.pid) if watch else None
        _, status, usage = os.wait4(process.pid, 0)
        ended, process.returncode = time.perf_counter(), os.waitstatus_to_exitcode(status)
        said_to.seek(0)
        said = said_to.read().decode(errors="replace")
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(line)}: {process.returncode}: {said[-1000:]}")
    files = results()
    make_durable(*files, *{file.parent for file in files})
    durable = time.perf_counter()
    if watching:
        watching.stop()
    return {"tool_s": ended - start, "durable_s": durable - start, "cpu_s": usage.ru_utime + usage.ru_stime, "said": said,
            "bytes": sum(file.stat().st_size for file in files), "left_result_mib": sum(map(mib, files))}


@contextlib.contextmanager
def memory_group(limit_mib):
    """A control group with so much memory; None where that cannot be had."""
    group = GROUPS / f"alight-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_mib * MIB))
    except OSError as error:
        common.say(f"left out: copies inside a memory control group (version 1, as root): {error}")
        yield None
        return
    try:
        yield group
    finally:
        (group / "memory.force_empty").write_text("0")
        group.rmdir()
