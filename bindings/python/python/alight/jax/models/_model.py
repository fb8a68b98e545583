"""A model that is loaded: logits, and tokens one after the other."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from ... import ContextFullError
from ..._alight import ExpertStore, reusable
from .._cuda import check_collectives
from ._arithmetic import Cache
from ._blocks import Params
from ._config import Config
from ._continuous import ContinuousBatch
from ._given import token_ids, whole
from ._place import SAME
from ._programs import NONE, Programs, Request
from ._sample import Draws, Sampling, arguments, checked

CHUNKS = (8, 32, 128)
"""Lengths of the chunks in which prompts are computed; the last one is filled up to one of them. On two cores, a chunk of a
small model takes as long as 6 tokens by themselves, and as many as it has: longer ones are no quicker."""
GPU_CHUNKS = (8, 64, 512)
"""The same for GPUs, which take about as long for one token as for dozens."""
IN_FLIGHT = 2
"""Most launches that are not waited for: many at once can block each other."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of `B` sequences, and how many positions of each there are. What is beyond these is never seen."""

    keys: jax.Array
    values: jax.Array
    lengths: jax.Array
    """`[B]`, int32. Smaller numbers take tokens back."""


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
        read_bytes: dict[int | None, int],
        store: ExpertStore | None = None,
    ) -> None:
        """`check` raises if the weights are not what they were: their file may be cut short under its map."""
        self.config, self.mesh, self.context, self.chunks = config, mesh, context, chunks
        self._check = check
        self._programs, self._params = programs, params
        self.read_bytes = read_bytes
        """Bytes of the file that were read for each rank, and for `None` what all of them have: nothing with native weights on CPU devices
        but norms and biases."""
        self.store = store
        """The experts of a mixture that memory cannot hold."""
        self.kept = 0
        """Tokens of the last prompt that were in the cache already."""
        self._free: list[tuple[Cache, list[int]]] = []

    def __repr__(self) -> str:
        name, kind = self.config.architecture, self.mesh.devices.flat[0].platform
        return f"<alight.jax.models.Model of {name}, tp {self.tp} on {kind}, context {self.context}>"

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
            whole(name, value)
        request = self._request([prompt], max_tokens, sampling, stop)
        return self._generate(prompt, sampling, steps_per_launch, request)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        sampling: Sampling = Sampling(),  # noqa: B008: it is frozen
        steps_per_launch: int = 8,
        stop: Sequence[int] = (),
    ) -> list[list[int]]:
        """The tokens that follow each of `prompts`, which are computed together and need not be of one length.

        Each is what `generate` says of it alone, with the seed `sampling.seed` + its number. Products with several rows round
        otherwise than those with one: with `weights="f32"` on CPU devices the bits are the same, else a choice that is as close as
        roundings may differ.
        """
        every = [self._checked(ids) for ids in prompts]
        for name, value in (("prompts", len(every)), ("max_tokens", max_tokens), ("steps_per_launch", steps_per_launch)):
            whole(name, value)
        request = self._request(every, max_tokens, sampling, stop)
        cache = self._programs.empty(len(every))
        h, cache = self._prefill(every, 0, cache)
        found: list[list[int]] = [[] for _ in every]
        ended, ends = [False] * len(every), set(request.stop.tolist())
        for out, _ in self._launches(every, h, cache, sampling, steps_per_launch, request):
            for tokens in self._fetched(out).tolist():
                for number, token in enumerate(tokens):
                    ended[number] = ended[number] or token in ends or token == NONE
                    if not ended[number]:
                        found[number].append(token)
            if all(ended):
                break
        return found

    def continuous(
        self,
        *,
        sequences: int,
        pages: int | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008: it is frozen
        stop: Sequence[int] = (),
        steps_per_launch: int = 8,
    ) -> ContinuousBatch:
        """A running batch of up to so many `sequences` at once, which join and leave it, and share a cache of `pages` of 64 positions: without a
        number as many as all of them need for a full context, and never more than these. With `weights="native"` on CPU devices a page is a full
        context: the kernels there have no table of pages."""
        return ContinuousBatch(self, sequences, pages, sampling, stop, steps_per_launch)

    @property
    def params(self) -> Params:
        """The weights as a tree of arrays, for `forward`: on their devices, cut as the programs need them."""
        return self._params

    def empty_cache(self, batch: int = 1) -> KVCache:
        """An empty KV cache for `batch` sequences of up to `context` tokens each."""
        keys, values = self._programs.empty(whole("batch", batch))
        with jax.transfer_guard("allow"):
            return KVCache(keys, values, jnp.zeros(batch, jnp.int32))

    def forward(
        self, params: Params, tokens: jax.Array, cache: KVCache, counts: jax.Array | None = None
    ) -> tuple[jax.Array, KVCache]:
        """Logits `[B, T, vocab]`, float32, of what follows each of `tokens` `[B, T]`, and the cache with them in it. A pure function, for a
        `jax.jit` of your own; donate the cache to it, or it is copied.

        `counts` `[B]`: how many of the tokens of each sequence there are; what follows them is filling, whose logits are nobody's.
        Without it all are. You see to it that lengths stay within `context` and tokens within the vocabulary: numbers on devices
        cannot be checked here.
        """
        batch = cache.lengths.shape[0]
        if not hasattr(tokens, "dtype"):
            raise TypeError(f"tokens: expected an array of integers [{batch}, T], found {type(tokens).__name__}; jax.numpy.asarray makes one")
        if tokens.ndim != 2 or tokens.shape[0] != batch or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"tokens: expected integers [{batch}, T], as the cache has sequences, found {tokens.dtype}{list(tokens.shape)}")
        if tokens.shape[1] == 0:
            raise ValueError(f"tokens: expected one or more of each sequence, found {tokens.dtype}{list(tokens.shape)}")
        if counts is not None and jnp.shape(counts) != (batch,):
            raise ValueError(f"counts: expected [{batch}], found {list(jnp.shape(counts))}")
        mapped = self._programs.mapped("forward")
        found, (keys, values) = mapped(params, (cache.keys, cache.values), tokens.astype(jnp.int32), cache.lengths)
        more = tokens.shape[1] if counts is None else jnp.asarray(counts, jnp.int32)
        return self._known(found), KVCache(keys, values, cache.lengths + more)

    def _known(self, logits: jax.Array) -> jax.Array:
        """Those of the vocabulary, without what fills up the last rank."""
        vocab, mesh, axis = self.config.vocab, self.mesh, self._programs.net.axis
        if logits.shape[-1] == vocab:
            return logits
        if dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[axis] == jax.sharding.AxisType.Explicit:
            # JAX cuts no axis into parts that are not equal, as those of the ranks are not: all of them have all.
            whole = jax.sharding.NamedSharding(mesh, SAME)
            logits = jax.sharding.reshard(logits, whole)  # type: ignore[no-untyped-call, unused-ignore]
        return logits[..., :vocab]

    def _request(self, prompts: Sequence[list[int]], max_tokens: int, sampling: Sampling, stop: Sequence[int]) -> Request:
        # The last token needs no room: nothing is computed with it.
        wanted = [min(max_tokens, self.context - len(prompt) + 1) for prompt in prompts]
        return Request(arguments(checked(sampling)), self._ends(stop), np.array(wanted, np.int32))

    def _ends(self, stop: Sequence[int]) -> npt.NDArray[np.int32]:
        """What ends an answer, filled up, so that programs are compiled for few lengths."""
        ends = np.full(-(-max(len(stop), 1) // 8) * 8, NONE, np.int32)
        ends[: len(stop)] = list(stop)
        return ends

    def _launches(
        self, prompts: Sequence[list[int]], h: Any, cache: Cache, sampling: Sampling, steps: int, request: Request
    ) -> Iterator[tuple[jax.Array, Cache]]:
        """Tokens `[steps, B]` that come after prompts, the first ones by themselves, not waited for; and the cache, which is given
        away when the next are asked for."""
        programs, params, candidates = self._programs, self._params, sampling.candidates(self.config.vocab)
        every = [Draws(sampling.seed + number) for number in range(len(prompts))]

        def uniforms(count: int) -> npt.NDArray[np.float32]:
            return np.stack([draws.take(count) for draws in every], axis=1)

        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        out, state = programs.first(candidates, params, h, lengths, uniforms(1), request)
        flying = collections.deque([out])
        # Not before the first token is there: the program may have to be compiled.
        launched, wanted, fly = 1, int(request.wanted.max()), False
        while flying or launched < wanted:
            if fly and launched < wanted and len(flying) < IN_FLIGHT:
                out, cache, state = programs.decode(candidates, params, cache, state, uniforms(steps), request)
                flying.append(out)
                launched += steps
                continue
            yield flying.popleft(), cache
            fly = True

    def _generate(self, prompt: list[int], sampling: Sampling, steps: int, request: Request) -> Iterator[int]:
        cache: Cache | None
        cache, held = self._taken(prompt)
        h, cache = self._prefill([prompt], held, cache)
        # What the cache holds, but for the last.
        known, ends = list(prompt), set(request.stop.tolist())
        try:
            for out, cache in self._launches([prompt], h, cache, sampling, steps, request):
                for token in self._fetched(out)[:, 0].tolist():
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
            found, cache = self._programs.logits(self._params, cache, tokens[None], np.array([start], np.int32))
            rows.append(self._fetched(found)[:length, : self.config.vocab])
        self._free = [(cache, prompt)]
        return np.concatenate(rows)

    def lower(
        self,
        program: str,
        tokens: int = 8,
        sampling: Sampling = Sampling.greedy(),  # noqa: B008
        batch: int = 1,
        pages: int = 0,
    ) -> jax.stages.Lowered:
        """What XLA compiles for "prefill", a chunk of so many `tokens`, or for "decode", so many steps, of so many sequences, over a cache of
        `pages` if there are some: to compile it ahead of time, on a machine without these devices too."""
        for name, value, least in (("tokens", tokens, 1), ("batch", batch, 1), ("pages", pages, 0)):
            whole(name, value, least)
        return self._programs.lower(program, self._params, tokens, checked(sampling).candidates(self.config.vocab), batch, pages)

    def _fetched(self, results: jax.Array) -> npt.NDArray[Any]:
        """Results on the host, unless they are worthless: the file has changed, or a collective among GPUs has failed in a
        CUDA graph, where nobody is told."""
        with jax.transfer_guard("allow"):
            found = np.asarray(results)
        self._check()
        check_collectives()
        return found

    def _prefill(self, prompts: Sequence[list[int]], held: int, cache: Cache, table: Any = None) -> tuple[Any, Cache]:
        """The residual stream of the last token of each, and the cache, which holds the first `held` already; of pages, if there is a `table`
        of theirs."""
        h: Any = None
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        for start, _, chunk in self._chunks(int(lengths.max()), held):
            tokens = np.stack([_filled(prompt[start : start + chunk], chunk) for prompt in prompts])
            # Of one that has ended all is filling, after its end.
            pos, last = np.minimum(lengths, start), np.clip(lengths - start, 1, chunk) - 1
            if table is None:
                new, cache = self._programs.prefill(self._params, cache, tokens, pos, last)
            else:
                new, cache = self._programs.prefill_pages(self._params, cache, table, tokens, pos, last)
            if h is None or (lengths > start).all():
                h = new
                continue
            with jax.transfer_guard("allow"):
                h = jnp.where((lengths > start)[:, None], new, h)
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
        prompt = token_ids(ids)
        if not prompt:
            raise ValueError("no tokens: a model needs one at least, usually that of the beginning of a text")
        wrong = next((one for one in prompt if not 0 <= one < self.config.vocab), None)
        if wrong is not None:
            raise ValueError(f"token {wrong} is not in the vocabulary of {self.config.vocab}")
        if len(prompt) > self.context:
            raise ContextFullError(
                f"{len(prompt)} tokens do not fit into a context of {self.context}; the model was trained for "
                f"{self.config.context}: load_model(…, context=…)"
            )
        return prompt


def _filled(tokens: list[int], chunk: int) -> npt.NDArray[np.int32]:
    out = np.zeros(chunk, np.int32)
    out[: len(tokens)] = tokens
    return out
