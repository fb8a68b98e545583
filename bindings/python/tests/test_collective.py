"""The collective: beside an oracle in float64, on all devices the same bits, in groups, and beside `lax.psum` when no
handler applies; what cannot work is an error when the program is traced."""

import functools
import itertools
import logging
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import alight.jax
from alight.jax import _collective
from collective_oracle import EPSILON, inputs, oracle, ulps
from conftest import KEEP

DTYPES = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)]


def mesh_of(*shape, names=("tp",)):
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)


def program(mesh, *, axis="tp", layers=None, **options):
    """A jitted function of (partials [devices, …], residual, weight, post weight or nothing) to every device's results."""

    def run(partial, residual, weight, *post):
        post_weight = post[0] if post else None
        call = functools.partial(
            alight.jax.allreduce_norm, mesh=mesh, axis=axis, **{"epsilon": EPSILON, "post_weight": post_weight} | options
        )
        normed, new = call(partial[0], residual, weight)
        return normed[None], new[None]

    everything = P(mesh.axis_names)

    def wrapped(partials, residual, weight, *post):
        specs = (everything, P(), P()) + (P(),) * len(post)
        body = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=(everything,) * 2, check_vma=False)
        return body(partials, residual, weight, *post)

    return jax.jit(wrapped)


# Every kind of operands on three devices; every number of devices with some; and what replaces the handler.
CASES = [(3, *case, True) for case in itertools.product(DTYPES, (False, True), (0, 1), (False, True))]
CASES += [(ranks, dtype, False, 1, True, True) for ranks in (1, 2, 8) for dtype in DTYPES]
CASES += [(2, dtype, True, bias, post, False) for dtype in DTYPES for bias, post in ((0, False), (1, True))]


@pytest.mark.parametrize("ranks, dtype, wide, bias, post, handler", CASES, ids=str)
def test_numbers_are_the_oracles_and_the_same_bits_everywhere(ranks, dtype, wide, bias, post, handler, monkeypatch):
    if not handler:
        monkeypatch.setattr(_collective, "RANKS", 0)
    shape = (2, 3, 100)
    partials, residual, weight, post_weight = inputs(ranks, shape, dtype, np.float32 if wide else dtype)
    last = (post_weight,) if post else ()
    results = program(mesh_of(ranks), bias=bias)(partials, residual, weight, *last)
    expected = oracle(partials, residual, weight, *last, bias=bias)
    for found, want in zip(results, expected, strict=True):
        found = np.asarray(found)
        assert all(one.tobytes() == found[0].tobytes() for one in found)
        if handler:
            assert ulps(found[0], want) <= 1
        else:
            # XLA sums in another order: where large numbers cancel, an error of theirs is many ulps of the sum.
            step = 4 * float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(found[0].astype(np.float64), want.astype(np.float64), rtol=step, atol=step)
    if handler and not post:
        assert np.asarray(results[1])[0].tobytes() == expected[1].tobytes()


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x"), ("y",)], ids=str)
def test_several_axes_are_one(order):
    """In the order in which they are named, as for `lax.psum`."""
    mesh = mesh_of(2, 2, 2, names=("x", "dp", "y"))
    partials, residual, weight, _ = inputs(8, (2, 48), DTYPES[2], DTYPES[2])
    devices = np.moveaxis(np.arange(8).reshape(2, 2, 2), [("x", "dp", "y").index(name) for name in order], range(-len(order), 0))
    results = program(mesh, axis=order)(partials, residual, weight)
    for group in devices.reshape(-1, 2 ** len(order)):
        expected = oracle(partials[group], residual, weight, bias=0)
        assert all(np.asarray(results[1])[device].tobytes() == expected[1].tobytes() for device in group)
        assert all(ulps(np.asarray(results[0])[device], expected[0]) <= 1 for device in group)


