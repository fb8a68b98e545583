"""Weights as arrays of floats, and XLA's own operations: what a GPU uses, and what the handlers are compared with. On a GPU matrices may
be blocks of the file, too: a few tokens are multiplied by a kernel of ours, and for more of them the matrix is made floats first. So may experts be.

CPU devices loop over the layers, whose weights are stacked: that compiles in a tenth of the time. On a GPU a loop would be a
graph of its own for every layer, recorded anew each time, with copies of the layer's weights out of the stack.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import Tensor
from ..._alight import GPU_WEIGHT_TYPES
from .._gpu_blocks import MAX_TOKENS, Blocks, dequantize, multiply, multiply_chosen
from ._arithmetic import Arrays, Cache, Specs
from ._attention import PAGE, Attention, has_kernel
from ._blocks import gated
from ._config import Config, Experts
from ._cut import Cut, Span
from ._place import Host, Layered, Layers, Matrix, put, ranked, read, read_blocks, row_bytes, zeros
from ._tensors import EXPERTS, Layer, Tensors


def _precision(kind: Any) -> lax.Precision | None:
    """Of products of this type. GPUs would multiply float32 as TF32, which has the 10 bits of float16."""
    return lax.Precision.HIGHEST if kind == jnp.float32 else None


QKV, GATE_UP = ("q", "k", "v"), ("gate", "up")

PAIRS_OF_AN_EXPERT = 2
"""Up to so many pairs of a token and an expert for each expert of a layer, experts are multiplied as blocks; with more, all of them are made floats.

