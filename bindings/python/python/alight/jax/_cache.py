"""Compiled programs kept for the next process, so that it neither traces nor compiles.

JAX's own persistent cache keeps what comes out of the compiler, but a program has to be traced and lowered to be found
there, which takes longer than everything else of a warm start. Here a program is found by what it is made from: the
versions, the code of this package, the network, the arguments' shapes, the devices, the settings, and the processor.

An entry is whole or it is not there (it is written elsewhere and renamed); it has a checksum; whatever is wrong with one,
it is removed and the program compiled anew. The folder is kept below a size by removing what was not used for longest.
Entries are code: the folder is one that no other user can change (`_private`), or it is not used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from .. import __version__, _alight
from . import _connect, _ffi
from ._private import NEW, NotPrivate, PrivateFolder

log = logging.getLogger("alight.jax")

LARGEST = 256 << 20
"""Bytes in the folder."""
SUFFIX = ".program"
MAGIC = b"alight program 1\n"

_store: Store | None = None


def use_cache(folder: str | os.PathLike[str] | None = None, *, largest: int = LARGEST) -> None:
    """Keeps compiled programs of models that are loaded from now on in a folder, at most so many bytes of them.

    Without one: `alight/jax` in `$XDG_CACHE_HOME`, or in `~/.cache`. A folder that cannot be used, or that another user can
    change or replace, is told about in the log of `alight.jax`, and nothing is kept. With JAX's own persistent cache
    (`jax_compilation_cache_dir`) this one steps aside.
    """
    global _store
    if folder is None:
        # Relative paths are invalid there.
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):
            base = os.path.expanduser("~/.cache")
        if base.startswith("~"):
            _store = None
            return log.warning("compiled programs are not kept: there is no home directory")
        folder = Path(base) / "alight" / "jax"
    _store = Store(Path(folder), largest)


def kept(jitted: Any, devices: Sequence[jax.Device], *made_from: Any) -> Callable[..., Any]:
    """The jitted function for these devices, with the cache if one is in use. `made_from`: what it is made from besides
    its arguments, as values whose `repr` says everything."""
    if _store is None or dict(settings()).get("jax_compilation_cache_dir", "None") != "None":
        found: Callable[..., Any] = jitted
        return found
    return Kept(_store, jitted, devices, repr(made_from))


class Kept:
    """A jitted function whose compiled programs come from the store, or go there."""

    def __init__(self, store: Store, jitted: Any, devices: Sequence[jax.Device], made_from: str) -> None:
        self.store, self.jitted, self.devices, self.made_from = store, jitted, devices, made_from
        self.compiled: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        shapes = (tree, *((leaf.shape, leaf.dtype) for leaf in leaves))
        program = self.compiled.get(shapes)
        if program is None:
            program = self.compiled[shapes] = self._program(args, leaves, tree)
        return program(*args)

    def _program(self, args: tuple[Any, ...], leaves: list[Any], tree: Any) -> Any:
        where = [(leaf.shape, str(leaf.dtype), repr(getattr(leaf, "sharding", None))) for leaf in leaves]
        key = fingerprint(self.made_from, _connect.state(), [device.id for device in self.devices], str(tree), where)
        program = self.store.get(key, self.devices)
        if program is None:
            program = self.jitted.lower(*args).compile()
            self.store.put(key, program)
        return program


def fingerprint(*made_from: Any) -> str:
    hashed = hashlib.sha256(repr((surroundings(), made_from)).encode())
    return hashed.hexdigest()


_surroundings: tuple[Any, ...] | None = None


def surroundings() -> tuple[Any, ...]:
    """What every program is made from."""
    global _surroundings
    if _surroundings is None:
        devices = [(d.id, d.device_kind, d.platform, d.process_index) for d in jax.devices()]
        ours = ("XLA_", "JAX_", "ALIGHT_")
        environment = sorted((name, value) for name, value in os.environ.items() if name.startswith(ours))
        backend = jax.devices()[0].client.platform_version
        _surroundings = (
            *(sys.version, __version__, jax.__version__, metadata.version("jaxlib"), backend),
            *(devices, environment, settings(), code(), processor()),
        )
    return _surroundings


def settings() -> list[tuple[str, str]]:
    """JAX's settings: any of them may change what is traced."""
    values: dict[str, Any] = getattr(jax.config, "values", {})
    return sorted((name, repr(value)) for name, value in values.items())


def code() -> list[tuple[str, Any]]:
    """The code of this package. The extension by size and time: it is large."""
    root = Path(__file__).parent
    files = [(str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in root.rglob("*.py")]
    extension = os.stat(_alight.__file__)
    return [*sorted(files), ("extension", (extension.st_size, extension.st_mtime_ns))]


def processor() -> str:
    """What this processor can do: XLA compiles for it."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
    except OSError:
        import platform

        return platform.processor() + platform.node()
    told = [line for line in text.splitlines() if line.startswith(("flags", "Features", "model name", "CPU part"))]
    return "\n".join(told)


class Store:
    """The folder."""

    def __init__(self, path: Path, largest: int) -> None:
        self.path, self.largest = path, largest
        self.folder: PrivateFolder | None = None
        try:
            self.folder = PrivateFolder(path)
        except NotPrivate as problem:
            log.warning("compiled programs are not kept in '%s', since entries are code: %s", path, problem)
        except OSError as problem:
            log.warning("compiled programs are not kept: %s", problem)

    def get(self, key: str, devices: Sequence[jax.Device]) -> Any:
        """The program, ready to be called on these devices; `None` if there is none that works."""
        name = key + SUFFIX
        if self.folder is None:
            return None
        try:
            payload = checked(self.folder.read(name, self.largest))
            # Its custom calls have to be known when it is loaded.
            _ffi.register()
            code, inputs, outputs = pickle.loads(payload)
            return serialize_executable.deserialize_and_load(code, inputs, outputs, None, list(devices))
        except FileNotFoundError:
            return None
        except Exception as problem:  # whatever XLA or pickle think of it
            log.info("'%s' is compiled anew: %s", self.path / name, problem)
            self.folder.remove(name)
            return None

    def put(self, key: str, program: Any) -> None:
        """Keeps a program, if that can be."""
        if self.folder is None:
            return
        try:
            payload = pickle.dumps(serialize_executable.serialize(program))
            content = MAGIC + hashlib.sha256(payload).digest() + payload
            if len(content) > self.largest:
                return
            self.folder.write(key + SUFFIX, content)
            self._shrink(self.folder)
        except Exception as problem:  # a disk that is full, a program that cannot be serialised
            log.info("a program is not kept: %s", problem)

    def _shrink(self, folder: PrivateFolder) -> None:
        ours = [(name, told) for name, told in folder.files() if name.startswith(NEW) or name.endswith(SUFFIX)]
        used = sum(told.st_size for _, told in ours)
        for name, told in sorted(ours, key=lambda one: one[1].st_mtime_ns):
            if used <= self.largest:
                return
            folder.remove(name)
            used -= told.st_size


def checked(content: bytes) -> bytes:
    """The payload of an entry."""
    start = len(MAGIC) + hashlib.sha256().digest_size
    magic, digest, payload = content[: len(MAGIC)], content[len(MAGIC) : start], content[start:]
    if magic != MAGIC or hashlib.sha256(payload).digest() != digest:
        raise ValueError("it is damaged")
    return payload
