"""Programs whose only collectives are ours let their GPUs meet, once and before the first of them. On CPU devices, which are taken for GPUs here."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alight.jax import _meet, allreduce_norm, meet
from alight.jax.bench import _child, _table
from evidence.gpu import layers
from jax.sharding import Mesh, PartitionSpec as P


def mesh_of(*shape, names=("tp",)):
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)


@pytest.fixture
def as_gpus(monkeypatch):
    monkeypatch.setattr(_meet, "needed", lambda mesh: True)


def once_and_first(text, calls):
    """StableHLO with one collective of XLA's, and our calls behind it."""
    assert len(re.findall(r"stablehlo\.(?:all_\w+|collective_\w+|reduce_scatter)", text)) == 1
    assert text.count("@alight_allreduce_norm") == calls
    assert text.index("stablehlo.all_reduce") < text.index("@alight_allreduce_norm")


def test_programs_of_checks_and_benchmarks_for_gpus(as_gpus):
    given = layers.arguments(mesh_of(4), 3, 2, 64, jnp.bfloat16, True, seed=None)
    once_and_first(layers.program(layers.fused, mesh_of(4), 3).lower(*given).as_text(), 3)
    # What it is measured beside has one of its own for each layer, and no more.
    assert layers.program(layers.unfused, mesh_of(4), 3).lower(*given).as_text().count("stablehlo.all_reduce") == 3


def test_bench_collective_on_gpus(as_gpus):
    """Layers with weights of their own follow one another: a loop would be a CUDA graph for each turn."""
    like = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    given = like((2, 1, 64)), like((1, 64)), [like((64,))] * _table.LAYERS
    ours, xlas = (way.lower(*given).as_text() for way in _child.both_ways(mesh_of(2)))
    once_and_first(ours, _table.LAYERS)
    assert xlas.count("stablehlo.all_reduce") == _table.LAYERS
    assert "stablehlo.while" not in ours + xlas


def test_bench_collective_on_cpu_devices():
    like = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    ours, xlas = (way.lower(like((2, 1, 64)), like((1, 64)), [like((64,))]).as_text() for way in _child.both_ways(mesh_of(2)))
    assert "stablehlo.all_reduce" not in ours and ours.count("@alight_allreduce_norm") == xlas.count("stablehlo.all_reduce") == 1
    assert "stablehlo.while" in ours and "stablehlo.while" in xlas


def meeting(x, mesh=None, axis="tp", around=None):
    body = functools.partial(meet, mesh=mesh, axis=axis)
    return jax.jit(jax.shard_map(body, mesh=around or mesh, in_specs=P(), out_specs=P(), check_vma=False)).lower(x)


def test_what_is_handed_in_comes_out(as_gpus):
    """All bits of it: of −0, infinities, whole numbers and truth values."""
    tree = {"a": np.array([-0.0, np.inf, np.nan, 1e-40], np.float32), "b": (np.arange(3), np.array(True)), "c": jnp.ones((2, 2), jnp.bfloat16)}
    found = meeting(tree, mesh_of(4)).compile()(tree)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert one.shape == other.shape and np.asarray(one).tobytes() == np.asarray(jnp.asarray(other)).tobytes()
    # A single array may be the smallest that there is.
    odd = np.array([-0.0, np.nan], np.float32)
    assert np.asarray(meeting(odd, mesh_of(4)).compile()(odd)).tobytes() == odd.tobytes()


def test_along_several_axes_and_with_the_mesh_of_the_context(as_gpus):
    x = np.zeros(3, np.float32)
    several = meeting(x, mesh_of(2, 2, 2, names=("x", "tp", "y")), axis=("y", "x")).as_text()
    [groups] = re.findall(r"replica_groups = dense<(\[\[.*?\]\])>", several)
    assert sorted(map(sorted, json.loads(groups))) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    with jax.set_mesh(mesh_of(4)):
        assert "stablehlo.all_reduce" in meeting(x, around=mesh_of(4)).as_text()


def test_nothing_is_added_on_cpu_devices_and_on_one_rank(monkeypatch):
    x = np.zeros(3, np.float32)
    assert "stablehlo.all_reduce" not in meeting(x, mesh_of(4)).as_text()
    monkeypatch.setattr(_meet, "needed", lambda mesh: True)
    assert "stablehlo.all_reduce" not in meeting(x, mesh_of(1, 4, names=("tp", "dp"))).as_text()


def test_what_cannot_work_is_an_error(as_gpus):
    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="'tp' is not bound here; call meet in the body of jax.shard_map"):
        meet(x, mesh=mesh_of(2))
    with pytest.raises(ValueError, match="mesh: expected one, since none is set here"):
        meet(x)
    with pytest.raises(ValueError, match="axis: 'dp' is not an axis of the mesh"):
        meeting(x, mesh_of(2), axis="dp")
    with pytest.raises(ValueError, match="meet: expected an array or a tree of arrays, found none"):
        meeting({}, mesh_of(2))


def test_a_program_of_ones_own(as_gpus):
    """With values, beside the same without it."""
    mesh = mesh_of(4)
    partials, residual, weight = np.arange(4 * 32, dtype=np.float32).reshape(4, 2, 16), np.ones((2, 16), np.float32), np.ones(16, np.float32)

    def made(start):
        def run(partial, residual, weight):
            return allreduce_norm(partial[0], start(residual), weight, mesh=mesh, epsilon=1e-6)

        specs = dict(in_specs=(P("tp"), P(), P()), out_specs=P())
        return jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))(partials, residual, weight)

    for one, other in zip(made(functools.partial(meet, mesh=mesh)), made(lambda x: x), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
