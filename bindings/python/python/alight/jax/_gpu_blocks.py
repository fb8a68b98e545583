"""Matrices as the blocks of a model file on CUDA's GPUs: products with a few tokens, and rows as floats, by kernels of ours
(`crates/xla/cuda/matmul.cu`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .._alight import GPU_WEIGHT_TYPES, WEIGHT_TYPES, cuda_problem
from . import _cuda, _ffi, _mesh

MOST_TOKENS = 8
"""The most of a product. For more, the matrix is made floats first."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks:
    """Rows of blocks, as they lie in a file."""

    data: Any
    """`uint8[rows, bytes of a row]`."""
    type: str = field(metadata={"static": True})
    """One of `GPU_WEIGHT_TYPES`."""


def problem(mesh: Mesh) -> str | None:
    """Why there can be no such matrices on the devices of a mesh, if there cannot. Those that are not here are CUDA's and good."""
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    platforms = {device.platform for device in mesh.devices.flat}
    if platforms != {"gpu"}:
        return f"there are no kernels for devices of {', '.join(sorted(platforms))}"
    if not _mesh.here(mesh):
        return None
    version = devices[0].client.platform_version.lower()
    if "cuda" not in version:
        return f"the GPUs are not CUDA's: {version.splitlines()[0]}"
    return cuda_problem([_cuda.number(device) for device in devices], _cuda.folders())


def multiply(matrix: Blocks, x: jax.Array) -> jax.Array:
    """`float32[T, rows]` of `x` `[T, columns]`, bfloat16 or float32, of at most `MOST_TOKENS` tokens.

    Weights are not rounded, sums are float32. A token's products are the same, bit for bit, whatever other tokens there are.
    """
    rows, columns = _checked(matrix, x.shape[1])
    if x.dtype not in (jnp.bfloat16, jnp.float32):
        raise TypeError(f"x: expected bfloat16 or float32, found {x.dtype}")
    if x.shape[0] > MOST_TOKENS:
        raise ValueError(f"x: {x.shape[0]} tokens, expected at most {MOST_TOKENS}")
    return _call("alight_matvec", matrix, (x.shape[0], rows), jnp.float32, x.reshape(-1, columns))


def dequantize(matrix: Blocks, columns: int, dtype: Any) -> jax.Array:
    """The matrix as floats `[rows, columns]`, bfloat16 or float32: with the bits that it has everywhere."""
    rows, _ = _checked(matrix, columns)
    return _call("alight_dequantize", matrix, (rows, columns), dtype)


def _checked(matrix: Blocks, columns: int) -> tuple[int, int]:
    """Rows and columns."""
    if matrix.type not in GPU_WEIGHT_TYPES:
        raise ValueError(f"blocks of {matrix.type}, and there are kernels for {', '.join(GPU_WEIGHT_TYPES)}")
    if matrix.data.dtype != np.uint8 or matrix.data.ndim != 2:
        raise TypeError(f"blocks: expected uint8[rows, bytes of a row], found {matrix.data.dtype}{list(matrix.data.shape)}")
    return matrix.data.shape[0], columns


def _call(name: str, matrix: Blocks, shape: tuple[int, int], dtype: Any, *more: jax.Array) -> jax.Array:
    _ffi.register()
    result = jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call, unused-ignore]
    found: jax.Array = jax.ffi.ffi_call(name, result)(matrix.data, *more, block_type=np.int64(WEIGHT_TYPES[matrix.type][0]))
    return found