@pytest.mark.parametrize("shape, names", [((2, 4), ("dp", "tp")), ((4, 2), ("tp", "dp")), ((2, 2, 2), ("a", "tp", "b")), ((8, 1), ("dp", "tp"))])
def test_groups_of_a_mesh_with_more_axes(shape, names):
    """Each group has its own sum, residual and result."""
    mesh, at = mesh_of(*shape, names=names), names.index("tp")
    rows = int(np.prod(shape)) // shape[at]
    others = tuple(name for name in names if name != "tp")
    partials, _, weight, _ = inputs(8, (2, 48), DTYPES[0], DTYPES[0])
    residuals = np.random.default_rng(1).standard_normal((rows, 2, 48)).astype(DTYPES[0])

    def run(partial, residual, weight):
        normed, new = alight.jax.allreduce_norm(partial[0], residual[0], weight, mesh=mesh, epsilon=EPSILON, bias=1)
        return normed[None], new[None]

    everything = P(names)
    specs = dict(in_specs=(everything, P(others), P()), out_specs=(everything,) * 2)
    step = jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))
    results = [np.asarray(x).reshape(*shape, 2, 48) for x in step(partials, residuals, weight)]
    results = [np.moveaxis(x, at, len(shape) - 1).reshape(rows, shape[at], 2, 48) for x in results]
    grouped = np.moveaxis(partials.reshape(*shape, 2, 48), at, len(shape) - 1).reshape(rows, shape[at], 2, 48)
    for group in range(rows):
        expected = oracle(grouped[group], residuals[group], weight, bias=1)
        for found, want in zip(results, expected, strict=True):
            assert all(ulps(one, want) <= 1 for one in found[group])


def test_inside_loops_and_branches():
    """A scan, a while loop and two call sites, thousands of launches in flight by eights."""
    mesh = mesh_of(4)
    partials, residual, weight, post_weight = inputs(4, (2, 64), DTYPES[2], DTYPES[2])
    call = functools.partial(alight.jax.allreduce_norm, mesh=mesh, epsilon=EPSILON)

    def run(partial, residual, weight, post_weight):
        def step(state, _=None):
            normed, new = call(state[0], state[1], weight, bias=1)
            return call(partial[0] + normed, new, weight, post_weight=post_weight), None

        state, _ = lax.scan(step, (partial[0], residual), length=3)
        _, state = lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, step(s[1])[0]), (0, state))
        return tuple(x[None] for x in state)

    specs = dict(in_specs=(P("tp"), P(), P(), P()), out_specs=(P("tp"), P("tp")))
    step = jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))

    want = (partials, residual)
    for _ in range(5):
        normed, new = oracle(want[0], want[1], weight, bias=1)
        normed, new = oracle(partials + normed, new, weight, post_weight, bias=0)
        want = np.stack([normed] * 4), new
    for _ in range(250):
        results = [step(partials, residual, weight, post_weight) for _ in range(8)]
        jax.block_until_ready(results)
    for normed, new in results:
        np.testing.assert_allclose(np.asarray(normed)[3], want[0][0], rtol=1e-5, atol=1e-5)
        assert all(x.tobytes() == np.asarray(new)[0].tobytes() for x in np.asarray(new))


def test_operands_that_are_needed_afterwards_stay_what_they_were():
    """The call works in place where XLA lets it, and only there."""
    mesh = mesh_of(4)
    partials, residual, weight, post_weight = inputs(4, (3, 32), DTYPES[2], DTYPES[2])

    def run(partial, residual, weight, post_weight):
        options = dict(mesh=mesh, epsilon=EPSILON, bias=1, post_weight=post_weight)
        normed, new = alight.jax.allreduce_norm(partial[0], residual, weight, **options)
        same, also = alight.jax.allreduce_norm(residual, residual, weight, **options)
        return tuple(x[None] for x in (normed, new, partial[0], residual, same, also))

    specs = dict(in_specs=(P("tp"), P(), P(), P()), out_specs=(P("tp"),) * 6)
    step = jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))
    # Arguments that are in place already, and are not given away.
    arguments = [jax.device_put(partials, NamedSharding(mesh, P("tp")))]
    arguments += [jax.device_put(x, NamedSharding(mesh, P())) for x in (residual, weight, post_weight)]
    for _ in range(2):
        normed, new, partial, same_residual, same, also = (np.asarray(x) for x in step(*arguments))
        for found, want in zip((normed, new), oracle(partials, residual, weight, post_weight, bias=1), strict=True):
            assert ulps(found[3], want) <= 1
        for found, want in zip((same, also), oracle(np.stack([residual] * 4), residual, weight, post_weight, bias=1), strict=True):
            assert ulps(found[0], want) <= 1
        assert partial.tobytes() == partials.tobytes()
        assert all(one.tobytes() == residual.tobytes() for one in same_residual)


