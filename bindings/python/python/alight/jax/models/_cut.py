"""Which heads, which part of the feed-forward and which tokens each rank has.

Any number of ranks works: where the parts are uneven, or there are more ranks than parts, every rank has the same number
of slots, and padding slots hold zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """`count` of something from `start` on; nothing if `count` is 0."""

    start: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.count

    def times(self, length: int) -> Span:
        """The same in smaller units, `length` to one of these."""
        return Span(self.start * length, self.count * length)


@dataclass(frozen=True)
class Cut:
    """The parts of the ranks, and the slots that each of them has."""

    kv_heads: tuple[Span, ...]
    """Key/value heads of each rank. Ranks that share a head all have it."""
    heads: tuple[Span, ...]
    """Query heads of each rank, each with one."""
    feed_forward: tuple[Span, ...]
    """Rows of gate and up, columns of down."""
    experts: tuple[Span, ...]
    """Whole experts."""
    vocab: tuple[Span, ...]
    """Rows of the embedding and of the output."""
    kv_slots: int
    head_slots: int
    """A multiple of `kv_slots`: the n-th part of them goes with the n-th key/value head."""
    feed_forward_slots: int
    expert_slots: int
    vocab_slots: int

    @property
    def ranks(self) -> int:
        return len(self.vocab)


def cut(
    ranks: int,
    *,
    heads: int,
    kv_heads: int,
    feed_forward: int,
    vocab: int,
    experts: int = 0,
    head_grain: int = 1,
    feed_forward_grain: int = 1,
) -> Cut:
    """Cuts a network for `ranks` ranks.

    Columns of a quantised matrix are cut between its blocks: query heads at multiples of `head_grain`, the feed-forward
    at multiples of `feed_forward_grain`. Both divide the whole.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: expected 1 or more")
    if heads % kv_heads or heads % head_grain or feed_forward % feed_forward_grain:
        raise ValueError(
            f"{heads} query heads in grains of {head_grain} on {kv_heads} key/value heads, a feed-forward of "
            f"{feed_forward} in grains of {feed_forward_grain}: what is cut has to be a multiple"
        )
    kv, queries, kv_slots, head_slots = _attention(ranks, heads, kv_heads, head_grain)
    parts = _even(feed_forward // feed_forward_grain, ranks)
    rows, whole = _even(vocab, ranks), _even(experts, ranks)
    return Cut(
        kv_heads=kv,
        heads=queries,
        feed_forward=tuple(span.times(feed_forward_grain) for span in parts),
        experts=whole,
        vocab=rows,
        kv_slots=kv_slots,
        head_slots=head_slots,
        feed_forward_slots=parts[0].count * feed_forward_grain,
        expert_slots=whole[0].count,
        vocab_slots=rows[0].count,
    )


def _even(count: int, ranks: int) -> tuple[Span, ...]:
    """As many for each as for the first, as long as there are any."""
    each = -(-count // ranks)
    starts = (min(rank * each, count) for rank in range(ranks))
    return tuple(Span(start, min(each, count - start)) for start in starts)


def _attention(ranks: int, heads: int, kv_heads: int, grain: int) -> tuple[tuple[Span, ...], tuple[Span, ...], int, int]:
    group = heads // kv_heads
    shared = ranks // kv_heads
    if shared > 1 and group % grain == 0:
        # A key/value head is shared by so many ranks, which all compute it, each for other query heads.
        each = -(-group // grain // shared) * grain
        kv, queries = [], []
        for rank in range(ranks):
            head, part = divmod(rank, shared)
            start = min(part * each, group)
            count = min(each, group - start) if head < kv_heads else 0
            kv.append(Span(head, 1) if count else Span(0, 0))
            queries.append(Span(head * group + start, count) if count else Span(0, 0))
        return tuple(kv), tuple(queries), 1, each
    # Whole groups; several of them stay together where only their query heads together are whole grains.
    together = math.lcm(group, grain) // group
    spans = tuple(span.times(together) for span in _even(kv_heads // together, ranks))
    slots = spans[0].count
    return spans, tuple(span.times(group) for span in spans), slots, slots * group
