"""A model that is loaded: logits, and tokens one after the other."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from ..._alight import reusable
from .._cuda import check_collectives
from ._arithmetic import Cache
from ._blocks import Params
from ._config import Config
from ._programs import NONE, Programs, Request
from ._sample import Draws, Sampling, arguments

CHUNKS = (8, 32, 128)
"""Lengths of the chunks in which prompts are computed; the last one is filled up to one of them. On two cores, a chunk of a
small model takes as long as 6 tokens by themselves, and as many as it has: longer ones are no quicker."""
IN_FLIGHT = 2
"""Most launches that are not waited for: many at once can block each other."""


class Model:
    """A network on its devices. Made by `load_model`.

    Use from one thread at a time; several generations may be open side by side, each with a cache of its own.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        programs: Programs,
        params: Params,
        context: int,
        chunks: tuple[int, ...],
        check: Callable[[], None],
    ) -> None:
        """`check` raises if the weights are not what they were: their file may be cut short under its map."""
        self.config, self.mesh, self.context, self.chunks = config, mesh, context, chunks
        self._check = check
        self._programs, self._params = programs, params
        self.kept = 0
        """Tokens of the last prompt that were in the cache already."""
        self._free: list[tuple[Cache, list[int]]] = []

    @property
    def tp(self) -> int:
        """Ranks."""
        return self._programs.net.cut.ranks

    def generate(
        self,
        ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling = Sampling(),  # noqa: B008: it is frozen
        steps_per_launch: int = 8,
        stop: Sequence[int] = (),
    ) -> Iterator[int]:
        """The tokens that follow `ids`: until one of `stop`, which is not given, or `max_tokens`, or no room.

        Tokens come in groups of `steps_per_launch`, the first one by itself. A prompt that begins as the last one did,
        its answer included, is not computed again as far as that goes.
        """
        prompt = self._checked(ids)
        for name, value in (("max_tokens", max_tokens), ("steps_per_launch", steps_per_launch)):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, found {value}")
        # The last token needs no room: nothing is computed with it.
        wanted = min(max_tokens, self.context - len(prompt) + 1)
        ends = np.full(-(-max(len(stop), 1) // 8) * 8, NONE, np.int32)
        ends[: len(stop)] = list(stop)
        request = Request(arguments(sampling), ends, np.int32(wanted))
        draws = Draws(sampling.seed)
        return self._generate(prompt, sampling.candidates(self.config.vocab), steps_per_launch, draws, request)

    def _generate(
        self, prompt: list[int], candidates: int, steps: int, draws: Draws, request: Request
    ) -> Iterator[int]:
        programs, params = self._programs, self._params
        cache: Cache | None
        cache, held = self._taken(prompt)
        h, cache = self._prefill(prompt, held, cache)
        # What the cache holds, but for the last.
        known = list(prompt)
        out, state = programs.first(candidates, params, h, np.int32(len(prompt)), draws.take(1), request)
        flying = collections.deque([out])
        launched, wanted, ends = 1, int(request.wanted), set(request.stop.tolist())
        try:
            while flying or launched < wanted:
                # Not before the first token is there: the program may have to be compiled.
                if len(known) > len(prompt) and launched < wanted and len(flying) < IN_FLIGHT:
                    out, cache, state = programs.decode(candidates, params, cache, state, draws.take(steps), request)
                    flying.append(out)
                    launched += steps
                    continue
                for token in self._fetched(flying.popleft()).tolist():
                    # `NONE` is one of the ends.
                    if token in ends or token == NONE:
                        return
                    known.append(token)
                    yield token
        except Exception:
            cache = None  # whatever it holds
            raise
        finally:
            if cache is not None:
                # Nothing may have been computed with the last token yet.
                self._free = [(cache, known[: max(len(prompt), len(known) - 1)])]

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits `[len(ids), vocab]` of what follows each token of `ids`."""
        prompt = self._checked(ids)
        cache, _ = self._taken([])
        rows = []
        for start, length, chunk in self._chunks(len(prompt), 0):
            tokens = _filled(prompt[start : start + length], chunk)
            found, cache = self._programs.logits(self._params, cache, tokens, np.int32(start))
            rows.append(self._fetched(found)[:length, : self.config.vocab])
        self._free = [(cache, prompt)]
        return np.concatenate(rows)

    def lower(self, program: str, tokens: int = 8, sampling: Sampling = Sampling.greedy()) -> jax.stages.Lowered:  # noqa: B008
        """What XLA compiles for "prefill", a chunk of so many `tokens`, or for "decode", so many steps: to compile it ahead of
        time, on a machine without these devices too."""
        return self._programs.lower(program, self._params, tokens, sampling.candidates(self.config.vocab))

    def _fetched(self, results: jax.Array) -> npt.NDArray[Any]:
        """Results on the host, unless they are worthless: the file has changed, or a collective among GPUs has failed in a
        CUDA graph, where nobody is told."""
        found = np.asarray(results)
        self._check()
        check_collectives()
        return found

    def _prefill(self, prompt: list[int], held: int, cache: Cache) -> tuple[Any, Cache]:
        h: Any = None
        for start, length, chunk in self._chunks(len(prompt), held):
            tokens = _filled(prompt[start : start + length], chunk)
            h, cache = self._programs.prefill(self._params, cache, tokens, np.int32(start), np.int32(length - 1))
        return h, cache

    def _chunks(self, count: int, start: int) -> Iterator[tuple[int, int, int]]:
        """(start, tokens, tokens with filling) of each chunk."""
        capacity = self._programs.net.capacity
        while start < count:
            left, fitting = count - start, [chunk for chunk in self.chunks if start + chunk <= capacity]
            # One of which less than half is filling, or one that is full, or the shortest.
            filled = (chunk for chunk in fitting if left <= chunk < 2 * left)
            full = (chunk for chunk in reversed(fitting) if chunk <= left)
            chunk = next(filled, None) or next(full, fitting[0])
            yield start, min(chunk, left), chunk
            start += chunk

    def _taken(self, prompt: list[int]) -> tuple[Cache, int]:
        """A cache, and how much of the prompt it holds; never all: the last token's logits are wanted."""
        cache, held = self._free.pop() if self._free else (self._programs.empty(), [])
        self.kept = reusable(held, prompt)
        return cache, self.kept

    def _checked(self, ids: Sequence[int]) -> list[int]:
        prompt = [int(one) for one in ids]
        if not prompt:
            raise ValueError("no tokens: a model needs one at least, usually that of the beginning of a text")
        wrong = next((one for one in prompt if not 0 <= one < self.config.vocab), None)
        if wrong is not None:
            raise ValueError(f"token {wrong} is not in the vocabulary of {self.config.vocab}")
        if len(prompt) > self.context:
            raise ValueError(
                f"{len(prompt)} tokens do not fit into a context of {self.context}; the model was trained for "
                f"{self.config.context}: load_model(…, context=…)"
            )
        return prompt


def _filled(tokens: list[int], chunk: int) -> npt.NDArray[np.int32]:
    out = np.zeros(chunk, np.int32)
    out[: len(tokens)] = tokens
    return out
