"""Programs with the collective in every layer, for the checks and the benchmark beside this file."""

from __future__ import annotations

from evidence.lib.lazy import lazily

jax = lazily("jax")
jnp = lazily("jax.numpy")
np = lazily("numpy")
alight_jax = lazily("alight.jax")
_collective = lazily("alight.jax._collective")

EPSILON = 1e-6


def mesh(devices=None) -> jax.sharding.Mesh:
    """These devices, or all that are here, along "tp"."""
    return jax.sharding.Mesh(np.array(devices or jax.devices()), ("tp",))


def fused(x, residual, weight, post_weight, over):
    return alight_jax.allreduce_norm(x, residual, weight, mesh=over, epsilon=EPSILON, bias=1, post_weight=post_weight, assume=True)


def unfused(x, residual, weight, post_weight, over):
    """As people write it: XLA chooses what it fuses, and how it sums."""
    def norm(x, w):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)
        return (wide * scale * (1 + w.astype(jnp.float32))).astype(x.dtype)

    total = jax.lax.psum(x, "tp")
    if post_weight is not None:
        total = norm(total, post_weight)
    new = residual + total
    return norm(new, weight), new


def exact(x, residual, weight, post_weight, over):
    """What `allreduce_norm` is where there is no handler: the same roundings."""
    return _collective.of_xla(x, residual, weight, post_weight, "tp", EPSILON, 1)


def program(collective, over: jax.sharding.Mesh, layers: int):
    """(normed, residual) after so many layers; what a layer adds is the norm before it, scaled."""

    def body(x, residual, weights, post_weights):
        # Not in a loop, which would be a graph of its own for each turn; with arrays of their own, as a slice would be copied.
        x = x[0]
        if collective is fused:
            residual = alight_jax.meet(residual, mesh=over)
        for number in range(layers):
            normed, residual = collective(x, residual, weights[number], None if post_weights is None else post_weights[number], over)
            x = normed * np.asarray(0.125, normed.dtype)
        return x, residual

    specs = (jax.P("tp"), jax.P(), jax.P(), jax.P())
    return jax.jit(jax.shard_map(body, mesh=over, in_specs=specs, out_specs=(jax.P(), jax.P()), check_vma=False))


def arguments(over: jax.sharding.Mesh, layers: int, rows: int, hidden: int, dtype, post: bool, seed: int | None = 0):
    """Random ones, where they belong; without a seed their shapes alone."""
    rng = np.random.default_rng(seed)
    ranks = over.devices.size

    def put(shape, spec, scale):
        sharding = jax.sharding.NamedSharding(over, spec)
        if seed is None:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        return jax.device_put(rng.standard_normal(shape, np.float32).astype(dtype) * np.asarray(scale, dtype), sharding)

    def each():
        return [put((hidden,), jax.P(), 0.1) for _ in range(layers)]

    return put((ranks, rows, hidden), jax.P("tp"), 1), put((rows, hidden), jax.P(), 1), each(), each() if post else None
