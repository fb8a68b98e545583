"""Logits into a token, on the device: the stages, their order and defaults are those of `crates/model/src/engine/sampler.rs`.

Each rank has the logits of a part of the vocabulary. Its best candidates, sorted, go to all ranks, which all draw the same
token. Of equal logits the lower id is the greater; a NaN counts as −∞. What decides a draw is a number that the host hands in
(a generator inside the program takes longer to compile than the rest of it): the same for any number of ranks, though not
that of the Rust side.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import OptionError
from ._given import integer
from ._place import Host

FEW = (64, 512)
"""So many candidates of each rank are enough for a `top_k` up to that; for more, the whole vocabulary is gathered."""


EXACT = 2**24
"""Whole numbers up to this are floats."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. The defaults are llama.cpp's, but for the seed."""

    temperature: float = 0.8
    """Divides the logits; 0 always takes the likeliest token."""
    top_k: int = 40
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 0.95
    """Keep the likeliest tokens that make up this share of the probability; 1 keeps all."""
    min_p: float = 0.05
    """Keep tokens at least this likely, relative to the likeliest; 0 keeps all."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most, expected in (("temperature", np.inf, "not below 0"), ("top_p", 1, "from 0 to 1"), ("min_p", 1, "from 0 to 1")):
            value: Any = getattr(self, name)
            if not isinstance(value, numbers.Real):
                raise TypeError(f"{name}: expected a number, found {value!r}")
            # As the native engine has it: neither NaN nor infinity is a number.
            if not 0 <= float(value) <= most or float(value) == np.inf:
                raise OptionError(f"{name} is {value}, expected a number {expected}")
        if integer("top_k", self.top_k) < 0:
            raise OptionError(f"top_k is {self.top_k}, expected a whole number not below 0")
        integer("seed", self.seed)

    @staticmethod
    def greedy() -> Sampling:
        return Sampling(temperature=0.0)

    def candidates(self, vocab: int) -> int:
        """How many candidates a program has to look at: it is compiled for one of a few numbers."""
        if self.temperature == 0:
            return 1
        return next((few for few in FEW if 0 < self.top_k <= few < vocab), vocab)


Chosen: TypeAlias = tuple[Any, Any]
"""float32 `[temperature, top_p, min_p]`, and `top_k`: arguments of a program."""


def checked(sampling: Any) -> Sampling:
    """What a caller gives."""
    if not isinstance(sampling, Sampling):
        found = "Sampling.greedy without parentheses" if sampling is Sampling.greedy else repr(sampling)
        raise TypeError(f"sampling: expected alight.jax.models.Sampling(…) or Sampling.greedy(), found {found}")
    return sampling


def arguments(sampling: Sampling) -> Chosen:
    floats = [sampling.temperature, sampling.top_p, sampling.min_p]
    return np.array(floats, np.float32), np.int32(min(sampling.top_k, 2**31 - 1))


class Draws:
    """Numbers from 0 to below 1, 24 bits each: the same for the same seed, on every machine."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.PCG64(seed % 2**64)

    def take(self, count: int) -> Host:
        raw = self.bits.random_raw(count)
        return (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


Summed: TypeAlias = Callable[[jax.Array], jax.Array]
"""A sum over the ranks."""


def sample(
    logits: jax.Array, candidates: int, vocab: int, axis: str, chosen: Chosen, uniform: jax.Array, summed: Summed | None = None
) -> jax.Array:
    """The token that follows: `logits` `[slots]` of this rank's part of the vocabulary, −∞ beyond it. With `summed`, ranks gather
    by sums, where they gather few."""
    logits = jnp.where(jnp.isnan(logits), -jnp.inf, logits)
    values, ids = best(logits, candidates, vocab, axis, summed)
    if candidates == 1:
        return ids[0]
    floats, top_k = chosen
    return ids[draw(values, floats, top_k, uniform)]


def best(
    logits: jax.Array, candidates: int, vocab: int, axis: str, summed: Summed | None = None
) -> tuple[jax.Array, jax.Array]:
    """The best candidates of all ranks: logits, greatest first, and ids."""
    slots = logits.shape[0]
    # `top_k` takes 0 for greater than -0.
    logits = jnp.where(logits == 0, 0, logits)
    base = lax.axis_index(axis) * slots
    if candidates >= vocab:
        every = lax.all_gather(logits, axis).reshape(-1)[:vocab]
        negative, ids = lax.sort((-every, jnp.arange(vocab, dtype=jnp.int32)), num_keys=1, is_stable=True)
        return -negative, ids
    if candidates == 1:
        at = jnp.argmax(logits)[None]
        values = logits[at]
    else:
        values, at = lax.top_k(logits, min(candidates, slots))
    # By rank, and so by id where logits are equal.
    ids = at.astype(jnp.int32) + base
    if summed is None or vocab > EXACT:
        values, ids = (lax.all_gather(one, axis).reshape(-1) for one in (values, ids))
    else:
        # Both as float32, in the rank's place among zeros.
        both = jnp.stack([values, ids.astype(jnp.float32)])
        places = jnp.arange(lax.axis_size(axis)) == lax.axis_index(axis)
        both = summed(jnp.where(places[None, :, None], both[:, None, :], 0).reshape(2, -1))
        values, ids = both[0], both[1].astype(jnp.int32)
    if candidates == 1:
        at = jnp.argmax(values)[None]
        return values[at], ids[at]
    values, at = lax.top_k(values, min(candidates, values.shape[0]))
    return values, ids[at]


def draw(values: jax.Array, floats: jax.Array, top_k: jax.Array, uniform: jax.Array) -> jax.Array:
    """Which of the candidates, greatest first, is taken: top-k, top-p, min-p, temperature, then a draw."""
    temperature, top_p, min_p = floats[0], floats[1], floats[2]
    place = jnp.arange(values.shape[0])
    greatest = values[0]
    # If the greatest is infinite, those equal to it weigh 1 and all others nothing.
    infinite = jnp.where((values == greatest) & (greatest > 0), 0, -jnp.inf)
    below = jnp.where(jnp.isinf(greatest), infinite, values - greatest)
    kept = (top_k <= 0) | (place < top_k)
    share = jnp.where(kept, jnp.exp(below), 0)
    reached = jnp.cumsum(share) - share
    kept &= (top_p >= 1) | (reached < top_p * jnp.sum(share)) | (place == 0)
    kept &= (min_p <= 0) | (below >= jnp.log(jnp.minimum(min_p, 1))) | (place == 0)
    weight = jnp.where(kept, jnp.exp(below / temperature), 0)
    total = jnp.cumsum(weight)
    # The first whose sum is beyond the draw; what rounding leaves over is the last's that weighs anything.
    last = jnp.max(jnp.where(weight > 0, place, 0))
    return jnp.minimum(jnp.sum(total <= uniform * total[-1]), last)
