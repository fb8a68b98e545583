"""Sequences that join and leave a running batch, over one cache of pages.

Places of the batch, pages and steps of a launch are fixed when it is made, so that everything is compiled once. A sequence takes a place when it
joins, and pages as it grows: before a launch, those that the launch can come to need. It joins when there are pages for its prompt and for the next
launch of all; until then it waits, in the order of coming. If pages run out all the same, the host first waits for all results, which may end a
sequence. Then the youngest goes back to waiting, as often as it has to; when it joins again, its prompt and its answer so far are computed as a prompt.

Which pages a place has is a table on the host, an argument of every launch: launches come one after the other on the devices, so pages can be given
to the next sequence as soon as the host knows that one has ended, while launches that still have the old table are on their way.

**Invariant:** sequences in places are older than those that wait. So the oldest always has pages, and everything comes to an end: `add` refuses what
all pages together cannot hold.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._arithmetic import Cache
from ._given import whole
from ._place import SAME, Host
from ._programs import NONE, Request, State
from ._sample import Draws, Sampling, arguments, checked

if TYPE_CHECKING:
    from ._model import Model

IN_FLIGHT = 2
"""Most launches that are not waited for."""


@dataclass(eq=False)
class _Sequence:
    number: int
    prompt: list[int]
    wanted: int
    draws: Draws
    pages: list[int] = field(default_factory=list)
    launched: int = 0
    """Tokens that launches can have made."""
    answer: list[int] = field(default_factory=list)
    """Tokens that were given."""
    ended: bool = False


class ContinuousBatch:
    """Answers to several prompts at once, which come and go. Made by `Model.continuous`.

        batch = model.continuous(sequences=8)
        first = batch.add(prompt, max_tokens=100)
        while batch:
            for number, tokens, ended in batch.step():
                ...                                     # more may be added, or removed, at any time

    Each has the tokens that `Model.generate` gives alone, with the same seed: with `weights="f32"` on CPU devices from the same bits, else but
    for a choice that is as close as roundings. Use from one thread at a time.
    """

    page: int
    """Positions of a page: 64; with native weights on CPU devices as many as a sequence can have."""
    preempted: int
    """How often a sequence has gone back to waiting because there were no pages for all."""

    def __init__(
        self, model: Model, sequences: int, pages: int | None, sampling: Sampling, stop: Sequence[int], steps_per_launch: int
    ) -> None:
        for name, value in (("sequences", sequences), ("pages", 1 if pages is None else pages), ("steps_per_launch", steps_per_launch)):
            whole(name, value)
        programs, sampling = model._programs, checked(sampling)
        # More would never be taken; where a page is a full context, a number that is meant for small ones would be all of the memory.
        most = sequences * programs.table
        pages = most if pages is None else min(pages, most)
        self.model, self.sampling, self.steps = model, sampling, steps_per_launch
        self._programs, self._candidates = programs, sampling.candidates(model.config.vocab)
        self._cache: Cache = programs.empty_pages(pages)
        self._pages, self._free_pages = pages, list(range(pages))
        self.page = programs.net.arithmetic.page
        self._places: list[_Sequence | None] = [None] * sequences
        self._table = np.full((sequences, programs.table), pages, np.int32)
        self._stop = model._ends(stop)
        self._ends = set(self._stop.tolist())
        self._chosen = arguments(sampling)
        self._state = self._empty_state(sequences)
        self._waiting: collections.deque[_Sequence] = collections.deque()
        # What is computed, and of which sequence each column of the tokens is.
        self._flying: collections.deque[tuple[jax.Array, list[_Sequence | None]]] = collections.deque()
        self._count = self.preempted = 0

    def _empty_state(self, count: int) -> State:
        """The state of places that no sequence has."""
        zeros = np.zeros(count, np.int32)
        return self._on_devices(zeros, zeros, zeros, np.ones(count, bool))

    def _on_devices(self, *state: Host) -> State:
        """A state as the programs have theirs, so that nothing is compiled anew for it."""
        same = jax.sharding.NamedSharding(self._programs.mesh, SAME)
        return State(*(jax.device_put(x, same) for x in state))

    def __bool__(self) -> bool:
        """Whether there is something to compute, or to tell."""
        return bool(self._waiting or self._flying or any(self._places))

    def __repr__(self) -> str:
        running = f"{len(self._running())} of {len(self._places)} sequences, {len(self._waiting)} waiting"
        return f"<alight.jax.models.ContinuousBatch, {running}, {self.free_pages} of {self._pages} pages free>"

    @property
    def free_pages(self) -> int:
        """Pages that no sequence has."""
        return len(self._free_pages)

    def add(self, ids: Sequence[int], *, max_tokens: int, seed: int | None = None) -> int:
        """A prompt, which joins when there are a place and pages for it. Returns the number by which `step` tells of it. `seed` is the one of
        `sampling` unless it is given."""
        prompt = self.model._checked(ids)
        whole("max_tokens", max_tokens)
        wanted = min(max_tokens, self.model.context - len(prompt) + 1)
        one = _Sequence(self._count, prompt, wanted, Draws(self.sampling.seed if seed is None else seed))
        if (needed := self._needed(one, wanted)) > self._pages:
            raise ValueError(f"{len(prompt)} tokens and {wanted} to come need {needed} pages of {self.page} positions, and there are {self._pages}")
        self._count += 1
        self._waiting.append(one)
        return one.number

    def remove(self, number: int) -> None:
        """Ends a sequence, or a wait; `step` does not tell of it any more. Nothing happens if it has ended."""
        for one in [*self._waiting, *(one for one in self._places if one is not None)]:
            if one.number == number:
                one.ended = True
        self._waiting = collections.deque(one for one in self._waiting if not one.ended)
        self._leave()

    def step(self) -> list[tuple[int, list[int], bool]]:
        """Computes some steps of all sequences, after the prompts of those that can join, and gives what is there: (number, new tokens, whether
        the sequence has ended). Nothing if there is nothing to do."""
        self._join()
        while len(self._flying) < IN_FLIGHT and self._launch():
            pass
        if not self._flying:
            return []
        out, columns = self._flying.popleft()
        told = []
        rows = self.model._fetched(out).tolist()
        for at, one in enumerate(columns):
            if one is None or one.ended:
                continue
            tokens: list[int] = []
            for row in rows:
                if row[at] == NONE or row[at] in self._ends:
                    one.ended = True
                    break
                tokens.append(row[at])
                one.answer.append(row[at])
                one.ended = len(one.answer) == one.wanted
                if one.ended:
                    break
            told.append((one.number, tokens, one.ended))
        self._leave()
        return told

    def _needed(self, one: _Sequence, tokens: int) -> int:
        """Pages with so many tokens of the answer. The last one is not computed with, so it has no position."""
        return -(-(len(one.prompt) + tokens - 1) // self.page)

    def _missing(self, one: _Sequence) -> int:
        """Pages that it has to get before the next launch; one that joins is given its first token before that."""
        return self._needed(one, min(max(one.launched, 1) + self.steps, one.wanted)) - len(one.pages)

    def _running(self) -> list[_Sequence]:
        return [one for one in self._places if one is not None]

    def _leave(self) -> None:
        for one in self._running():
            if one.ended:
                self._clear(one)

    def _clear(self, one: _Sequence) -> None:
        """Takes its place and its pages from a sequence."""
        place = self._places.index(one)
        self._places[place] = None
        self._table[place] = self._pages
        self._free_pages += one.pages
        one.pages = []

    def _grow(self, one: _Sequence) -> None:
        """Gives a sequence in a place what it misses; there are so many pages."""
        more, place, held = self._missing(one), self._places.index(one), len(one.pages)
        one.pages += self._free_pages[:more]
        del self._free_pages[:more]
        self._table[place, held : len(one.pages)] = one.pages[held:]

    def _join(self) -> None:
        """Computes the prompts of waiting sequences while there are places for them, and pages for the next launch of all."""
        while self._waiting and None in self._places:
            one = self._waiting[0]
            if sum(map(self._missing, [one, *self._running()])) > len(self._free_pages):
                return
            self._waiting.popleft()
            place = self._places.index(None)
            self._places[place] = one
            self._grow(one)
            # One that has been here knows its last token, which is not in the cache yet.
            known = one.prompt + one.answer[:-1]
            h, self._cache = self.model._prefill([known], 0, self._cache, self._table[place : place + 1].copy())
            if one.answer:
                numbers = (one.answer[-1], len(known), len(one.answer))
                state = self._on_devices(*(np.array([number], np.int32) for number in numbers), np.zeros(1, bool))
            else:
                length, wanted = np.array([len(known)], np.int32), np.array([one.wanted], np.int32)
                request = Request(self._chosen, self._stop, wanted)
                out, state = self._programs.first(self._candidates, self.model._params, h, length, one.draws.take(1)[:, None], request)
                self._flying.append((out, [one]))
                one.launched = 1
            self._state = self._programs.join(self._state, np.int32(place), state)

    def _launch(self) -> bool:
        """Launches some steps of decoding for all sequences. Returns whether it has: not if none could make a token, nor if there are no pages
        for all before what is on its way has arrived."""
        if all(one.launched >= one.wanted for one in self._running()):
            return False
        while sum(map(self._missing, self._running())) > len(self._free_pages):
            if self._flying:
                return False
            # Nothing is on its way, so all tokens and draws of all sequences are known.
            youngest = max(self._running(), key=lambda one: one.number)
            self._clear(youngest)
            self._waiting.appendleft(youngest)
            self.preempted += 1
        for growing in self._running():
            self._grow(growing)
        columns = [one if one is not None and one.launched < one.wanted else None for one in self._places]
        wanted = np.array([0 if one is None else one.wanted for one in columns], np.int32)
        nothing = np.zeros(self.steps, np.float32)
        uniforms = np.stack([nothing if one is None else one.draws.take(self.steps) for one in columns], axis=1)
        request = Request(self._chosen, self._stop, wanted)
        out, self._cache, self._state = self._programs.decode_pages(
            self._candidates, self.model._params, self._cache, self._table.copy(), self._state, uniforms, request
        )
        for one in columns:
            if one is not None:
                one.launched += self.steps
        self._flying.append((out, columns))
        return True
