"""Checks of a mesh and its axis, when a call that depends on them is traced."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

Axis: TypeAlias = str | tuple[str, ...]
"""The name of an axis; or of several, which are taken as one, the last one running fastest."""


def names(axis: Axis) -> tuple[str, ...]:
    """Those of an axis."""
    return (axis,) if isinstance(axis, str) else tuple(axis)


def here(mesh: Mesh) -> bool:
    """Whether its devices are there to run programs. Those of `jax.experimental.topologies` are only compiled for."""
    first = mesh.devices.flat[0]
    try:
        return first in jax.devices(first.platform)
    except RuntimeError:  # there is no such platform
        return False


def or_around(mesh: Mesh | None) -> Mesh:
    """The mesh, or, without one, that of `jax.set_mesh`; an error where there is none. While a program is traced, JAX says in public only how the
    mesh around has its axes (`jax.sharding.get_abstract_mesh`) and not which devices it has, which the handler has to be told."""
    if mesh is not None:
        return mesh
    try:
        from jax._src.mesh import get_concrete_mesh
    except ImportError:
        raise ValueError("mesh: this version of JAX does not say which devices the mesh of jax.set_mesh has; pass mesh=") from None
    around: Mesh = get_concrete_mesh()
    if around.empty:
        raise ValueError("mesh: expected one, since none is set here; pass mesh=, or call it under jax.set_mesh")
    return around


def known(mesh: Mesh, axis: Axis) -> None:
    """An error unless it is a mesh of devices that has the axis."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh with devices, found {type(mesh).__name__}")
    for name in names(axis):
        if name not in mesh.axis_names:
            raise ValueError(f"axis: {name!r} is not an axis of the mesh, whose axes are {mesh.axis_names}")
    if len(set(names(axis))) != len(names(axis)) or not names(axis):
        raise ValueError(f"axis: expected an axis, or several different ones, found {axis!r}")


def ranks(name: str, mesh: Mesh, axis: Axis) -> int:
    """The number of ranks along an axis that is known; an error unless `name` is called in a shard_map over the mesh."""
    count = math.prod(int(mesh.shape[one]) for one in names(axis))
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


def groups(mesh: Mesh, axis: Axis) -> np.ndarray[Any, Any]:
    """The devices `[groups, ranks]`, those of an axis side by side."""
    places = [mesh.axis_names.index(name) for name in names(axis)]
    devices = np.moveaxis(mesh.devices, places, range(-len(places), 0))
    grouped: np.ndarray[Any, Any] = devices.reshape(-1, math.prod(devices.shape[-len(places) :]))
    return grouped
