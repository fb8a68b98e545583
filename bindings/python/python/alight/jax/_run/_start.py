"""JAX made ready for a run: devices, cache of compiled programs; then the model."""

from __future__ import annotations

import argparse
import os
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
        config.update("jax_num_cpu_devices", args.tp)
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
