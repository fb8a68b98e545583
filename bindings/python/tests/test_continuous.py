"""Sequences that join and leave a running batch over a cache of pages, and wait again when there are none: each as it is alone, with nothing
compiled anew."""

import functools

import jax
import numpy as np
import pytest
from alight.jax.models import Sampling, load_model
from alight.jax.models._attention import PAGE
from test_batch import NETWORKS, bits, loaded, of_pairs

greedy = Sampling.greedy()
FEW = {"sequences": 3, "pages": 3, "steps_per_launch": 4}
"""Places, and pages for one sequence and a half. Most tests have as many, since programs are compiled for them."""


def requests_of(tiny, count=14):
    """Prompts and how many tokens of each are wanted; some are longer than a page, or than the window."""
    rng = np.random.default_rng(1)
    return [(rng.integers(3, tiny.vocab, rng.integers(1, 80)).tolist(), int(rng.integers(1, 40))) for _ in range(count)]


def run(batch, requests, more=lambda batch, turn: None):
    """The answers, by number, of requests of which some join later; nothing of a sequence comes after its end."""
    answers, ended, left, turn = {}, set(), list(requests), 0
    while left or batch:
        for prompt, wanted in left[: 3 if turn == 0 else turn % 2]:
            answers[batch.add(prompt, max_tokens=wanted)] = []
        left = left[3 if turn == 0 else turn % 2 :]
        more(batch, turn)
        for number, tokens, end in batch.step():
            assert number not in ended
            answers[number] += tokens
            ended |= {number} if end else set()
        turn += 1
        assert turn < 1000, "nothing goes on"
    assert ended <= set(answers)
    return [answers[number] for number in sorted(answers)]


@of_pairs
def test_every_sequence_is_as_it_is_alone(tiny, ranks, folder):
    """With fewer pages than all need, so that they wait for each other."""
    model, requests = loaded(folder, tiny, tp=ranks), requests_of(tiny)
    batch = model.continuous(sampling=greedy, **FEW)
    found = run(batch, requests)
    assert batch.free_pages == 3 and not batch and batch.step() == []
    alone = [list(model.generate(prompt, max_tokens=wanted, sampling=greedy)) for prompt, wanted in requests]
    assert found == alone
    assert len({tuple(answer) for answer in alone}) > 8


@of_pairs
def test_the_residual_stream_has_the_bits_that_it_has_alone(tiny, ranks, folder):
    """Of chunks of prompts, and of a step, with pages in any order and beside places without a sequence."""
    model = loaded(folder, tiny, tp=ranks)
    programs, params = model._programs, model._params
    rng = np.random.default_rng(2)
    lengths, shuffled = (61, 5, 70), rng.permutation(8)
    prompts = [rng.integers(3, tiny.vocab, length).tolist() for length in lengths]
    table = np.full((5, programs.table), 8, np.int32)
    table[0], table[2, :1], table[3] = shuffled[:2], shuffled[2:3], shuffled[3:5]
    cache, alone, streams = programs.empty_pages(8), [], []
    for place, prompt in zip((0, 2, 3), prompts, strict=True):
        one, held = model._prefill([prompt], 0, programs.empty())
        h, cache = model._prefill([prompt], 0, cache, table[place : place + 1])
        assert bits(h) == bits(one)
        alone.append(held)
        streams.append(one)
    following, at = np.array([[9], [0], [8], [7], [0]], np.int32), np.array([61, 0, 5, 70, 0], np.int32)
    zeros = np.zeros(5, np.int32)
    for _ in range(4):
        # Across the end of a page, of the first.
        h, cache = programs.prefill_pages(params, cache, table, following, at, zeros)
        for number, place in enumerate((0, 2, 3)):
            one = slice(place, place + 1)
            wanted, alone[number] = programs.prefill(params, alone[number], following[one], at[one], zeros[:1])
            assert bits(np.asarray(h)[place]) == bits(wanted)
        at, following = at + np.array([1, 0, 1, 1, 0], np.int32), (following + 5) % 50
    # Nobody has written elsewhere.
    untouched = np.asarray(cache[0])[:, :, shuffled[5:]]
    assert not untouched.any()


def growing(tiny, count=7):
    """Prompts of less than a page, whose answers end in the next one."""
    rng = np.random.default_rng(4)
    return [(rng.integers(3, tiny.vocab, 40 + 3 * number).tolist(), 30 + number % 3) for number in range(count)]


