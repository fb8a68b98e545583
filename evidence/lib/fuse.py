"""A filesystem of one file, served by this process through /dev/fuse: the kernel's own client, and what a program on the other side may do.

Reads are counted, may be delayed, and may fail from some read on. It takes root and /dev/fuse, and no library. The messages are those of
Linux's `include/uapi/linux/fuse.h`, protocol 7.31.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import threading
import time
from pathlib import Path

# Opcodes.
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 26, 27, 28, 29, 34, 36, 38, 42
ROOT, FILE = 1, 2
NOSUID, NODEV, DETACH = 2, 4, 2
KEEP_CACHE = 2
LONGEST = 1 << 20


class Fuse:
    """Serves `source` as the only file of `mountpoint`, under its own name, until the block ends."""

    def __init__(self, source: Path, mountpoint: Path):
        self.source, self.mountpoint = source, mountpoint
        self.reads = 0
        self.delay = 0.0
        self.fails_after: int | None = None
        """So many reads are answered; those that follow fail with EIO."""

    @property
    def path(self) -> Path:
        return self.mountpoint / self.source.name

    def __enter__(self) -> Fuse:
        self.file = os.open(self.source, os.O_RDONLY)
        self.size = os.fstat(self.file).st_size
        self.device = os.open("/dev/fuse", os.O_RDWR)
        self.libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},max_read={LONGEST}"
        mounted = self.libc.mount(b"alight-evidence", str(self.mountpoint).encode(), b"fuse", NOSUID | NODEV, options.encode())
        if mounted != 0:
            number = ctypes.get_errno()
            os.close(self.device)
            os.close(self.file)
            raise OSError(number, f"mount: {os.strerror(number)}")
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.libc.umount2(str(self.mountpoint).encode(), DETACH)
        self.thread.join(timeout=10)
        os.close(self.device)
        os.close(self.file)

    def serve(self) -> None:
        while True:
            try:
                message = os.read(self.device, LONGEST + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                # ENODEV: it is unmounted.
                return
            _, opcode, unique, node, *_ = struct.unpack_from("<IIQQIIIHH", message)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            try:
                data, code = self.answer(opcode, node, message[40:]), 0
            except OSError as error:
                data, code = b"", -error.errno
            # The asker may be gone.
            with contextlib.suppress(OSError):
                os.write(self.device, struct.pack("<IiQ", 16 + len(data), code, unique) + data)
            if opcode == DESTROY:
                return

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == INIT:
            _, minor, ahead, _ = struct.unpack_from("<IIII", body)
            return struct.pack("<IIIIHHIIHHI7I", 7, min(minor, 31), ahead, 0, 0, 0, LONGEST, 1, 0, 0, 0, *[0] * 7)
        if opcode == LOOKUP:
            if node != ROOT or body.rstrip(b"\0") != self.source.name.encode():
                raise OSError(errno.ENOENT, "")
            return struct.pack("<QQQQII", FILE, 0, 60, 60, 0, 0) + self.attributes(FILE)
        if opcode == GETATTR:
            return struct.pack("<QII", 60, 0, 0) + self.attributes(node)
        if opcode in (OPEN, OPENDIR):
            # What is cached stays when the file is opened again.
            return struct.pack("<QII", 0, KEEP_CACHE, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            self.reads += 1
            if self.fails_after is not None and self.reads > self.fails_after:
                raise OSError(errno.EIO, "")
            time.sleep(self.delay)
            return os.pread(self.file, size, offset)
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII6I", 1 << 20, 0, 0, 1, 0, 4096, 255, 4096, 0, *[0] * 6)
        if opcode in (READDIR, RELEASE, RELEASEDIR, FLUSH, ACCESS, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "")

    def attributes(self, node: int) -> bytes:
        size, mode = (self.size, 0o100444) if node == FILE else (0, 0o040555)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0)
