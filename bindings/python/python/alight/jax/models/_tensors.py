"""The tensors of a network: which a file has to have, which it may have, and that there are no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ... import Catalog, FormatError, Tensor
from ._config import Config

OTHER_HEADS = ("cls.", "dense_")
"""Heads that classify text or make vectors of it: of no use here."""


@dataclass(frozen=True)
class Layer:
    """The tensors of a block. Matrices are `[rows, columns]`: output features, input features."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    vectors: dict[str, Tensor]
    """Norms and biases that are there, by what they are called within the block."""


@dataclass(frozen=True)
class Tensors:
    """All tensors of a network."""

    embedding: Tensor
    output: Tensor
    """The embedding itself where the file has no other."""
    output_norm: Tensor
    output_bias: Tensor | None
    layers: tuple[Layer, ...]

    @property
    def tied(self) -> bool:
        return self.output.name == self.embedding.name

    def matrices(self) -> Iterator[Tensor]:
        yield self.embedding
        if not self.tied:
            yield self.output
        for layer in self.layers:
            yield from (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)


def find(catalog: Catalog, c: Config) -> Tensors:
    """Finds every tensor that the network has, and checks its shape.

    A tensor that nothing is computed with is an error, too: a network that has more than we know of is another one.
    """
    found = _Found(catalog)
    q, k, v, d = c.heads * c.key_dim, c.kv_heads * c.key_dim, c.kv_heads * c.value_dim, c.embedding
    embedding = found.tensor("token_embd.weight", (c.vocab, d))
    output = found.optional("output.weight", (c.vocab, d)) or embedding
    output_norm = found.tensor("output_norm.weight", (d,))
    output_bias = found.optional("output.bias", (c.vocab,))
    found.seen.add("rope_freqs.weight")  # in the configuration's frequencies
    norms = {"attn_norm": d, "ffn_norm": d}
    if c.qk_norm:
        norms |= {"attn_q_norm": c.key_dim, "attn_k_norm": c.key_dim}
    if c.post_norms:
        norms |= {"post_attention_norm": d, "post_ffw_norm": d}
    biases = {"attn_q": q, "attn_k": k, "attn_v": v, "attn_output": d, "ffn_gate": c.feed_forward, "ffn_up": c.feed_forward}
    biases |= {"ffn_down": d}
    layers = []
    for number in range(c.layers):
        name = f"blk.{number}."
        vectors = {norm: found.tensor(f"{name}{norm}.weight", (length,)) for norm, length in norms.items()}
        for bias, length in biases.items():
            one = found.optional(f"{name}{bias}.bias", (length,))
            if one is not None:
                vectors[f"{bias}.bias"] = one
        layers.append(
            Layer(
                q=found.tensor(f"{name}attn_q.weight", (q, d)),
                k=found.tensor(f"{name}attn_k.weight", (k, d)),
                v=found.tensor(f"{name}attn_v.weight", (v, d)),
                o=found.tensor(f"{name}attn_output.weight", (d, c.heads * c.value_dim)),
                gate=found.tensor(f"{name}ffn_gate.weight", (c.feed_forward, d)),
                up=found.tensor(f"{name}ffn_up.weight", (c.feed_forward, d)),
                down=found.tensor(f"{name}ffn_down.weight", (d, c.feed_forward)),
                vectors=vectors,
            )
        )
    for tensor in catalog:
        if tensor not in found.seen and not tensor.startswith(OTHER_HEADS):
            raise FormatError(f"tensor {tensor!r}: no network of the architecture {c.architecture!r} that is known here has it")
    return Tensors(embedding, output, output_norm, output_bias, tuple(layers))


class _Found:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.seen: set[str] = set()

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self.optional(name, shape)
        if found is None:
            raise FormatError(f"tensor {name!r} is missing; expected one of shape {shape}")
        return found

    def optional(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if name not in self.catalog:
            return None
        found = self.catalog[name]
        if found.shape != shape:
            raise FormatError(f"tensor {name!r}: its shape is {found.shape}, expected {shape}")
        if len(shape) == 1 and found.type not in ("F32", "F16", "BF16"):
            raise FormatError(f"tensor {name!r}: its type is {found.type}, expected F32, F16 or BF16")
        self.seen.add(name)
        return found
