"""From a file to a model: everything that cannot work is said before anything is read or compiled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ... import Catalog, OptionError
from ... import open as open_catalog
from .. import _collective, _gpu_blocks
from .._collective import LIMIT, allreduce_norm
from . import _config, _huggingface, _native, _tensors
from ._arithmetic import Arithmetic
from ._blocks import Collective, Network
from ._config import Config
from ._cut import Cut, cut
from ._given import integer, seconds, whole
from ._model import CHUNKS, GPU_CHUNKS, Model
from ._native import Native
from ._place import Layers, tallied
from ._programs import Programs
from ._tensors import Tensors
from ._vectors import Vectors
from ._xla import Xla

AXIS = "tp"
FLOATS = {"bf16": jnp.bfloat16, "f32": jnp.float32}
OF_THE_HUB = ("hf.co/", "huggingface.co/", "http://", "https://")
"""What names of models of the hub begin with."""
DEFAULT_CONTEXT = 4096
"""Positions if nobody asks for a number, and if the model was trained for as many."""
LINE = 16
"""The capacity of a cache is a multiple of this."""
MAX_RANKS = 64
CHANNEL = 1
"""Of the collectives of all models: in a program each needs a result of the one before."""


def load_model(
    path: str | os.PathLike[str] | Catalog,
    *,
    tp: int | None = None,
    mesh: Mesh | None = None,
    weights: str = "native",
    context: int | None = None,
    chunks: Sequence[int] | None = None,
    unroll: bool | None = None,
    limit: float = LIMIT,
    memory: int | None = None,
) -> Model:
    """A model of a GGUF file, or of a folder of Hugging Face's, on `tp` devices, or on those along the axis `tp` of a mesh: of `mesh`, or without either of
    the one that `jax.set_mesh` has set, if that has such an axis. With `tp`, devices begin with that of `jax.default_device`, if it is set. Along
    other axes of a mesh everything is the same: each has a copy, and computes the same.

    `weights`: "native": on CPU devices, matrices in place in the map of the file, whatever their type, and our own
    products with them; on CUDA's GPUs, each device's part of them as the blocks of the file, and our own products with up to 8 tokens, or
    with experts by up to two pairs of a token and an expert for each expert (the types that have no kernel there are bfloat16:
    `alight._alight.GPU_WEIGHT_TYPES` are those that have one).
    "bf16" or "f32": arrays of these, dequantised, cut for the devices, and XLA's own products.
    Of a folder of Hugging Face's with safetensors, floats go straight to the devices, each of which gets its part of the bytes and no other
    is read for it (`Model.read_bytes`); Llama, Qwen 2 and 3, Gemma 2 and 3.
    `context`: most positions; without it 4096, or what the model was trained for if that is less.

    `chunks`: lengths in which prompts are computed, the last one filled up; by the kind of the devices, if they are not given. With native weights, activations of several
    tokens at once have 8 bits, those of one token 16: `chunks=(1,)` takes longer, and gives the same tokens for any `tp`
    where a choice is not as close as roundings of float32.

    `unroll`: whether the layers follow one another in compiled programs, each with arrays of its own: on GPUs, unless told
    otherwise, so that a step is one CUDA graph. On CPU devices they are a loop, which compiles sooner.

    `limit`: seconds that a device waits for another in a collective (`alight.jax.allreduce_norm`); `math.inf` for as long as it takes.

    `memory`: bytes that weights may take, with `weights="native"` on CPU devices, in each process. If a mixture of experts is larger,
    its experts are read around the page cache when they are chosen, as by the native engine, and the answer is the same. What every token reads
    stays in the map of the file.

    The devices of `mesh` need not be here (`jax.experimental.topologies`): then no matrix is read, and the model has no
    answers, but programs that can be compiled (`Model.lower`).
    """
    known = ["native", *FLOATS]
    if weights not in known:
        raise ValueError(f"weights: expected one of {', '.join(map(repr, known))}, found {weights!r}")
    limit = seconds("limit", limit)
    if memory is not None:
        whole("memory", memory, 0)
    catalog = path if isinstance(path, Catalog) else _opened(path)
    # A folder of Hugging Face's, unless its safetensors are a GGUF model's.
    plain = str(catalog.files[0]).endswith(".safetensors")
    config, tensors = _huggingface.read(catalog) if plain else _of_gguf(catalog)
    context = _context(config, context)
    mesh = _mesh(tp, mesh)
    gpus = not _on_cpu(mesh)
    lengths = (GPU_CHUNKS if gpus else CHUNKS) if chunks is None else _lengths(chunks, context)
    if plain and weights == "native":
        raise ValueError(
            f"{catalog.files[0]}: weights='native' computes with GGUF files; 'bf16' or 'f32' loads this one as it is, and "
            f"`alight convert` makes a GGUF file"
        )
    native, in_place = weights == "native", weights == "native" and _on_cpu(mesh)
    _native.check(catalog, tensors) if in_place else _convertible(tensors)
    if native and not in_place and (reason := _gpu_blocks.problem(mesh)) is not None:
        raise ValueError(f"weights: 'native' does not work on these devices, 'bf16' does: {reason}")
    if memory is not None and not in_place:
        raise ValueError("memory: experts are read when they are chosen with weights='native' on CPU devices only")
    grains = _native.grains(config, tensors) if native else (1, 1)
    parts = _cut(config, mesh.shape[AXIS], *grains)
    # The shortest chunk fits anywhere; so does a token after a full context, which a sequence that has ended computes beside others that have not.
    capacity = -(-(context + max(lengths[0] - 1, 1)) // LINE) * LINE
    apart = gpus if unroll is None else unroll
    layers = Layers(mesh, AXIS, config.layers, apart)
    ops: Arithmetic
    with tallied() as read_bytes:
        if in_place:
            ops = Native(config, parts, catalog, tensors, layers, capacity, memory)
        else:
            kind = FLOATS["bf16" if native else weights]
            ops = Xla(config, parts, tensors, layers, capacity, kind, _stream(mesh, kind), native)
        vectors = Vectors(config, parts, tensors, layers, capacity)
    net = Network(config, parts, ops, collective(config, mesh, limit), AXIS, capacity, apart, limit)
    params = {"weights": ops.arrays, "matrices": ops.stacks, "vectors": vectors.arrays, "norms": vectors.stacks}
    specs = {
        "weights": ops.array_specs,
        "matrices": ops.stack_specs,
        "vectors": vectors.array_specs,
        "norms": vectors.stack_specs,
    }
    catalog.check()
    store = ops.store if isinstance(ops, Native) else None
    return Model(config, mesh, Programs(net, mesh, specs), params, context, lengths, catalog.check, dict(read_bytes), store)


def _opened(path: str | os.PathLike[str]) -> Catalog:
    if str(path).startswith(OF_THE_HUB) and not os.path.exists(path):
        raise OptionError(f"'{path}' is a model of the hub: alight.pull({str(path)!r}) fetches it, and returns the path of a file to load")
    return open_catalog(path)


def _lengths(chunks: Sequence[int], context: int) -> tuple[int, ...]:
    """Those that a caller gives."""
    if not isinstance(chunks, Iterable) or isinstance(chunks, str):
        raise TypeError(f"chunks: expected several lengths, as in (8, 32), found {chunks!r}")
    lengths = sorted({integer("chunks", chunk) for chunk in chunks})
    if not lengths or lengths[0] < 1:
        raise ValueError(f"chunks: expected lengths of 1 or more, found {list(chunks)}")
    if lengths[0] > context:
        raise ValueError(f"chunks: the shortest is {lengths[0]}, expected {context} at most, which is the context")
    return tuple(lengths)


def _of_gguf(catalog: Catalog) -> tuple[Config, Tensors]:
    config = _config.read(catalog)
    return config, _tensors.find(catalog, config)


def _convertible(tensors: Tensors) -> None:
    for tensor in tensors.matrices():
        if not tensor.convertible:
            raise ValueError(f"tensor {tensor.name!r}: {tensor.type} cannot be dequantised here; `alight convert` changes types")


def _cut(c: Config, ranks: int, heads: int, feed_forward: int) -> Cut:
    return cut(
        ranks,
        heads=c.heads,
        kv_heads=c.kv_heads,
        feed_forward=c.feed_forward,
        experts=0 if c.experts is None else c.experts.count,
        vocab=c.vocab,
        head_grain=heads,
        feed_forward_grain=feed_forward,
    )


def _context(config: Config, asked: int | None) -> int:
    if asked is None:
        return min(DEFAULT_CONTEXT, config.context)
    if not 1 <= integer("context", asked) <= config.context:
        raise ValueError(f"context: {asked}; expected 1 to {config.context}, for which the model was trained")
    return asked


def _mesh(tp: int | None, mesh: Mesh | None) -> Mesh:
    if mesh is None and tp is None and AXIS in (around := jax.sharding.get_mesh()).shape:
        mesh = around
    if tp is not None:
        integer("tp", tp)
    if mesh is not None:
        if not isinstance(mesh, Mesh):
            raise TypeError(f"mesh: expected a jax.sharding.Mesh with devices, found {type(mesh).__name__}")
        if AXIS not in mesh.shape:
            known = ", ".join(repr(axis) for axis in mesh.shape)
            raise ValueError(f"mesh: it has the axes {known}; expected one that is called {AXIS!r}")
        if tp is not None and tp != mesh.shape[AXIS]:
            raise ValueError(f"tp: {tp}, but the mesh has {mesh.shape[AXIS]} devices along {AXIS!r}")
        ranks = int(mesh.shape[AXIS])
    else:
        ranks = 1 if tp is None else tp
    if not 1 <= ranks <= MAX_RANKS:
        raise ValueError(f"tp: {ranks}; expected 1 to {MAX_RANKS}")
    if mesh is not None:
        return mesh
    devices = _devices()
    if ranks > len(devices):
        kind = devices[0].platform
        how = (
            "jax.config.update('jax_num_cpu_devices', N), before anything else uses JAX, makes more of them"
            if kind == "cpu"
            else "JAX_PLATFORMS=cpu in the environment takes CPU devices instead"
        )
        raise ValueError(f"tp: {ranks}, but there are {len(devices)} {kind} devices; {how}")
    return Mesh(np.array(devices[:ranks]), (AXIS,))


def _devices() -> list[jax.Device]:
    """Those that a model may be on: with `jax.default_device` it comes first, and the others are of its platform."""
    config: Any = jax.config
    first = config.jax_default_device
    if first is None:
        return jax.devices()
    if isinstance(first, str):
        return jax.devices(first)
    return [first, *(one for one in jax.devices(first.platform) if one != first)]


def _on_cpu(mesh: Mesh) -> bool:
    return all(device.platform == "cpu" for device in mesh.devices.flat)


def _stream(mesh: Mesh, kind: Any) -> Any:
    """The type of the residual stream."""
    return jnp.bfloat16 if not _on_cpu(mesh) and kind == jnp.bfloat16 else jnp.float32


def collective(config: Config, mesh: Mesh, limit: float) -> Collective:
    """What sums over the ranks, and norms."""
    alone = mesh.shape[AXIS] == 1 and not _on_cpu(mesh)

    def call(
        partial: jax.Array, residual: jax.Array, weight: jax.Array, *, post_weight: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        # The norms of GGUF files have Gemma's 1 in them: no bias.
        if alone:
            # One GPU has nothing to sum, and XLA fuses the norm with what stands beside it.
            return _collective.of_xla(partial, residual, weight, post_weight, AXIS, config.rms_eps, 0)
        return allreduce_norm(
            partial,
            residual,
            weight,
            mesh=mesh,
            axis=AXIS,
            epsilon=config.rms_eps,
            post_weight=post_weight,
            limit=limit,
            assume=True,
            channel=CHANNEL,
        )

    return call
