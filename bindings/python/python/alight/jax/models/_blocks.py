"""The forward pass: one block structure for all architectures, which differ by data, as `crates/model` has it.

For `T` tokens of each of `B` sequences, on each rank, a block is (collectives in brackets):

    q, k, v of h; biases, norms of q and k, rotation; k and v into the cache; attention
    h, x = [sum of o over the ranks, post-norm?, x +=, norm]
    gate · up of h, or of a mixture of experts: the router, and the rank's experts
    h, x = [sum of down over the ranks, post-norm?, x +=, norm of the next layer, or of the output]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._arithmetic import Arithmetic, Cache
from ._config import Config, Experts
from ._cut import Cut
from ._sums import row_sums

CLAMP, SLOPE = np.float32(7), np.float32(1.702)
"""Of the clamped SiLU."""

MIN_SUM = np.float32(2**-14)
"""No sum of shares is taken as smaller, as in the native engine."""

Params: TypeAlias = Mapping[str, Any]
"""`weights` and `matrices` of the arithmetic, `vectors` and `norms` of all layers: as a rank sees them. Arrays by name;
`matrices` and `norms` of layers that are apart are a tuple of these."""


class Collective(Protocol):
    """All-reduce, post-norm, residual and norm."""

    def __call__(
        self, partial: jax.Array, residual: jax.Array, weight: jax.Array, *, post_weight: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]: ...


@dataclass(frozen=True)
class Network:
    """All that is known before there are tokens."""

    config: Config
    cut: Cut
    arithmetic: Arithmetic
    collective: Collective
    axis: str
    capacity: int
    apart: bool = False
    """Whether layers follow one another in programs, each with arrays of its own, so that a step is one CUDA graph: what it sums
    and gathers goes through `collective`, too."""
    limit: float = 0.0
    """Seconds that the collective waits: what programs are made from."""


def norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """RMSNorm over the last dimension, in float32."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(row_sums(wide * wide) / np.float32(x.shape[-1]) + np.float32(epsilon))
    return (wide * scale[..., None] * weight).astype(x.dtype)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, neox: bool) -> jax.Array:
    """Turns pairs of the first elements of each head: `x` `[T, heads, length]`, `cos` and `sin` `[T, pairs]`."""
    pairs = cos.shape[1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    cos, sin = cos[:, None, :], sin[:, None, :]
    if neox:
        a, b = turned[..., :pairs], turned[..., pairs:]
        turned = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    else:
        split = turned.reshape(*turned.shape[:-1], pairs, 2)
        a, b = split[..., 0], split[..., 1]
        turned = jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(turned.shape)
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


def gated(kind: str, gate: jax.Array, up: jax.Array) -> jax.Array:
    """activation(gate) · up"""
    if kind == "silu":
        return jax.nn.silu(gate) * up
    if kind == "gelu_tanh":
        return jax.nn.gelu(gate, approximate=True) * up
    if kind == "clamped_silu":
        # gpt-oss's.
        gate, up = jnp.minimum(gate, CLAMP), jnp.clip(up, -CLAMP, CLAMP)
        return gate * jax.nn.sigmoid(SLOPE * gate) * (up + 1)
    raise ValueError(f"gate: {kind!r}, expected 'silu', 'gelu_tanh' or 'clamped_silu'")


def choose(experts: Experts, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which experts each token goes through, int32, and their shares: `[T, used]` of `logits` `[T, count]`. Of equals the one
    with the lower number comes first."""
    if experts.gating == "softmax":
        shares, chosen = lax.top_k(jax.nn.softmax(logits, axis=-1), experts.used)
    else:
        best, chosen = lax.top_k(logits, experts.used)
        shares = jax.nn.softmax(best, axis=-1)
    if experts.normalised:
        shares = shares / jnp.maximum(shares.sum(axis=-1, keepdims=True), MIN_SUM)
    return chosen, shares * np.float32(experts.scale)


def forward(net: Network, params: Params, cache: Cache, tokens: jax.Array, pos: jax.Array) -> tuple[jax.Array, Cache]:
    """Runs `tokens` `[B, T]`, which follow the `pos` `[B]` positions of each sequence in the cache: the normed residual stream
    `[B · T, embedding]` after the last block, and the cache with them in it."""
    (batch, length), tokens = tokens.shape, tokens.reshape(-1)
    c, ops, weights, vectors = net.config, net.arithmetic, params["weights"], params["vectors"]
    if net.apart:
        part = ops.embed_part(weights, tokens, c.embedding_scale)
        h, x = net.collective(part, jnp.zeros_like(part), vectors["first_norm"])
    else:
        x = ops.embed(weights, tokens, c.embedding_scale)
        h = norm(x, vectors["first_norm"], c.rms_eps)
    # [global, local; cos, sin; B · T, pairs]
    if batch == 1:
        rope = lax.dynamic_slice_in_dim(vectors["rope"], pos[0], length, axis=2)
    else:
        at = (pos[:, None] + jnp.arange(length)).reshape(-1)
        rope = vectors["rope"].at[:, :, at].get(mode="clip")
    first = lax.axis_index(net.axis) == 0

    def once(y: jax.Array, bias: jax.Array | None) -> jax.Array:
        """A bias of a sum over the ranks."""
        return y if bias is None else y + jnp.where(first, bias, 0)

    def block(carry: tuple[jax.Array, jax.Array, Cache], layer: Any) -> tuple[Any, None]:
        x, h, cache = carry
        index, matrices, v = layer
        q, k, values = ops.qkv(weights, matrices, h)
        angles = rope[0] if c.local is None else lax.dynamic_index_in_dim(rope, v["local"], keepdims=False)
        q, k = _heads(net, q, k, v, angles)
        values = values + v["v_bias"] if "v_bias" in v else values
        y, cache = ops.attend((q, k, values), cache, index, pos, v["window"], v.get("sinks"))
        y = once(ops.output(weights, matrices, y.astype(x.dtype)), v.get("o_bias")).astype(x.dtype)
        h, x = net.collective(y, x, v["ffn_norm"], post_weight=v.get("post_attention_norm"))
        if c.experts is None:
            gate, up = ops.gate_up(weights, matrices, h)
            gate, up = (y + v[name] if name in v else y for y, name in ((gate, "gate_bias"), (up, "up_bias")))
            y = ops.down(weights, matrices, gated(c.gate, gate, up).astype(x.dtype))
        else:
            scores = ops.router(weights, matrices, h)
            scores = scores + v["router_bias"] if "router_bias" in v else scores
            y = ops.experts(weights, matrices, h, *choose(c.experts, scores))
        y = once(y, v.get("down_bias")).astype(x.dtype)
        h, x = net.collective(y, x, v["next_norm"], post_weight=v.get("post_ffw_norm"))
        return (x, h, cache), None

    if net.apart:
        carry = (x, h, cache)
        for index, (window, local) in enumerate(zip(c.windows(), c.locals(), strict=True)):
            v = {**params["norms"][index], "window": window, "local": local}
            carry, _ = block(carry, (np.int32(index), params["matrices"][index], v))
        return carry[1:]
    layers = (jnp.arange(c.layers, dtype=jnp.int32), params["matrices"], params["norms"])
    (_, h, cache), _ = lax.scan(block, (x, h, cache), layers)
    return h, cache


def _heads(
    net: Network, q: jax.Array, k: jax.Array, v: Mapping[str, jax.Array], angles: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Biases, norms and rotation of queries and keys `[T, heads × key_dim]`."""
    c = net.config

    def one(x: jax.Array, name: str) -> jax.Array:
        x = x + v[f"{name}_bias"] if f"{name}_bias" in v else x
        heads = x.reshape(x.shape[0], -1, c.key_dim)
        if f"{name}_norm" in v:
            heads = norm(heads, v[f"{name}_norm"], c.rms_eps)
        return rotate(heads, angles[0], angles[1], c.neox).reshape(x.shape)

    return one(q, "q"), one(k, "k")


def logits(net: Network, params: Params, h: jax.Array) -> jax.Array:
    """Logits `[T, slots of the rank]` of the rank's part of the vocabulary; −∞ beyond it."""
    c, slots = net.config, net.cut.vocab_slots
    out = net.arithmetic.logits(params["weights"], h)
    if "output_bias" in params["vectors"]:
        out = out + params["vectors"]["output_bias"]
    if c.logit_softcap is not None:
        cap = np.float32(c.logit_softcap)
        out = cap * jnp.tanh(out / cap)
    if slots * net.cut.ranks == c.vocab:
        return out
    ids = lax.axis_index(net.axis) * slots + jnp.arange(slots)
    return jnp.where(ids < c.vocab, out, -jnp.inf)
