"""Actors and the hosts of a cluster."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from .. import AlightError, OptionError


THREADS = "ALIGHT_THREADS"
"""The variable that is the default of the command's option `--threads`, too."""


def assigned_threads() -> int | None:
    """How many threads an actor computes with: as many as `per_host` says, or as Ray has given it CPUs; `None` where there is no Ray, or it has given
    none."""
    if (assigned := os.environ.get(THREADS, "")).isdigit():
        return int(assigned) or None
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return int(context.get_assigned_resources().get("CPU", 0)) or None


def per_host(*, actors: int = 1, batch_size: int = 256) -> dict[str, Any]:
    """Arguments of `map_batches` for one actor on each host of the cluster, which computes with all of its CPUs, or for several that share them (one
    for each NUMA node). One CPU of each host is left to Ray for reading and writing files, which would wait for the end of the actors otherwise, and they
    for what is read. Two batches are in work in each actor, so that its sequences have rows while the longest answers of a batch end."""
    ray: Any = import_module("ray")
    data: Any = import_module("ray.data")
    if not ray.is_initialized():
        raise AlightError("Ray was not started: call ray.init() first")
    if actors < 1:
        raise OptionError(f"actors is {actors}, expected at least 1")
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    cpus = [number for number in cpus if number >= actors]
    if not cpus:
        raise AlightError(f"no host of the cluster has {actors} CPUs, one for each actor")
    # Without `enable_true_multi_threading` Ray holds a lock while it calls a class.
    pool = data.ActorPoolStrategy(
        size=len(cpus) * actors, max_tasks_in_flight_per_actor=4, max_concurrent_calls_per_actor=2, enable_true_multi_threading=True
    )
    return {
        "compute": pool,
        "num_cpus": max((min(cpus) - 1) // actors, 1),
        "runtime_env": {"env_vars": {THREADS: str(min(cpus) // actors)}},
        "batch_size": batch_size,
        "batch_format": "pyarrow",
        "udf_modifying_row_count": False,
    }
