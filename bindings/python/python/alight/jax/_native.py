"""Products, rows and attention by Alight's own kernels, on the bytes of a model file as they lie: for devices on the CPU.

The file is one `uint8[N]` array that is its map, the same on every device; a matrix is told by its place in it, four numbers
that are data, so that a scan over layers can go from place to place. A program may use the file in loops: XLA does not copy
it. All functions are for the body of a `jax.shard_map` with `check_vma=False`, and cannot be differentiated or vectorised.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import Catalog, Tensor
from .._alight import WEIGHT_TYPES, ExpertStore
from . import _ffi, _mesh

LINE = 16
"""What a capacity is a multiple of."""

PAGE = 4096
"""What the way from an expert to the next is a multiple of, where experts lie side by side."""

GATES = ("silu", "clamped_silu")
"""What is done to the gates of experts. The second is gpt-oss's."""

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""(start, count) for each rank; a count of 0 is nothing."""


@dataclass(frozen=True)
class Cut:
    """What the ranks have of a matrix: rows, columns, or both of each. `None`: all of them."""

    shape: tuple[int, int]
    """Rows and columns of the matrix in the file."""
    rows: Spans | None = None
    columns: Spans | None = None
    """In whole blocks of the matrix's type."""
    slots: int | None = None
    """Rows of the result on every rank; `None`: as many as the rank with the most has. What is left over is zero."""

    def spans(self, dimension: int, ranks: int) -> Spans:
        """The spans of a dimension, for every rank."""
        spans = self.rows if dimension == 0 else self.columns
        return ((0, self.shape[dimension]),) * ranks if spans is None else spans

    def height(self, ranks: int) -> int:
        """Rows of the result."""
        return max(count for _, count in self.spans(0, ranks)) if self.slots is None else self.slots


def file_array(catalog: Catalog, mesh: Mesh, file: int = 0) -> jax.Array:
    """All bytes of a file of `catalog`, `uint8[N]`: its map, on every device of the mesh. Nothing is read or copied."""
    _cpu(mesh)
    block = catalog._whole(file)
    view = np.frombuffer(memoryview(block), np.uint8)
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    parts = [jax.device_put(view, device) for device in devices]
    for part in parts:
        if part.unsafe_buffer_pointer() != block.address:
            raise RuntimeError(f"{catalog.files[file]}: JAX has copied the map, instead of showing it")
    whole = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call, unused-ignore]
    return jax.make_array_from_single_device_arrays(view.shape, whole, parts)


