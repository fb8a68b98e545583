"""What the file says about its network, as the Rust side has read and checked it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import Catalog, FormatError
from ... import config as describe


@dataclass(frozen=True)
class Rope:
    """A rotary embedding."""

    frequencies: tuple[float, ...]
    """Radians per position of each pair."""
    magnitude: float
    """On cosines and sines."""

    def table(self, positions: int) -> npt.NDArray[np.float32]:
        """Cosines and sines `[2, positions, pairs]`, rounded once."""
        angles = np.arange(positions, dtype=np.float64)[:, None] * np.asarray(self.frequencies, dtype=np.float64)
        return (np.stack([np.cos(angles), np.sin(angles)]) * self.magnitude).astype(np.float32)


@dataclass(frozen=True)
class Local:
    """What the layers with a sliding window do differently."""

    window: int
    """A token sees itself and the `window - 1` positions before it."""
    layers: tuple[bool, ...]
    rope: Rope


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in every layer: a router chooses `used` of `count` for each token."""

    gating: str
    """What makes shares of the router's logits: "softmax", or "softmax_of_chosen", after the choice."""
    count: int
    used: int
    feed_forward: int
    """Width of an expert."""
    normalised: bool
    """Whether the shares of the chosen are divided by their sum."""
    scale: float
    """On the shares."""


@dataclass(frozen=True)
class Config:
    """The shape of a network and what its blocks do; as `alight.config` tells them."""

    architecture: str
    layers: int
    embedding: int
    feed_forward: int
    """0 where there are experts."""
    experts: Experts | None
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    vocab: int
    context: int
    rms_eps: float
    rope: Rope
    neox: bool
    """Whether the rotary embedding is NeoX (pairs (i, i + n/2)) rather than interleaved (pairs (2i, 2i + 1))."""
    local: Local | None
    embedding_scale: float
    attention_scale: float
    attention_softcap: float | None
    sinks: str | None
    """What the file calls the scores of query heads that are of no position, if they have them."""
    logit_softcap: float | None
    gate: str
    """"silu", "gelu_tanh" or "clamped_silu"; of experts, too."""
    qk_norm: bool
    feed_forward_norm: str
    """What the norm before the feed-forward part is called in the file."""
    post_norms: bool

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    def windows(self) -> npt.NDArray[np.int32]:
        """The window of each layer; 0: none."""
        if self.local is None:
            return np.zeros(self.layers, np.int32)
        return np.where(self.local.layers, self.local.window, 0).astype(np.int32)

    def locals(self) -> npt.NDArray[np.int32]:
        """Whether each layer has a window, as 0 or 1: which of the rotary embeddings is its."""
        return np.array([False] * self.layers if self.local is None else self.local.layers, np.int32)


def read(catalog: Catalog) -> Config:
    """The configuration of a file."""
    try:
        found: Mapping[str, Any] = describe(catalog)
    except NotImplementedError as why:
        raise FormatError(str(why)) from None
    if found["residual_scale"] != 1.0 or found["logit_scale"] != 1.0 or not found["rotates"]:
        name = found["architecture"]
        raise FormatError(f"architecture {name!r} is not supported by the JAX engine; `--engine native` runs it")
    local, experts = found["local"], found["experts"]
    plain = {field.name: found[field.name] for field in fields(Config) if field.name in found}
    return Config(
        **plain
        | {
            "experts": None if experts is None else Experts(**experts),
            "rope": _rope(found),
            "neox": found["rope_pairing"] == "neox",
            "local": None if local is None else Local(local["window"], tuple(local["layers"]), _rope(local)),
        }
    )


def _rope(found: Mapping[str, Any]) -> Rope:
    return Rope(tuple(found["rope_frequencies"]), found["rope_magnitude"])
