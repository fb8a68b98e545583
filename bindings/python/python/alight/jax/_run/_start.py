"""JAX made ready for a run: devices, cache of compiled programs; then the model."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from ... import Catalog

if TYPE_CHECKING:
    from ..models import Model


def jax(args: argparse.Namespace) -> None:
    """Imports JAX and sets it up; the backend has not started yet."""
    import jax

    config: Any = jax.config
    if args.weights == "native" and "JAX_PLATFORMS" not in os.environ:
        config.update("jax_platforms", "cpu")
    if "cpu" in (config.jax_platforms or "cpu"):
        config.update("jax_num_cpu_devices", args.tp // args.processes)
    if args.processes > 1:
        _own_stdout()
        # Before the backend starts. Whoever does not come is an error after some minutes.
        jax.distributed.initialize(args.coordinator, args.processes, args.process)
        from .._connect import connect

        connect()
    if not args.no_cache:
        from .._cache import use_cache

        use_cache()
    from .. import models  # noqa: F401: the time that it takes belongs here


def model(args: argparse.Namespace, catalog: Catalog) -> Model:
    from ..models import load_model

    context = args.ctx_size
    if context == 0:
        from ... import config

        context = config(catalog)["context"]
    return load_model(catalog, tp=args.tp, weights=args.weights, context=context)


def _own_stdout() -> None:
    """Gloo writes to the standard output who is connected: from here on, that is ours alone."""
    ours = os.dup(1)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    sys.stdout = os.fdopen(ours, "w", encoding="utf-8")


def shut_down() -> None:
    """Waits for the other processes: whoever left before would take them down."""
    import jax

    distributed: Any = jax.distributed
    distributed.shutdown()