def test_a_loop_copies_nothing_that_it_carries():
    mesh = mesh_of(2)
    partials, residual, weight, _ = inputs(2, (4, 96), DTYPES[0], DTYPES[0])

    def run(partial, residual, weight):
        step = lambda state, _: (alight.jax.allreduce_norm(*state, weight, mesh=mesh, epsilon=EPSILON), None)  # noqa: E731
        normed, new = lax.scan(step, (partial[0], residual), length=8)[0]
        return normed[None], new[None]

    specs = dict(in_specs=(P("tp"), P(), P()), out_specs=(P("tp"), P("tp")))
    step = jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))
    text = step.lower(partials, residual, weight).compile().as_text()
    (body,) = (part for part in text.split("\n\n") if 'custom_call_target="alight_allreduce_norm"' in part)
    assert not re.search(r"bf16\[4,96\]\S* copy\(", body), body


def test_beside_psum_after_64_layers():
    """In a process of its own, because XLA is told not to keep more precision than the program says."""
    script, devices = Path(__file__).with_name("collective_psum.py"), ("2", "4", "8")
    run = subprocess.run([sys.executable, script, *devices], capture_output=True, text=True, timeout=600, env=os.environ | KEEP)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [run.stdout.count(f"ok  {count} devices") for count in devices] == [5, 5, 5], run.stdout


def test_without_a_handler_it_is_psum_and_a_norm_and_says_why_once(monkeypatch, caplog):
    monkeypatch.setattr(_collective, "RANKS", 1)
    monkeypatch.setattr(_collective, "_told", set())
    partials, residual, weight, _ = inputs(2, (1, 16), DTYPES[0], DTYPES[0])
    with caplog.at_level(logging.WARNING, "alight.jax"):
        for bias in (0, 1):
            text = program(mesh_of(2), bias=bias).lower(partials, residual, weight).as_text()
            assert "all_reduce" in text and "alight" not in text
    assert [record.getMessage() for record in caplog.records] == [
        "allreduce_norm is lax.psum and a norm: 2 devices along the axis, and the handler knows at most 1"
    ]
    monkeypatch.undo()
    text = program(mesh_of(2)).lower(partials, residual, weight).as_text()
    assert "all_reduce" not in text and "alight_allreduce_norm" in text


GOOD = inputs(2, (2, 16), DTYPES[0], DTYPES[0])


def changed(at, make):
    arguments = list(GOOD)
    arguments[at] = make(arguments[at])
    return arguments


