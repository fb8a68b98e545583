"""Matrices as the blocks of a model file on CUDA's GPUs: products with a few tokens, or of each with those of many matrices that were chosen for
it, and rows as floats, by kernels of ours (`crates/xla/cuda/matmul.cu`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .._alight import GPU_WEIGHT_TYPES, WEIGHT_TYPES, cuda_problem
from . import _cuda, _ffi, _mesh

MAX_TOKENS = 8
"""The most of a product. For more, the matrix is made floats first."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks:
    """Rows of blocks, as they lie in a file: a matrix, or a stack of matrices."""

    data: Any
    """`uint8[rows, bytes of a row]`, or `uint8[slots, rows, bytes of a row]`."""
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
    """`float32[T, rows]` of `x` `[T, columns]`, bfloat16 or float32, of at most `MAX_TOKENS` tokens.

    Weights are not rounded, sums are float32. A token's products are the same, bit for bit, whatever other tokens there are.
    """
    (rows,) = _checked(matrix, 2)
    _check_x(x)
    if x.shape[0] > MAX_TOKENS:
        raise ValueError(f"x: {x.shape[0]} tokens, expected at most {MAX_TOKENS}")
    return _call("alight_matvec", matrix.data, matrix.type, (x.shape[0], rows), jnp.float32, x)


def multiply_chosen(stack: Blocks, numbers: jax.Array, x: jax.Array) -> jax.Array:
    """`float32[P, rows]` of `P` pairs of a row of `x` `[X, columns]`, bfloat16 or float32, and the matrix of the stack that `numbers` `int32[P]` says for
    it; zeros where there is no such matrix. Each row of `x` has as many pairs, which follow one another.

    A pair's products are those of `multiply`, bit for bit. The numbers are read on the GPU: nothing waits for them.
    """
    _, rows = _checked(stack, 3)
    _check_x(x)
    if numbers.dtype != jnp.int32 or numbers.ndim != 1:
        raise TypeError(f"numbers: expected int32, one for each pair, found {numbers.dtype}{list(numbers.shape)}")
    if x.shape[0] == 0 or numbers.shape[0] % x.shape[0]:
        raise ValueError(f"numbers: {numbers.shape[0]} pairs for {x.shape[0]} rows of x, expected as many for each")
    return _call("alight_matvec_chosen", stack.data, stack.type, (numbers.shape[0], rows), jnp.float32, x, numbers)


def dequantize(matrix: Blocks, columns: int, dtype: Any) -> jax.Array:
    """The matrix as floats `[rows, columns]`, or the stack as `[slots, rows, columns]`, bfloat16 or float32: with the bits that it has everywhere."""
    several = _checked(matrix, 3 if matrix.data.ndim == 3 else 2)
    rows = math.prod(several)
    data = matrix.data.reshape(rows, matrix.data.shape[-1])
    return _call("alight_dequantize", data, matrix.type, (rows, columns), dtype).reshape(*several, columns)


def _checked(matrix: Blocks, dimensions: int) -> tuple[int, ...]:
    """The dimensions but for the bytes of a row."""
    if matrix.type not in GPU_WEIGHT_TYPES:
        raise ValueError(f"blocks of {matrix.type}, and there are kernels for {', '.join(GPU_WEIGHT_TYPES)}")
    if matrix.data.dtype != np.uint8 or matrix.data.ndim != dimensions:
        expected = "uint8[rows, bytes of a row]" if dimensions == 2 else "uint8[slots, rows, bytes of a row]"
        raise TypeError(f"blocks: expected {expected}, found {matrix.data.dtype}{list(matrix.data.shape)}")
    return tuple(matrix.data.shape[:-1])


def _check_x(x: jax.Array) -> None:
    if x.dtype not in (jnp.bfloat16, jnp.float32) or x.ndim != 2:
        raise TypeError(f"x: expected bfloat16 or float32 [rows, columns], found {x.dtype}{list(x.shape)}")


def _call(name: str, data: Any, kind: str, shape: tuple[int, int], dtype: Any, *more: jax.Array) -> jax.Array:
    _ffi.register()
    result = jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call, unused-ignore]
    found: jax.Array = jax.ffi.ffi_call(name, result)(data, *more, block_type=np.int64(WEIGHT_TYPES[kind][0]))
    return found
