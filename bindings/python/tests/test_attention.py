"""Attention in blocks of positions, by a loop of XLA's operations and by the kernel for GPUs (interpreted), against all of the
cache at once in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alight.jax.models import _attention
from alight.jax.models._attention import BLOCK, KERNEL_BLOCK, PAGE, Attention

LAYERS, LAYER = 2, 1
SHAPES = [
    # key/value heads, query heads for each, widths of keys and values
    (2, 3, 32, 32),
    (1, 1, 40, 24),
]
POSITIONS = [0, 1, 63, 64, 300, 511]


def exact(q, keys, values, pos, window, sinks, of):
    """In float64, over all of the cache."""
    batch, tokens = q.shape[:2]
    q = q.reshape(batch, tokens, of.heads, of.group, of.key_dim)
    out = np.zeros((batch, tokens, of.heads, of.group, of.value_dim))
    for b, t, h, g in np.ndindex(out.shape[:4]):
        at = pos[b] + t
        seen = np.arange(max(0, at - window + 1) if window else 0, at + 1)
        scores = keys[LAYER, h, b, seen, : of.key_dim] @ q[b, t, h, g] * of.scale
        if of.softcap is not None:
            scores = of.softcap * np.tanh(scores / of.softcap)
        more = [] if sinks is None else [sinks[h * of.group + g]]
        shares = np.exp(np.append(scores, more))
        out[b, t, h, g] = shares[: len(seen)] @ values[LAYER, h, b, seen, : of.value_dim] / shares.sum()
    return out.reshape(batch, tokens, -1)


def case(shape, kernel, tokens, pos, capacity=600, softcap=None, seed=0):
    """Queries, and a cache that is NaN in the other layer and behind every sequence."""
    heads, group, key_dim, value_dim = shape
    of = Attention(heads, group, key_dim, value_dim, capacity, 0.3, softcap, jnp.float32, kernel, interpret=kernel)
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((len(pos), tokens, heads * group * key_dim))
    halves = []
    for full in of.cache(LAYERS, len(pos)):
        half = rng.standard_normal(full)
        half[1 - LAYER] = np.nan
        for number, at in enumerate(pos):
            half[LAYER, :, number, at + tokens :] = np.nan
        halves.append(half.astype(np.float32))
    return of, q.astype(np.float32), *halves


@pytest.mark.parametrize("kernel", [False, True], ids=["loop", "kernel"])
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(("shape", "softcap", "sunk"), [(SHAPES[0], None, False), (SHAPES[0], 2.0, True), (SHAPES[1], None, True)])
@pytest.mark.parametrize("tokens", [1, 37])
def test_what_is_seen_is_attended_to(kernel, window, shape, softcap, sunk, tokens):
    pos = np.array([min(at, 600 - tokens) for at in POSITIONS], np.int32)
    of, q, keys, values = case(shape, kernel, tokens, pos, softcap=softcap)
    sinks = np.random.default_rng(1).standard_normal(of.heads * of.group).astype(np.float32) if sunk else None
    found = jax.jit(of)(q, keys, values, LAYER, pos, window, sinks)
    wanted = exact(*(x.astype(np.float64) for x in (q, keys, values)), pos, window, sinks, of)
    assert np.abs(found - wanted).max() < 2e-6


@pytest.mark.parametrize("kernel", [False, True], ids=["loop", "kernel"])
@pytest.mark.parametrize("window", [0, 70])
def test_nothing_else_is_read(kernel, window):
    """A NaN that is read stays: 0 · NaN is one."""
    block, pos = KERNEL_BLOCK if kernel else BLOCK, np.array([700], np.int32)
    of, q, keys, values = case(SHAPES[0], kernel, 3, pos, capacity=2048)
    first, last = (701 - window if window else 0) // block * block, (702 // block + 1) * block
    for half in (keys, values):
        half[LAYER, :, :, :first] = np.nan
        half[LAYER, :, :, last:] = np.nan
    found = jax.jit(of)(q, keys, values, LAYER, pos, window, None)
    wanted = exact(*(x.astype(np.float64) for x in (q, keys, values)), pos, window, None, of)
    assert np.abs(found - wanted).max() < 2e-6


@pytest.mark.parametrize("paged", [False, True], ids=["whole", "pages"])
def test_the_kernel_where_numbers_have_64_bits_by_default(paged):
    pos = np.array([70], np.int32)
    of, q, *halves = case(SHAPES[0], True, 3, pos, capacity=128)
    wanted = exact(*(x.astype(np.float64) for x in (q, *halves)), pos, 0, None, of)
    pages = [half.reshape(*half.shape[:2], 2, PAGE, -1)[:, :, ::-1] for half in halves]
    more = (pages, jnp.array([[1, 0]], jnp.int32)) if paged else (halves,)
    with jax.enable_x64(True):
        found = jax.jit(of)(jnp.asarray(q), *map(jnp.asarray, more[0]), LAYER, jnp.asarray(pos), 0, None, *more[1:])
    assert found.dtype == np.float32 and np.abs(found - wanted).max() < 2e-6


def test_memory_does_not_grow_with_the_capacity():
    """Nor is a cache copied in whole."""
    sizes = []
    for capacity in (1024, 8192):
        of = Attention(2, 2, 64, 64, capacity, 0.1, None, jnp.float32, kernel=False)
        halves = [jax.ShapeDtypeStruct(shape, jnp.float16) for shape in of.cache(LAYERS, 2)]
        q, numbers = jax.ShapeDtypeStruct((2, 8, 256), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)
        lowered = jax.jit(lambda q, k, v, pos, of=of: of(q, k, v, LAYER, pos, 0, None)).lower(q, *halves, numbers)
        sizes.append(lowered.compile().memory_analysis().temp_size_in_bytes)
    assert sizes[0] == sizes[1] < 2**20


def test_a_sequence_has_the_bits_that_it_has_alone():
    pos = np.array([5, 600, 64], np.int32)
    of, q, keys, values = case(SHAPES[0], False, 1, pos, capacity=1024)
    together = jax.jit(of)(q, keys, values, LAYER, pos, 300, None)
    for number in range(3):
        one = slice(number, number + 1)
        alone = jax.jit(of)(q[one], keys[:, :, one], values[:, :, one], LAYER, pos[one], 300, None)
        assert (np.asarray(alone[0]).view(np.int32) == np.asarray(together[number]).view(np.int32)).all()


@pytest.mark.parametrize("kernel", [False, True], ids=["loop", "kernel"])
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("tokens", [1, 37])
def test_pages_in_any_order_have_the_bits_of_a_cache_without_them(kernel, window, tokens):
    """Each sequence has pages as far as it goes, and no other is read: they are NaN."""
    pos = np.array([min(at, 600 - tokens) for at in POSITIONS], np.int32)
    of, q, keys, values = case(SHAPES[0], kernel, tokens, pos)
    count, most = 64, -(-600 // PAGE)
    order, table = iter(np.random.default_rng(3).permutation(count - 1)), np.full((len(pos), most), count, np.int32)
    paged = [np.full(shape, np.nan, np.float32) for shape in of.pages(LAYERS, count)]
    for number, at in enumerate(pos):
        for page in range((at + tokens - 1) // PAGE + 1):
            table[number, page] = next(order)
            for half, whole in zip(paged, (keys, values), strict=True):
                part = whole[LAYER, :, number, page * PAGE : (page + 1) * PAGE]
                half[LAYER, :, table[number, page], : part.shape[1]] = part
    found, wanted = (np.asarray(jax.jit(of)(q, *halves, LAYER, pos, window, None, *more)) for halves, more in ((paged, [table]), ((keys, values), [])))
    assert (found.view(np.int32) == wanted.view(np.int32)).all()


def test_derivatives_with_pages():
    of, q, keys, values = case(SHAPES[0], False, 3, np.array([70], np.int32), capacity=128)
    pages = [jnp.asarray(half.reshape(*half.shape[:2], 2, PAGE, -1)[:, :, ::-1]) for half in (keys, values)]
    table = jnp.array([[1, 0]])

    def loss(q, halves, *more):
        return (of(q, *halves, LAYER, np.array([70], np.int32), 0, None, *more) ** 2).sum()

    slope = jax.jit(jax.grad(loss))
    wanted, found = slope(q, (keys, values)), slope(q, tuple(pages), table)
    assert np.abs(found - wanted).max() < 1e-5 < np.abs(wanted).max()


def test_the_kernel_is_for_gpus():
    assert _attention.has_kernel("gpu") and not _attention.has_kernel("cpu")
    of = Attention(2, 2, 80, 40, 1000, 1.0, None, jnp.bfloat16, kernel=True)
    assert of.cache(3, 2) == ((3, 2, 2, 1024, 128), (3, 2, 2, 1024, 64))
    assert dataclasses.replace(of, kernel=False).cache(3, 2) == ((3, 2, 2, 1000, 80), (3, 2, 2, 1000, 40))
