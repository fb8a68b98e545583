"""What becomes of each tensor of a file: on which device which bytes, shown in place or copied, and why.

Making a plan reads nothing but headers, and finds everything that cannot work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec, Sharding, SingleDeviceSharding

from .. import ALIGNMENT, Catalog, Tensor
from .. import open as open_catalog
from . import _rules

Ranges: TypeAlias = tuple[tuple[int, int], ...]

UNALIGNED = f"begins at no multiple of {ALIGNMENT} bytes"
STRIDED = "its bytes do not lie side by side"
CONVERTED = "converted"

EVERYWHERE: PartitionSpec = PartitionSpec()  # type: ignore[no-untyped-call, unused-ignore]


@dataclass(frozen=True)
class Part:
    """A part of an array, and the devices that hold it."""

    ranges: Ranges
    """(start, stop) of each dimension."""
    devices: tuple[Any, ...]
    shape: tuple[int, ...]
    nbytes: int
    """Bytes of the array's part: for each device the same ones."""
    copied: str | None
    """Why they are copied; `None`: they are shown in place."""


@dataclass(frozen=True)
class Placement:
    """One array."""

    tensor: Tensor
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Sharding
    parts: tuple[Part, ...]
    """The parts for this process's devices, each once."""
    convert: str | None
    """The float type that the tensor is converted to, if it is."""


@dataclass(frozen=True)
class Plan:
    """All arrays of a model; as text, a summary."""

    catalog: Catalog
    placements: tuple[Placement, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for one in self.placements for part in one.parts)

    @property
    def mapped(self) -> int:
        """Bytes that are shown in place."""
        return self.nbytes - sum(self.copied().values())

    def copied(self) -> dict[str, int]:
        """Bytes that are copied, by reason."""
        found: dict[str, int] = {}
        for one in self.placements:
            for part in one.parts:
                if part.copied is not None and part.nbytes:
                    found[part.copied] = found.get(part.copied, 0) + part.nbytes
        return found

    def __str__(self) -> str:
        path = self.catalog.files[0]
        lines = [f"{path}: {len(self.placements)} arrays, {self.nbytes:,} bytes", f"  {self.mapped:,} in place"]
        for reason, count in self.copied().items():
            lines.append(f"  {count:,} copied: {reason}")
        if UNALIGNED in self.copied():
            lines.append(f"  every tensor is aligned in what `alight convert {path} -o NEW.gguf` writes")
        return "\n".join(lines)


def plan(
    model: Catalog | str | os.PathLike[str],
    mesh: Mesh | None = None,
    rules: _rules.Rules | None = None,
    dequantize: _rules.Dequantize = None,
) -> Plan:
    """What `load` with these arguments would do. See there."""
    if mesh is None and not (around := jax.sharding.get_mesh()).empty:
        mesh = around
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh with devices, found {type(mesh).__name__}")
    if mesh is None and rules:
        raise ValueError("rules without a mesh: there is nothing to cut for; pass mesh, or call it under jax.set_mesh")
    specs, floats = _rules.specs(rules), _rules.floats(dequantize)
    catalog = model if isinstance(model, Catalog) else open_catalog(model)
    single = None if mesh is not None else SingleDeviceSharding(_device())
    made = []
    for tensor in catalog.tensors.values():
        to = floats.get(tensor.name) if tensor.dtype is None else None
        shape, dtype, grain = _array(tensor, to)
        if mesh is None:
            assert single is not None
            made.append(_place(tensor, shape, dtype, single, to))
        else:
            spec = specs.get(tensor.name) or EVERYWHERE
            made.append(_place(tensor, shape, dtype, _rules.sharding(tensor.name, mesh, spec, shape, grain), to))
    return Plan(catalog, tuple(made))


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _device() -> Any:
    """Where JAX puts what is put nowhere."""
    default = _setting("jax_default_device")
    if default is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=default)[0] if isinstance(default, str) else default


def _array(tensor: Tensor, to: str | None) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type of the array, and the grain of its last dimension."""
    if to is not None:
        if not tensor.convertible:
            raise ValueError(
                f"tensor {tensor.name!r}: {tensor.type} cannot be dequantised here; leave it in bytes with "
                f"dequantize=[({tensor.name!r}, None), …], or convert the file"
            )
        return tensor.shape, np.dtype(to), 1
    if tensor.dtype is None:
        return tensor.stored_shape, np.dtype(np.uint8), tensor.grain
    dtype = np.dtype(tensor.dtype)
    if dtype.itemsize == 8 and not _setting("jax_enable_x64"):
        raise ValueError(
            f"tensor {tensor.name!r}: is {tensor.type}, which JAX keeps only with jax.config.update('jax_enable_x64', True)"
        )
    return tensor.shape, dtype, 1


def _place(tensor: Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], sharding: Sharding, to: str | None) -> Placement:
    holders: dict[Ranges, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        slices = index if index is not None else (slice(None),) * len(shape)
        ranges = tuple((one.indices(dim)[0], one.indices(dim)[1]) for one, dim in zip(slices, shape, strict=True))
        holders.setdefault(ranges, []).append(device)
    parts = []
    for ranges, devices in holders.items():
        extents = tuple(stop - start for start, stop in ranges)
        nbytes = dtype.itemsize * int(np.prod(extents, dtype=object))
        reason = CONVERTED if to is not None else _copied(tensor, ranges, nbytes)
        parts.append(Part(ranges, tuple(devices), extents, nbytes, reason))
    return Placement(tensor, shape, dtype, sharding, tuple(parts), to)


def _copied(tensor: Tensor, ranges: Ranges, nbytes: int) -> str | None:
    start, _, together = tensor.extent(ranges)
    if not together:
        return STRIDED
    return UNALIGNED if nbytes and start % ALIGNMENT else None
