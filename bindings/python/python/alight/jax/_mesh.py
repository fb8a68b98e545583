"""Checks of a mesh and its axis, when a call that depends on them is traced."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh


def here(mesh: Mesh) -> bool:
    """Whether its devices are there to run programs. Those of `jax.experimental.topologies` are only compiled for."""
    first = mesh.devices.flat[0]
    try:
        return first in jax.devices(first.platform)
    except RuntimeError:  # there is no such platform
        return False


def known(mesh: Mesh, axis: str) -> None:
    """An error unless it is a mesh of devices that has the axis."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh with devices, found {type(mesh).__name__}")
    if axis not in mesh.axis_names:
        raise ValueError(f"axis: {axis!r} is not an axis of the mesh, whose axes are {mesh.axis_names}")


def ranks(name: str, mesh: Mesh, axis: str) -> int:
    """The number of ranks along an axis that is known; an error unless `name` is called in a shard_map over the mesh."""
    count = int(mesh.shape[axis])
    try:
        around = lax.axis_size(axis)
    except NameError:
        raise ValueError(f"axis: {axis!r} is not bound here; call {name} in the body of jax.shard_map over the mesh") from None
    if around != count:
        raise ValueError(f"mesh: axis {axis!r} has {count} devices, and {around} in the shard_map around this call")
    # Sizes can be equal by chance. The order of the devices is not known while a program is traced.
    abstract = jax.sharding.get_abstract_mesh()
    theirs, ours = (list(zip(one.axis_names, one.axis_sizes, strict=True)) for one in (abstract, mesh))
    if theirs and theirs != ours:
        raise ValueError(f"mesh: its axes are {dict(ours)}, those of the shard_map around this call {dict(theirs)}: other devices are a group there")
    return count


def groups(mesh: Mesh, axis: str) -> np.ndarray[Any, Any]:
    """The devices `[groups, ranks]`, those of an axis side by side."""
    devices = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), -1)
    grouped: np.ndarray[Any, Any] = devices.reshape(-1, devices.shape[-1])
    return grouped
