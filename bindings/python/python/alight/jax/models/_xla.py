"""Weights as arrays of floats, and XLA's own operations: what a GPU uses, and what the handlers are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from ... import Tensor
from ._arithmetic import Arrays, Cache, Specs
from ._config import Config
from ._cut import Cut, Span
from ._place import Host, put, ranked, read, zeros
from ._tensors import Layer, Tensors


class Xla:
    """Matrices as floats, each rank's part of them stacked over the layers."""

    def __init__(
        self, config: Config, cut: Cut, tensors: Tensors, mesh: Mesh, axis: str, capacity: int, dtype: Any, stream: Any
    ) -> None:
        self.config, self.cut, self.axis, self.capacity, self.stream = config, cut, axis, capacity, stream
        self.dtype = np.dtype(dtype)
        c, d = config, config.embedding
        group, width = cut.head_slots // cut.kv_slots, c.value_dim
        self.shape = (cut.kv_slots, group)
        self.widths = np.array([cut.head_slots * c.key_dim, cut.kv_slots * c.key_dim, cut.kv_slots * width])

        def whole(tensor: Tensor) -> jax.Array:
            return put(mesh, axis, ranked(axis, 0), lambda rank: self._rows([(tensor, cut.vocab[rank], cut.vocab_slots)]))

        def stack(rows: int, columns: int, fill: Callable[[int, Layer], Host]) -> jax.Array:
            def make(rank: int) -> Host:
                out = zeros((c.layers, rows, columns), self.dtype)
                for number, layer in enumerate(tensors.layers):
                    part = fill(rank, layer)
                    out[number, :, : part.shape[1]] = part
                return out

            return put(mesh, axis, ranked(axis, 1), make)

        def qkv(rank: int, layer: Layer) -> Host:
            heads, kv = cut.heads[rank], cut.kv_heads[rank]
            return self._rows([
                (layer.q, heads.times(c.key_dim), cut.head_slots * c.key_dim),
                (layer.k, kv.times(c.key_dim), cut.kv_slots * c.key_dim),
                (layer.v, kv.times(width), cut.kv_slots * width),
            ])  # fmt: skip

        def gate_up(rank: int, layer: Layer) -> Host:
            part, slots = cut.feed_forward[rank], cut.feed_forward_slots
            return self._rows([(layer.gate, part, slots), (layer.up, part, slots)])

        def columns(tensor: Tensor, part: Span) -> Host:
            return read(tensor, self.dtype, Span(0, d), part)

        embedding = whole(tensors.embedding)
        self.arrays: Arrays = {"embedding": embedding, "output": embedding if tensors.tied else whole(tensors.output)}
        self.array_specs: Specs = {name: ranked(axis, 0) for name in self.arrays}
        self.stacks: Arrays = {
            "qkv": stack(int(self.widths.sum()), d, qkv),
            "o": stack(d, cut.head_slots * width, lambda rank, layer: columns(layer.o, cut.heads[rank].times(width))),
            "gate_up": stack(2 * cut.feed_forward_slots, d, gate_up),
            "down": stack(d, cut.feed_forward_slots, lambda rank, layer: columns(layer.down, cut.feed_forward[rank])),
        }
        self.stack_specs: Specs = {name: ranked(axis, 1) for name in self.stacks}

    def _rows(self, parts: list[tuple[Tensor, Span, int]]) -> Host:
        """Rows of several matrices, each in so many slots, one below the other."""
        out = zeros((sum(slots for _, _, slots in parts), self.config.embedding), self.dtype)
        at = 0
        for tensor, rows, slots in parts:
            if rows.count:
                out[at : at + rows.count] = read(tensor, self.dtype, rows)
            at += slots
        return out

    def _dot(self, x: jax.Array, matrix: jax.Array) -> jax.Array:
        """`x` `[tokens, columns]` times a matrix `[rows, columns]`, in float32."""
        kind = jnp.promote_types(self.stream, matrix.dtype)
        both = (((1,), (1,)), ((), ()))
        return lax.dot_general(x.astype(kind), matrix.astype(kind), both, preferred_element_type=jnp.float32)

    def cache(self) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        c, heads, capacity = self.config, self.cut.kv_slots, self.capacity
        kind = jnp.bfloat16 if self.stream == jnp.bfloat16 else jnp.float16
        return (c.layers, heads, capacity, c.key_dim), (c.layers, heads, capacity, c.value_dim), kind

    def embed(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        # One rank has the row, the others add zeros.
        slots = self.cut.vocab_slots
        local = tokens - lax.axis_index(self.axis) * slots
        rows = weights["embedding"][jnp.clip(local, 0, slots - 1)].astype(jnp.float32)
        rows = jnp.where(((local >= 0) & (local < slots))[:, None], rows, 0)
        found: jax.Array = lax.psum(rows, self.axis)  # type: ignore[no-untyped-call, unused-ignore]
        return (found * np.float32(scale)).astype(self.stream)

    def qkv(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        q, k, v = jnp.split(self._dot(x, layer["qkv"]), np.cumsum(self.widths)[:2], axis=1)
        return q, k, v

    def attend(
        self,
        qkv: tuple[jax.Array, jax.Array, jax.Array],
        cache: Cache,
        layer: jax.Array,
        pos: jax.Array,
        window: jax.Array,
    ) -> tuple[jax.Array, Cache]:
        c, (heads, group) = self.config, self.shape
        tokens = qkv[0].shape[0]
        q = qkv[0].reshape(tokens, heads, group, c.key_dim)

        def store(all_layers: jax.Array, new: jax.Array, width: int) -> jax.Array:
            # [tokens, heads × width] → [1, heads, tokens, width]
            rows = new.reshape(1, tokens, heads, width).swapaxes(1, 2)
            # As the native cache: too large for float16 is the largest there is.
            most = float(jnp.finfo(all_layers.dtype).max)  # type: ignore[no-untyped-call, unused-ignore]
            rows = jnp.clip(rows, -most, most).astype(all_layers.dtype)
            return lax.dynamic_update_slice(all_layers, rows, (layer, 0, pos, 0))

        keys, values = store(cache[0], qkv[1], c.key_dim), store(cache[1], qkv[2], c.value_dim)
        kind = jnp.promote_types(self.stream, keys.dtype)
        k, v = (lax.dynamic_index_in_dim(x, layer, keepdims=False).astype(kind) for x in (keys, values))
        scores = jnp.einsum("thgd,hpd->hgtp", q.astype(kind), k, preferred_element_type=jnp.float32)
        scores = scores * np.float32(c.attention_scale)
        if c.attention_softcap is not None:
            cap = np.float32(c.attention_softcap)
            scores = cap * jnp.tanh(scores / cap)
        # How far back each position is, of each token: a token sees itself and what is in its window.
        back = (pos + jnp.arange(tokens))[:, None] - jnp.arange(self.capacity)[None, :]
        seen = (back >= 0) & ((window == 0) | (back < window))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        out = jnp.einsum("hgtp,hpd->thgd", weights.astype(kind), v, preferred_element_type=jnp.float32)
        return out.reshape(tokens, -1), (keys, values)

    def output(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["o"])

    def gate_up(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate, up = jnp.split(self._dot(x, layer["gate_up"]), 2, axis=1)
        return gate, up

    def down(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["down"])

    def logits(self, weights: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, weights["output"])
