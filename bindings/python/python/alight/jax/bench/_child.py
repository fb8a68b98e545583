"""The process that measures the cells of one number of devices: `python -m alight.jax.bench._child JSON`.

Both ways compute the same, which is checked; each is a jit of many layers in which what a layer leaves is summed by the next.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import allreduce_norm, connect, meet
from ._table import LAYERS

EPSILON = 1e-6
SPEC: Any = PartitionSpec


def unfused(partial: jax.Array, residual: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What the collective does, as one writes it without: psum, residual, RMSNorm with a weight around 1."""
    total: jax.Array = lax.psum(partial, "tp")  # type: ignore[no-untyped-call, unused-ignore]
    new = residual + total
    wide = new.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)
    return (wide * scale * (1 + weight.astype(jnp.float32))).astype(new.dtype), new


def program(mesh: Mesh, step: Callable[..., tuple[jax.Array, jax.Array]], start: Callable[[jax.Array], jax.Array]) -> Any:
    """(normed, residual) of every device after all layers: as a loop with one weight for all of them, or, of as many weights as layers, one
    layer after the other. A loop on a GPU would be a CUDA graph of its own for each turn, and a model's step is one. `start` comes first."""

    def run(partial: jax.Array, residual: jax.Array, weights: list[jax.Array]) -> Any:
        def layer(carry: tuple[jax.Array, jax.Array], weight: jax.Array) -> tuple[jax.Array, jax.Array]:
            return step(*carry, weight)

        carry = partial[0], start(residual)
        if len(weights) == LAYERS:
            normed, new = functools.reduce(layer, weights, carry)
        else:
            (normed, new), _ = lax.scan(lambda carry, _: (layer(carry, *weights), None), carry, length=LAYERS)
        return normed[None], new[None]

    inputs, outputs = (SPEC("tp"), SPEC(), SPEC()), (SPEC("tp"), SPEC("tp"))
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False))


def both_ways(mesh: Mesh) -> list[Any]:
    """Ours, and XLA's."""
    fused = functools.partial(allreduce_norm, mesh=mesh, bias=1, epsilon=EPSILON)
    return [program(mesh, fused, functools.partial(meet, mesh=mesh)), program(mesh, unfused, lambda residual: residual)]


def cells(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    devices, hidden, processes = asked["devices"], asked["hidden"], asked["processes"]
    config, distributed, ready = (jax.config, jax.distributed, jax.block_until_ready)  # type: tuple[Any, Any, Any]
    if asked["cpu"]:
        config.update("jax_num_cpu_devices", devices // processes)
    if processes > 1:
        distributed.initialize(f"127.0.0.1:{asked['port']}", processes, asked["process"])
        if not connect():
            raise SystemExit("the processes are not connected")
    mesh = Mesh(np.array(jax.devices()[:devices]), ("tp",))
    random = np.random.default_rng(0)

    def put(shape: tuple[int, ...], spec: Any, scale: float = 1.0) -> jax.Array:
        x = np.asarray(jnp.asarray(random.standard_normal(shape) * scale, jnp.bfloat16))
        return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda index: x[index])

    both, weights = both_ways(mesh), 1 if asked["cpu"] else LAYERS
    for rows in asked["rows"]:
        layers = [put((hidden,), SPEC(), 0.1) for _ in range(weights)]
        given = (put((devices, rows, hidden), SPEC("tp")), put((rows, hidden), SPEC()), layers)
        results = [[np.asarray(x.addressable_data(0), np.float32) for x in f(*given)] for f in both]
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(*results))
        if not error < 0.1:
            raise SystemExit(f"the two ways differ by {error:.2g} of the largest value: nothing to compare")
        times: list[list[float]] = [[], []]
        for _ in range(asked["turns"]):
            for f, taken in zip(both, times):
                start = time.perf_counter()
                ready(f(*given))
                taken.append((time.perf_counter() - start) * 1e6 / LAYERS)
        low, middle = [statistics.quantiles(taken)[0] for taken in times], [statistics.median(taken) for taken in times]
        yield {
            "devices": devices,
            "rows": rows,
            "hidden": hidden,
            "processes": processes,
            "fused_us": middle[0],
            "fused_low_us": low[0],
            "unfused_us": middle[1],
            "unfused_low_us": low[1],
            "ratio": statistics.median(b / a for a, b in zip(*times)),
            "ratio_low": low[1] / low[0],
            "error": error,
        }
    if processes > 1:
        distributed.shutdown()


def main() -> None:
    asked = json.loads(sys.argv[1])
    for cell in cells(asked):
        if asked["process"] == 0:
            # On a line of its own: Gloo writes here, too.
            print("\n" + json.dumps(cell), flush=True)


if __name__ == "__main__":
    main()
