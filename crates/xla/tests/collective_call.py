"""The fused collective as a function of JAX arrays, and what it replaces, for the tests and benchmarks beside this file.

The package's own function will be `alight.jax.allreduce_norm`; this is the least that registers the library and calls it.
"""

import ctypes
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROOT = pathlib.Path(__file__).resolve().parents[3]


def register() -> None:
    """Loads the library and registers its call. ALIGHT_XLA names another one than that of the development build."""
    path = os.environ.get("ALIGHT_XLA") or str(ROOT / "target/debug/libalight_xla.so")
    library = ctypes.CDLL(path)
    jax.devices()  # XLA's tables are there when its backend is.

    def pointer(function) -> object:
        function.restype = ctypes.c_void_p
        return jax.ffi.pycapsule(function())

    kind = {"type_id": pointer(library.alight_clique_type_id), "type_info": pointer(library.alight_clique_type_info)}
    jax.ffi.register_ffi_type("alight_clique", kind, platform="cpu")
    stages = {
        "instantiate": jax.ffi.pycapsule(library.alight_allreduce_norm_instantiate),
        "execute": jax.ffi.pycapsule(library.alight_allreduce_norm_execute),
    }
    jax.ffi.register_ffi_target("alight_allreduce_norm", stages, platform="cpu")


def fused(partial, residual, weight, post_weight=None, *, mesh, bias, epsilon=1e-6, limit_ms=30_000, capacity=None):
    """(normed, new residual) on a device, inside shard_map over the whole of `mesh`."""
    like = jax.ShapeDtypeStruct(partial.shape, partial.dtype)
    call = jax.ffi.ffi_call("alight_allreduce_norm", (like, like))
    operands = (partial, residual, weight) + (() if post_weight is None else (post_weight,))
    size = partial.size * partial.dtype.itemsize
    return call(
        *operands,
        devices=np.array([device.id for device in mesh.devices.flat], np.int64),
        capacity=np.int64(size if capacity is None else capacity),
        limit_ms=np.int64(limit_ms),
        bias=np.int64(bias),
        epsilon=np.float32(epsilon),
    )


def norm(x, weight, bias, epsilon):
    """RMSNorm in f32, rounded once."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * scale * (bias + weight.astype(jnp.float32))).astype(x.dtype)


def unfused(partial, residual, weight, post_weight=None, *, axis="tp", bias, epsilon=1e-6):
    """The same of XLA's own operations. XLA sums bf16 in f32, but f16 in f16, unless it is told to."""
    wide = partial.astype(jnp.float32) if partial.dtype == jnp.float16 else partial
    total = lax.psum(wide, axis).astype(partial.dtype)
    if post_weight is not None:
        total = norm(total, post_weight, bias, epsilon)
    new_residual = residual + total
    return norm(new_residual, weight, bias, epsilon), new_residual
