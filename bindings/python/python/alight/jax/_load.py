"""Arrays of a plan."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from jax.sharding import Mesh

from .. import ALIGNMENT, Catalog
from ._plan import Part, Placement, Plan, plan
from ._progress import Report, reporter
from ._rules import Dequantize, Rules
from ._upload import Uploader

log = logging.getLogger("alight.jax")

PIECE = 32 << 20
"""Bytes that are fetched at once, in pieces of a tensor: progress is told between them."""


def load(
    model: Catalog | str | os.PathLike[str],
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    dequantize: Dequantize = None,
    *,
    progress: Report | bool | None = None,
    prefetch: bool = True,
) -> dict[str, jax.Array]:
    """The tensors of a model file as JAX arrays, by name.

    `model` is a path (GGUF, safetensors, an index of these, a folder) or an open catalog. On CPU devices
    an array is the file's bytes in its map, in place, if they begin at a multiple of 64 bytes and are
    contiguous; else, and on other devices, each device's part is copied, and only it. `plan` says which,
    and why. Large parts for GPUs are read around the page cache, unless the file is in it, through a few buffers
    that are page-locked where CUDA's driver allows it, and are sent while the next ones are read. Arrays keep the map. If the file is cut short while they are in use they show zeros: a
    caller that has to know keeps the catalog, and calls its `check`.

    `mesh` and `rules` cut the arrays: for each name the `PartitionSpec` of the first pattern that is found
    in it (`re.search`); names without a rule are on every device in full. Without `mesh` it is the one that
    `jax.set_mesh` has set; where none is set, everything is on JAX's default device.

    Quantised tensors are bytes: `uint8 [rows, bytes of a row]`, or `[tiles, bytes of a tile]` if the file
    is packed. `dequantize` makes floats of them: a dtype (bfloat16, float16, float32) for all, or
    (pattern, dtype) in a list; rounded once, to nearest even, from what the format defines in float32.

    `prefetch` brings everything into memory before this returns, by reads of large pieces if the file is
    not cached; without it, pages come when they are touched. `progress` is a function of (bytes there,
    all bytes); `True`: a line on standard error, as `None` on a terminal if it takes longer than a second;
    `False`: nothing.

    Shapes, types, rules or a mesh that do not fit are errors before anything is read.
    """
    made = plan(model, mesh, rules, dequantize)
    if log.isEnabledFor(logging.INFO):
        log.info("%s", made)
    report = reporter(progress)
    arrays: dict[str, jax.Array] = {}
    done, total = 0, made.nbytes
    uploader = Uploader(made.catalog)
    with _Fetcher(made, prefetch, uploader) as fetcher:
        for placement in made.placements:
            shards = []
            for part in placement.parts:
                if fetcher.by_upload(placement, part):
                    shards += uploader.send(placement, part)
                else:
                    for _ in fetcher.bring(placement, part):
                        report(done, total)
                    shards += _shards(placement, part)
                done += part.nbytes
                report(done, total)
            arrays[placement.tensor.name] = jax.make_array_from_single_device_arrays(
                placement.shape, placement.sharding, shards
            )
        uploader.finish()
    made.catalog.check()
    return arrays


def _shards(placement: Placement, part: Part) -> list[jax.Array]:
    """The part on each of its devices. On CPU they all show the same bytes."""
    block = placement.tensor.read(part.ranges, dtype=placement.convert, align=ALIGNMENT)
    array = np.ndarray(part.shape, placement.dtype, buffer=memoryview(block))
    return [jax.device_put(array, device) for device in part.devices]


class _Fetcher:
    """Brings bytes of the files into memory, ahead of their use."""

    def __init__(self, made: Plan, prefetch: bool, uploader: Uploader) -> None:
        self.catalog = made.catalog
        self.uploaded: set[tuple[str, Part]] = set()
        self.threads: dict[int, int] = {}
        self.pieces: dict[tuple[str, Part], list[Future[None]]] = {}
        if not prefetch:
            return
        for one in made.placements:
            self.uploaded.update((one.tensor.name, part) for part in one.parts if uploader.takes(one, part))
        weights: dict[int, int] = {}
        for one in made.placements:
            if all(self.by_upload(one, part) for part in one.parts):
                continue
            file = one.tensor.file_index
            weights[file] = weights.get(file, 0) + one.tensor.nbytes
        for file, count in weights.items():
            self.threads[file], reason = self.catalog._prefetch(file, count)
            log.info("%s: %s", self.catalog.files[file], reason)
        self.pool = ThreadPoolExecutor(max(1, *self.threads.values()) if self.threads else 1)
        for one in made.placements:
            for part in one.parts:
                if not self.by_upload(one, part):
                    self.pieces[one.tensor.name, part] = list(self._submit(one, part))

    def by_upload(self, one: Placement, part: Part) -> bool:
        """Whether the part goes to its devices without the map."""
        return (one.tensor.name, part) in self.uploaded

    def _submit(self, one: Placement, part: Part) -> Iterator[Future[None]]:
        # Elements of what is converted are not bytes of the file: of that, the whole tensor comes.
        start, stop, together = one.tensor.extent(None if one.convert else part.ranges)
        file = one.tensor.file_index
        # Between pieces of rows lies what belongs to others, and may be most of it.
        if not together:
            return
        for at in range(start, stop, PIECE):
            yield self.pool.submit(self.catalog._fetch, file, at, min(at + PIECE, stop), self.threads[file] > 0)

    def bring(self, one: Placement, part: Part) -> Iterator[None]:
        """Returns when the bytes of the part are there; in between, whenever some are."""
        for piece in self.pieces.pop((one.tensor.name, part), ()):
            piece.result()
            yield

    def __enter__(self) -> _Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self.threads:
            self.pool.shutdown(wait=True, cancel_futures=True)
