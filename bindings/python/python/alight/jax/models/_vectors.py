"""Norms, biases and rotations: small, float32, and the same for both ways to compute with matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import PartitionSpec

from ... import Tensor
from ._config import Config
from ._cut import Cut, Span
from ._place import SAME, Host, Layered, Layers, put, ranked, same, vector, zeros
from ._tensors import Tensors

NORMS = {
    "ffn_norm": "ffn_norm",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "post_attention_norm": "post_attention_norm",
    "post_ffw_norm": "post_ffw_norm",
}
WHOLE = {"attn_output.bias": "o_bias", "ffn_down.bias": "down_bias", "ffn_gate_inp.bias": "router_bias"}
"""Biases that every rank has all of. The first two are added to a sum over the ranks: once."""


class Vectors:
    """`arrays`: `first_norm` `[embedding]`, `output_bias`, `rope` `[global, local; cos, sin; positions, pairs]`.
    `stacks`, of all layers: norms, biases, `sinks`, `window`, and `next_norm`: the norm of what comes after the layer. Layers
    that are apart know their windows when the program is made."""

    def __init__(self, c: Config, cut: Cut, tensors: Tensors, layers: Layers, positions: int) -> None:
        mesh, axis = layers.mesh, layers.axis
        self.arrays: dict[str, jax.Array] = {}
        self.array_specs: dict[str, PartitionSpec] = {}
        stacks: dict[str, Layered] = {}

        def add(name: str, values: Host) -> None:
            stacks[name] = layers.same(values)

        def add_once(name: str, values: Host) -> None:
            self.arrays[name], self.array_specs[name] = same(mesh, axis, values), SAME

        def add_cut(name: str, found: Sequence[Tensor | None], part: Callable[[int], Span], slots: int) -> None:
            """A bias or sinks, each rank's part of it; zeros for the layers that have none."""
            if any(found):
                full = [None if tensor is None else vector(tensor) for tensor in found]

                def make(rank: int, number: int) -> Host:
                    out, span, values = zeros((slots,), np.float32), part(rank), full[number]
                    if values is not None:
                        out[: span.count] = values[span.start : span.stop]
                    return out

                stacks[name] = layers.put(0, (slots,), np.float32, make)

        def each(name: str) -> list[Tensor | None]:
            return [layer.vectors.get(name) for layer in tensors.layers]

        norms = [vector(layer.vectors["attn_norm"]) for layer in tensors.layers] + [vector(tensors.output_norm)]
        add_once("first_norm", norms[0])
        add("next_norm", np.stack(norms[1:]))
        for name, short in NORMS.items():
            if name in tensors.layers[0].vectors:
                add(short, np.stack([vector(layer.vectors[name]) for layer in tensors.layers]))
        for name, short in WHOLE.items():
            found = [None if one is None else vector(one) for one in each(name)]
            some = next((values for values in found if values is not None), None)
            if some is not None:
                add(short, np.stack([np.zeros_like(some) if values is None else values for values in found]))
        add_cut("sinks", each("sinks"), lambda rank: cut.heads[rank], cut.head_slots)
        add_cut("q_bias", each("attn_q.bias"), lambda rank: cut.heads[rank].times(c.key_dim), cut.head_slots * c.key_dim)
        add_cut("k_bias", each("attn_k.bias"), lambda rank: cut.kv_heads[rank].times(c.key_dim), cut.kv_slots * c.key_dim)
        add_cut("v_bias", each("attn_v.bias"), lambda rank: cut.kv_heads[rank].times(c.value_dim), cut.kv_slots * c.value_dim)
        for name in ("gate", "up"):
            add_cut(f"{name}_bias", each(f"ffn_{name}.bias"), lambda rank: cut.feed_forward[rank], cut.feed_forward_slots)
        if tensors.output_bias is not None:
            full = vector(tensors.output_bias)

            def make(rank: int) -> Host:
                out, span = zeros((cut.vocab_slots,), np.float32), cut.vocab[rank]
                out[: span.count] = full[span.start : span.stop]
                return out

            self.arrays["output_bias"] = put(mesh, axis, ranked(axis, 0), (cut.vocab_slots,), np.float32, make)
            self.array_specs["output_bias"] = ranked(axis, 0)
        ropes = [c.rope] if c.local is None else [c.rope, c.local.rope]
        add_once("rope", np.stack([rope.table(positions) for rope in ropes]))
        if not layers.apart:
            add("window", c.windows())
            add("local", c.locals())
        self.stacks, self.stack_specs = layers.together(stacks)
