"""Files in the page cache, for scripts: what is there, what a process brings in, how it gets out."""

import contextlib
import ctypes
import os
import threading
from pathlib import Path

from evidence.bench.load import cached_pages, make_cold
from evidence.lib import common

MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")
GROUPS = Path("/sys/fs/cgroup/memory")


def mib(path) -> float:
    return cached_pages(Path(path)) * PAGE / MIB


class Sampler(threading.Thread):
    """The peak of what is cached of the regular files that a process and its children have open, on one file system."""

    def __init__(self, pid, device, every=0.004):
        super().__init__(daemon=True)
        self.pid, self.device, self.every = pid, device, every
        self.peak, self.samples, self.files, self.over = 0, 0, {}, threading.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)

    def look(self) -> None:
        pids = [self.pid]
        with contextlib.suppress(OSError):
            pids += Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in pids:
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    name = f"/proc/{pid}/fd/{fd}"
                    with contextlib.suppress(OSError):
                        about = os.stat(name)
                        if about.st_dev == self.device and about.st_mode & 0o170000 == 0o100000 and about.st_ino not in self.files:
                            self.files[about.st_ino] = os.open(name, os.O_RDONLY)
        asked, told, pages = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)(), 0
        for fd in self.files.values():
            if self.libc.syscall(451, fd, asked, told, 0) == 0:
                pages += told[0]
        self.peak = max(self.peak, pages)
        self.samples += 1

    def peak_mib(self) -> float:
        if len(self.files) < 2:
            raise SystemExit(f"of source and copy, {len(self.files)} were seen open in {self.samples} looks: the peak is not known")
        return self.peak * PAGE / MIB

    def run(self) -> None:
        while not self.over.wait(self.every):
            self.look()
        for fd in self.files.values():
            os.close(fd)


def evict(path) -> None:
    if left := make_cold(Path(path)):
        raise SystemExit(f"{path}: {left} pages stay in the page cache")


def make_file(path, mib) -> None:
    """Random bytes (the same again in every 64 MiB) on the disk, and none of them in the page cache."""
    block = os.urandom(min(64, mib) * MIB)
    with path.open("wb", buffering=0) as file:
        for at in range(0, mib, 64):
            file.write(block[:(mib - at) * MIB])
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    evict(path)


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