@pytest.mark.parametrize("tiny, sampling", [(NETWORKS[0], greedy), (NETWORKS[2], Sampling(seed=3))], ids=["llama, greedy", "gemma3, drawn"])
def test_pages_are_taken_as_a_sequence_grows_and_the_youngest_waits_when_there_are_none(tiny, sampling, folder):
    """Three sequences of two pages each, where there are three pages: three run at once, until all need their second one."""
    model, requests = loaded(folder, tiny, tp=2), growing(tiny)
    batch = model.continuous(sampling=sampling, **FEW)
    together = []
    found = run(batch, requests, lambda batch, _: together.append(len(batch._running())))
    assert max(together) == 3 and batch.preempted > 2
    assert found == [list(model.generate(prompt, max_tokens=wanted, sampling=sampling)) for prompt, wanted in requests]
    assert batch.free_pages == 3 and not batch


@of_pairs
def test_an_answer_that_is_computed_again_as_a_prompt_has_the_bits_of_its_steps(tiny, ranks, folder):
    model = loaded(folder, tiny, tp=ranks)
    programs, params = model._programs, model._params
    tokens = np.random.default_rng(5).integers(3, tiny.vocab, 71).tolist()
    _, stepped = model._prefill([tokens[:58]], 0, programs.empty())
    _, again = model._prefill([tokens[:70]], 0, programs.empty())
    for at, token in enumerate(tokens[58:], 58):
        h, stepped = programs.prefill(params, stepped, np.array([[token]], np.int32), np.array([at], np.int32), np.zeros(1, np.int32))
    last, again = programs.prefill(params, again, np.array([tokens[70:]], np.int32), np.array([70], np.int32), np.zeros(1, np.int32))
    assert bits(h) == bits(last)
    # [layers, heads, sequences, positions, …]
    halves = zip(map(np.asarray, stepped), map(np.asarray, again), strict=True)
    assert all(bits(one[:, :, :, :71]) == bits(other[:, :, :, :71]) for one, other in halves)


def test_one_that_waits_again_can_be_taken_out(folder):
    model = loaded(folder, NETWORKS[0], tp=2)
    requests = growing(NETWORKS[0], 3)
    batch = model.continuous(sampling=greedy, **FEW)
    taken_out = []

    def take_out(batch, _):
        if batch.preempted and not taken_out:
            taken_out.append(batch._waiting[0].number)
            batch.remove(taken_out[0])
            assert taken_out[0] not in [one.number for one in batch._waiting]

    found = run(batch, requests, take_out)
    alone = [list(model.generate(prompt, max_tokens=wanted, sampling=greedy)) for prompt, wanted in requests]
    # The youngest goes first, with what it has said so far.
    assert taken_out == [2] and found[:2] == alone[:2]
    assert 0 < len(found[2]) < 32 and found[2] == alone[2][: len(found[2])]
    assert batch.free_pages == 3


def test_nothing_is_compiled_as_sequences_join_and_leave(folder, monkeypatch):
    """Of programs that other tests may have compiled already, it is looked at which ones are called, and for which shapes."""
    model = loaded(folder, NETWORKS[0], tp=2)
    requests = requests_of(NETWORKS[0]) + growing(NETWORKS[0])
    called, of_a_kind = set(), model._programs._run

    def noted(kind, *known):
        def function(*arguments):
            called.add((kind, known, str(jax.tree.map(jax.typeof, arguments))))
            return of_a_kind(kind, *known)(*arguments)

        return function

    monkeypatch.setattr(model._programs, "_run", noted)
    batch = model.continuous(sampling=greedy, **FEW)
    run(batch, [([5] * 32, 6), ([5] * 8, 6)])
    before, compiled = set(called), []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    try:
        found = run(batch, requests)
        assert called == before
        seen = [event for event in compiled if "compile" in event]
        jax.jit(lambda x: x + 1)(1)
        assert seen == [] and any("compile" in event for event in compiled)
        assert batch.preempted > 0
    finally:
        jax.monitoring.clear_event_listeners()
    assert found == [list(model.generate(prompt, max_tokens=wanted, sampling=greedy)) for prompt, wanted in requests]


