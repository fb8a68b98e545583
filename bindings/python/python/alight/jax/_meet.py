"""Where the devices of a program meet before the first of them waits in a kernel for the others."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from jax import lax
from jax.sharding import Mesh

from . import _mesh

T = TypeVar("T")


def meet(x: T, *, mesh: Mesh | None = None, axis: _mesh.Axis = "tp") -> T:
    """`x`, an array or a tree of arrays, as it is, after a collective of XLA's among the GPUs of `axis`: of one number.

    XLA lets devices wait for each other between the preparation of a program and its first kernel only if it knows of collectives in it. Without,
    one GPU may already wait in a kernel of `allreduce_norm` for another whose graph is still being made, which a waiting kernel may hold up. A
    program of your own whose only collectives are `allreduce_norm` calls this once, at its start and outside of loops, with something small
    that its results depend on; to be called in the body of the `jax.shard_map`, with `mesh` and `axis` as for `allreduce_norm`.

    On CPU devices and on a single rank nothing is added.
    """
    mesh = _mesh.or_around(mesh)
    _mesh.known(mesh, axis)
    if _mesh.ranks("meet", mesh, axis) == 1 or not needed(mesh):
        return x
    leaves, tree = jax.tree.flatten(x)
    if not leaves:
        raise ValueError("meet: expected an array or a tree of arrays, found none")
    # Ranks have different numbers: of equal ones XLA would leave the collective out.
    last: Any = lax.pmax(lax.axis_index(axis), axis)  # type: ignore[no-untyped-call, unused-ignore]
    leaves, last = lax.optimization_barrier((leaves, last))  # type: ignore[no-untyped-call, unused-ignore]
    # XLA takes barriers away in the end, and with them a collective whose result nothing needs.
    least = min(range(len(leaves)), key=lambda number: leaves[number].size)
    leaves[least] = lax.select(last < 0, lax.full_like(leaves[least], 0), leaves[least])
    met: T = jax.tree.unflatten(tree, leaves)
    return met


def needed(mesh: Mesh) -> bool:
    """Whether devices of this kind may hold each other up: threads that wait do not."""
    return bool(mesh.devices.flat[0].platform != "cpu")
