"""Programs with the collective in every layer, for the checks and the benchmark beside this file."""

from __future__ import annotations

from evidence.lib.lazy import lazily

jax = lazily("jax")
jnp = lazily("jax.numpy")
np = lazily("numpy")
alight_jax = lazily("alight.jax")
_collective = lazily("alight.jax._collective")

EPSILON = 1e-6


def mesh() -> jax.sharding.Mesh:
    """All devices along "tp"."""
    return jax.sharding.Mesh(np.array(jax.devices()), ("tp",))


def fused(x, residual, weight, post_weight, over):
    return alight_jax.allreduce_norm(x, residual, weight, mesh=over, epsilon=EPSILON, bias=1, post_weight=post_weight)


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
    return _collective._of_xla(x, residual, weight, post_weight, "tp", EPSILON, 1)


def program(collective, over: jax.sharding.Mesh, layers: int):
    """(normed, residual) after so many layers; what a layer adds is the norm before it, scaled."""

    def body(x, residual, weights, post_weights):
        def layer(carry, w):
            x, residual = carry
            normed, residual = collective(x, residual, w[0], None if post_weights is None else w[1], over)
            return (normed * np.asarray(0.125, normed.dtype), residual), None

        # Unrolled: a loop would be a graph of its own for each turn.
        (x, residual), _ = jax.lax.scan(layer, (x[0], residual), (weights, weights if post_weights is None else post_weights), unroll=layers)
        return x, residual

    specs = (jax.P("tp"), jax.P(), jax.P(), jax.P())
    return jax.jit(jax.shard_map(body, mesh=over, in_specs=specs, out_specs=(jax.P(), jax.P()), check_vma=False))


def arguments(over: jax.sharding.Mesh, layers: int, rows: int, hidden: int, dtype, post: bool, seed: int = 0):
    """Random ones, where they belong."""
    rng = np.random.default_rng(seed)
    ranks = over.devices.size

    def put(shape, spec, scale):
        return jax.device_put(rng.standard_normal(shape, np.float32).astype(dtype) * np.asarray(scale, dtype), jax.sharding.NamedSharding(over, spec))

    x = put((ranks, rows, hidden), jax.P("tp"), 1)
    weights = put((layers, hidden), jax.P(), 0.1)
    return x, put((rows, hidden), jax.P(), 1), weights, put((layers, hidden), jax.P(), 0.1) if post else None
