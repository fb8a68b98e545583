"""How a network is cut for ranks: everything once, and where the programs look for it."""

import itertools

import pytest
from alight.jax.models._cut import Span, cut

# (query heads, key/value heads, grain of query heads, feed-forward, its grain, vocabulary)
NETWORKS = [
    (9, 3, 1, 1536, 32, 49152),  # SmolLM2 135M
    (4, 1, 1, 2048, 256, 262144),  # Gemma 3 270M
    (32, 8, 1, 14336, 256, 128256),  # Llama 3 8B
    (32, 8, 4, 8192, 256, 128256),  # Llama 3.2 1B in K-quants: four heads of 64 are a block
    (8, 4, 1, 9216, 256, 256000),  # Gemma 2 2B
    (14, 2, 1, 4864, 32, 151936),  # Qwen 2.5 0.5B
    (6, 6, 1, 160, 1, 401),  # a head each
    (6, 2, 6, 160, 32, 401),  # only all heads together are a block
    (12, 4, 6, 96, 32, 7),  # two groups together are
    (12, 2, 2, 96, 96, 3),  # fewer tokens than ranks, one block
    (1, 1, 1, 1, 1, 1),
]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("ranks", range(1, 17))
def test_everything_once(network, ranks):
    heads, kv_heads, head_grain, feed_forward, grain, vocab = network
    made = cut(
        ranks, heads=heads, kv_heads=kv_heads, feed_forward=feed_forward, vocab=vocab, head_grain=head_grain,
        feed_forward_grain=grain,
    )  # fmt: skip
    assert made.ranks == len(made.heads) == len(made.kv_heads) == len(made.feed_forward) == ranks
    for spans, whole, slots, unit in [
        (made.heads, heads, made.head_slots, head_grain),
        (made.feed_forward, feed_forward, made.feed_forward_slots, grain),
        (made.vocab, vocab, made.vocab_slots, 1),
    ]:
        assert sorted(n for span in spans for n in range(span.start, span.stop)) == list(range(whole))
        assert max(span.count for span in spans) <= slots
        assert all(span.start % unit == 0 and span.count % unit == 0 for span in spans)
    # In order, so that neighbours' candidates and columns are.
    assert all(a.start <= b.start for a, b in itertools.pairwise(made.vocab))
    # Rows of the vocabulary are where `rank * slots` says.
    assert all(span.start == min(rank * made.vocab_slots, vocab) for rank, span in enumerate(made.vocab))
    # The program finds the key/value head of a query head by its slot.
    group = made.head_slots // made.kv_slots
    assert made.head_slots % made.kv_slots == 0
    for queries, kv in zip(made.heads, made.kv_heads, strict=True):
        assert kv.count <= made.kv_slots and (kv.count > 0) == (queries.count > 0)
        for slot, head in enumerate(range(queries.start, queries.stop)):
            assert kv.start + slot // group == head // (heads // kv_heads)
            assert slot // group < kv.count


def test_work_is_shared():
    """The slowest rank has no more than it must."""
    made = cut(8, heads=9, kv_heads=3, feed_forward=1536, vocab=49152, feed_forward_grain=32)
    assert (made.head_slots, made.kv_slots, made.feed_forward_slots, made.vocab_slots) == (2, 1, 192, 6144)
    assert made.heads == (
        Span(0, 2), Span(2, 1), Span(3, 2), Span(5, 1), Span(6, 2), Span(8, 1), Span(0, 0), Span(0, 0)
    )  # fmt: skip
    made = cut(2, heads=9, kv_heads=3, feed_forward=1536, vocab=49152)
    assert (made.head_slots, made.kv_slots, made.kv_heads) == (6, 2, (Span(0, 2), Span(2, 1)))
    made = cut(4, heads=4, kv_heads=1, feed_forward=2048, vocab=262144, feed_forward_grain=256)
    assert (made.head_slots, made.kv_slots, made.feed_forward_slots) == (1, 1, 512)


def test_what_cannot_be_cut():
    with pytest.raises(ValueError, match="0 ranks"):
        cut(0, heads=1, kv_heads=1, feed_forward=1, vocab=1)
    with pytest.raises(ValueError, match="multiple"):
        cut(2, heads=9, kv_heads=2, feed_forward=1, vocab=1)
    with pytest.raises(ValueError, match="multiple"):
        cut(2, heads=8, kv_heads=2, feed_forward=100, vocab=1, feed_forward_grain=32)
