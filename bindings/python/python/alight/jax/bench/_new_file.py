"""A file that appears as a whole, and that replaces nothing unasked."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from .._run._say import Failure


def check(path: Path, force: bool) -> None:
    """Refuses what may not be replaced, before any work is done."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise Failure(f"'{path}' is not a regular file, so it is not replaced: name another one")
    if not force:
        raise Failure(f"'{path}' exists: name another file, or replace it with --force")


def write(path: Path, text: str, force: bool) -> None:
    """Writes the file beside its place and gives it its name when it is on the disk."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)
            os.fsync(file.fileno())
        check(path, force)
        if force:
            os.replace(name, path)
        else:
            os.link(name, path)  # refuses a name that has been taken in the meantime
    except FileExistsError:
        raise Failure(f"'{path}' appeared in the meantime: name another file, or replace it with --force") from None
    finally:
        Path(name).unlink(missing_ok=True)