A pair reads its expert's blocks: half a byte or one for a weight. Making floats of all experts reads these once, and 4 bytes of each weight are
written and read. That is as much as 4 to 8 pairs for each expert read, and the kernel has a third to three quarters of a copy's bandwidth, so with two
of them pairs should not be slower. It is a sketch, nobody has measured it. It is the same for any `tp`: both grow with what a rank has."""


def _joined(roles: tuple[str, ...]) -> str:
    """What a matrix of several is called."""
    return ("" if roles[0] in QKV else "_").join(roles)


def _wrapped(kind: str | None, array: Any) -> Any:
    return array if kind is None else Blocks(array, kind)


def _both(one: Any, other: Any) -> Any:
    """What there is of all layers, or of each, of two kinds."""
    return {**one, **other} if isinstance(one, dict) else tuple({**a, **b} for a, b in zip(one, other, strict=True))


class Xla:
    """Matrices as floats, each rank's part of them, in `layers`; if `native`, those of types that GPUs have kernels for as the
    blocks of the file, and the others as floats."""

    def __init__(
        self,
        config: Config,
        cut: Cut,
        tensors: Tensors,
        layers: Layers,
        capacity: int,
        dtype: Any,
        stream: Any,
        native: bool = False,
    ) -> None:
        mesh, axis = layers.mesh, layers.axis
        self.native = native
        self.config, self.cut, self.axis, self.stream = config, cut, axis, stream
        self.dtype, self.page = np.dtype(dtype), PAGE
        c, d = config, config.embedding
        group, width = cut.head_slots // cut.kv_slots, c.value_dim
        # On CPU devices XLA has a way to compute with one row that rounds otherwise than that with several.
        self.alike = self.dtype == np.float32 and mesh.devices.flat[0].platform == "cpu"
        kind, kernel = jnp.dtype(stream), has_kernel(mesh.devices.flat[0].platform)
        self.attention = Attention(
            cut.kv_slots, group, c.key_dim, width, capacity, c.attention_scale, c.attention_softcap, kind, kernel
        )
        # Of a mixture, whole experts are cut.
        wide = cut.feed_forward_slots if c.experts is None else c.experts.feed_forward
        self.slots = {"q": cut.head_slots * c.key_dim, "k": cut.kv_slots * c.key_dim, "v": cut.kv_slots * width, "gate": wide, "up": wide}

        def rows_of(role: str, rank: int) -> Span:
            if role in ("gate", "up"):
                return cut.feed_forward[rank]
            heads = cut.heads[rank] if role == "q" else cut.kv_heads[rank]
            return heads.times(width if role == "v" else c.key_dim)

        def columns_of(role: str, rank: int) -> Span:
            return cut.heads[rank].times(width) if role == "o" else cut.feed_forward[rank]

        def whole(tensor: Tensor) -> tuple[Any, Any]:
            kind = self._kind([tensor])

            def make(rank: int) -> Host:
                return self._rows(kind, [(tensor, cut.vocab[rank], cut.vocab_slots)])

            spec, part = ranked(axis, 0), (cut.vocab_slots, self._width(kind, tensor, d))
            array = put(mesh, axis, spec, part, self._element(kind), make)
            return _wrapped(kind, array), _wrapped(kind, spec)

        def rows(kind: str | None, layer: Layer, roles: Sequence[str]) -> Matrix:
            def make(rank: int, number: int) -> Host:
                found = ((getattr(tensors.layers[number], role), role) for role in roles)
                return self._rows(kind, [(tensor, rows_of(role, rank), self.slots[role]) for tensor, role in found])

            part = (sum(self.slots[role] for role in roles), self._width(kind, getattr(layer, roles[0]), d))
            return Matrix(part, self._element(kind), make, partial(_wrapped, kind))

        def columns(kind: str | None, layer: Layer, role: str, slots: int) -> Matrix:
            part = (d, self._width(kind, getattr(layer, role), slots))

            def make(rank: int, number: int) -> Host:
                found = self._read(kind, getattr(tensors.layers[number], role), Span(0, d), columns_of(role, rank))
                if found.shape == part:
                    return found
                out = zeros(part, self._element(kind))
                out[:, : found.shape[1]] = found
                return out

            return Matrix(part, self._element(kind), make, partial(_wrapped, kind))

        def stack(kind: str | None, layer: Layer, roles: Sequence[str]) -> Matrix:
            """The experts of a rank, `[experts, rows, columns]`, each with the rows of these matrices one below the other."""
            first, slots = getattr(layer, roles[0]), cut.expert_slots
            part = (slots, sum(getattr(layer, role).shape[1] for role in roles), self._width(kind, first, first.shape[2]))

            def make(rank: int, number: int) -> Host:
                found, own = [getattr(tensors.layers[number], role) for role in roles], cut.experts[rank]
                if len(found) == 1 and own.count == slots:
                    return self._read(kind, found[0], own)
                out, at = zeros(part, self._element(kind)), 0
                for tensor in found:
                    if own.count:
                        out[: own.count, at : at + tensor.shape[1]] = self._read(kind, tensor, own)
                    at += tensor.shape[1]
                return out

            return Matrix(part, self._element(kind), make, partial(_wrapped, kind))

        def of_layers(numbers: Sequence[int]) -> dict[str, Matrix]:
            """Those that multiply the same `x` are one matrix, if they are of one type."""
            first = tensors.layers[numbers[0]]

            def kind(role: str) -> str | None:
                return self._kind([getattr(tensors.layers[number], role) for number in numbers])

            made = {"o": columns(kind("o"), first, "o", cut.head_slots * width)}
            for roles in (QKV, GATE_UP):
                joined = rows if roles is QKV or c.experts is None else stack
                for group, several in itertools.groupby(roles, kind):
                    found = tuple(several)
                    made[_joined(found)] = joined(group, first, found)
            of_down = kind("down")
            made["down"] = columns(of_down, first, "down", wide) if c.experts is None else stack(of_down, first, ("down",))
            return made

        embedding, spec = whole(tensors.embedding)
        output, output_spec = (embedding, spec) if tensors.tied else whole(tensors.output)
        self.arrays: Arrays = {"embedding": embedding, "output": output}
        self.array_specs: Specs = {"embedding": spec, "output": output_spec}
        self.stacks, self.stack_specs = layers.described(of_layers)
        if c.experts is not None:
            more, specs = layers.together(self._mixture(c.experts, tensors, layers))
            self.stacks, self.stack_specs = _both(self.stacks, more), _both(self.stack_specs, specs)

    def _kind(self, found: Sequence[Tensor]) -> str | None:
        """The type of these matrices if they are to be blocks; None if they are to be floats."""
        kinds = {tensor.type for tensor in found}
        if self.native and len(kinds) == 1 and kinds <= set(GPU_WEIGHT_TYPES) and not any(tensor.packed for tensor in found):
            return kinds.pop()
        return None

    def _element(self, kind: str | None) -> Any:
        return self.dtype if kind is None else np.dtype(np.uint8)

    def _width(self, kind: str | None, tensor: Tensor, columns: int) -> int:
        """Elements of a row of the array."""
        return columns if kind is None else row_bytes(tensor, columns)

    def _read(self, kind: str | None, tensor: Tensor, rows: Span, columns: Span | None = None) -> Host:
        return read(tensor, self.dtype, rows, columns) if kind is None else read_blocks(tensor, rows, columns)

    def _mixture(self, experts: Experts, tensors: Tensors, layers: Layers) -> dict[str, Layered]:
        """The router of every layer, and the biases that there are of each rank's experts, `[experts, rows]`."""
        d, width, slots = self.config.embedding, experts.feed_forward, self.cut.expert_slots
        made = {}

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
        return made | {"router": layers.put(None, (experts.count, d), np.float32, router)}

    def _rows(self, kind: str | None, parts: list[tuple[Tensor, Span, int]]) -> Host:
        """Rows of several matrices, each in so many slots, one below the other."""
        width = self._width(kind, parts[0][0], self.config.embedding)
        out = zeros((sum(slots for _, _, slots in parts), width), self._element(kind))
        at = 0
        for tensor, rows, slots in parts:
            if rows.count:
                out[at : at + rows.count] = self._read(kind, tensor, rows)
            at += slots
        return out

    def _dot(self, x: jax.Array, matrix: jax.Array | Blocks) -> jax.Array:
        """`x` `[tokens, columns]` times a matrix `[rows, columns]`, in float32."""
        if isinstance(matrix, Blocks):
            if x.shape[0] <= MAX_TOKENS:
                return multiply(matrix, x.astype(self.stream))
            matrix = dequantize(matrix, x.shape[1], self.dtype)
        if x.shape[0] == 1 and self.alike:
            return self._dot(jnp.pad(x, ((0, 1), (0, 0))), matrix)[:1]
        kind = jnp.promote_types(self.stream, matrix.dtype)
        both = (((1,), (1,)), ((), ()))
        x, matrix = x.astype(kind), matrix.astype(kind)
        return lax.dot_general(x, matrix, both, precision=_precision(kind), preferred_element_type=jnp.float32)

    def _products(self, layer: Arrays, roles: tuple[str, ...], product: Callable[[Any], jax.Array]) -> list[jax.Array]:
        """Those with each of some matrices, the first of which are one with as many others as there is a matrix of."""
        if not roles:
            return []
        count = next(count for count in range(len(roles), 0, -1) if _joined(roles[:count]) in layer)
        found = product(layer[_joined(roles[:count])])
        ends = np.cumsum([self.slots[role] for role in roles[:count]])[:-1]
        return jnp.split(found, ends, axis=1) + self._products(layer, roles[count:], product)

    def cache(self, batch: int) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        # Weights of float32 are asked for to be exact: keys and values of float16 would be the largest error by far.
        kind = jnp.bfloat16 if self.stream == jnp.bfloat16 else jnp.float32 if self.dtype == np.float32 else jnp.float16
        return *self.attention.cache(self.config.layers, batch), kind

    def pages(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        return *self.attention.pages(self.config.layers, count), self.cache(1)[2]

    def embed(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        found: jax.Array = lax.psum(self._own_rows(weights, tokens), self.axis)  # type: ignore[no-untyped-call, unused-ignore]
        return (found * np.float32(scale)).astype(self.stream)

    def embed_part(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        return (self._own_rows(weights, tokens) * np.float32(scale)).astype(self.stream)

    def _own_rows(self, weights: Arrays, tokens: jax.Array) -> jax.Array:
        """One rank has the row of a token, the others have zeros."""
        slots = self.cut.vocab_slots
        local = tokens - lax.axis_index(self.axis) * slots
        matrix, chosen = weights["embedding"], jnp.clip(local, 0, slots - 1)
        if isinstance(matrix, Blocks):
            rows = dequantize(Blocks(matrix.data[chosen], matrix.type), self.config.embedding, jnp.float32)
        else:
            rows = matrix[chosen].astype(jnp.float32)
        return jnp.where(((local >= 0) & (local < slots))[:, None], rows, 0)

    def qkv(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        q, k, v = self._products(layer, QKV, partial(self._dot, x))
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
        batch, heads, table = pos.shape[0], self.attention.heads, cache[2] if len(cache) == 3 else None
        q, new_keys, new_values = (x.reshape(batch, -1, x.shape[1]) for x in qkv)

        def store(all_layers: jax.Array, new: jax.Array, width: int) -> jax.Array:
            # [B, T, heads × width]
            rows = new.reshape(batch, -1, heads, width)
            # As the native cache: too large for float16 is the largest there is.
            most = float(jnp.finfo(all_layers.dtype).max)  # type: ignore[no-untyped-call, unused-ignore]
            rows = jnp.clip(rows, -most, most).astype(all_layers.dtype)
            rows = jnp.pad(rows, ((0, 0), (0, 0), (0, 0), (0, all_layers.shape[4] - width)))
            if table is not None:
                at = pos[:, None] + lax.iota(jnp.int32, rows.shape[1])
                # What is beyond its pages is filling: it goes to none, each to another, since they are said to be unique.
                number, count = at // PAGE, all_layers.shape[2]
                page = table.at[lax.iota(jnp.int32, batch)[:, None], number].get(mode="fill", fill_value=count)
                nowhere = count + lax.iota(jnp.int32, batch)[:, None] * (self.attention.capacity + rows.shape[1]) + number
                page = jnp.where(page >= count, nowhere, page)
                return all_layers.at[layer, :, page, at % PAGE].set(rows, mode="drop", unique_indices=True)
            if batch == 1:
                one = rows.swapaxes(1, 2)[:, :, None]
                zero = jnp.int32(0)
                return lax.dynamic_update_slice(all_layers, one, (jnp.int32(layer), zero, zero, pos[0], zero))
            # What is beyond the cache is filling.
            at = pos[:, None] + lax.iota(jnp.int32, rows.shape[1])
            return all_layers.at[layer, :, lax.iota(jnp.int32, batch)[:, None], at].set(rows, mode="drop", unique_indices=True)

        keys, values = store(cache[0], new_keys, self.config.key_dim), store(cache[1], new_values, self.config.value_dim)
        out = self.attention(q, keys, values, layer, pos, window, sinks, table)
        return out.reshape(qkv[0].shape[0], -1), (keys, values, *cache[2:])

    def output(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["o"])

    def gate_up(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate, up = self._products(layer, GATE_UP, partial(self._dot, x))
        return gate, up

    def down(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["down"])

    def router(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, layer["router"])

    def experts(self, weights: Arrays, layer: Arrays, x: jax.Array, chosen: jax.Array, shares: jax.Array) -> jax.Array:
        slots, experts = self.cut.expert_slots, self.config.experts
        assert experts is not None
        local = chosen - lax.axis_index(self.axis) * slots
        own = (local >= 0) & (local < slots)
        blocks = all(isinstance(layer[name], Blocks) for name in (*GATE_UP, _joined(GATE_UP), "down") if name in layer)
        if blocks and chosen.size <= PAIRS_OF_AN_EXPERT * experts.count:
            return self._pairs(layer, x, local, own, shares)
        return self._one(layer, x, local, own, shares) if x.shape[0] == 1 else self._several(layer, x, local, own, shares)

    def _network(self, layer: Arrays, x: jax.Array, experts: jax.Array, product: Callable[[jax.Array, Any], jax.Array]) -> jax.Array:
        """What experts make of rows of `x`: `product(rows, stack)` are those with matrices of `experts` `[rows]`."""
        gate, up = self._products(layer, GATE_UP, partial(product, x))
        if "gate_up_bias" in layer:
            biases = jnp.split(layer["gate_up_bias"][experts], 2, axis=1)
            gate, up = gate + biases[0], up + biases[1]
        y = product(gated(self.config.gate, gate, up).astype(self.stream), layer["down"])
        return y + layer["down_bias"][experts] if "down_bias" in layer else y

    def _pairs(self, layer: Arrays, x: jax.Array, local: jax.Array, own: jax.Array, shares: jax.Array) -> jax.Array:
        """Few pairs of a token and an expert: each is multiplied with its expert's blocks, and those of other ranks' experts with none."""
        numbers = local.ravel()

        def product(rows: jax.Array, stack: Blocks) -> jax.Array:
            return multiply_chosen(stack, numbers, rows)

        y = self._network(layer, x.astype(self.stream), jnp.clip(numbers, 0, self.cut.expert_slots - 1), product)
        return self._shared(y, own, shares)

    def _shared(self, y: jax.Array, own: jax.Array, shares: jax.Array) -> jax.Array:
        """The sum over the experts of each token, of one row of `y` for each pair. Those of other ranks' pairs count for nothing here, whatever is in
        them."""
        return (jnp.where(own[..., None], y.reshape(*own.shape, -1), 0) * shares[..., None]).sum(axis=1)

    def _one(self, layer: Arrays, x: jax.Array, local: jax.Array, own: jax.Array, shares: jax.Array) -> jax.Array:
        """One token: the weights of its experts alone are read."""

        def expert(number: jax.Array) -> jax.Array:
            def product(x: jax.Array, stack: Any) -> jax.Array:
                return self._dot(x, jax.tree.map(lambda all_of_them: lax.dynamic_index_in_dim(all_of_them, number, keepdims=False), stack))

            return self._network(layer, x, number[None], product)

        def other(_: jax.Array) -> jax.Array:
            return jnp.zeros(x.shape, jnp.float32)

        out = other(local)
        for nth in range(local.shape[1]):
            out = out + shares[0, nth] * lax.cond(own[0, nth], expert, other, local[0, nth])
        return out

    def _several(self, layer: Arrays, x: jax.Array, local: jax.Array, own: jax.Array, shares: jax.Array) -> jax.Array:
        """Several tokens: pairs of a token and an expert are sorted by expert, those of other ranks last."""
        tokens, used = local.shape
        slots = self.cut.expert_slots
        numbers = jnp.where(own, local, slots).ravel()
        order = jnp.argsort(numbers, stable=True)
        sizes = jnp.bincount(numbers, length=slots + 1)[:slots].astype(jnp.int32)
        kind = jnp.promote_types(self.stream, self.dtype)

        def product(rows: jax.Array, stack: Any) -> jax.Array:
            if isinstance(stack, Blocks):
                # Not before its rows are there: else XLA makes down floats while gate and up still are.
                stack, rows = lax.optimization_barrier((stack, rows))  # type: ignore[no-untyped-call, unused-ignore]
                stack = dequantize(stack, rows.shape[1], self.dtype)
            stack, rows = stack.astype(kind).swapaxes(1, 2), rows.astype(kind)
            return lax.ragged_dot(rows, stack, sizes, precision=_precision(kind), preferred_element_type=jnp.float32)

        y = self._network(layer, x[order // used], jnp.minimum(numbers[order], slots - 1), product)
        return self._shared(jnp.zeros((tokens * used, x.shape[1]), jnp.float32).at[order].set(y), own, shares)

    def logits(self, weights: Arrays, x: jax.Array) -> jax.Array:
        return self._dot(x, weights["output"])
