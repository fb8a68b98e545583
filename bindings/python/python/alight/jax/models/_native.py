"""Weights in place, in the map of the file, and the handlers that compute with them: nothing is copied, stacked or dequantised.

The whole file is one array over its map, the same on every device; a matrix is its place in it. What a rank has of a matrix
is an attribute of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import Catalog, NotEnoughMemoryError, Tensor
from ..._alight import WEIGHT_TYPES, ExpertStore
from .. import _mesh
from .. import _native as handlers
from ._arithmetic import Arrays, Cache, Specs
from ._config import Config
from ._cut import Cut, Span
from ._place import SAME, Layered, Layers, same
from ._tensors import EXPERTS, Layer, Tensors


def grains(config: Config, tensors: Tensors) -> tuple[int, int]:
    """How many query heads, and how many columns of the feed-forward, stay together, so that blocks stay whole."""
    heads = math.lcm(*(_block(layer.o) for layer in tensors.layers))
    # Of a mixture, whole experts are cut.
    down = 1 if config.experts else math.lcm(*(_block(layer.down) for layer in tensors.layers))
    return heads // math.gcd(heads, config.value_dim), down


def _block(tensor: Tensor) -> int:
    """Elements of a block; 1 where there are no kernels for the type, which `check` says."""
    return WEIGHT_TYPES[tensor.type][1] if tensor.type in WEIGHT_TYPES else 1


def check(catalog: Catalog, tensors: Tensors) -> None:
    """Whether handlers can compute with this file."""
    if len(catalog.files) > 1:
        raise ValueError(
            f"{catalog.files[0]}: {len(catalog.files)} files, expected one for weights='native'; "
            f"`alight convert {catalog.files[0]} -o NEW.gguf` makes one of them"
        )
    handlers.places(tensors.matrices())


class Native:
    """Products by handlers, out of the map."""

    def __init__(
        self, config: Config, cut: Cut, catalog: Catalog, tensors: Tensors, layers: Layers, capacity: int, memory: int | None
    ) -> None:
        mesh, axis = layers.mesh, layers.axis
        self.config, self.mesh, self.axis = config, mesh, axis
        self.stream: Any = jnp.float32
        # The handler knows no table of pages: one is a whole sequence.
        self.page = capacity
        c, d = config, config.embedding
        self.heads = handlers.Heads(
            cut.head_slots, cut.kv_slots, c.key_dim, c.value_dim, capacity, c.attention_scale, c.attention_softcap
        )
        self.store: ExpertStore | None = None
        stacked = [f"{EXPERTS[role]}.bias" for role in ("gate", "up", "down")]

        def places(found: Sequence[Tensor | None]) -> jax.Array:
            return same(mesh, axis, handlers.places(found))

        def stack(of: Callable[[Layer], Sequence[Tensor | None]]) -> Layered:
            return layers.same(np.stack([handlers.places(of(layer)) for layer in tensors.layers]))

        self.arrays: Arrays = {
            "file": handlers.file_array(catalog, mesh),
            "embedding": places([tensors.embedding]),
            "output": places([tensors.output]),
        }
        self.array_specs: Specs = dict.fromkeys(self.arrays, SAME)
        stacks = {
            "qkv": stack(lambda layer: (layer.q, layer.k, layer.v)),
            "o": stack(lambda layer: (layer.o,)),
        }
        if c.experts is None:
            stacks |= {"gate_up": stack(lambda layer: (layer.gate, layer.up)), "down": stack(lambda layer: (layer.down,))}
        else:
            self.experts_of_ranks = _spans(cut.experts, 1)
            # Programs know it by its number alone.
            self.store = _store(catalog, tensors, self.experts_of_ranks, mesh, axis, memory)

            def mixture(number: int, layer: Layer) -> np.ndarray[Any, np.dtype[np.uint32]]:
                found = (layer.gate, layer.up, layer.down, *map(layer.vectors.get, stacked))
                return handlers.in_store(handlers.places(found), self.store, number)

            stacks |= {
                "experts": layers.same(np.stack([mixture(*numbered) for numbered in enumerate(tensors.layers)])),
                "router": stack(lambda layer: [layer.router] if layer.router else []),
            }
        self.stacks, self.stack_specs = layers.together(stacks)
        self.cuts: dict[str, tuple[handlers.Cut, ...]]

        def rows(height: int, parts: tuple[Span, ...], slots: int, unit: int = 1) -> handlers.Cut:
            return handlers.Cut((height * unit, d), rows=_spans(parts, unit), slots=slots * unit)

        def columns(width: int, parts: tuple[Span, ...], unit: int = 1) -> handlers.Cut:
            return handlers.Cut((d, width * unit), columns=_spans(parts, unit))

        self.cuts = {
            "qkv": (
                rows(c.heads, cut.heads, cut.head_slots, c.key_dim),
                rows(c.kv_heads, cut.kv_heads, cut.kv_slots, c.key_dim),
                rows(c.kv_heads, cut.kv_heads, cut.kv_slots, c.value_dim),
            ),
            "o": (columns(c.heads, cut.heads, c.value_dim),),
            "output": (rows(c.vocab, cut.vocab, cut.vocab_slots),),
        }
        if c.experts is None:
            self.cuts["gate_up"] = (rows(c.feed_forward, cut.feed_forward, cut.feed_forward_slots),) * 2
            self.cuts["down"] = (columns(c.feed_forward, cut.feed_forward),)
        else:
            self.cuts["router"] = (handlers.Cut((c.experts.count, d)),)

    def _products(self, weights: Arrays, name: str, places: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        return handlers.matmul(weights["file"], places, x, self.cuts[name], mesh=self.mesh, axis=self.axis)

    def cache(self, batch: int) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        return *self.heads.cache(self.config.layers * batch), jnp.float16

    def pages(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        # One more is written to by places that have none.
        return self.cache(count + 1)

    def embed(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        shape = (self.config.vocab, self.config.embedding)
        return handlers.embed(weights["file"], weights["embedding"][0], tokens, shape=shape, scale=scale)

    def embed_part(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        # Every rank reads the row out of the map.
        first = jax.lax.axis_index(self.axis) == 0
        return jnp.where(first, self.embed(weights, tokens, scale), 0)

    def qkv(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        q, k, v = self._products(weights, "qkv", layer["qkv"], x)
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
        batch, found, (keys, values, *table) = pos.shape[0], [], cache
        count = keys.shape[0] // self.config.layers
        # To the handler, sequences are layers.
        for number, (q, k, v) in enumerate(zip(*(jnp.split(x, batch) for x in qkv), strict=True)):
            at = layer * count + (table[0][number, 0] if table else number)
            out, keys, values = handlers.attend(
                q, k, v, keys, values, at, pos[number], window, self.heads, sinks=sinks, mesh=self.mesh, axis=self.axis
            )
            found.append(out)
        return jnp.concatenate(found), (keys, values, *table)

    def output(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._products(weights, "o", layer["o"], x)[0]

    def gate_up(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate, up = self._products(weights, "gate_up", layer["gate_up"], x)
        return gate, up

    def down(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._products(weights, "down", layer["down"], x)[0]

    def router(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        return self._products(weights, "router", layer["router"], x)[0]

    def experts(self, weights: Arrays, layer: Arrays, x: jax.Array, chosen: jax.Array, shares: jax.Array) -> jax.Array:
        experts = self.config.experts
        assert experts is not None
        return handlers.experts(
            weights["file"],
            layer["experts"],
            x,
            chosen,
            shares,
            self.experts_of_ranks,
            count=experts.count,
            width=experts.feed_forward,
            gate=self.config.gate,
            mesh=self.mesh,
            axis=self.axis,
        )

    def logits(self, weights: Arrays, x: jax.Array) -> jax.Array:
        return self._products(weights, "output", weights["output"], x)[0]


def _store(
    catalog: Catalog, tensors: Tensors, spans: handlers.Spans, mesh: jax.sharding.Mesh, axis: str, memory: int | None
) -> ExpertStore | None:
    """The experts in what `memory` leaves beside what every token reads; None if all of the model fits."""
    stacks = [(layer.gate, layer.up, layer.down) for layer in tensors.layers]
    experts = sum(tensor.nbytes for layer in stacks for tensor in layer)
    whole = sum(tensor.nbytes for tensor in catalog.tensors.values())
    if memory is None or whole <= memory:
        return None
    own_process = jax.process_index()
    here = [any(device.process_index == own_process for device in group) for group in _mesh.groups(mesh, axis).T]
    ranks = [(first, count, own) for (first, count), own in zip(spans, here, strict=True)]
    always = whole - experts
    try:
        return ExpertStore(stacks, ranks, max(0, memory - always))
    except NotEnoughMemoryError as problem:
        raise NotEnoughMemoryError(f"{problem}; every token reads {always} bytes beside them, and memory is {memory}") from None


def _spans(parts: tuple[Span, ...], unit: int) -> handlers.Spans:
    return tuple((part.start * unit, part.count * unit) for part in parts)
