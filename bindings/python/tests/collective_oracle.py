"""The collective in float64, and numbers to try it with."""

import numpy as np

EPSILON = 1e-6


def ordinal(x):
    """The place of every number among all of its type: neighbours differ by one."""
    kind = {2: np.int16, 4: np.int32}[x.dtype.itemsize]
    bits = np.asarray(x).view(kind).astype(np.int64)
    return np.where(bits < 0, np.iinfo(kind).min - bits, bits)


def ulps(a, b):
    return int(np.abs(ordinal(np.asarray(a)) - ordinal(np.asarray(b))).max())


def oracle(partials, residual, weight, post_weight=None, *, bias):
    """`partials` is [ranks, rows, hidden]. In float64, rounded where docs/explanation/collective.md says so."""
    dtype = residual.dtype

    def rounded(x, *types):
        for kind in types:
            x = x.astype(kind)
        return x.astype(np.float64)

    def norm(x, weight):
        scale = rounded(1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float64(np.float32(EPSILON))), np.float32)
        weight = rounded(bias + weight.astype(np.float64), np.float32)
        return rounded(rounded(x * scale, np.float32) * weight, np.float32, dtype)

    total = partials[0].astype(np.float64)
    for partial in partials[1:]:
        total = rounded(total + partial.astype(np.float64), np.float32)
    total = rounded(total, dtype)
    if post_weight is not None:
        total = norm(total, post_weight)
    new = rounded(residual.astype(np.float64) + total, np.float32, dtype)
    return norm(new, weight).astype(dtype), new.astype(dtype)


def inputs(ranks, shape, dtype, weight_dtype, seed=0):
    random = np.random.default_rng(seed)
    partials = random.standard_normal((ranks, *shape)).astype(dtype)
    residual = random.standard_normal(shape).astype(dtype)
    weights = random.standard_normal((2, shape[-1])).astype(weight_dtype)
    return partials, residual, *weights
