#!/usr/bin/env python3
"""Times the fused collective beside `lax.psum`, residual and norm, on CPU devices of one process, or of several.

    PYTHON scripts/bench_collective.py [--devices 2 4 8] [--rows 1 8 32] [--hidden 4608] [--json FILE]
    PYTHON scripts/bench_collective.py --processes 2 [--devices 2] …

With --processes the devices are those of so many processes on this host, connected by `jax.distributed` on loopback: then
psum is gloo's.

PYTHON is one that has jax and alight, installed from the wheel of `make python`. One program is 64 layers in
one jit: what a layer leaves is what the next one sums. Both programs take turns, so that a busy machine slows both. Microseconds per
layer: the median of the turns, and in brackets their lower quartile, which a neighbour disturbs less; the ratio is the
median of the ratios of neighbouring turns. These are figures of a CPU: they say nothing about a GPU.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = 64


def child(devices: int, rows_list: list[int], hidden: int, turns: int, process: int, processes: int, port: int) -> None:
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec as P

    import alight.jax
    from collective_psum import unfused

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
        if not alight.jax.connect():
            sys.exit("the processes are not connected")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tp",))
    random = np.random.default_rng(0)

    def program(step):
        def run(partial, residual, weight):
            def layer(carry, _):
                normed, residual = step(*carry, weight)
                return (normed, residual), None

            (normed, residual), _ = lax.scan(layer, (partial[0], residual), length=LAYERS)
            return normed[None], residual[None]

        specs = dict(in_specs=(P("tp"), P(), P()), out_specs=(P("tp"), P("tp")))
        return jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))

    for rows in rows_list:

        def put(x, spec):
            x = np.asarray(jnp.asarray(x, jnp.bfloat16))
            return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

        args = (
            put(random.standard_normal((devices, rows, hidden)), P("tp")),
            put(random.standard_normal((rows, hidden)), P()),
            put(random.standard_normal(hidden) * 0.1, P()),
        )
        both = [program(functools.partial(alight.jax.allreduce_norm, mesh=mesh, bias=1, epsilon=1e-6)), program(functools.partial(unfused, bias=1))]
        results = [[np.asarray(x.addressable_data(0), np.float32) for x in f(*args)] for f in both]
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(*results))
        times: list[list[float]] = [[], []]
        for _ in range(turns):
            for f, taken in zip(both, times):
                start = time.perf_counter()
                jax.block_until_ready(f(*args))
                taken.append((time.perf_counter() - start) * 1e6 / LAYERS)
        ratios = [b / a for a, b in zip(*times)]
        low, middle = zip(*[(statistics.quantiles(t)[0], statistics.median(t)) for t in times])
        cell = dict(processes=processes, devices=devices, rows=rows, hidden=hidden, fused=middle[0], fused_low=low[0], unfused=middle[1],
                    unfused_low=low[1], ratio=statistics.median(ratios), ratio_low=low[1] / low[0], error=error)
        if process == 0:
            print(json.dumps(cell), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", help="2 4 8; with --processes one of each")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--hidden", type=int, default=4608)
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.rows, args.hidden, args.turns, args.process, args.processes, args.port)
    if any(count % args.processes for count in args.devices or ()):
        parser.error("--devices must be multiples of --processes")
    several = f", {args.processes} processes" if args.processes > 1 else ""
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores{several}, H {args.hidden}, bf16, {LAYERS} layers, µs per layer: median (lower quartile)")
    print("devices rows             fused    psum+residual+norm   ratio (of the quartiles)")
    cells = []
    for devices in args.devices or ([args.processes] if args.processes > 1 else [2, 4, 8]):
        flags = f"--xla_force_host_platform_device_count={devices // args.processes} --xla_allow_excess_precision=false"
        path = os.pathsep.join(filter(None, (str(ROOT / "bindings/python/tests"), os.environ.get("PYTHONPATH"))))
        env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        command = [sys.executable, __file__, "--child", str(devices), "--hidden", str(args.hidden), "--turns", str(args.turns),
                   "--processes", str(args.processes), "--port", str(port), "--rows", *map(str, args.rows)]
        started = [subprocess.Popen([*command, "--process", str(i)], env=env, stdout=subprocess.PIPE, text=True)
                   for i in range(args.processes)]
        said = [process.communicate(timeout=900)[0] for process in started]
        if any(process.returncode for process in started):
            sys.exit(f"{devices} devices: failed")
        for cell in map(json.loads, filter(lambda line: line.startswith("{"), said[0].splitlines())):
            cells.append(cell)
            print("{devices:7} {rows:4} {fused:9.1f} ({fused_low:7.1f}) {unfused:9.1f} ({unfused_low:7.1f})   "
                  "{ratio:5.2f} ({ratio_low:.2f})".format(**cell), flush=True)
    if args.json:
        args.json.write_text(json.dumps(cells, indent=1) + "\n")


if __name__ == "__main__":
    main()
