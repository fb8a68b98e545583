"""Sums over a row whose bits do not depend on what other rows there are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def row_sums(x: jax.Array) -> jax.Array:
    """Sums over the last dimension.

    XLA's own on CPU devices add in an order that the number of rows decides. Here halves are added to halves, in one order, so a
    sequence has the same bits alone and beside others. On GPUs a row is a block's or a warp's, whatever others there are.
    """
    found: jax.Array = lax.platform_dependent(x, cpu=_halves, default=lambda x: jnp.sum(x, axis=-1))
    return found


def _halves(x: jax.Array) -> jax.Array:
    while (length := x.shape[-1]) > 1:
        a, b = x[..., : -(-length // 2)], x[..., -(-length // 2) :]
        x = a + (jnp.pad(b, [(0, 0)] * (x.ndim - 1) + [(0, 1)]) if length % 2 else b)
    return x[..., 0]