BAD = {
    "residual's shape": (changed(1, lambda x: x[:1]), {}, "residual: expected the partial's shape [2, 16], found [1, 16]"),
    "residual's type": (changed(1, lambda x: x.astype(np.float32)), {}, "residual: expected the partial's type bfloat16, found float32"),
    "partial's type": (changed(0, lambda x: x.astype(np.int32)), {}, "partial: expected one of bfloat16, float16, float32, found int32"),
    "no hidden": (changed(0, lambda x: x[:, 0, 0]), {}, "partial: expected […, hidden] with a hidden that is not 0, found []"),
    "weight's shape": (changed(2, lambda x: x[:-1]), {}, "weight: expected [16], found [15]"),
    "weight's type": (changed(2, lambda x: x.astype(np.float16)), {}, "weight: expected the partial's type bfloat16 or float32, found float16"),
    "post-weight's shape": (changed(3, lambda x: x[None]), {}, "post_weight: expected [16], found [1, 16]"),
    "post-weight's type": (changed(3, lambda x: x.astype(np.float32)), {}, "post_weight: expected the weight's type bfloat16, found float32"),
    "bias": (GOOD, {"bias": 2}, "bias: expected 0 or 1, found 2"),
    "epsilon": (GOOD, {"epsilon": float("nan")}, "epsilon: expected a number that is known"),
    "negative epsilon": (GOOD, {"epsilon": -1.0}, "epsilon: expected a number that is known"),
    "limit": (GOOD, {"limit": -1.0}, "limit: expected a number that is known"),
    "axis": (GOOD, {"axis": "x"}, "axis: 'x' is not an axis of the mesh, whose axes are ('tp',)"),
    "axis twice": (GOOD, {"axis": ("tp", "tp")}, "axis: expected an axis, or several different ones, found ('tp', 'tp')"),
    "mesh": (GOOD, {"mesh": mesh_of(4)}, "mesh: axis 'tp' has 4 devices, and 2 in the shard_map around this call"),
    "no mesh": (GOOD, {"mesh": None}, "mesh: expected one, since none is set here"),
    "another thing": (GOOD, {"mesh": 3}, "mesh: expected a jax.sharding.Mesh with devices, found int"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_work_is_an_error_before_anything_runs(what):
    arguments, options, words = BAD[what]
    mesh = mesh_of(2)
    options = dict(axis="tp", mesh=mesh, epsilon=EPSILON) | options

    def run(partial, residual, weight, post_weight):
        return alight.jax.allreduce_norm(partial[0], residual, weight, post_weight=post_weight, **options)

    step = jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, in_specs=(P("tp"), P(), P(), P()), out_specs=(P(), P())))
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        step.lower(*arguments)


def test_outside_of_a_shard_map_is_an_error():
    with pytest.raises(ValueError, match="'tp' is not bound here; call allreduce_norm in the body of jax.shard_map"):
        alight.jax.allreduce_norm(*GOOD[:3], mesh=mesh_of(2), epsilon=EPSILON)


def test_a_device_that_never_comes_is_an_error_in_time():
    mesh = mesh_of(4)

    def run(partial, residual, weight):
        call = lambda: alight.jax.allreduce_norm(partial[0], residual, weight, mesh=mesh, epsilon=EPSILON, limit=0.3)[1]  # noqa: E731
        return lax.cond(lax.axis_index("tp") == 2, lambda: residual, call)[None]

    step = jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, in_specs=(P("tp"), P(), P()), out_specs=P("tp")))
    partials, residual, weight, _ = inputs(4, (2, 16), DTYPES[0], DTYPES[0])
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)did not come: \[.*2.*\]"):
            jax.block_until_ready(step(partials, residual, weight))


@pytest.mark.parametrize("order", [[[0, 2], [1, 3]], [[1, 0], [2, 3]]], ids=["other groups", "another order"])
def test_a_mesh_of_the_same_shape_with_other_devices_is_an_error(order):
    """The sums would be of other operands, and nobody would notice."""
    names = ("dp", "tp")
    around, ours = mesh_of(2, 2, names=names), Mesh(np.array(jax.devices())[np.array(order)], names)
    residual, weight = np.zeros((2, 8), np.float32), np.ones(8, np.float32)
    partials = np.arange(4, dtype=np.float32)[:, None, None] * np.ones((1, 2, 8), np.float32)

    def sums(mesh, limit):
        def run(partial, residual, weight):
            return alight.jax.allreduce_norm(partial[0], residual, weight, mesh=mesh, epsilon=EPSILON, limit=limit)[1][None]

        specs = dict(in_specs=(P(names), P(), P()), out_specs=P(names))
        return jax.jit(jax.shard_map(run, mesh=around, check_vma=False, **specs))(partials, residual, weight)

    assert np.asarray(sums(around, 30.0))[:, 0, 0].tolist() == [1, 1, 5, 5]
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"in the shard_map around this call, and \d in the mesh that allreduce_norm was given"):
        jax.block_until_ready(sums(ours, 0.5))


def test_a_mesh_with_other_groups_is_an_error():
    """Of the same sizes: `tp` has two devices in both."""
    partials, residual, weight, _ = inputs(4, (2, 64), DTYPES[2], DTYPES[2])
    around, ours = mesh_of(2, 2, names=("tp", "dp")), mesh_of(2, 2, names=("dp", "tp"))

    def run(partial, residual, weight):
        return alight.jax.allreduce_norm(partial[0], residual, weight, mesh=ours, epsilon=EPSILON)

    mapped = jax.shard_map(run, mesh=around, in_specs=(P(("tp", "dp")), P(), P()), out_specs=P(), check_vma=False)
    with pytest.raises(ValueError, match=r"mesh: its axes are {'dp': 2, 'tp': 2}, those of the shard_map around this call {'tp': 2, 'dp': 2}"):
        jax.jit(mapped)(partials, residual, weight)


