"""The collective of a tensor-parallel layer, all-reduce, post-norm, residual and norm, in one custom call.

Where no handler applies, the same of XLA's own operations, with the same roundings.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from . import _connect, _cuda, _ffi, _mesh

log = logging.getLogger("alight.jax")

LIMIT = 30.0
"""Seconds that a rank waits for the others, unless told otherwise."""
FOREVER = 10 * 365 * 86400
"""Seconds of an infinite limit, which handlers can count."""

DTYPES = ("bfloat16", "float16", "float32")
RANKS = 64
"""The most devices of a group that the handler knows."""

_told: set[str] = set()


def allreduce_norm(
    partial: jax.Array,
    residual: jax.Array,
    weight: jax.Array,
    *,
    mesh: Mesh | None = None,
    axis: _mesh.Axis = "tp",
    epsilon: float,
    bias: int = 0,
    post_weight: jax.Array | None = None,
    limit: float = LIMIT,
    assume: bool = False,
    channel: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """Sums `partial` over the devices of `axis`; gives the normed new residual, and the new residual.

        s            = round(partial[0] + partial[1] + …)             in float32, in the order of the axis
        p            = round(s · 1/√(mean s² + epsilon) · (bias + post_weight))      or s, without post_weight
        new_residual = round(residual + p)
        normed       = round(new_residual · 1/√(mean new_residual² + epsilon) · (bias + weight))

    `round` is to the type of the operands; means are over the last dimension. To be called in the body of a
    `jax.shard_map` over `mesh` with `check_vma=False`: JAX does not know along which axes results of a custom call differ.

    `axis` may be several axes of the mesh, `("x", "y")`, which are one then, as for `lax.psum`.

    `partial` and `residual` are `[…, hidden]`, of one type (bfloat16, float16 or float32); the weights are `[hidden]`, of
    that type or float32. Residual and weights are the same on all devices of the axis, and so are the results, bit for
    bit. `bias` is 0 (Llama) or 1 (Gemma).

    On CPU devices of one process it is one custom call, on those of several of one host, once these are connected
    (`alight.jax.connect`), and among CUDA's GPUs, of one process or of several that are connected, if a trial among them works (see
    `check_collectives` for errors there). A device that does not come within `limit` seconds is an error on the others, and of every later call of
    the program, until it is compiled or loaded anew; `math.inf` waits for as long as it takes, as `lax.psum` does: for a
    debugger, a process that is suspended, a program that keeps one device busy. `mesh` has the devices of the `shard_map` in
    its order; without, it is the one that `jax.set_mesh` has set where the program is traced (of a jitted function JAX keeps the trace for other meshes with the
    same axes, in which it is an error). Elsewhere it is `lax.psum` and the same norm; why is logged once ("alight.jax").

    Under `jax.vmap` more rows are one call, if the weights are the same for all. Derivatives are those of the operations of
    XLA's that stand in for the call elsewhere.

    `assume`: for a program that is compiled ahead of time, for GPUs that are not here (`jax.experimental.topologies`): the
    custom call as if a trial had worked. Where it would not have, the program fails with the reason.

    Among GPUs, a program whose only collectives are these has to let its devices meet once before the first of them: `alight.jax.meet` says why.

    `channel`: among GPUs, calls of one channel (any number but 0) share their workspaces, which are 2 · ranks operands on each GPU, rounded up to
    a power of two; calls of channel 0 have their own. Each call of a channel has to need a result of the one before, in a program and in those
    that run beside it in the process: a second one that is on its way is an error.
    """
    mesh = _mesh.or_around(mesh)
    ranks = _check(partial, residual, weight, mesh, axis, epsilon, bias, post_weight, limit)
    groups = _mesh.groups(mesh, axis)
    problem = _no_handler(groups, partial, assume and not _mesh.here(mesh))
    if problem is not None:
        if problem not in _told:
            _told.add(problem)
            log.warning("allreduce_norm is lax.psum and a norm: %s", problem)
        return of_xla(partial, residual, weight, post_weight, axis, epsilon, bias)
    _ffi.register()
    again = functools.partial(
        allreduce_norm, mesh=mesh, axis=axis, epsilon=epsilon, bias=bias, limit=limit, assume=assume, channel=channel
    )
    operands = (partial, residual, weight) + (() if post_weight is None else (post_weight,))

    @jax.custom_batching.custom_vmap
    def one(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _call(operands, mesh, axis, groups, ranks, epsilon, bias, limit, channel)

    @one.def_vmap
    def several(count: int, batched: list[bool], *operands: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[bool, bool]]:
        """More rows of one call."""
        if any(batched[2:]):
            raise ValueError("allreduce_norm: weights that differ along an axis of jax.vmap; expected the same for all rows of a call")
        x, y = (x if own else jnp.broadcast_to(x, (count, *x.shape)) for x, own in zip(operands[:2], batched[:2], strict=True))
        return again(x, y, operands[2], post_weight=operands[3] if operands[3:] else None), (True, True)

    @jax.custom_jvp
    def call(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        found: tuple[jax.Array, jax.Array] = one(*operands)
        return found

    @call.defjvp
    def derivative(operands: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> Any:
        def plain(partial: jax.Array, residual: jax.Array, weight: jax.Array, post_weight: jax.Array | None = None) -> Any:
            return of_xla(partial, residual, weight, post_weight, axis, epsilon, bias)

        return call(*operands), jax.jvp(plain, operands, tangents)[1]

    found: tuple[jax.Array, jax.Array] = call(*operands)
    return found


def _call(
    operands: tuple[jax.Array, ...],
    mesh: Mesh,
    axis: _mesh.Axis,
    groups: np.ndarray[Any, Any],
    ranks: int,
    epsilon: float,
    bias: int,
    limit: float,
    channel: int,
) -> tuple[jax.Array, jax.Array]:
    """The custom call."""
    partial, every = operands[0], groups
    groups = _distinct(every)
    across = _across(groups)
    like = jax.ShapeDtypeStruct(partial.shape, partial.dtype)  # type: ignore[no-untyped-call, unused-ignore]
    # On CPUs in place, where XLA needs the operands no more: in a loop that saves copying what it carries.
    in_place = {0: 0, 1: 1} if mesh.devices.flat[0].platform == "cpu" else None
    normed, new_residual = jax.ffi.ffi_call("alight_allreduce_norm", (like, like), input_output_aliases=in_place)(
        *operands,
        *_place(mesh, axis, every, groups),
        devices=np.array([_number(device, across) for device in groups.flat], np.int64),
        processes=np.array([device.process_index for device in groups.flat], np.int64),
        ranks=np.int64(ranks),
        capacity=np.int64(partial.size * partial.dtype.itemsize),
        limit_ms=np.int64(max(1, round(min(limit, FOREVER) * 1000))),
        channel=np.int64(channel),
        bias=np.int64(bias),
        epsilon=np.float32(epsilon),
    )
    return normed, new_residual


def _check(
    partial: jax.Array,
    residual: jax.Array,
    weight: jax.Array,
    mesh: Mesh,
    axis: _mesh.Axis,
    epsilon: float,
    bias: int,
    post_weight: jax.Array | None,
    limit: float,
) -> int:
    """Everything that cannot work, before anything runs. Returns the number of ranks."""
    _mesh.known(mesh, axis)
    ranks = _mesh.ranks("allreduce_norm", mesh, axis)
    if partial.ndim == 0 or partial.shape[-1] == 0:
        raise ValueError(f"partial: expected […, hidden] with a hidden that is not 0, found {list(partial.shape)}")
    if str(partial.dtype) not in DTYPES:
        raise TypeError(f"partial: expected one of {', '.join(DTYPES)}, found {partial.dtype}")
    if residual.shape != partial.shape:
        raise ValueError(f"residual: expected the partial's shape {list(partial.shape)}, found {list(residual.shape)}")
    if residual.dtype != partial.dtype:
        raise TypeError(f"residual: expected the partial's type {partial.dtype}, found {residual.dtype}")
    for name, one in (("weight", weight), ("post_weight", post_weight)):
        if one is None:
            continue
        if one.shape != partial.shape[-1:]:
            raise ValueError(f"{name}: expected {list(partial.shape[-1:])}, found {list(one.shape)}")
        if one.dtype not in (partial.dtype, np.dtype(np.float32)):
            raise TypeError(f"{name}: expected the partial's type {partial.dtype} or float32, found {one.dtype}")
    if post_weight is not None and post_weight.dtype != weight.dtype:
        raise TypeError(f"post_weight: expected the weight's type {weight.dtype}, found {post_weight.dtype}")
    if bias not in (0, 1):
        raise ValueError(f"bias: expected 0 or 1, found {bias}")
    for name, number, least in (("epsilon", epsilon, 0.0), ("limit", limit, 0.0)):
        unbounded = name == "limit" and not isinstance(number, jax.core.Tracer) and number == math.inf
        if not unbounded and (isinstance(number, jax.core.Tracer) or not math.isfinite(number) or number < least):
            raise ValueError(f"{name}: expected a number that is known when the program is traced, 0 or more, found {number}")
    return ranks


def _place(mesh: Mesh, axis: _mesh.Axis, every: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> tuple[jax.Array, ...]:
    """The place of this device, among those of the groups that the handler knows, as the `shard_map` around the call has it: a number on the
    device, that the handler compares with its own. What devices the `shard_map` has is known only when the program runs."""
    try:
        others = [(int(mesh.shape[name]), lax.axis_index(name)) for name in mesh.axis_names if name not in _mesh.names(axis)]
        rank = lax.axis_index(axis)
    except NameError:  # an axis that is not the shard_map's
        return ()
    # Groups of which the handler knows one, because they have the same numbers in their processes, share its places.
    rows = [[_cuda.number(device) for device in group] for group in known] if len(known) < len(every) else []
    numbers = [rows.index([_cuda.number(device) for device in group]) for group in every] if rows else range(len(every))
    group: Any = jnp.int32(0)
    for count, index in others:
        group = group * count + index
    return (jnp.asarray(jnp.asarray(list(numbers), jnp.int32)[group] * known.shape[-1] + rank, jnp.int32),)


def _number(device: Any, across: bool) -> int:
    """What XLA calls a device when it calls a handler; a GPU of a program whose groups are of several processes has the number that is the same in
    all of them, which the handler knows since `connect`."""
    return _cuda.number(device) if device.platform == "gpu" and not across else int(device.id)


def _across(groups: np.ndarray[Any, Any]) -> bool:
    """Whether a group is of several processes."""
    return any(len({device.process_index for device in group}) > 1 for group in groups)


def _distinct(groups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The groups that the handlers of a process tell apart. If each is of one process, on GPUs, a process sees its own alone, by their numbers in
    it: groups of several processes with the same numbers are one group to each of them, and the program is the same for all."""
    if groups.flat[0].platform != "gpu" or _across(groups):
        return groups
    rows = [[_cuda.number(device) for device in group] for group in groups]
    return groups[[at for at, row in enumerate(rows) if row not in rows[:at]]]


