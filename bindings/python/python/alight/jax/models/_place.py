"""Arrays for the ranks of a mesh: each device gets its own part, and nothing else is made for it. On devices that are not here,
for which programs are only compiled, an array is its shape, type and place."""

from __future__ import annotations

import collections
import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ... import ALIGNMENT, Tensor
from .._mesh import here
from ._cut import Span

Host: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Layered: TypeAlias = tuple[Any, PartitionSpec]
"""An array of all layers, or a list of arrays, and where each is."""

SAME: PartitionSpec = PartitionSpec()  # type: ignore[no-untyped-call, unused-ignore]
"""The same array on every rank."""


def ranked(axis: str, dimension: int) -> PartitionSpec:
    """Every rank's own part, side by side in this dimension."""
    return PartitionSpec(*[None] * dimension, axis)  # type: ignore[no-untyped-call, unused-ignore]


def zeros(shape: tuple[int, ...], dtype: Any) -> Host:
    """Zeros at an address that XLA uses in place."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=object)) * dtype.itemsize
    buffer = np.zeros(count + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, buffer=buffer[start : start + count])


STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of tensors whose elements NumPy has."""

_tally: ContextVar[collections.Counter[int | None] | None] = ContextVar("tally", default=None)
_rank: ContextVar[int | None] = ContextVar("rank", default=None)


@contextlib.contextmanager
def tallied() -> Iterator[collections.Counter[int | None]]:
    """Counts the bytes of tensors that are read for each rank, and for `None` what all ranks have."""
    counter: collections.Counter[int | None] = collections.Counter()
    token = _tally.set(counter)
    try:
        yield counter
    finally:
        _tally.reset(token)


def read(tensor: Tensor, dtype: Any, rows: Span, columns: Span | None = None) -> Host:
    """Elements of a tensor as floats: rows (elements of a vector, matrices of a stack), and columns of a matrix."""
    ranges = [(rows.start, rows.stop)]
    if columns is not None:
        ranges.append((columns.start, columns.stop))
    else:
        ranges += [(0, length) for length in tensor.shape[1:]]
    _count(tensor, ranges, tensor.shape)
    # Floats of this type already: rows are those of the map of the file, and nothing is decoded.
    as_it_is = not tensor.packed and STORED.get(tensor.type) == np.dtype(dtype).name
    block = tensor.read(ranges) if as_it_is else tensor.read(ranges, dtype=np.dtype(dtype).name)
    return np.ndarray(tuple(block.shape), dtype, buffer=memoryview(block))


def row_bytes(tensor: Tensor, columns: int) -> int:
    """Bytes of so many columns of a matrix of blocks, a whole number of these."""
    return tensor.stored_shape[-1] * columns // tensor.shape[-1]


def read_blocks(tensor: Tensor, rows: Span, columns: Span | None = None) -> Host:
    """Rows of a matrix of blocks (matrices of a stack) as they are, uint8 `[rows, bytes of a row]`, or whole blocks of them."""
    columns = Span(0, tensor.shape[-1]) if columns is None else columns
    between = [(0, length) for length in tensor.stored_shape[1:-1]]
    ranges = [(rows.start, rows.stop), *between, (row_bytes(tensor, columns.start), row_bytes(tensor, columns.stop))]
    _count(tensor, ranges, tensor.stored_shape)
    block = tensor.read(ranges)
    return np.ndarray(tuple(block.shape), np.uint8, buffer=memoryview(block))


def _count(tensor: Tensor, ranges: Sequence[tuple[int, int]], shape: tuple[int, ...]) -> None:
    """Counts the bytes of a part of a tensor, where they are counted."""
    if (tally := _tally.get()) is not None:
        part = math.prod(stop - start for start, stop in ranges)
        tally[_rank.get()] += tensor.nbytes * part // max(1, math.prod(shape))


def vector(tensor: Tensor) -> Host:
    """A norm or a bias as float32, checked."""
    values = read(tensor, np.float32, Span(0, tensor.shape[0]))
    if not np.isfinite(values).all():
        index = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"tensor {tensor.name!r}: element {index} is {values[index]}, expected a finite number")
    return values


@dataclass(frozen=True)
class Matrix:
    """What a rank has of a matrix of a layer, or of a stack of matrices."""

    part: tuple[int, ...]
    dtype: Any
    make: Callable[[int, int], Host]
    """Of a rank and a layer."""
    wrap: Callable[[Any], Any]
    """What stands for the array, or for where it is."""