def of_the_context(name="tp"):
    """A step for `jax.set_mesh`, without a mesh of its own."""

    def run(partial, residual, weight):
        return alight.jax.allreduce_norm(partial[0], residual, weight, axis=name, epsilon=EPSILON, limit=5.0)[1][None]

    return jax.shard_map(run, check_vma=False, in_specs=(P(name), P(), P()), out_specs=P(name))


def test_the_mesh_of_the_context(caplog):
    """Each program has the devices of the mesh that was set when it was traced, also where axes are alike."""
    partials, residual, weight, _ = inputs(4, (2, 16), DTYPES[2], DTYPES[2])
    expected, devices = residual + partials.sum(0), jax.devices()
    meshes = [Mesh(np.array(devices)[order], ("tp",)) for order in ([0, 1, 2, 3], [3, 1, 0, 2], [7, 6, 5, 4])]
    steps = [jax.jit(of_the_context()) for _ in meshes]
    with caplog.at_level(logging.WARNING, logger="alight.jax"):
        for mesh, step in list(zip(meshes, steps, strict=True)) * 2:
            with jax.set_mesh(mesh):
                found = step(partials, residual, weight)
            assert list(found.sharding.mesh.devices.flat) == list(mesh.devices.flat)
            assert np.abs(np.asarray(found) - expected).max() < 1e-5
    # JAX does not trace a function anew for a mesh that has the same axes: that is seen when it runs, and nothing is summed.
    with jax.set_mesh(meshes[1]), pytest.raises(jax.errors.JaxRuntimeError, match="in the mesh that allreduce_norm was given"):
        jax.block_until_ready(steps[0](partials, residual, weight))
    with jax.set_mesh(meshes[2]), pytest.raises(jax.errors.JaxRuntimeError, match="is not among the ranks"):
        jax.block_until_ready(steps[0](partials, residual, weight))
    assert not caplog.records
    # `vmap` and derivatives know it, too.
    with jax.set_mesh(mesh_of(4)):
        slope = jax.jit(jax.grad(lambda residual: of_the_context()(partials, residual, weight).sum()))(residual)
        many = jax.jit(jax.vmap(of_the_context(), in_axes=(1, None, None)))(np.stack([partials, 2 * partials], 1), residual, weight)
    assert np.asarray(slope).tolist() == np.full(residual.shape, 4.0).tolist()
    assert np.abs(np.asarray(many)[1] - residual - 2 * (expected - residual)).max() < 1e-5


def test_without_a_mesh_in_the_context_it_is_an_error():
    partials, residual, weight, _ = inputs(4, (2, 16), DTYPES[2], DTYPES[2])

    def run(partial, residual, weight):
        return alight.jax.allreduce_norm(partial[0], residual, weight, epsilon=EPSILON)[1][None]

    mapped = jax.shard_map(run, mesh=mesh_of(4), check_vma=False, in_specs=(P("tp"), P(), P()), out_specs=P("tp"))
    with pytest.raises(ValueError, match="mesh: expected one, since none is set here; pass mesh=, or call it under jax.set_mesh"):
        jax.jit(mapped)(partials, residual, weight)
    with pytest.raises(ValueError, match="mesh: expected one, since none is set here"):
        alight.jax.allreduce_norm(partials[0], residual, weight, epsilon=EPSILON)
    # One that has other axes than the `shard_map` is no better than one that is handed in.
    with jax.set_mesh(mesh_of(2, 4, names=("x", "y"))):
        with pytest.raises(ValueError, match=r"axis: 'tp' is not an axis of the mesh, whose axes are \('x', 'y'\)"):
            alight.jax.allreduce_norm(partials[0], residual, weight, epsilon=EPSILON)


