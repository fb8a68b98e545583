#!/usr/bin/env python3
"""The collective beside `lax.psum`, residual and norm, on CPU devices. For `test_collective.py`, in a process of its own.

    PYTHON bindings/python/tests/collective_psum.py DEVICES…

XLA is told not to keep more precision than the program says. The new residual must be the same bits, after each of 64 layers;
the norm, whose sum of squares has another order and whose root is XLA's, within 1 ulp. `unfused` is also what
`python -m evidence bench collective` compares with.
"""

import functools
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

LAYERS = 64


def norm(x, weight, bias, epsilon):
    """RMSNorm in f32, rounded once."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * scale * (bias + weight.astype(jnp.float32))).astype(x.dtype)


def unfused(partial, residual, weight, post_weight=None, *, axis="tp", bias, epsilon=1e-6):
    """What the collective does, of XLA's own operations. XLA sums bf16 in f32, but f16 in f16, unless it is told to."""
    wide = partial.astype(jnp.float32) if partial.dtype == jnp.float16 else partial
    total = lax.psum(wide, axis).astype(partial.dtype)
    if post_weight is not None:
        total = norm(total, post_weight, bias, epsilon)
    new_residual = residual + total
    return norm(new_residual, weight, bias, epsilon), new_residual


def ordinal(x):
    """The place of every number among all of its type: neighbours differ by one."""
    kind = {2: np.int16, 4: np.int32}[x.dtype.itemsize]
    bits = np.asarray(x).view(kind).astype(np.int64)
    return np.where(bits < 0, np.iinfo(kind).min - bits, bits)


def main(devices: int) -> None:
    import alight.jax

    mesh = Mesh(np.array(jax.devices()[:devices]), ("tp",))
    random = np.random.default_rng(devices)
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)

    def compare(rows: int, hidden: int, dtype, weight_dtype, bias: int, post: bool) -> None:
        """LAYERS calls, one after the other."""
        types = [np.dtype(t).name for t in (dtype, weight_dtype)]
        what = f"{devices} devices, [{rows}, {hidden}] {types[0]}, weights {types[1]} + {bias}, post-norm {post}"
        partials = jnp.asarray(random.standard_normal((LAYERS, devices, rows, hidden)), dtype)
        residual = jnp.asarray(random.standard_normal((rows, hidden)), dtype)
        weights = jnp.asarray(random.standard_normal((2, hidden)), weight_dtype)
        last = (weights[1],) if post else ()

        def layers(step):
            def run(partials, residual, weight, *post_weight):
                def layer(residual, partial):
                    normed, new = step(partial[0], residual, weight, post_weight=post_weight[0] if post else None)
                    return new, (normed, new)

                # Every device's own copy, so that all can be compared: [1, LAYERS, rows, hidden] of each.
                return tuple(x[None] for x in lax.scan(layer, residual, partials)[1])

            specs = (P(None, "tp"), P(), P()) + (P(),) * len(last)
            return jax.jit(shard_map(run, in_specs=specs, out_specs=(P("tp"), P("tp"))))

        call = functools.partial(alight.jax.allreduce_norm, mesh=mesh, bias=bias, epsilon=1e-6)
        other = functools.partial(unfused, bias=bias)
        got = [np.asarray(x) for x in layers(call)(partials, residual, weights[0], *last)]
        for x in got:
            assert all((x[rank].tobytes() == x[0].tobytes()) for rank in range(devices)), f"ranks differ: {what}"
        want = [np.asarray(x) for x in layers(other)(partials, residual, weights[0], *last)]
        # With a post-norm, whose last bits are not the same, the layers after the first have other operands.
        norms, residuals = (np.abs(ordinal(a[0]) - ordinal(b[0]))[: 1 if post else LAYERS] for a, b in zip(got, want))
        # XLA's f32 root, mean and product have roundings of their own, which bf16 and f16 do not show.
        limit = 1 if dtype != jnp.float32 else 8
        assert residuals.max() <= (limit if post else 0), f"new residual off by {residuals.max()} ulp: {what}"
        assert norms.max() <= limit, f"norm off by {norms.max()} ulp: {what}"
        share = 100 * (norms > 0).mean()
        print(f"ok  {what}, {len(norms)} of {LAYERS} layers: {share:.2f} % of norms differ, at most {norms.max()} ulp", flush=True)

    bf16, f16, f32 = jnp.bfloat16, jnp.float16, jnp.float32
    compare(1, 4608, bf16, bf16, 1, False)
    compare(8, 576, bf16, f32, 0, False)
    compare(2, 100, f16, f16, 0, False)
    compare(3, 33, f32, f32, 1, False)
    compare(2, 640, bf16, bf16, 1, True)


if __name__ == "__main__":
    # Before XLA looks at them, which is when its backend starts.
    asked = [int(one) for one in sys.argv[1:]]
    flags = f"--xla_force_host_platform_device_count={max(asked)} --xla_allow_excess_precision=false"
    os.environ.update(XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    jax.config.update("jax_platforms", "cpu")
    for devices in asked:
        main(devices)
