"""Attention that reads the positions a token sees, and not the whole cache: blocks of positions, one after the other, whose
sums are corrected when a greater score comes (Milakov and Gimelshein, "Online normalizer calculation for softmax").

Two implementations of the same: a loop of XLA's own operations, and a kernel of Pallas for GPUs, where a loop that ends when
the host says so would cut a step's CUDA graph into pieces. How many blocks there are is known on the device alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._sums import row_sums

try:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton
except ImportError:  # a jaxlib without them
    triton = None  # type: ignore[assignment]

BLOCK = 256
"""Positions of a turn of the loop."""
PAGE = 64
"""Positions of a page: a cache of pages has them in any order, and a table says which ones a sequence has."""
KERNEL_BLOCK = PAGE
"""Positions of a turn of the kernel. What a program of it holds fits into the shared memory of an A100, with heads of 256."""
PROGRAMS = 128
"""Programs of the kernel that are made at least, if there are positions for them: about as many as a GPU runs at once."""
LOW = np.float32(-1e30)
"""Below every score, and finite: what is seen of no position is 0 and not NaN."""


@dataclass(frozen=True)
class Attention:
    """What is known when a program is made. Heads are those of a rank."""

    heads: int
    """Of keys and values."""
    group: int
    """Query heads for each of them."""
    key_dim: int
    value_dim: int
    capacity: int
    scale: float
    softcap: float | None
    kind: Any
    """What products are computed from; sums are float32."""
    kernel: bool
    """Whether the kernel is used."""
    interpret: bool = False
    """For tests: the kernel, step by step, on any device."""

    def cache(self, layers: int, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of keys and of values. The kernel takes blocks of powers of two."""
        return self._shapes(layers, batch, -(-self.capacity // KERNEL_BLOCK) * KERNEL_BLOCK if self.kernel else self.capacity)

    def pages(self, layers: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The same of a cache of so many pages."""
        return self._shapes(layers, count, PAGE)

    def _shapes(self, layers: int, count: int, positions: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        keys, values = (max(16, 1 << (width - 1).bit_length()) if self.kernel else width for width in (self.key_dim, self.value_dim))
        return (layers, self.heads, count, positions, keys), (layers, self.heads, count, positions, values)

    def __call__(
        self,
        q: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        layer: jax.Array | int,
        pos: jax.Array,
        window: jax.Array | int,
        sinks: jax.Array | None,
        table: jax.Array | None = None,
    ) -> jax.Array:
        """Of queries `[B, T, heads · group · key_dim]`, whose tokens are at `pos` `[B]` and on, `[B, T, heads · group · value_dim]`,
        float32. The token at position `p` sees positions `j ≤ p` with `p - j < window`; 0 is no window. `table` `[B, n]`: the pages of
        each sequence, of a cache of pages; numbers that there is no page of stand for none."""
        batch, tokens = q.shape[:2]
        q = q.reshape(batch, tokens, self.heads, self.group, self.key_dim).transpose(2, 0, 1, 3, 4)
        # [heads, B, T · group, key_dim]: as the cache has them, or products would be of other forms for other batches.
        q = q.reshape(self.heads, batch, tokens * self.group, self.key_dim).astype(self.kind)
        sinks = None if sinks is None else jnp.tile(sinks.reshape(self.heads, self.group), (1, tokens))
        out = self._rows(q, keys, values, sinks, jnp.asarray(layer, jnp.int32), pos, jnp.asarray(window, jnp.int32), table)
        out = out[..., : self.value_dim].reshape(self.heads, batch, tokens, self.group, self.value_dim)
        return out.transpose(1, 2, 0, 3, 4).reshape(batch, tokens, -1)

    def _rows(self, *operands: Any) -> jax.Array:
        """`q` `[heads, B, rows, key_dim]`, keys, values, sinks, layer, pos, window and table to `[heads, B, rows, …]`."""

        @jax.custom_jvp
        def call(q: Any, keys: Any, values: Any, sinks: Any, layer: Any, pos: Any, window: Any, table: Any) -> jax.Array:
            return (self._kernel if self.kernel else self._loop)(q, keys, values, layer, pos, window, sinks, table)

        @call.defjvp
        def derivative(operands: Any, tangents: Any) -> Any:
            # A loop that ends when its data say so has no derivative backwards, nor has the kernel.
            # It may be derived where what `Programs` allows has passed.
            with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
                slope = jax.jvp(lambda *some: self._whole(*some, *operands[4:]), operands[:4], tangents[:4])[1]
                return call(*operands), slope

        found: jax.Array = call(*operands)
        return found

    def _whole(
        self, q: jax.Array, keys: jax.Array, values: jax.Array, sinks: Any, layer: jax.Array, pos: jax.Array, window: jax.Array, table: Any
    ) -> jax.Array:
        """The same over the whole cache: for derivatives alone."""
        if table is not None:
            # The pages of a sequence side by side.
            keys, values = (x.at[:, :, table].get(mode="clip").reshape(*x.shape[:2], table.shape[0], -1, x.shape[4]) for x in (keys, values))
        k, v = (lax.dynamic_index_in_dim(x, layer, keepdims=False).astype(self.kind) for x in (keys, values))
        at = pos[:, None] + lax.iota(jnp.int32, q.shape[2]) // self.group
        where = lax.iota(jnp.int32, keys.shape[3])
        back = at[:, :, None] - where
        # 0 · NaN is NaN, of shares and of derivatives.
        k, v = (jnp.where((where <= at.max(axis=1, keepdims=True))[None, :, :, None], x, 0) for x in (k, v))
        q = jnp.pad(q, ((0, 0), (0, 0), (0, 0), (0, k.shape[3] - q.shape[3])))
        scores = self._scores(jnp.einsum("hbrd,hbpd->hbrp", q, k, preferred_element_type=jnp.float32))
        scores = jnp.where((back >= 0) & ((window == 0) | (back < window)), scores, -jnp.inf)
        if sinks is not None:
            more = jnp.broadcast_to(sinks[:, None, :, None], (*q.shape[:3], 1))
            scores = jnp.concatenate([scores, more], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)[..., : keys.shape[3]].astype(self.kind)
        return jnp.einsum("hbrp,hbpd->hbrd", weights, v, preferred_element_type=jnp.float32)

    def _scores(self, dots: jax.Array) -> jax.Array:
        dots = dots * np.float32(self.scale)
        return dots if self.softcap is None else np.float32(self.softcap) * jnp.tanh(dots / np.float32(self.softcap))

    def _loop(
        self,
        q: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        layer: jax.Array,
        pos: jax.Array,
        window: jax.Array,
        sinks: jax.Array | None,
        table: jax.Array | None = None,
    ) -> jax.Array:
        """`q` and the result `[heads, B, rows, …]`, a row for each query head of each token; `sinks` `[heads, rows]`."""
        # Blocks are those of a cache of one sequence, whatever it is made of: a sequence has its own bits.
        (heads, batch, rows, _), capacity = q.shape, keys.shape[3] if table is None else self.capacity
        at = pos[:, None] + lax.iota(jnp.int32, rows) // self.group  # [B, rows]
        if rows == 1:
            # Twice: XLA has a way of its own for one row on CPU devices, which rounds differently.
            q, at, sinks = jnp.tile(q, (1, 1, 2, 1)), jnp.tile(at, 2), None if sinks is None else jnp.tile(sinks, 2)
        block, zero = min(BLOCK, capacity), jnp.int32(0)
        first = jnp.where(window > 0, jnp.maximum(jnp.min(pos) - window + 1, 0), 0)

        def turn(number: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            most, total, out = carry
            # The last block ends where the cache ends; what it shares with the one before has been seen.
            start = jnp.minimum(number * block, capacity - block)

            def of(cache: jax.Array) -> jax.Array:
                if table is not None:
                    at = start + lax.iota(jnp.int32, block)
                    # [B, block, heads, width], of one layer alone.
                    rows = cache.at[layer, :, table[:, at // PAGE], at % PAGE].get(mode="clip")
                    return rows.transpose(2, 0, 1, 3).astype(self.kind)
                part = lax.dynamic_slice(cache, (layer, zero, zero, start, zero), (1, heads, batch, block, cache.shape[4]))
                return part[0].astype(self.kind)

            where = start + lax.iota(jnp.int32, block)
            back = at[:, :, None] - where
            seen = (back >= 0) & ((window == 0) | (back < window)) & (where >= number * block)
            scores = self._scores(jnp.einsum("hbrd,hbpd->hbrp", q, of(keys), preferred_element_type=jnp.float32))
            scores = jnp.where(seen, scores, -jnp.inf)
            more = jnp.maximum(most, scores.max(axis=-1))
            shares, kept = jnp.exp(scores - more[..., None]), jnp.exp(most - more)
            # What is behind a sequence may be anything, and 0 · NaN is NaN.
            held = (where <= at.max(axis=1, keepdims=True))[None, :, None, :]
            turned = jnp.where(held, of(values).swapaxes(2, 3), 0)
            # XLA has several ways on CPU devices, by the shape, and they round differently; in this form it has one.
            turned = lax.optimization_barrier(turned)  # type: ignore[no-untyped-call, unused-ignore]
            new = jnp.einsum("hbrp,hbdp->hbrd", shares.astype(self.kind), turned, preferred_element_type=jnp.float32)
            return more, total * kept + row_sums(shares), out * kept[..., None] + new

        # A sink is one more position, whose value is zero.
        most = jnp.full(q.shape[:3], LOW) if sinks is None else jnp.broadcast_to(sinks[:, None], q.shape[:3])
        total = jnp.zeros_like(most) if sinks is None else jnp.ones_like(most)
        start = (most, total, jnp.zeros((*q.shape[:3], self.value_dim), jnp.float32))
        last = jnp.minimum(jnp.max(at), capacity - 1)
        _, total, out = lax.fori_loop(first // block, last // block + 1, turn, start)
        found: jax.Array = out / total[..., None]
        return found[:, :, :rows]

    def _kernel(
        self,
        q: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        layer: jax.Array,
        pos: jax.Array,
        window: jax.Array,
        sinks: jax.Array | None,
        table: jax.Array | None = None,
    ) -> jax.Array:
        """The same. A program of the kernel has a few rows of a head, and a share of the positions that they see."""
        (heads, batch, rows, width), (capacity, depth) = q.shape, values.shape[3:]
        capacity = capacity if table is None else table.shape[1] * PAGE
        # Products have 16 rows or more.
        few = min(max(16, 1 << (rows - 1).bit_length()), 64 if max(keys.shape[4], depth) <= 128 else 32)
        blocks = -(-rows // few)
        shares = max(1, min(PROGRAMS // (heads * batch * blocks), 16, capacity // (2 * KERNEL_BLOCK)))
        q = jnp.pad(q, ((0, 0), (0, 0), (0, blocks * few - rows), (0, keys.shape[4] - width)))
        q = q.reshape(heads * batch, blocks * few, -1)

        def whole(shape: tuple[int, ...]) -> Any:
            return pl.BlockSpec(shape, lambda one, block, share: (0,) * len(shape))

        def part(*shape: int) -> tuple[Any, Any]:
            """A result of each program."""
            index = (0,) * (len(shape) - 1)
            spec = pl.BlockSpec((None, None, *shape), lambda one, block, share: (one, share, block, *index))
            like = (heads * batch, shares, blocks * shape[0], *shape[1:])
            return spec, jax.ShapeDtypeStruct(like, jnp.float32)  # type: ignore[no-untyped-call, unused-ignore]

        results = [part(few, depth), part(few), part(few)]
        tokens = rows // self.group
        body = functools.partial(_program, of=self, tokens=tokens, rows=few, shares=shares, capacity=capacity)
        pages = () if table is None else (table,)
        call: Any = pl.pallas_call(
            body,
            grid=(heads * batch, blocks, shares),
            in_specs=[
                *map(whole, ((1,), (batch,), (1,))),
                pl.BlockSpec((None, few, q.shape[-1]), lambda one, block, share: (one, block, 0)),
                whole(keys.shape),
                whole(values.shape),
                *(whole(one.shape) for one in pages),
            ],
            out_specs=[spec for spec, _ in results],
            out_shape=[like for _, like in results],
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=2 if depth <= 128 else 1),
            interpret=self.interpret,
            name="alight_attention",
        )
        out, most, total = call(layer[None], pos, window[None], q, keys, values, *pages)
        top = most.max(axis=1)
        if sinks is not None:
            sinks = jnp.repeat(jnp.pad(sinks, ((0, 0), (0, blocks * few - rows))), batch, axis=0)
            top = jnp.maximum(top, sinks)
        kept = jnp.exp(most - top[:, None])
        total = (total * kept).sum(axis=1) + (0 if sinks is None else jnp.exp(sinks - top))
        out = (out * kept[..., None]).sum(axis=1) / total[..., None]
        found: jax.Array = out[:, :rows].reshape(heads, batch, rows, depth)
        return found


def _program(
    layer_ref: Any,
    pos_ref: Any,
    window_ref: Any,
    q_ref: Any,
    keys_ref: Any,
    values_ref: Any,
    *more: Any,
    of: Attention,
    tokens: int,
    rows: int,
    shares: int,
    capacity: int,
) -> None:
    """Sums, greatest scores and totals of `rows` rows of a head, over one of the `shares` of the blocks that they see."""
    *pages, out_ref, most_ref, total_ref = more
    one, block, share = (pl.program_id(axis) for axis in range(3))
    head, sequence = one // pos_ref.shape[0], one % pos_ref.shape[0]
    layer, pos, window = layer_ref[0], pos_ref[sequence], window_ref[0]
    q = q_ref[...]
    at = pos + (block * rows + lax.iota(jnp.int32, rows)) // of.group
    low = pos + block * rows // of.group
    high = jnp.minimum(pos + jnp.minimum((block * rows + rows - 1) // of.group, tokens - 1), capacity - 1)
    first = jnp.where(window > 0, jnp.maximum(low - window + 1, 0), 0) // KERNEL_BLOCK
    last = high // KERNEL_BLOCK + 1
    each = (last - first + shares - 1) // shares
    begin = first + share * each

    def turn(number: Any, carry: Any) -> Any:
        most, total, out = carry
        where = number * KERNEL_BLOCK + lax.iota(jnp.int32, KERNEL_BLOCK)
        # A block is a page.
        if pages:
            held = (jnp.minimum(pages[0][sequence, number], keys_ref.shape[2] - 1), pl.ds(0, PAGE))
        else:
            held = (sequence, pl.ds(number * KERNEL_BLOCK, KERNEL_BLOCK))
        k = triton.load(keys_ref.at[layer, head, *held, :]).astype(of.kind)
        # What is behind a sequence may be anything, and 0 · NaN is NaN.
        there = jnp.broadcast_to((where <= high)[:, None], (KERNEL_BLOCK, values_ref.shape[4]))
        v = triton.load(values_ref.at[layer, head, *held, :], mask=there, other=0).astype(of.kind)
        back = at[:, None] - where[None, :]
        seen = (back >= 0) & ((window == 0) | (back < window))
        exact = False if of.kind == jnp.float32 else None
        scores = jnp.where(seen, of._scores(triton.dot(q, k, trans_b=True, allow_tf32=exact)), -jnp.inf)
        more = jnp.maximum(most, scores.max(axis=-1))
        weights, kept = jnp.exp(scores - more[:, None]), jnp.exp(most - more)
        new = triton.dot(weights.astype(of.kind), v, allow_tf32=exact)
        return more, total * kept + weights.sum(axis=-1), out * kept[:, None] + new

    start = (jnp.full(rows, LOW), jnp.zeros(rows, jnp.float32), jnp.zeros((rows, values_ref.shape[4]), jnp.float32))
    most, total, out = lax.fori_loop(begin, jnp.minimum(begin + each, last), turn, start)
    out_ref[...], most_ref[...], total_ref[...] = out, most, total


def has_kernel(platform: str) -> bool:
    """Whether the kernel can be compiled for devices of this platform."""
    return platform == "gpu" and triton is not None