def test_without_a_limit():
    """What handlers count, and results."""
    mesh = mesh_of(3)
    partials, residual, weight, _ = inputs(3, (2, 64), DTYPES[2], DTYPES[2])
    step = program(mesh, limit=math.inf)
    lowered = step.lower(partials, residual, weight).as_text()
    assert int(re.search(r"limit_ms = (\d+)", lowered)[1]) == 10 * 365 * 86400 * 1000
    results = step(partials, residual, weight)
    for found, want in zip(results, oracle(partials, residual, weight, bias=0), strict=True):
        assert all(ulps(one, want) <= 1 for one in np.asarray(found))
    for limit in (math.nan, -math.inf, -1.0):
        with pytest.raises(ValueError, match="limit: expected a number"):
            program(mesh, limit=limit).lower(partials, residual, weight)


@pytest.mark.parametrize("post", [False, True])
def test_under_vmap_more_rows_are_one_call(post):
    mesh = mesh_of(4)
    partials, residual, weight, post_weight = inputs(4, (5, 2, 64), DTYPES[2], DTYPES[2])

    def over(call):
        def run(partial, residual, weight):
            one = functools.partial(alight.jax.allreduce_norm, mesh=mesh, epsilon=EPSILON, post_weight=post_weight if post else None)
            return call(lambda partial, residual: one(partial, residual, weight), partial[0], residual)

        return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(P("tp"), P(), P()), out_specs=P(), check_vma=False))

    rows, mapped = over(lambda f, *args: f(*args)), over(lambda f, *args: jax.vmap(f)(*args))
    assert mapped.lower(partials, residual, weight).as_text().count("@alight_allreduce_norm") == 1
    for one, other in zip(mapped(partials, residual, weight), rows(partials, residual, weight), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    shared = over(lambda f, partial, residual: jax.vmap(f, (0, None))(partial, residual[0]))
    again = rows(partials, np.broadcast_to(residual[:1], residual.shape), weight)
    assert all(np.array_equal(a, b) for a, b in zip(shared(partials, residual, weight), again, strict=True))

    def weights_differ(partial, residual, weight):
        one = functools.partial(alight.jax.allreduce_norm, mesh=mesh, epsilon=EPSILON)
        return jax.vmap(one, (0, 0, 0))(partial[0], residual, jnp.stack([weight] * 5))

    wrong = jax.shard_map(weights_differ, mesh=mesh, in_specs=(P("tp"), P(), P()), out_specs=P(), check_vma=False)
    with pytest.raises(ValueError, match="weights that differ along an axis of jax.vmap; expected the same"):
        jax.jit(wrong)(partials, residual, weight)


def test_derivatives_are_those_of_the_sum_itself(monkeypatch):
    """By finite differences, and as where there is no handler."""
    mesh = mesh_of(4)
    operands = inputs(4, (3, 48), DTYPES[2], DTYPES[2])

    @jax.jit
    def loss(*operands):
        def run(partial, residual, weight, post_weight):
            found = alight.jax.allreduce_norm(partial[0], residual, weight, mesh=mesh, epsilon=EPSILON, post_weight=post_weight)
            return sum((one * one).mean() for one in found)[None]

        return jax.shard_map(run, mesh=mesh, in_specs=(P("tp"), P(), P(), P()), out_specs=P("tp"), check_vma=False)(*operands).sum()

    def derivatives():
        return jax.jit(jax.grad(lambda *operands: loss.__wrapped__(*operands), argnums=(0, 1, 2, 3)))(*operands)

    found = derivatives()
    rng = np.random.default_rng(1)
    for number, (operand, slope) in enumerate(zip(operands, found, strict=True)):
        step = rng.standard_normal(operand.shape).astype(np.float32)
        moved = [loss(*operands[:number], operand + sign * 1e-2 * step, *operands[number + 1 :]) for sign in (1, -1)]
        wanted = float(moved[0] - moved[1]) / 2e-2
        # What is the same on all devices is one argument that each of them has.
        assert abs(float((slope * step).sum()) - wanted) < 2e-2 * max(1, abs(wanted))
    monkeypatch.setattr(_collective, "RANKS", 0)
    for one, other in zip(found, derivatives(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
