"""Arrays for the ranks of a mesh: each device gets its own part, and nothing else is made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ... import ALIGNMENT, Tensor
from ._cut import Span

Host: TypeAlias = np.ndarray[Any, np.dtype[Any]]

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


def read(tensor: Tensor, dtype: Any, rows: Span, columns: Span | None = None) -> Host:
    """Elements of a tensor as floats: rows (elements of a vector, matrices of a stack), and columns of a matrix."""
    ranges = [(rows.start, rows.stop)]
    if columns is not None:
        ranges.append((columns.start, columns.stop))
    else:
        ranges += [(0, length) for length in tensor.shape[1:]]
    block = tensor.read(ranges, dtype=np.dtype(dtype).name)
    return np.ndarray(tuple(block.shape), dtype, buffer=memoryview(block))


def vector(tensor: Tensor) -> Host:
    """A norm or a bias as float32, checked."""
    values = read(tensor, np.float32, Span(0, tensor.shape[0]))
    if not np.isfinite(values).all():
        index = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"tensor {tensor.name!r}: element {index} is {values[index]}, expected a finite number")
    return values


def put(mesh: Mesh, axis: str, spec: PartitionSpec, make: Callable[[int], Host]) -> jax.Array:
    """An array whose part on each rank is what `make` makes for that rank (of all ranks alike: for rank 0)."""
    where = mesh.axis_names.index(axis)
    cut = next((n for n, entry in enumerate(spec) if entry == axis), None)
    made: dict[int, Host] = {}
    parts = []
    for index, device in np.ndenumerate(mesh.devices):
        if device.process_index != jax.process_index():
            continue
        rank = index[where] if cut is not None else 0
        if rank not in made:
            made[rank] = make(rank)
        parts.append(jax.device_put(made[rank], device))
    shape = list(parts[0].shape)
    if cut is not None:
        shape[cut] *= mesh.devices.shape[where]
    return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), parts)
