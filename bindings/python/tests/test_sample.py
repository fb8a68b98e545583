"""Sampling on the device, against the same in float64, and for any number of ranks."""

import functools

import alight
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alight.jax.models import Sampling
from alight.jax.models import _sample as sample
from jax.sharding import Mesh, PartitionSpec

VOCAB = 1003


def logits(seed=0, vocab=VOCAB):
    """Random ones, many of them equal, and some that are no numbers."""
    rng = np.random.default_rng(seed)
    values = (np.round(rng.standard_normal(vocab) * 8) / 4).astype(np.float32)
    values[rng.integers(0, vocab, 20)] = np.nan
    return values


def order(values):
    """Ids, greatest first, of equal ones the lower id first; no number is the least there is."""
    clean = np.where(np.isnan(values), -np.inf, values).astype(np.float64)
    return np.lexsort((np.arange(len(values)), -clean)), clean


def on_ranks(ranks, f, values):
    """Runs `f` on each rank with its part of the logits."""
    slots = -(-len(values) // ranks)
    padded = np.concatenate([values, np.full(slots * ranks - len(values), -np.inf, np.float32)])
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("tp",))
    same = PartitionSpec()
    run = jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("tp"), out_specs=same, check_vma=False)
    return jax.jit(run)(padded)


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("candidates", [1, 64, 512, VOCAB])
def test_the_best_come_first_and_the_lower_id_of_equal_ones(ranks, candidates):
    values = logits(candidates)
    clean = np.where(np.isnan(values), -np.inf, values).astype(np.float32)
    found, ids = on_ranks(ranks, lambda x: sample.best(x, candidates, VOCAB, "tp"), clean)
    wanted, _ = order(values)
    assert np.array_equal(ids, wanted[:candidates])
    assert np.array_equal(found, clean[wanted[:candidates]])


def probabilities(values, s):
    """By id, in float64: the stages of crates/model/src/engine/sampler.rs."""
    ids, clean = order(values)
    ids = ids[: s.top_k or None]
    kept = clean[ids]
    share = np.exp(kept - kept[0])
    if s.top_p < 1:
        reached = np.cumsum(share)
        ids = ids[: np.argmax(reached >= s.top_p * reached[-1]) + 1]
    kept = clean[ids]
    if s.min_p > 0:
        ids = ids[kept >= kept[0] + np.log(min(s.min_p, 1))]
    weight = np.exp((clean[ids] - clean[ids[0]]) / s.temperature)
    out = np.zeros(len(values))
    out[ids] = weight / weight.sum()
    return out


CHOICES = [
    Sampling(),
    Sampling(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0),
    Sampling(top_k=0, top_p=0.9, min_p=0.0, temperature=1.3),
    Sampling(top_k=3, top_p=1.0, min_p=0.0),
    Sampling(top_k=64, top_p=0.3, min_p=0.0, temperature=0.2),
    Sampling(top_k=0, top_p=1.0, min_p=0.4, temperature=3.0),
    Sampling(top_k=500, top_p=0.97, min_p=0.2, temperature=2.0),
    Sampling(top_k=40, top_p=0.0, min_p=0.0),
    Sampling(top_k=40, top_p=1.0, min_p=1.0),
]


@pytest.mark.parametrize("s", CHOICES, ids=range(len(CHOICES)))
def test_draws_are_as_likely_as_the_stages_say(s):
    values = logits(5)
    floats, top_k = sample.arguments(s)
    candidates = s.candidates(VOCAB)
    assert candidates >= (s.top_k or VOCAB)
    count = 20_000
    uniforms = (jnp.arange(count) + 0.5) / count

    def body(x):
        found, ids = sample.best(x, candidates, VOCAB, "tp")
        draw = functools.partial(sample.draw, found, jnp.asarray(floats), jnp.asarray(top_k))
        return ids[jax.vmap(draw)(uniforms)]

    clean = np.where(np.isnan(values), -np.inf, values).astype(np.float32)
    drawn = np.bincount(on_ranks(2, body, clean), minlength=VOCAB) / count
    wanted = probabilities(values, s)
    assert np.abs(drawn - wanted).max() < 3 / count + 1e-4
    assert not drawn[wanted == 0].any()