def test_ends_draws_and_those_that_are_taken_out(folder):
    model = loaded(folder, NETWORKS[2], tp=2)
    requests = requests_of(NETWORKS[2], 8)
    alone = [list(model.generate(prompt, max_tokens=30, sampling=Sampling(seed=3))) for prompt, _ in requests]
    end = alone[2][4]
    batch = model.continuous(sampling=Sampling(seed=3), stop=[end], **FEW)

    def take_out(batch, turn):
        # One that runs, one that waits, one that has gone, and one that never was.
        for number in {2: (1, 7), 6: (0, 1, 99)}.get(turn, ()):
            batch.remove(number)

    # Number 7 waits still; what it would say is nobody's.
    for prompt, _ in requests:
        batch.add(prompt, max_tokens=30)
    answers, turn = {number: [] for number in range(8)}, 0
    while batch:
        take_out(batch, turn)
        for number, tokens, _ in batch.step():
            answers[number] += tokens
        turn += 1
    assert batch.free_pages == 3
    for number, answer in answers.items():
        whole = alone[number][: alone[number].index(end)] if end in alone[number] else alone[number]
        assert answer == (whole[: len(answer)] if number in (0, 1, 7) else whole)
    assert answers[7] == [] and 0 < len(answers[1]) < 30


def test_a_full_context_and_one_place(folder):
    model = loaded(folder, NETWORKS[2], tp=2)
    prompts = [[5] * length for length in (96, 90, 3)]
    batch = model.continuous(sequences=1, sampling=greedy)
    assert batch.free_pages == -(-model._programs.net.capacity // PAGE)
    found = run(batch, [(prompt, 200) for prompt in prompts])
    assert [len(answer) for answer in found] == [1, 7, 94]
    assert found == [list(model.generate(prompt, max_tokens=200, sampling=greedy)) for prompt in prompts]


@pytest.mark.parametrize(("tiny", "ranks"), [(NETWORKS[0], 1), (NETWORKS[2], 2)], ids=lambda one: getattr(one, "name", one))
def test_native_weights_with_a_page_for_each_sequence(tiny, ranks, folder):
    """Alone in a batch of one place everything has the bits of `generate`. In one of several, activations have 8 bits instead of 16: there the
    cache has the bits that each has alone with others of no use beside it."""
    model, requests = loaded(folder, tiny, tp=ranks, weights="native"), requests_of(tiny, 6)
    batch = model.continuous(sequences=1, sampling=greedy, steps_per_launch=5)
    assert batch.free_pages == 1 and batch.page >= 96
    assert run(batch, requests) == [list(model.generate(prompt, max_tokens=wanted, sampling=greedy)) for prompt, wanted in requests]
    # A number that is meant for pages of 64 positions makes no more pages than can be taken.
    many = model.continuous(sequences=3, pages=10**6)
    assert many.free_pages == 3 and many._cache[0].shape == model.continuous(sequences=3)._cache[0].shape
    together = model.continuous(sequences=3, pages=2, sampling=greedy, steps_per_launch=5)
    found = run(together, requests)
    assert together.free_pages == 2
    for answer, request in zip(found, requests, strict=True):
        beside_none = model.continuous(sequences=3, sampling=greedy, steps_per_launch=5)
        assert [answer] == run(beside_none, [request])


def test_what_cannot_work(folder):
    model = loaded(folder, NETWORKS[0], tp=2)
    batch = model.continuous(sequences=2, pages=1)
    assert repr(batch) == "<alight.jax.models.ContinuousBatch, 0 of 2 sequences, 0 waiting, 1 of 1 pages free>"
    with pytest.raises(ValueError, match="50 tokens and 20 to come need 2 pages of 64 positions, and there are 1"):
        batch.add([5] * 50, max_tokens=20)
    with pytest.raises(ValueError, match="no tokens"):
        batch.add([], max_tokens=20)
    with pytest.raises(ValueError, match="max_tokens: expected 1 or more, found 0"):
        batch.add([5], max_tokens=0)
    for name in ("sequences", "pages", "steps_per_launch"):
        with pytest.raises(ValueError, match=f"{name}: expected 1 or more, found -1"):
            model.continuous(**{"sequences": 1, name: -1})
    with pytest.raises(ValueError, match="pages: expected 1 or more, found 0"):
        model.continuous(sequences=1, pages=0)