@dataclass(frozen=True)
class Layers:
    """How weights of all layers are kept: one array `[layers, …]` of each kind, for a loop over the layers, or arrays of each
    layer by itself, for a program in which they follow one another."""

    mesh: Mesh
    axis: str
    count: int
    apart: bool

    def put(self, cut: int | None, part: tuple[int, ...], dtype: Any, make: Callable[[int, int], Host]) -> Layered:
        """`make` makes the part of a rank of a layer, of the shape `part`; dimension `cut` is cut between the ranks."""
        if self.apart:
            spec = SAME if cut is None else ranked(self.axis, cut)
            return [self.one(number, spec, part, dtype, make) for number in range(self.count)], spec

        def stack(rank: int) -> Host:
            out = zeros((self.count, *part), dtype)
            for number in range(self.count):
                out[number] = make(rank, number)
            return out

        spec = SAME if cut is None else ranked(self.axis, cut + 1)
        return put(self.mesh, self.axis, spec, (self.count, *part), dtype, stack), spec

    def one(self, number: int, spec: PartitionSpec, part: tuple[int, ...], dtype: Any, make: Callable[[int, int], Host]) -> jax.Array:
        """The array of one layer."""
        return put(self.mesh, self.axis, spec, part, dtype, lambda rank: make(rank, number))

    def described(self, describe: Callable[[Sequence[int]], Mapping[str, Matrix]]) -> tuple[Any, Any]:
        """Arrays, and where they are, by name, of what `describe` says of some layers: of all of them together, whose matrices of a name
        are alike then; or of each by itself, if they are apart."""
        if not self.apart:
            made = {name: (m, self.put(0, m.part, m.dtype, m.make)) for name, m in describe(range(self.count)).items()}
            arrays = {name: matrix.wrap(array) for name, (matrix, (array, _)) in made.items()}
            return arrays, {name: matrix.wrap(spec) for name, (matrix, (_, spec)) in made.items()}
        spec, layers = ranked(self.axis, 0), [describe([number]) for number in range(self.count)]

        def one(number: int, m: Matrix) -> Any:
            return m.wrap(self.one(number, spec, m.part, m.dtype, m.make))

        apart = tuple({name: one(number, m) for name, m in layer.items()} for number, layer in enumerate(layers))
        return apart, tuple({name: m.wrap(spec) for name, m in layer.items()} for layer in layers)

    def same(self, values: Host) -> Layered:
        """Of `[layers, …]` that every rank has all of."""
        return self.put(None, values.shape[1:], values.dtype, lambda rank, number: values[number])

    def together(self, named: Mapping[str, Layered]) -> tuple[Any, Any]:
        """Arrays, and where they are, by name; layer by layer if they are apart."""
        if not self.apart:
            return {name: one for name, (one, _) in named.items()}, {name: spec for name, (_, spec) in named.items()}
        specs = {name: spec for name, (_, spec) in named.items()}
        return tuple({name: one[number] for name, (one, _) in named.items()} for number in range(self.count)), (specs,) * self.count


def same(mesh: Mesh, axis: str, values: Host) -> jax.Array:
    """An array that every rank has all of."""
    return put(mesh, axis, SAME, values.shape, values.dtype, lambda _: values)


def put(
    mesh: Mesh, axis: str, spec: PartitionSpec, part: tuple[int, ...], dtype: Any, make: Callable[[int], Host]
) -> jax.Array:
    """An array whose part on each rank, of the shape `part`, is what `make` makes for that rank (of all ranks alike: for
    rank 0)."""
    where = mesh.axis_names.index(axis)
    cut = next((n for n, entry in enumerate(spec) if entry == axis), None)
    shape = tuple(length * mesh.devices.shape[where] if n == cut else length for n, length in enumerate(part))
    sharding = NamedSharding(mesh, spec)
    if not here(mesh):
        like: Any = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call, unused-ignore]
        found: jax.Array = like
        return found
    own = [(index, device) for index, device in np.ndenumerate(mesh.devices) if device.process_index == jax.process_index()]
    ranks = [int(index[where]) if cut is not None else 0 for index, _ in own]

    def one(rank: int) -> Host:
        _rank.set(rank if cut is not None else None)
        found = make(rank)
        assert found.shape == part and found.dtype == np.dtype(dtype)
        return found

    # Files are read and copied while the interpreter does something else, so ranks need not wait for each other.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()) as pool:
        made = {rank: pool.submit(copy_context().run, one, rank) for rank in dict.fromkeys(ranks)}
        parts = [jax.device_put(made[rank].result(), device) for rank, (_, device) in zip(ranks, own, strict=True)]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)
