"""A folder that no other user can change, held open: what is read in it was written by this user, or by root.

Every folder on the way to it belongs to this user or to root and can be written by its owner alone, or has the sticky bit, as
`/tmp` has, with which others cannot rename or remove what is not theirs. Links on the way belong to this user or to root.
The way is walked folder by folder, each opened in the one before and checked once it is open, so nothing can be swapped between
a check and its use; afterwards, names are looked up in the open folder and never by the whole path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import weakref
from collections import deque
from collections.abc import Iterator

OTHERS = stat.S_IWGRP | stat.S_IWOTH
LINKS = 40
"""The most links on the way, as the kernel has it."""
NEW = ".new-"
"""What the names of files begin with that are being written."""
# A folder that is only passed through need not be readable.
PASS = getattr(os, "O_PATH", os.O_RDONLY)


class NotPrivate(Exception):
    """Another user can change what is there. Says what, and what to do."""


class PrivateFolder:
    """The folder, open until nobody uses this object any more. Folders that are missing are made."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `NotPrivate` or `OSError`."""
        self.fd = _walk(os.path.join(os.getcwd(), os.fspath(path)))
        weakref.finalize(self, os.close, self.fd)

    def read(self, name: str, largest: int) -> bytes:
        """All of a file of at most so many bytes, which is used now: it is younger than all others then."""
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise NotPrivate(f"'{name}' is not a file")
            if found.st_uid != os.geteuid() or found.st_mode & OTHERS:
                raise NotPrivate(f"'{name}' belongs to another user, or others may write in it")
            if found.st_size > largest:
                raise ValueError(f"'{name}' has {found.st_size} bytes, and at most {largest} are kept")
            with contextlib.suppress(OSError):
                os.utime(fd)
            return file.read(largest + 1)

    def write(self, name: str, content: bytes) -> None:
        """A file with this content in place of the one of this name: whole, or not at all."""
        new = NEW + secrets.token_hex(8)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self.fd)
        try:
            with open(fd, "wb") as file:
                file.write(content)
            os.rename(new, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            self.remove(new)
            raise

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """What there is."""
        for name in os.listdir(self.fd):
            try:
                yield name, os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue

    def remove(self, name: str) -> None:
        """Removes a file, or a link, if that can be."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)


def _walk(path: str) -> int:
    """A descriptor of the folder, after a check of all that leads to it."""
    ahead, links, told = deque(path.split("/")), 0, ""
    here = _opened("/", None, "/", PASS)
    try:
        while ahead:
            name = ahead.popleft()
            if name in ("", "."):
                continue
            with contextlib.suppress(FileExistsError):
                if not _is_there(name, here):
                    os.mkdir(name, 0o700, dir_fd=here)
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                told = f"{told}/{name}"
                before, here = here, _opened(name, here, told, PASS)
                os.close(before)
                continue
            links += 1
            if links > LINKS:
                raise NotPrivate(f"'{path}' leads through more than {LINKS} links")
            _check_owner(found, f"{told}/{name}")
            target = os.readlink(name, dir_fd=here)
            ahead.extendleft(reversed(target.split("/")))
            if target.startswith("/"):
                told = ""
                before, here = here, _opened("/", None, "/", PASS)
                os.close(before)
        return _opened(".", here, told, os.O_RDONLY, sticky=False)
    finally:
        os.close(here)


def _is_there(name: str, within: int) -> bool:
    try:
        os.stat(name, dir_fd=within, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False


def _opened(name: str, within: int | None, told: str, how: int, sticky: bool = True) -> int:
    """A descriptor of a folder in which only its owner can change anything; with `sticky`, in which others cannot change what
    is its owner's. `told` is its path, for people."""
    fd = os.open(name, how | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        found = os.fstat(fd)
        _check_owner(found, told)
        if found.st_mode & OTHERS and not (sticky and found.st_mode & stat.S_ISVTX):
            raise NotPrivate(f"others may write in '{told}' (to change that: chmod go-w '{told}')")
        return fd
    except BaseException:
        os.close(fd)
        raise


def _check_owner(found: os.stat_result, told: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise NotPrivate(f"'{told}' belongs to another user, of number {found.st_uid}")