def places(tensors: Iterable[Tensor | None]) -> npt.NDArray[np.uint32]:
    """The places of matrices in their file, `uint32[m, 4]`: offset (low, high), type, layout (0: rows, 1: tiles, 2: planes; for experts that
    lie side by side with those of other tensors, plus twice the pages from one to the next); zeros for one that is not there."""
    found = []
    for tensor in tensors:
        if tensor is None:
            found.append((0, 0, 0, 0))
            continue
        if tensor.type not in WEIGHT_TYPES:
            known = ", ".join(WEIGHT_TYPES)
            raise ValueError(f"tensor {tensor.name!r}: no kernels for its type {tensor.type}; there are some for {known}")
        offset = tensor.offset
        layout = 2 if tensor.planes else int(tensor.packed) + 2 * ((tensor.stride or 0) // PAGE)
        found.append((offset & 0xFFFFFFFF, offset >> 32, WEIGHT_TYPES[tensor.type][0], layout))
    return np.array(found, np.uint32).reshape(-1, 4)


def in_store(places: npt.NDArray[np.uint32], store: ExpertStore | None, layer: int) -> npt.NDArray[np.uint32]:
    """The places `uint32[6, 4]` of a layer's experts with that of their matrices in a store, `uint32[7, 4]`; without a store they are
    computed with in the file."""
    number = 0 if store is None else store.number
    place = (0, 0, 0, 0) if store is None else (number & 0xFFFFFFFF, number >> 32, layer, 1)
    return np.concatenate([places, np.array([place], np.uint32)])


def matmul(
    file: jax.Array,
    places: jax.Array | npt.NDArray[np.uint32],
    x: jax.Array,
    cuts: Sequence[Cut],
    *,
    mesh: Mesh,
    axis: str = "tp",
    threads: int = 0,
) -> tuple[jax.Array, ...]:
    """The products of `x` `float32[T, C]` with a rank's parts of `m` matrices: `float32[T, slots]` each.

    `places` is `uint32[m, 4]`, `cuts` says what each rank has of each matrix. The columns are the same for all of them:
    a rank multiplies the first `count` columns of its `x` with the columns `start` and on. Activations are rounded as the
    kernels do it (16 bits per value for one token, 8 for several); weights are as in the file.

    `threads`: how many share the work; 0: of the cores that there are for each device, those that are worth it.
    """
    ranks = _axis("matmul", mesh, axis)
    _file(file)
    _array("x", x, (None, None), np.float32)
    if not cuts:
        raise ValueError("cuts: expected one for each matrix, found none")
    _array("places", places, (len(cuts), 4), np.uint32)
    columns, width = cuts[0].spans(1, ranks), cuts[0].shape[1]
    for number, cut in enumerate(cuts):
        name = f"cuts[{number}]"
        if cut.shape[1] != width or cut.spans(1, ranks) != columns:
            raise ValueError(f"{name}: its columns are {cut.columns} of {cut.shape[1]}, those of cuts[0] {cuts[0].columns} of {width}")
        for what, spans, whole in (("rows", cut.spans(0, ranks), cut.shape[0]), ("columns", columns, width)):
            if len(spans) != ranks:
                raise ValueError(f"{name}: {what} of {len(spans)} ranks, and axis {axis!r} has {ranks}")
            for rank, (start, count) in enumerate(spans):
                if min(start, count) < 0 or start + count > whole:
                    raise ValueError(f"{name}: rank {rank} has {count} {what} from {start} on, and the matrix has {whole}")
        most = max(count for _, count in cut.spans(0, ranks))
        if cut.height(ranks) < most:
            raise ValueError(f"{name}: {cut.slots} slots, and a rank has {most} rows")
    most = max(count for _, count in columns)
    if most > x.shape[1]:
        raise ValueError(f"x: expected at least the {most} columns that a rank has, found {x.shape[1]}")
    results = [jax.ShapeDtypeStruct((x.shape[0], cut.height(ranks)), np.float32) for cut in cuts]  # type: ignore[no-untyped-call, unused-ignore]
    rows = np.array([cut.spans(0, ranks) for cut in cuts], np.int64)
    _ffi.register()
    found = jax.ffi.ffi_call("alight_matmul", results)(
        file,
        places,
        x,
        devices=_devices(mesh, axis),
        rows=np.array([cut.shape[0] for cut in cuts], np.int64),
        cols=np.int64(width),
        row_start=rows[:, :, 0].ravel(),
        row_count=rows[:, :, 1].ravel(),
        col_start=np.array([start for start, _ in columns], np.int64),
        col_count=np.array([count for _, count in columns], np.int64),
        threads=_threads(threads),
    )
    return tuple(found)


def experts(
    file: jax.Array,
    places: jax.Array | npt.NDArray[np.uint32],
    x: jax.Array,
    chosen: jax.Array,
    shares: jax.Array,
    spans: Spans,
    *,
    count: int,
    width: int,
    mesh: Mesh,
    gate: str = "silu",
    axis: str = "tp",
    threads: int = 0,
) -> jax.Array:
    """What a rank's experts of a mixture add: `float32[T, C]` of `x` `float32[T, C]`.

    `places` `uint32[7, 4]` are those of the stacks of `count` gates, ups and downs, `[width, C]`, `[width, C]` and `[C, width]`
    each, and of their biases, float32 `[count, width]`, `[count, width]` and `[count, C]`, or zeros, and in which store the matrices
    are (`in_store`); token `t` goes through the
    experts `chosen` `int32[T, K]`, whose outputs are multiplied by `shares` `float32[T, K]` and summed in this order, those
    that the rank has by `spans`. Each is read once for all of its tokens. `gate` is one of `GATES`; `threads` is as for
    `matmul`.
    """
    ranks = _axis("experts", mesh, axis)
    _file(file)
    _array("places", places, (7, 4), np.uint32)
    _array("x", x, (None, None), np.float32)
    _array("chosen", chosen, (x.shape[0], None), np.int32)
    _array("shares", shares, chosen.shape, np.float32)
    if len(spans) != ranks:
        raise ValueError(f"spans: experts of {len(spans)} ranks, and axis {axis!r} has {ranks}")
    for rank, (start, own) in enumerate(spans):
        if min(start, own) < 0 or start + own > count:
            raise ValueError(f"spans: rank {rank} has {own} experts from {start} on, and there are {count}")
    if gate not in GATES:
        raise ValueError(f"gate: expected one of {', '.join(map(repr, GATES))}, found {gate!r}")
    result = jax.ShapeDtypeStruct(x.shape, np.float32)  # type: ignore[no-untyped-call, unused-ignore]
    _ffi.register()
    found: jax.Array = jax.ffi.ffi_call("alight_experts", result)(
        file,
        places,
        x,
        chosen,
        shares,
        devices=_devices(mesh, axis),
        experts=np.int64(count),
        width=np.int64(width),
        gate=np.int64(GATES.index(gate)),
        first=np.array([start for start, _ in spans], np.int64),
        count=np.array([own for _, own in spans], np.int64),
        threads=_threads(threads),
    )
    return found


def embed(
    file: jax.Array,
    place: jax.Array | npt.NDArray[np.uint32],
    tokens: jax.Array,
    *,
    shape: tuple[int, int],
    scale: float = 1.0,
) -> jax.Array:
    """Rows `tokens` `int32[T]` of the matrix at `place` `uint32[4]` times `scale`: `float32[T, columns]`, the same on all
    ranks. A token that the matrix does not have is an error when the program runs."""
    _file(file)
    _array("place", place, (4,), np.uint32)
    _array("tokens", tokens, (None,), np.int32)
    result = jax.ShapeDtypeStruct((tokens.shape[0], shape[1]), np.float32)  # type: ignore[no-untyped-call, unused-ignore]
    _ffi.register()
    sizes = {"rows": np.int64(shape[0]), "cols": np.int64(shape[1])}
    found: jax.Array = jax.ffi.ffi_call("alight_embed", result)(file, place, tokens, scale=np.float32(scale), **sizes)
    return found


@dataclass(frozen=True)
class Heads:
    """Attention on a rank. Query heads `n · group` and on share key/value head `n`."""

    q_heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    capacity: int
    """Positions of the cache, a multiple of 16."""
    scale: float
    softcap: float | None = None

    def cache(self, layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the caches of keys and values of a rank, float16; they begin as zeros."""
        each = self.kv_heads * self.capacity
        return (layers, each * self.k_dim), (layers, each * self.v_dim)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    layer: jax.Array | int,
    pos: jax.Array | int,
    window: jax.Array | int,
    heads: Heads,
    *,
    mesh: Mesh,
    sinks: jax.Array | None = None,
    axis: str = "tp",
    threads: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Stores keys and values of `T` tokens at `pos` and on in the caches of `layer`, and attends them to all that they see:
    `float32[T, q_heads · v_dim]`, and the caches.

    The caches are written in place where the program lets XLA do it: where they are donated, or carried in a loop, and
    nothing else uses the old ones. Keys and values are rounded to float16. The token at position `p` sees positions `j ≤ p`
    with `p - j < window`; 0 is no window. `sinks` `float32[q_heads]` are scores of no position: they take weight from the
    others. `threads` is as for `matmul`.
    """
    _axis("attend", mesh, axis)
    h = heads
    if h.kv_heads < 1 or h.q_heads % h.kv_heads or min(h.k_dim, h.v_dim) < 1 or h.capacity < 1 or h.capacity % LINE:
        raise ValueError(f"heads: expected query heads for each key/value head, and a capacity that is a multiple of {LINE}, found {h}")
    for name, number in (("scale", h.scale), ("softcap", h.softcap or 0.0)):
        if not math.isfinite(number):
            raise ValueError(f"heads: {name} is {number}, expected a finite number")
    _array("q", q, (None, h.q_heads * h.k_dim), np.float32)
    _array("k", k, (q.shape[0], h.kv_heads * h.k_dim), np.float32)
    _array("v", v, (q.shape[0], h.kv_heads * h.v_dim), np.float32)
    sinks = jnp.zeros(0, np.float32) if sinks is None else sinks
    _array("sinks", sinks, (h.q_heads if sinks.size else 0,), np.float32)
    if k_cache.ndim == 0 or v_cache.ndim == 0 or k_cache.shape[0] != v_cache.shape[0]:
        raise ValueError(f"caches: expected [layers, …] of the same layers, found {k_cache.shape} and {v_cache.shape}")
    for name, cache, (layers, length) in zip(("k_cache", "v_cache"), (k_cache, v_cache), h.cache(k_cache.shape[0]), strict=True):
        if cache.dtype != np.float16:
            raise TypeError(f"{name}: expected float16, found {cache.dtype}")
        if cache.size != layers * length:
            raise ValueError(f"{name}: expected {length} elements for each of {layers} layers, found {cache.shape}")
    _ffi.register()
    out = (q.shape[0], h.q_heads * h.v_dim)
    results = [(out, np.float32), (k_cache.shape, np.float16), (v_cache.shape, np.float16)]
    call = jax.ffi.ffi_call(
        "alight_attend",
        [jax.ShapeDtypeStruct(*result) for result in results],  # type: ignore[no-untyped-call, unused-ignore]
        input_output_aliases={3: 1, 4: 2},
    )
    numbers = [_scalar(name, number) for name, number in (("layer", layer), ("pos", pos), ("window", window))]
    found = call(
        q,
        k,
        v,
        k_cache,
        v_cache,
        *numbers,
        sinks,
        q_heads=np.int64(h.q_heads),
        kv_heads=np.int64(h.kv_heads),
        k_dim=np.int64(h.k_dim),
        v_dim=np.int64(h.v_dim),
        capacity=np.int64(h.capacity),
        scale=np.float32(h.scale),
        softcap=np.float32(h.softcap or 0.0),
        devices=_devices(mesh, axis),
        threads=_threads(threads),
    )
    return found[0], found[1], found[2]


def _cpu(mesh: Mesh) -> None:
    platforms = {device.platform for device in mesh.devices.flat}
    if platforms != {"cpu"}:
        raise ValueError(f"mesh: its devices are of {', '.join(sorted(platforms))}; these kernels are for cpu")


def _axis(name: str, mesh: Mesh, axis: str) -> int:
    """The number of ranks."""
    _mesh.known(mesh, axis)
    _cpu(mesh)
    return _mesh.ranks(name, mesh, axis)


def _devices(mesh: Mesh, axis: str) -> npt.NDArray[np.int64]:
    """Numbers of the devices, those of an axis side by side."""
    return np.array([device.id for device in _mesh.groups(mesh, axis).flat], np.int64)


def _threads(threads: int) -> np.int64:
    if operator.index(threads) < 0:
        raise ValueError(f"threads: expected 0 or more, found {threads}")
    return np.int64(threads)


def _file(file: jax.Array) -> None:
    _array("file", file, (None,), np.uint8)


def _array(name: str, array: Any, shape: tuple[int | None, ...], dtype: Any) -> None:
    if array.dtype != dtype:
        raise TypeError(f"{name}: expected {np.dtype(dtype)}, found {array.dtype}")
    if len(array.shape) != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape, strict=True)):
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name}: expected [{expected}], found {list(array.shape)}")


def _scalar(name: str, number: jax.Array | int) -> jax.Array:
    scalar = jnp.asarray(number, np.int32) if isinstance(number, int) else jnp.asarray(number)
    if scalar.shape != () or scalar.dtype != np.int32:
        raise TypeError(f"{name}: expected an int32 scalar, found {scalar.dtype}{list(scalar.shape)}")
    return scalar
