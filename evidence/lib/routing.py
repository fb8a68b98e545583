"""Routers that choose experts as those of trained models do, built into random weights; and what they are held against.

What a router of random weights chooses follows from nothing: how many experts a cache would have had says nothing about trained models.
Published traces of those are reproduced by scores of three parts:

- static: an expert is liked by all tokens alike (standard deviation `static`),
- slow: what was liked at the last token is still liked, less and less (`slow`, with a correlation of `memory` from one token to the next),
- fresh: the token's own (standard deviation 1).

All of it is in the weights of an ordinary model, so that any engine computes the same routing from the same file. For that, the columns
of the hidden state have three ranges:

- anchor: every token's embedding has the same numbers there. Routers make the static part of them. Queries and keys are made of them as
  well, and so are the same at every position. Scores of attention then depend on the distance alone, and rotary embeddings make them fall
  with it: a head is an average of the last tokens, in which each counts `memory` times as much as the one after it.
- slow: written by attention alone, from the values of those tokens. Nothing but routers and experts reads it.
- own: the token's own direction.

Routers are scaled by the variance that each range has in their layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from evidence.lib.lazy import lazily

np = lazily("numpy")

# Distances in tokens at which the average over the last tokens is fitted, and how far its scores fall.
FARTHEST, DEEPEST = 4096, 12.0
# Of queries and keys, how large the parts are that depend on the token.
OF_TOKENS = 0.1
# The share of the first layers whose static part is smaller, as in trained models.
FIRST_LAYERS = 1 / 16


@dataclass(frozen=True)
class Profile:
    """How a router chooses, and what was published of the model that it was fitted to."""

    static: float
    slow: float
    memory: float
    of: str
    # With room for so many percent of the experts, the percentage of the chosen experts that is there, by last use.
    published: dict[int, int]
    # Within so many tokens, the percentage of choices that come again.
    again: dict[int, int] = field(default_factory=dict)


PROFILES = {
    "qwen3": Profile(1.6, 1.0, 0.5, "Qwen3-30B-A3B, top 6 of 128", {5: 37, 10: 48, 15: 65, 20: 73, 25: 82, 30: 88, 40: 95, 50: 97},
                     {1: 45, 8: 80}),
    "gpt-oss": Profile(1.2, 0.6, 0.9, "gpt-oss-120b, top 2 of 128", {5: 52, 10: 68, 15: 78, 20: 84, 25: 86, 30: 87, 40: 90, 50: 93}),
    "flat": Profile(0.0, 0.8, 0.95, "Qwen3.8-Flash-Next, top 10 of 512", {18: 44, 36: 62, 54: 72, 73: 79}),
}


def static_parts(profile: Profile, layers: int) -> list[float]:
    """The standard deviation of the static part, layer by layer."""
    few = round(layers * FIRST_LAYERS)
    return [profile.static * (0.5 if layer < few else 1.0) for layer in range(layers)]


# --- weights --------------------------------------------------------------------------------------

def fall(thetas: np.ndarray, memory: float) -> np.ndarray:
    """How much each pair of a head has to count, so that scores fall with the distance as the logarithm of memory**distance."""
    rate = -math.log(memory)
    distances = np.unique(np.concatenate([np.arange(1, 65), np.geomspace(64, FARTHEST, 200).astype(int)])).astype(float)
    wanted = np.minimum(rate * distances, DEEPEST)
    weight = np.exp(-rate * distances) + 0.003
    # What a pair of weight 1 takes away. All numbers are positive, so this descent stays positive as well.
    falls = 1.0 - np.cos(np.outer(distances, thetas))
    out = np.full(len(thetas), 0.1)
    for _ in range(4000):
        out *= falls.T @ (weight * wanted) / (falls.T @ (weight * (falls @ out)) + 1e-12)
    return out


def spread_of_average(thetas: np.ndarray, falls: np.ndarray) -> float:
    """The variance of such an average of independent numbers of variance 1."""
    weights = np.exp(-(1.0 - np.cos(np.outer(np.arange(FARTHEST), thetas))) @ falls)
    weights /= weights.sum()
    return float((weights**2).sum())


class Builder:
    """Puts a profile into the tensors of a model that is being made. `anchor` is how many columns have the same numbers for every
    token: whole blocks of every type that has them."""

    def __init__(self, shape, profile: Profile, anchor: int):
        assert shape.arch == "qwen3moe", f"{shape.arch}: routing is built into qwen3moe alone"
        self.shape, self.profile = shape, profile
        slow = max(anchor, shape.embd // 4 // anchor * anchor)
        self.anchor, self.slow, self.own = (0, anchor), (anchor, anchor + slow), (anchor + slow, shape.embd)
        assert self.own[1] - self.own[0] >= slow, f"a hidden size of {shape.embd} is too small for blocks of {anchor}"
        thetas = shape.base ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
        falls = fall(thetas, profile.memory)
        self.spread = spread_of_average(thetas, falls)
        # Of each number of a query or a key, so that their product is what falls: NeoX pairs, both halves alike.
        self.key = np.tile(np.sqrt(falls * math.sqrt(shape.head_dim) / 2), 2)
        self.static = static_parts(profile, shape.layers)

    @staticmethod
    def width(columns: tuple[int, int]) -> int:
        return columns[1] - columns[0]

    def scale(self, written: int) -> float:
        """What norms multiply with, when so many layers have written to the slow columns, each with a variance of 1/layers."""
        slow = self.width(self.slow) * written / self.shape.layers
        return math.sqrt(self.shape.embd / (self.width(self.anchor) + slow + self.width(self.own)))

    def build(self, tensor, rng) -> None:
        """Changes a tensor of the plan, if it is one of those that matter."""
        *layer, part, _ = tensor.name.split(".")
        layer = int(layer[1]) if layer else 0
        if change := getattr(self, part, None):
            change(tensor, layer, rng)

    def token_embd(self, tensor, _layer, _rng) -> None:
        tensor.std, tensor.pinned = 1.0, [(*self.anchor, 1.0), (*self.slow, 0.0)]

    def attn_norm(self, tensor, _layer, _rng) -> None:
        tensor.values[slice(*self.slow)] = 0.0

    def output_norm(self, tensor, _layer, _rng) -> None:
        tensor.values[: self.slow[1]] = 0.0

    def ffn_norm(self, tensor, _layer, _rng) -> None:
        tensor.values[:] = 1.0

    def attn_q(self, tensor, layer, _rng) -> None:
        tensor.std *= OF_TOKENS
        heads = tensor.shape[0] // self.shape.head_dim
        tensor.pinned = [(*self.anchor, np.tile(self.key, heads) / (self.width(self.anchor) * self.scale(layer)))]

    attn_k = attn_q

    def attn_q_norm(self, tensor, _layer, _rng) -> None:
        tensor.values[:] = math.sqrt(np.mean(self.key**2))

    attn_k_norm = attn_q_norm

    def attn_v(self, tensor, _layer, _rng) -> None:
        tensor.pinned = [(*self.anchor, 0.0)]

    def attn_output(self, tensor, layer, _rng) -> None:
        # Of a value, and of an average of them; a row adds up as many as there are in all heads.
        value = self.width(self.own) / self.shape.embd * self.scale(layer) ** 2
        self.write_to(tensor, self.slow, math.sqrt(1 / (self.shape.layers * tensor.shape[-1] * value * self.spread)))

    def ffn_down_exps(self, tensor, _layer, _rng) -> None:
        self.write_to(tensor, self.own, tensor.std)

    def write_to(self, tensor, columns: tuple[int, int], std: float) -> None:
        """Of a matrix that adds to the hidden state: rows of other columns are zero."""
        tensor.std = np.zeros(self.shape.embd)
        tensor.std[slice(*columns)] = std

    def ffn_gate_inp(self, tensor, layer, rng) -> None:
        scale, experts = self.scale(layer + 1), self.shape.experts
        rows = np.empty((experts, self.shape.embd))
        liked = rng.standard_normal((experts, 1)) * self.static[layer]
        rows[:, slice(*self.anchor)] = liked / (self.width(self.anchor) * scale)
        for columns, std, variance in ((self.slow, self.profile.slow, (layer + 1) / self.shape.layers), (self.own, 1.0, 1.0)):
            width = self.width(columns)
            rows[:, slice(*columns)] = rng.standard_normal((experts, width)) * std / (scale * math.sqrt(width * variance))
        tensor.values = rows


# --- traces ---------------------------------------------------------------------------------------

def trace(profile: Profile, layers: int, experts: int, used: int, tokens: int, seed: int = 1) -> str:
    """What a router of this profile chooses, drawn without a model, as `alight bench experts --trace-experts` writes it."""
    rng = np.random.default_rng(seed)
    static = rng.standard_normal((layers, experts)) * np.array(static_parts(profile, layers))[:, None]
    slow = rng.standard_normal((layers, experts))
    lines = ["alight experts 1", " ".join([str(experts)] * layers)]
    for _ in range(tokens):
        slow = profile.memory * slow + math.sqrt(1 - profile.memory**2) * rng.standard_normal((layers, experts))
        scores = static + profile.slow * slow + rng.standard_normal((layers, experts))
        chosen = np.sort(np.argsort(-scores, axis=1)[:, :used], axis=1)
        lines += [f"{layer} {' '.join(map(str, row))}" for layer, row in enumerate(chosen)]
    return "\n".join(lines) + "\n"