def _no_handler(groups: np.ndarray[Any, Any], partial: jax.Array, assumed: bool) -> str | None:
    """Why the handler cannot be used on these devices, `[groups, ranks]`, if it cannot. `assumed`: they cannot be asked."""
    platforms = {device.platform for device in groups.flat}
    if platforms not in ({"cpu"}, {"gpu"}):
        return f"there is no handler for devices of {', '.join(sorted(platforms))}"
    if platforms == {"gpu"}:
        several = len({device.process_index for device in groups.flat}) > 1
        if several and (problem := _connect.gpus()) is not None:
            return problem
        if _across(groups):
            for group in groups:
                if (problem := _connect.gpus_across(sorted({device.process_index for device in group}))) is not None:
                    return problem
        else:
            numbers = [_cuda.number(device) for device in _distinct(groups).flat]
            if len(set(numbers)) < len(numbers):
                return "processes have cut their GPUs into groups differently"
        hidden = partial.shape[-1]
        # Of several processes, the trial has been before: all have to say the same.
        return _cuda.problem(groups, hidden, partial.dtype.itemsize, assumed or several, partial.size // hidden)
    if (ranks := groups.shape[-1]) > RANKS:
        return f"{ranks} devices along the axis, and the handler knows at most {RANKS}"
    for group in groups:
        processes = sorted({device.process_index for device in group})
        if len(processes) > 1 and (problem := _connect.problem(processes)) is not None:
            return problem
    return None


def of_xla(
    partial: jax.Array,
    residual: jax.Array,
    weight: jax.Array,
    post_weight: jax.Array | None,
    axis: _mesh.Axis,
    epsilon: float,
    bias: int,
) -> tuple[jax.Array, jax.Array]:
    """The same by `lax.psum`. The sum's order, and the rounding of sums of squares, are XLA's."""
    total = lax.psum(partial.astype(jnp.float32), axis)  # type: ignore[no-untyped-call, unused-ignore]
    total = _round(total, partial.dtype)
    if post_weight is not None:
        total = _norm(total, post_weight, bias, epsilon, partial.dtype)
    new_residual = _round(residual.astype(jnp.float32) + total, partial.dtype)
    normed = _norm(new_residual, weight, bias, epsilon, partial.dtype)
    return normed.astype(partial.dtype), new_residual.astype(partial.dtype)


def _norm(x: jax.Array, weight: jax.Array, bias: int, epsilon: float, dtype: Any) -> jax.Array:
    scale = 1 / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon))
    return _round(x * scale * jnp.broadcast_to(np.float32(bias) + weight.astype(jnp.float32), x.shape), dtype)


def _round(x: jax.Array, dtype: Any) -> jax.Array:
    """To `dtype`, in float32. Casting there and back would be left out by XLA, which likes to keep precision."""
    kind = jnp.finfo(dtype)  # type: ignore[no-untyped-call, unused-ignore]
    return lax.reduce_precision(x, exponent_bits=kind.nexp, mantissa_bits=kind.nmant)
