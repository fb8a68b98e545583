"""The tensors of a network by what they are for; that they are right has been checked in Rust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ... import Catalog, FormatError, Tensor
from ._config import Config

MATRICES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
"""What a matrix of a layer is called in files, by its role. A bias of it has the same name."""

EXPERTS = {"router": "ffn_gate_inp", "gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}
"""What takes the place of some of them in a mixture of experts. The last three are stacks `[experts, rows, columns]`."""

NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
"""What the norms of a layer are called, here and in files; not every network has all of them, and files of some call
`ffn_norm` by another name."""


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
    router: Tensor | None
    """Of a mixture of experts, whose `gate`, `up` and `down` are stacks `[experts, rows, columns]`."""
    vectors: dict[str, Tensor]
    """Norms, biases and sinks that are there, by what they are called within the block. Biases of experts are
    `[experts, rows]`."""


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
            if layer.router is not None:
                yield layer.router


def find(catalog: Catalog, c: Config) -> Tensors:
    """The tensors of the network by what they are for.

    `alight.config` has checked that they are all there, with their shapes and types, and that there are no others.

    Raises:
        ValueError: The file has a number beside a matrix that multiplies its products (of NVFP4).
    """

    all_tensors = catalog.tensors
    for name in all_tensors:
        if name.endswith(".scale"):
            raise ValueError(f"tensor {name!r} multiplies the products of a matrix, which this engine does not do; the native one does")
    roles = MATRICES if c.experts is None else MATRICES | EXPERTS
    why = None
    if any(f"blk.0.{name}.weight" not in all_tensors for name in roles.values()):
        why = "several of its matrices are one tensor"
    elif c.experts and any(name.endswith("exp_probs_b.bias") for name in all_tensors):
        why = "its experts are chosen with biases"
    if why:
        raise FormatError(f"architecture {c.architecture!r} is not supported by the JAX engine ({why}); `--engine native` runs it")
    names = {norm: f"{norm}.weight" for norm in NORMS if norm != c.feed_forward_norm}
    names |= {"ffn_norm": f"{c.feed_forward_norm}.weight"} | {f"{m}.bias": f"{m}.bias" for m in roles.values()}
    names |= {} if c.sinks is None else {"sinks": c.sinks}

    def layer(number: int) -> Layer:
        prefix = f"blk.{number}."
        matrices = {role: catalog[f"{prefix}{name}.weight"] for role, name in roles.items()}
        router = matrices.pop("router", None)
        vectors = {key: all_tensors[prefix + name] for key, name in names.items() if prefix + name in all_tensors}
        return Layer(**matrices, router=router, vectors=vectors)

    embedding = catalog["token_embd.weight"]
    return Tensors(
        embedding=embedding,
        output=all_tensors.get("output.weight", embedding),
        output_norm=catalog["output_norm.weight"],
        output_bias=all_tensors.get("output.bias"),
        layers=tuple(layer(number) for number in range(c.layers)),
    )
