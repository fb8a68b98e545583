"""Parts of a file on their way to a GPU: read around the page cache into memory that is page-locked, and sent from there while
the next ones are read."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import jax
import numpy as np

from .. import Catalog, _alight
from . import _cuda
from ._plan import Part, Placement

log = logging.getLogger("alight.jax")

SMALLEST = 1 << 20
"""Smaller parts are sent from the map: a direct read of theirs would be mostly waiting."""
SLOTS = 3
"""One is read into, one is sent from, and one lets both be late."""
ROOM = 512 << 20
"""Bytes of all slots, but for a part that is larger alone."""

forced = False
"""Whether devices that are no GPUs are loaded like this, too: for tests."""


def _apart(array: np.ndarray[Any, Any], device: Any) -> np.ndarray[Any, Any]:
    """What a device may be given: a CPU would go on using the slot."""
    return array.copy() if device.platform == "cpu" else array


class Uploader:
    """Slots of memory, each of which is used again when what was sent from it has arrived.

    Nothing depends on when JAX says so: a slot refuses to be read into while an array shows its bytes, and another one is made.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.methods: dict[int, str] = {}
        self.busy: deque[tuple[_alight.Staging, int, list[jax.Array]]] = deque()
        self.made = 0

    def takes(self, one: Placement, part: Part) -> bool:
        """Whether a part goes this way: bytes side by side that are not in the page cache, for GPUs."""
        if one.convert is not None or part.nbytes < max(SMALLEST, 1):
            return False
        if not forced and any(device.platform != "gpu" for device in part.devices):
            return False
        start, stop, together = one.tensor.extent(part.ranges)
        if not together or stop - start != part.nbytes or start % one.dtype.itemsize:
            return False
        return self._method(one.tensor.file_index) != "mmap"

    def _method(self, file: int) -> str:
        if file not in self.methods:
            nbytes = sum(tensor.nbytes for tensor in self.catalog.tensors.values() if tensor.file_index == file)
            self.methods[file], reason = _alight.how_to_copy(self.catalog, file, nbytes)
            log.info("%s: to the GPU by %s: %s", self.catalog.files[file], self.methods[file], reason)
        return self.methods[file]

    def send(self, one: Placement, part: Part) -> list[jax.Array]:
        """The part on each of its devices. They may be on their way still; `finish` waits."""
        file = one.tensor.file_index
        start, stop, _ = one.tensor.extent(part.ranges)
        direct = self._method(file) == "direct"
        gpu = next((_cuda.number(device) for device in part.devices if device.platform == "gpu"), None)
        slot, size = self._slot(part.nbytes, gpu)
        try:
            at = slot.read(self.catalog, file, start, stop, direct)
        except BufferError:
            # JAX has not let go of an array that has arrived; it keeps the memory for as long.
            slot, size = self._new(part.nbytes, gpu)
            at = slot.read(self.catalog, file, start, stop, direct)
        # `frombuffer` keeps its view of the slot; `ndarray(buffer=…)` keeps the slot alone, which would not be counted.
        array = np.frombuffer(memoryview(slot), one.dtype, part.nbytes // one.dtype.itemsize, at).reshape(part.shape)
        sent = [jax.device_put(_apart(array, device), device) for device in part.devices]
        self.busy.append((slot, size, sent))
        return sent

    def _new(self, nbytes: int, gpu: int | None) -> tuple[_alight.Staging, int]:
        slot = _alight.Staging(nbytes, gpu)
        if self.made == 0 and slot.unlocked is not None:
            log.info("memory for the way to the GPU is not page-locked: %s", slot.unlocked)
        self.made += 1
        return slot, nbytes

    def _slot(self, nbytes: int, gpu: int | None) -> tuple[_alight.Staging, int]:
        """A slot that is free, waiting for one if there are enough."""
        while self.busy and (len(self.busy) >= SLOTS or sum(size for _, size, _ in self.busy) + nbytes > ROOM):
            slot, size, sent = self.busy.popleft()
            jax.block_until_ready(sent)  # type: ignore[no-untyped-call, unused-ignore]
            del sent
            # One that is much larger than what it is for would keep others from being there.
            if nbytes <= size <= max(2 * nbytes, ROOM // SLOTS):
                return slot, size
        return self._new(nbytes, gpu)

    def finish(self) -> None:
        """Waits until everything has arrived."""
        while self.busy:
            jax.block_until_ready(self.busy.popleft()[2])  # type: ignore[no-untyped-call, unused-ignore]