@pytest.mark.parametrize("candidates", [1, 64, VOCAB])
def test_any_number_of_ranks_draws_the_same(candidates):
    values = logits(9)
    s = Sampling(temperature=0.0 if candidates == 1 else 1.5, top_k=0 if candidates == VOCAB else 40, seed=2**40 + 3)
    assert s.candidates(VOCAB) == candidates
    chosen, uniforms = sample.arguments(s), sample.Draws(s.seed).take(4)

    def body(x):
        one = functools.partial(sample.sample, x, candidates, VOCAB, "tp", chosen)
        return jax.vmap(one)(jnp.asarray(uniforms))

    drawn = [on_ranks(ranks, body, values).tolist() for ranks in (1, 2, 3, 8)]
    assert all(one == drawn[0] for one in drawn)
    assert candidates == 1 or len(set(drawn[0])) > 1


def test_the_same_seed_draws_the_same_numbers():
    whole = sample.Draws(2**40 + 3).take(20_000)
    one = sample.Draws(2**40 + 3)
    assert np.array_equal(np.concatenate([one.take(1), one.take(7), one.take(19_992)]), whole)
    assert not np.array_equal(sample.Draws(3).take(20_000), whole)
    assert 0 <= whole.min() and whole.max() < 1
    assert np.abs(np.histogram(whole, 10)[0] - 2000).max() < 200


def test_logits_that_are_no_numbers():
    draw_one = jax.jit(sample.draw)

    def draw(values, temperature, uniform=0.7):
        floats = jnp.array([temperature, 0.95, 0.05], jnp.float32)
        values = jnp.array(values, jnp.float32)
        return int(draw_one(values, floats, jnp.int32(40), jnp.float32(uniform)))

    inf = np.inf
    # The infinite ones alone, equally; without any weight the first.
    assert {draw([inf, inf, 3.0, -inf], 0.8, u) for u in (0.0, 0.4, 0.6, 0.999999)} == {0, 1}
    assert draw([-inf, -inf, -inf], 0.8) == 0
    assert draw([1.0, -inf, -inf], 0.8, 0.9999999) == 0
    assert on_ranks(2, lambda x: sample.sample(x, 1, 4, "tp", (None, None), None), np.full(4, np.nan, np.float32)) == 0


def test_a_program_for_how_many_candidates():
    def count(**s):
        return Sampling(**s).candidates(1000)

    assert (count(), count(temperature=0.0)) == (64, 1)
    assert (count(top_k=0), count(top_k=64), count(top_k=65), count(top_k=513), count(top_k=10**12)) == (
        1000, 64, 512, 1000, 1000,
    )  # fmt: skip


def test_numbers_out_of_range_are_refused_as_by_the_native_engine():
    for options, error, said in [
        ({"temperature": -0.5}, alight.OptionError, "temperature is -0.5, expected a number not below 0"),
        ({"temperature": float("nan")}, alight.OptionError, "temperature is nan"),
        ({"temperature": float("inf")}, alight.OptionError, "temperature is inf"),
        ({"temperature": "hot"}, TypeError, "temperature: expected a number, found 'hot'"),
        ({"top_p": 1.5}, alight.OptionError, "top_p is 1.5, expected a number from 0 to 1"),
        ({"top_p": float("nan")}, alight.OptionError, "top_p is nan"),
        ({"min_p": -0.1}, alight.OptionError, "min_p is -0.1"),
        ({"top_k": -1}, alight.OptionError, "top_k is -1, expected a whole number not below 0"),
        ({"top_k": 1.5}, TypeError, "top_k: expected a whole number, found 1.5"),
        ({"seed": "x"}, TypeError, "seed: expected a whole number"),
    ]:
        with pytest.raises(error, match=said):
            Sampling(**options)
