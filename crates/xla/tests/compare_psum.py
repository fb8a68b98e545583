#!/usr/bin/env python3
"""The fused collective in JAX beside `lax.psum`, residual and norm, inside jit and shard_map, on 2, 4 and 8 CPU devices.

    PYTHON crates/xla/tests/compare_psum.py [--devices 2 4 8]

PYTHON is one that has jax; the library is that of `cargo build -p alight-xla`. XLA is told not to keep more precision than
the program says. The new residual must be the same bits, after 64 layers too; the norm, whose sum of squares has another
order and whose root is XLA's, within 1 ulp.
"""

import argparse
import os
import subprocess
import sys

LAYERS = 64


def ordinal(np, x):
    """The place of every number among all of its type: neighbours differ by one."""
    kind = {2: np.int16, 4: np.int32}[x.dtype.itemsize]
    bits = np.asarray(x).view(kind).astype(np.int64)
    return np.where(bits < 0, np.iinfo(kind).min - bits, bits)


def child(devices: int) -> None:
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import PartitionSpec as P

    import collective_call as cc

    cc.register()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tp",))
    random = np.random.default_rng(devices)
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)

    def compare(rows: int, hidden: int, dtype, weight_dtype, bias: int, post: bool) -> None:
        """One call, and LAYERS of them."""
        types = [np.dtype(t).name for t in (dtype, weight_dtype)]
        what = f"{devices} devices, [{rows}, {hidden}] {types[0]}, weights {types[1]} + {bias}, post-norm {post}"
        partials = jnp.asarray(random.standard_normal((LAYERS, devices, rows, hidden)), dtype)
        residual = jnp.asarray(random.standard_normal((rows, hidden)), dtype)
        weights = jnp.asarray(random.standard_normal((2, hidden)), weight_dtype)
        last = (weights[1],) if post else ()

        def layers(step, count):
            def run(partials, residual, weight, *post_weight):
                def layer(residual, partial):
                    normed, new = step(partial[0], residual, weight, *post_weight)
                    return new, normed

                new, normed = lax.scan(layer, residual, partials[:count])
                # Every device's own copy, so that all can be compared.
                return normed[None], new[None]

            specs = (P(None, "tp"), P(), P()) + (P(),) * len(last)
            return jax.jit(shard_map(run, in_specs=specs, out_specs=(P("tp"), P("tp"))))

        fused = functools.partial(cc.fused, mesh=mesh, bias=bias)
        unfused = functools.partial(cc.unfused, bias=bias)
        for count in (1, LAYERS):
            got = [np.asarray(x) for x in layers(fused, count)(partials, residual, weights[0], *last)]
            for x in got:
                assert all((x[rank].tobytes() == x[0].tobytes()) for rank in range(devices)), f"ranks differ: {what}"
            want = [np.asarray(x) for x in layers(unfused, count)(partials, residual, weights[0], *last)]
            norms, residuals = (np.abs(ordinal(np, a[0]) - ordinal(np, b[0])) for a, b in zip(got, want))
            if not post:
                assert residuals.max() == 0, f"new residual differs after {count} layers: {what}"
            elif count == 1:
                assert residuals.max() <= (1 if dtype != jnp.float32 else 8), f"new residual off by {residuals.max()}: {what}"
            if count == 1 or not post:
                # XLA's f32 root, mean and product have roundings of their own, which bf16 and f16 do not show.
                limit = 1 if dtype != jnp.float32 else 8
                assert norms.max() <= limit, f"norm off by {norms.max()} ulp after {count} layers: {what}"
            share = 100 * (norms > 0).mean()
            print(f"ok  {what}, {count} layers: {share:.2f} % of norms differ, at most {norms.max()} ulp", flush=True)

    bf16, f16, f32 = jnp.bfloat16, jnp.float16, jnp.float32
    compare(1, 4608, bf16, bf16, 1, False)
    compare(8, 576, bf16, f32, 0, False)
    compare(2, 100, f16, f16, 0, False)
    compare(3, 33, f32, f32, 1, False)
    compare(2, 640, bf16, bf16, 1, True)

    # Launches in flight, and two call sites in one program.
    def both(partial, residual, weight):
        first, new = cc.fused(partial[0], residual, weight, mesh=mesh, bias=0)
        return cc.fused(partial[0] + first, new, weight, mesh=mesh, bias=0)

    def both_unfused(partial, residual, weight):
        first, new = cc.unfused(partial[0], residual, weight, bias=0)
        return cc.unfused(partial[0] + first, new, weight, bias=0)

    specs = dict(in_specs=(P("tp"), P(), P()), out_specs=(P(), P()))
    step, step_unfused = (jax.jit(shard_map(f, **specs)) for f in (both, both_unfused))
    partial = jnp.asarray(random.standard_normal((devices, 2, 64)), bf16)
    start = residual = want = jnp.asarray(random.standard_normal((2, 64)), bf16)
    weight = jnp.ones((64,), bf16)
    for turn in range(2000):
        _, residual = step(partial * (turn % 3), residual, weight)
        if turn % 8 == 7:
            residual.block_until_ready()
            residual = start
    want = start
    for turn in range(8):
        _, residual = step(partial * (turn % 3), residual, weight)
        _, want = step_unfused(partial * (turn % 3), want, weight)
    assert ordinal(np, residual).tolist() == ordinal(np, want).tolist() or np.abs(
        np.asarray(residual, np.float32) - np.asarray(want, np.float32)
    ).max() < 0.1
    print(f"ok  {devices} devices, two sites, 2000 launches, 8 in flight", flush=True)

    # What cannot work is an error with words, and does not end the process.
    def fails(words: str, **options) -> None:
        spec = dict(in_specs=(P("tp"), P(), P()), out_specs=(P(), P()))
        call = jax.jit(shard_map(lambda p, r, w: cc.fused(p[0], r, w, **{"mesh": mesh, "bias": 0} | options), **spec))
        try:
            jax.block_until_ready(call(partial, start, weight))
        except Exception as error:  # noqa: BLE001: XLA's class of errors is not public
            assert words in str(error), error
        else:
            raise AssertionError(f"no error: {words}")

    fails("expected 0 or 1", bias=2)
    fails("in a collective made for 16", capacity=16)

    # A rank that never comes: half the devices take another branch.
    def partly(p, r, w):
        call = lambda: cc.fused(p[0], r, w, mesh=mesh, bias=0, limit_ms=300)[1]  # noqa: E731
        return lax.cond(lax.axis_index("tp") == 0, call, lambda: r)[None]

    call = jax.jit(shard_map(partly, in_specs=(P("tp"), P(), P()), out_specs=P("tp")))
    for words in ("did not come", "did not come"):
        try:
            jax.block_until_ready(call(partial, start, weight))
        except Exception as error:  # noqa: BLE001
            assert words in str(error), error
        else:
            raise AssertionError("a rank that never comes is no error")
    print(f"ok  {devices} devices, errors", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child)
    for devices in args.devices:
        flags = f"--xla_force_host_platform_device_count={devices} --xla_allow_excess_precision=false"
        env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run([sys.executable, __file__, "--child", str(devices)], env=env, timeout=600)
        if done.returncode:
            sys.exit(f"{devices} devices: failed")


if __name__ == "__main__":
    main()
