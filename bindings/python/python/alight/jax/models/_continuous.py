"""Sequences that join and leave a running batch, over one cache of pages.

Places of the batch, pages and steps of a launch are fixed when it is made, so that everything is compiled once. A sequence takes a place, and all
pages that it may come to need, when it joins; until there are some it waits, in the order of coming. Which pages a place has is a table on
the host, an argument of every launch: launches come one after the other on the devices, so pages can be given to the next sequence as soon as
the host knows that one has ended, while launches that still have the old table are on their way.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._arithmetic import Cache
from ._attention import PAGE
from ._place import SAME
from ._programs import NONE, Request, State
from ._sample import Draws, Sampling, arguments

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
    told: int = 0
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

    def __init__(
        self, model: Model, sequences: int, pages: int | None, sampling: Sampling, stop: Sequence[int], steps_per_launch: int
    ) -> None:
        for name, value in (("sequences", sequences), ("pages", pages or 1), ("steps_per_launch", steps_per_launch)):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, found {value}")
        programs = model._programs
        pages = sequences * programs.table if pages is None else pages
        self.model, self.sampling, self.steps = model, sampling, steps_per_launch
        self._programs, self._candidates = programs, sampling.candidates(model.config.vocab)
        self._cache: Cache = programs.empty_pages(pages)
        self._pages, self._free_pages = pages, list(range(pages))
        self._places: list[_Sequence | None] = [None] * sequences
        self._table = np.full((sequences, programs.table), pages, np.int32)
        self._stop = model._ends(stop)
        self._ends = set(self._stop.tolist())
        self._chosen = arguments(sampling)
        self._state = self._empty_state(sequences)
        self._waiting: collections.deque[_Sequence] = collections.deque()
        # What is computed, and of which sequence each column of the tokens is.
        self._flying: collections.deque[tuple[jax.Array, list[_Sequence | None]]] = collections.deque()
        self._count = 0

    def _empty_state(self, count: int) -> State:
        """The state of places that no sequence has."""
        zeros = np.zeros(count, np.int32)
        one = State(zeros, zeros, zeros, np.ones(count, bool))  # type: ignore[arg-type]
        same = jax.sharding.NamedSharding(self._programs.mesh, SAME)
        placed: State = jax.tree.map(lambda x: jax.device_put(x, same), one)
        return placed

    def __bool__(self) -> bool:
        """Whether there is something to compute, or to tell."""
        return bool(self._waiting or self._flying or any(self._places))

    @property
    def free_pages(self) -> int:
        """Pages of 64 positions that no sequence has."""
        return len(self._free_pages)

    def add(self, ids: Sequence[int], *, max_tokens: int, seed: int | None = None) -> int:
        """A prompt, which joins when there are a place and pages for it and its answer. Returns the number by which `step` tells of it. `seed` is
        the one of `sampling` unless it is given."""
        prompt = self.model._checked(ids)
        if max_tokens < 1:
            raise ValueError(f"max_tokens: expected 1 or more, found {max_tokens}")
        wanted = min(max_tokens, self.model.context - len(prompt) + 1)
        one = _Sequence(self._count, prompt, wanted, Draws(self.sampling.seed if seed is None else seed))
        if (needed := self._needed(one)) > self._pages:
            raise ValueError(f"{len(prompt)} tokens and {wanted} to come need {needed} pages of {PAGE} positions, and there are {self._pages}")
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
                one.told += 1
                one.ended = one.told == one.wanted
                if one.ended:
                    break
            told.append((one.number, tokens, one.ended))
        self._leave()
        return told

    def _needed(self, one: _Sequence) -> int:
        """Pages. The last token is not computed with, so it has no position."""
        return -(-(len(one.prompt) + one.wanted - 1) // PAGE)

    def _leave(self) -> None:
        for place, one in enumerate(self._places):
            if one is not None and one.ended:
                self._places[place] = None
                self._table[place] = self._pages
                self._free_pages += one.pages

    def _join(self) -> None:
        """Prefills waiting sequences while there are places and pages for them, and launches their first tokens."""
        while self._waiting and None in self._places and self._needed(self._waiting[0]) <= len(self._free_pages):
            one, place = self._waiting.popleft(), self._places.index(None)
            count = self._needed(one)
            one.pages, self._free_pages = self._free_pages[:count], self._free_pages[count:]
            self._places[place] = one
            self._table[place, :count] = one.pages
            h, self._cache = self.model._prefill([one.prompt], 0, self._cache, self._table[place : place + 1].copy())
            length = np.array([len(one.prompt)], np.int32)
            request = Request(self._chosen, self._stop, np.array([one.wanted], np.int32))
            out, state = self._programs.first(self._candidates, self.model._params, h, length, one.draws.take(1)[:, None], request)
            self._state = self._programs.join(self._state, np.int32(place), state)
            self._flying.append((out, [one]))
            one.launched = 1

    def _launch(self) -> bool:
        """Launches some steps of decoding for all sequences. Returns whether a sequence could still make a token."""
        columns = [one if one is not None and one.launched < one.wanted else None for one in self._places]
        if not any(columns):
            return False
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
