"""Weights as arrays of floats, and XLA's own operations: what a GPU uses, and what the handlers are compared with.

CPU devices loop over the layers, whose weights are stacked: that compiles in a tenth of the time. On a GPU a loop would be a
graph of its own for every layer, recorded anew each time, with copies of the layer's weights out of the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import Tensor
from ._arithmetic import Arrays, Cache, Specs
from ._attention import Attention, has_kernel
from ._blocks import gated
from ._config import Config, Experts
from ._cut import Cut, Span
from ._place import Host, Layered, Layers, put, ranked, read, zeros
from ._tensors import EXPERTS, Layer, Tensors


def _precision(kind: Any) -> lax.Precision | None:
    """Of products of this type. GPUs would multiply float32 as TF32, which has the 10 bits of float16."""
    return lax.Precision.HIGHEST if kind == jnp.float32 else None


class Xla:
    """Matrices as floats, each rank's part of them, in `layers`."""

    def __init__(
        self, config: Config, cut: Cut, tensors: Tensors, layers: Layers, capacity: int, dtype: Any, stream: Any
    ) -> None:
        mesh, axis = layers.mesh, layers.axis
        self.config, self.cut, self.axis, self.stream = config, cut, axis, stream
        self.dtype = np.dtype(dtype)
        c, d = config, config.embedding
        group, width = cut.head_slots // cut.kv_slots, c.value_dim
        # On CPU devices XLA has a way to compute with one row that rounds otherwise than that with several.
        self.alike = self.dtype == np.float32 and mesh.devices.flat[0].platform == "cpu"
        # The cache of a stream of float32 is float16.
        kind, kernel = jnp.dtype(stream), has_kernel(mesh.devices.flat[0].platform)
        self.attention = Attention(
            cut.kv_slots, group, c.key_dim, width, capacity, c.attention_scale, c.attention_softcap, kind, kernel
        )
        self.widths = np.array([cut.head_slots * c.key_dim, cut.kv_slots * c.key_dim, cut.kv_slots * width])

        def whole(tensor: Tensor) -> jax.Array:
            def make(rank: int) -> Host:
                return self._rows([(tensor, cut.vocab[rank], cut.vocab_slots)])

            return put(mesh, axis, ranked(axis, 0), (cut.vocab_slots, d), self.dtype, make)

        def each(rows: int, columns: int, fill: Callable[[int, Layer], Host]) -> Layered:
            def make(rank: int, number: int) -> Host:
                part = fill(rank, tensors.layers[number])
                if part.shape[1] == columns:
                    return part
                out = zeros((rows, columns), self.dtype)
                out[:, : part.shape[1]] = part
                return out

            return layers.put(0, (rows, columns), self.dtype, make)

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
        matrices = {
            "qkv": each(int(self.widths.sum()), d, qkv),
            "o": each(d, cut.head_slots * width, lambda rank, layer: columns(layer.o, cut.heads[rank].times(width))),
        }
        if c.experts is None:
            matrices |= {
                "gate_up": each(2 * cut.feed_forward_slots, d, gate_up),
                "down": each(d, cut.feed_forward_slots, lambda rank, layer: columns(layer.down, cut.feed_forward[rank])),
            }
        else:
            matrices |= self._mixture(c.experts, tensors, layers)
        self.stacks, self.stack_specs = layers.together(matrices)

    def _mixture(self, experts: Experts, tensors: Tensors, layers: Layers) -> dict[str, Layered]:
        """The router of every layer, and the experts of each rank, `[experts, rows, columns]`, with the biases that there are,
        `[experts, rows]`."""
        d, width, slots = self.config.embedding, experts.feed_forward, self.cut.expert_slots
        made = {}

        def each(rows: int, columns: int, parts: Callable[[Layer], Sequence[Tensor]]) -> Layered:
            def make(rank: int, number: int) -> Host:
                out, own = zeros((slots, rows, columns), self.dtype), self.cut.experts[rank]
                at = 0
                for tensor in parts(tensors.layers[number]):
                    height = tensor.shape[1]
                    if own.count:
                        out[: own.count, at : at + height] = read(tensor, self.dtype, own)
                    at += height
                return out

            return layers.put(0, (slots, rows, columns), self.dtype, make)

        def router(rank: int, number: int) -> Host:
            found = tensors.layers[number].router
            assert found is not None
            return read(found, np.float32, Span(0, experts.count))

        def biases(rows: int, roles: Sequence[str]) -> Callable[[int, int], Host]:
            """Zeros for those that a layer does not have."""

            def make(rank: int, number: int) -> Host:
                out, own = zeros((slots, rows), np.float32), self.cut.experts[rank]
                found = [tensors.layers[number].vectors.get(f"{EXPERTS[role]}.bias") for role in roles]
                for tensor, part in zip(found, np.split(out, len(roles), axis=1), strict=True):
                    if tensor is not None and own.count:
                        part[: own.count] = read(tensor, np.float32, own)
                return out

            return make

        for name, rows, roles in (("gate_up_bias", 2 * width, ("gate", "up")), ("down_bias", d, ("down",))):
            if any(f"{EXPERTS[role]}.bias" in layer.vectors for role in roles for layer in tensors.layers):
                made[name] = layers.put(0, (slots, rows), np.float32, biases(rows, roles))
        return made | {
            "router": layers.put(None, (experts.count, d), np.float32, router),
            "gate_up": each(2 * width, d, lambda layer: (layer.gate, layer.up)),
            "down": each(d, width, lambda layer: (layer.down,)),
        }

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
        if x.shape[0] == 1 and self.alike:
            return self._dot(jnp.pad(x, ((0, 1), (0, 0))), matrix)[:1]
        kind = jnp.promote_types(self.stream, matrix.dtype)
        both = (((1,), (1,)), ((), ()))
        x, matrix = x.astype(kind), matrix.astype(kind)
        return lax.dot_general(x, matrix, both, precision=_precision(kind), preferred_element_type=jnp.float32)

    def cache(self, batch: int) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        kind = jnp.bfloat16 if self.stream == jnp.bfloat16 else jnp.float16
        return *self.attention.cache(self.config.layers, batch), kind

    def embed(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        found: jax.Array = lax.psum(self._own_rows(weights, tokens), self.axis)  # type: ignore[no-untyped-call, unused-ignore]
        return (found * np.float32(scale)).astype(self.stream)

    def embed_part(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        return (self._own_rows(weights, tokens) * np.float32(scale)).astype(self.stream)

    def _own_rows(self, weights: Arrays, tokens: jax.Array) -> jax.Array:
        """One rank has the row of a token, the others have zeros."""
        slots = self.cut.vocab_slots
        local = tokens - lax.axis_index(self.axis) * slots
        rows = weights["embedding"][jnp.clip(local, 0, slots - 1)].astype(jnp.float32)
        return jnp.where(((local >= 0) & (local < slots))[:, None], rows, 0)

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
        sinks: jax.Array | None,
    ) -> tuple[jax.Array, Cache]:
        batch, heads = pos.shape[0], self.attention.heads
        q, new_keys, new_values = (x.reshape(batch, -1, x.shape[1]) for x in qkv)

        def store(all_layers: jax.Array, new: jax.Array, width: int) -> jax.Array:
            # [B, T, heads × width]
            rows = new.reshape(batch, -1, heads, width)
            # As the native cache: too large for float16 is the largest there is.
            most = float(jnp.finfo(all_layers.dtype).max)  # type: ignore[no-untyped-call, unused-ignore]
            rows = jnp.clip(rows, -most, most).astype(all_layers.dtype)
            rows = jnp.pad(rows, ((0, 0), (0, 0), (0, 0), (0, all_layers.shape[4] - width)))
            if batch == 1:
                one = rows.swapaxes(1, 2)[:, :, None]
                return lax.dynamic_update_slice(all_layers, one, (layer, 0, 0, pos[0], 0))
            # What is beyond the cache is filling.
            at = pos[:, None] + jnp.arange(rows.shape[1])
            return all_layers.at[layer, :, jnp.arange(batch)[:, None], at].set(rows, mode="drop", unique_indices=True)

        keys, values = store(cache[0], new_keys, self.config.key_dim), store(cache[1], new_values, self.config.value_dim)
        out = self.attention(q, keys, values, layer, pos, window, sinks)
        return out.reshape(qkv[0].shape[0], -1), (keys, values)

    def output(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["o"])

    def gate_up(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate, up = jnp.split(self._dot(x, layer["gate_up"]), 2, axis=1)
        return gate, up

    def down(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["down"])

    def router(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["router"])

    def experts(self, weights: Arrays, layer: Arrays, x: jax.Array, chosen: jax.Array, shares: jax.Array) -> jax.Array:
        slots = self.cut.expert_slots
        local = chosen - lax.axis_index(self.axis) * slots
        own = (local >= 0) & (local < slots)
        return self._one(layer, x, local, own, shares) if x.shape[0] == 1 else self._several(layer, x, local, own, shares)

    def _one(self, layer: Arrays, x: jax.Array, local: jax.Array, own: jax.Array, shares: jax.Array) -> jax.Array:
        """One token: the weights of its experts alone are read."""

        def expert(number: jax.Array) -> jax.Array:
            def product(x: jax.Array, name: str) -> jax.Array:
                matrix = lax.dynamic_index_in_dim(layer[name], number, keepdims=False)
                return self._biased(self._dot(x, matrix), layer, name, number)

            gate, up = jnp.split(product(x, "gate_up"), 2, axis=1)
            return product(gated(self.config.gate, gate, up).astype(self.stream), "down")

        def other(_: jax.Array) -> jax.Array:
            return jnp.zeros(x.shape, jnp.float32)

        out = other(local)
        for nth in range(local.shape[1]):
            out = out + shares[0, nth] * lax.cond(own[0, nth], expert, other, local[0, nth])
        return out

    def _biased(self, products: jax.Array, layer: Arrays, name: str, experts: jax.Array) -> jax.Array:
        """Products with matrices of those experts, plus their biases, if there are any."""
        bias = layer.get(f"{name}_bias")
        return products if bias is None else products + bias[experts]

    def _several(self, layer: Arrays, x: jax.Array, local: jax.Array, own: jax.Array, shares: jax.Array) -> jax.Array:
        """Several tokens: pairs of a token and an expert are sorted by expert, those of other ranks last."""
        tokens, used = local.shape
        slots = self.cut.expert_slots
        numbers = jnp.where(own, local, slots).ravel()
        order = jnp.argsort(numbers, stable=True)
        sizes = jnp.bincount(numbers, length=slots + 1)[:slots].astype(jnp.int32)
        kind = jnp.promote_types(self.stream, self.dtype)

        def products(rows: jax.Array, name: str) -> jax.Array:
            stacked = layer[name].astype(kind).swapaxes(1, 2)
            rows = rows.astype(kind)
            found = lax.ragged_dot(rows, stacked, sizes, precision=_precision(kind), preferred_element_type=jnp.float32)
            return self._biased(found, layer, name, jnp.minimum(numbers[order], slots - 1))

        gate, up = jnp.split(products(x[order // used], "gate_up"), 2, axis=1)
        y = products(gated(self.config.gate, gate, up).astype(self.stream), "down")
        # Rows of other ranks' pairs are of no expert here, whatever is in them.
        apart = jnp.zeros((tokens * used, x.shape[1]), jnp.float32).at[order].set(y).reshape(tokens, used, -1)
        return (jnp.where(own[..., None], apart, 0) * shares[..., None]).sum(axis=1)

    def logits(self, weights: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, weights["output"])
