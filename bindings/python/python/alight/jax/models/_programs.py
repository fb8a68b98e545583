"""What is compiled: chunks of a prompt, the first token, and several steps of decoding in one loop."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

from .. import _cuda, _mesh
from .._cache import kept
from .._meet import meet
from . import _blocks, _sample
from ._arithmetic import Cache
from ._blocks import Network, Params
from ._place import SAME, ranked
from ._sample import Chosen

NONE = -1
"""Stands where there is no token."""


class State(NamedTuple):
    """Where the generations of a batch stand, on the devices: `[B]` each."""

    token: jax.Array
    """The last one, not in the cache yet."""
    pos: jax.Array
    """Positions in the cache."""
    drawn: jax.Array
    """Tokens that were drawn."""
    done: jax.Array
    """Whether the last one ends it: it is one of those that do, or the last that is wanted. Nothing follows then."""


class Request(NamedTuple):
    """What is asked for: arguments, so that nothing is compiled anew for them."""

    chosen: Chosen
    stop: Any
    """`[n]`, filled up with `NONE`."""
    wanted: Any
    """Most tokens of each sequence, `[B]`."""


Specs: TypeAlias = Any
T = TypeVar("T")

GRAPHS = {
    "xla_gpu_enable_command_buffer": "CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,FUSION,WHILE",
    "xla_gpu_graph_min_graph_size": 1,
}
"""XLA's options for decoding on GPUs: what it puts into CUDA graphs by itself, and loops, so that all steps of a launch are one graph. A loop
is one thunk, and XLA makes no graph of fewer than five by itself. A small model is a quarter faster with it (docs/explanation/cuda.md)."""


DECODE = ("decode", "decode_pages")


class Programs:
    """The compiled functions of a network on a mesh. Caches and states are donated."""

    def __init__(self, net: Network, mesh: Mesh, specs: Specs) -> None:
        self.net, self.mesh, self.specs = net, mesh, specs
        caches = (ranked(net.axis, 1),) * 2
        # For each: what it computes; where its arguments and results are; and which arguments it may use up.
        self._kinds: dict[str, tuple[Callable[..., Any], Any, Any, tuple[int, ...]]] = {
            "empty": (self._empty, (), caches, ()),
            "prefill": (self._prefill, (specs, caches, SAME, SAME, SAME), (SAME, caches), (1,)),
            "logits": (self._logits, (specs, caches, SAME, SAME), (ranked(net.axis, 1), caches), (1,)),
            "forward": (self._forward, (specs, caches, SAME, SAME), (ranked(net.axis, 2), caches), ()),
            "first": (self._first, (specs, SAME, SAME, SAME, SAME), (SAME, SAME), ()),
            "decode": (self._decode, (specs, caches, SAME, SAME, SAME), (SAME, caches, SAME), (1, 2)),
            # Of a cache of pages, whose table is an argument: sequences come and go, and nothing is compiled anew.
            "empty_pages": (self._empty_pages, (), caches, ()),
            "prefill_pages": (self._prefill_pages, (specs, caches, SAME, SAME, SAME, SAME), (SAME, caches), (1,)),
            "decode_pages": (self._decode_pages, (specs, caches, SAME, SAME, SAME, SAME), (SAME, caches, SAME), (1, 3)),
            "join": (self._join, (SAME, SAME, SAME), SAME, (0,)),
        }
        self._made: dict[Any, Any] = {}

    def compiled(self, kind: str, *known: int) -> Any:
        """The function of a kind, for arguments that are known when it is compiled. Each is compiled for the shapes of its
        other arguments when it is first called with them."""
        if (kind, known) not in self._made:
            jitted = self._jitted(kind, *known)
            verdicts = _cuda.verdicts(_mesh.groups(self.mesh, self.net.axis))
            self._made[kind, known] = kept(jitted, list(self.mesh.devices.flat), kind, known, self._identity(), verdicts)
        return self._made[kind, known]

    def _run(self, kind: str, *known: int) -> Any:
        """The same, to be called whatever the caller forbids: numbers of a launch are made on the host, and go to the devices with it."""
        function = self.compiled(kind, *known)

        def run(*arguments: Any) -> Any:
            with jax.transfer_guard("allow"):
                return function(*arguments)

        return run

    def _jitted(self, kind: str, *known: int) -> Any:
        gpu = self.mesh.devices.flat[0].platform == "gpu"
        # Who has told XLA what belongs into graphs knows why.
        told = "xla_gpu_enable_command_buffer" in os.environ.get("XLA_FLAGS", "")
        options = GRAPHS if gpu and kind in DECODE and not told else None
        return jax.jit(self.mapped(kind, *known), donate_argnums=self._kinds[kind][3], compiler_options=options)

    def mapped(self, kind: str, *known: int) -> Any:
        """The same, to be traced in another function."""
        function, inputs, outputs, _ = self._kinds[kind]

        def body(*arguments: Any) -> Any:
            # Vectors are added to matrices, and types are mixed, whatever the caller forbids in programs of its own.
            with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
                return function(*known, *arguments)

        return jax.shard_map(body, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def _identity(self) -> tuple[Any, ...]:
        """What the functions are made from, besides their arguments and this package."""
        net = self.net
        arithmetic = (type(net.arithmetic).__name__, str(net.arithmetic.stream), net.arithmetic.cache(1))
        return (net.config, net.cut, net.capacity, net.axis, net.apart, net.limit, arithmetic, self.mesh, sorted(self.specs.items()))

    def lower(self, kind: str, params: Params, tokens: int, candidates: int, batch: int = 1, pages: int = 0) -> jax.stages.Lowered:
        """A program for arguments that are not there; of a cache of pages if there are `pages`."""

        def like(shape: tuple[int, ...], dtype: Any, spec: Any = SAME) -> Any:
            sharding = NamedSharding(self.mesh, spec)
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call, unused-ignore]

        *halves, dtype = self.net.arithmetic.pages(pages) if pages else self.net.arithmetic.cache(batch)
        ranks, spec = self.net.cut.ranks, ranked(self.net.axis, 1)
        cache = tuple(like((layers, heads * ranks, *rest), dtype, spec) for layers, heads, *rest in halves)
        whole, floats = functools.partial(like, dtype=np.int32), functools.partial(like, dtype=np.float32)
        each = whole((batch,))
        table, name = ((whole((batch, self.table)),), f"{kind}_pages") if pages else ((), kind)
        if kind == "prefill":
            lowered: jax.stages.Lowered = self._jitted(name).lower(params, cache, *table, whole((batch, tokens)), each, each)
            return lowered
        if kind == "decode":
            state = State(each, each, each, like((batch,), np.bool_))
            request = Request((floats((3,)), whole(())), whole((8,)), each)
            lowered = self._jitted(name, candidates).lower(params, cache, *table, state, floats((tokens, batch)), request)
            return lowered
        raise ValueError(f"program: {kind!r}, expected 'prefill' or 'decode'")

    @property
    def table(self) -> int:
        """Most pages of a sequence."""
        return -(-self.net.capacity // self.net.arithmetic.page)

    def empty(self, batch: int = 1) -> Cache:
        """A cache for so many sequences with nothing in it."""
        made: Cache = self._run("empty", batch)()
        return made

    def prefill(self, params: Params, cache: Cache, tokens: Any, pos: Any, last: Any) -> tuple[jax.Array, Cache]:
        """A chunk `[B, T]` of each prompt, which follows `pos` `[B]` positions: the residual stream `[B, embedding]` of token `last`
        `[B]` of it, and the cache. What follows that one is filling, which nothing sees and what comes next overwrites."""
        found: tuple[jax.Array, Cache] = self._run("prefill")(params, cache, tokens, pos, last)
        return found

    def empty_pages(self, count: int) -> Cache:
        """So many pages with nothing in them."""
        made: Cache = self._run("empty_pages", count)()
        return made

    def prefill_pages(self, params: Params, cache: Cache, table: Any, tokens: Any, pos: Any, last: Any) -> tuple[jax.Array, Cache]:
        """`prefill` of sequences that have the pages in `table` `[B, n]`."""
        found: tuple[jax.Array, Cache] = self._run("prefill_pages")(params, cache, table, tokens, pos, last)
        return found

    def decode_pages(
        self, candidates: int, params: Params, cache: Cache, table: Any, state: State, uniforms: Any, request: Request
    ) -> tuple[jax.Array, Cache, State]:
        """`decode` of sequences that have the pages in `table`. One of which nothing is wanted (any more) stays as it is."""
        found: tuple[jax.Array, Cache, State] = self._run("decode_pages", candidates)(params, cache, table, state, uniforms, request)
        return found

    def join(self, state: State, at: Any, one: State) -> State:
        """The state with that of one sequence at this place."""
        found: State = self._run("join")(state, at, one)
        return found

    def logits(self, params: Params, cache: Cache, tokens: Any, pos: Any) -> tuple[jax.Array, Cache]:
        """Logits `[B · T, ranks × slots]` of every position of a chunk of each, and the cache."""
        found: tuple[jax.Array, Cache] = self._run("logits")(params, cache, tokens, pos)
        return found

    def first(
        self, candidates: int, params: Params, h: jax.Array, pos: Any, uniforms: Any, request: Request
    ) -> tuple[jax.Array, State]:
        """The first token `[1, B]` after prompts of `pos` tokens."""
        found: tuple[jax.Array, State] = self._run("first", candidates)(params, h, pos, uniforms, request)
        return found

    def decode(
        self, candidates: int, params: Params, cache: Cache, state: State, uniforms: Any, request: Request
    ) -> tuple[jax.Array, Cache, State]:
        """Up to as many steps as there are `uniforms` `[steps, B]`: their tokens, filled up with `NONE`."""
        found: tuple[jax.Array, Cache, State] = self._run("decode", candidates)(params, cache, state, uniforms, request)
        return found

    # On one rank.

    def _empty(self, batch: int) -> Cache:
        keys, values, kind = self.net.arithmetic.cache(batch)
        return jnp.zeros(keys, kind), jnp.zeros(values, kind)

    def _empty_pages(self, count: int) -> Cache:
        keys, values, kind = self.net.arithmetic.pages(count)
        return jnp.zeros(keys, kind), jnp.zeros(values, kind)

    def _prefill_pages(
        self, params: Params, cache: Cache, table: jax.Array, tokens: jax.Array, pos: jax.Array, last: jax.Array
    ) -> tuple[jax.Array, Cache]:
        h, (keys, values, _) = self._prefill(params, (*cache, table), tokens, pos, last)
        return h, (keys, values)

    def _decode_pages(
        self, candidates: int, params: Params, cache: Cache, table: jax.Array, state: State, uniforms: jax.Array, request: Request
    ) -> tuple[jax.Array, Cache, State]:
        state = state._replace(done=state.done | (request.wanted == 0))
        out, (keys, values, _), state = self._decode(candidates, params, (*cache, table), state, uniforms, request)
        return out, (keys, values), state

    def _join(self, state: State, at: jax.Array, one: State) -> State:
        joined: State = jax.tree.map(lambda all_of_them, new: lax.dynamic_update_slice_in_dim(all_of_them, new, at, 0), state, one)
        return joined

    def _prefill(
        self, params: Params, cache: Cache, tokens: jax.Array, pos: jax.Array, last: jax.Array
    ) -> tuple[jax.Array, Cache]:
        h, cache = _blocks.forward(self.net, params, cache, *self._met((tokens, pos)))
        if tokens.shape[0] == 1:
            return lax.dynamic_slice_in_dim(h, last[0], 1), cache
        return h[jnp.arange(tokens.shape[0]) * tokens.shape[1] + last], cache

    def _logits(self, params: Params, cache: Cache, tokens: jax.Array, pos: jax.Array) -> tuple[jax.Array, Cache]:
        h, cache = _blocks.forward(self.net, params, cache, *self._met((tokens, pos)))
        return _blocks.logits(self.net, params, h), cache

    def _forward(self, params: Params, cache: Cache, tokens: jax.Array, pos: jax.Array) -> tuple[jax.Array, Cache]:
        found, cache = self._logits(params, cache, tokens, pos)
        return found.reshape(*tokens.shape, -1), cache

    def _first(
        self, candidates: int, params: Params, h: jax.Array, pos: jax.Array, uniforms: jax.Array, request: Request
    ) -> tuple[jax.Array, State]:
        h, pos = self._met((h, pos))
        state = self._draw(candidates, params, h, pos, jnp.zeros_like(pos), uniforms[0], request)
        return state.token[None], state

    def _decode(
        self, candidates: int, params: Params, cache: Cache, state: State, uniforms: jax.Array, request: Request
    ) -> tuple[jax.Array, Cache, State]:
        steps = uniforms.shape[0]
        token, pos = self._met((state.token, state.pos))
        state = state._replace(token=token, pos=pos)

        def go_on(at: tuple[jax.Array, jax.Array, Cache, State]) -> jax.Array:
            return (at[0] < steps) & ~jnp.all(at[3].done)

        def step(at: tuple[jax.Array, jax.Array, Cache, State]) -> tuple[jax.Array, jax.Array, Cache, State]:
            number, out, cache, old = at
            h, cache = _blocks.forward(self.net, params, cache, old.token[:, None], old.pos)
            new = self._draw(candidates, params, h, old.pos + 1, old.drawn, uniforms[number], request)
            if old.token.shape[0] == 1 and len(cache) == 2:
                return number + 1, out.at[number].set(new.token), cache, new
            # One that has ended stays where it is until all have.
            out = out.at[number].set(jnp.where(old.done, NONE, new.token))
            return number + 1, out, cache, jax.tree.map(lambda a, b: jnp.where(old.done, a, b), old, new)

        start = (jnp.int32(0), jnp.full(uniforms.shape, NONE, jnp.int32), cache, state)
        _, out, cache, state = lax.while_loop(go_on, step, start)
        return out, cache, state

    def _met(self, x: T) -> T:
        """What a program begins with. Once for a launch: a step has none."""
        return meet(x, mesh=self.mesh, axis=self.net.axis)

    def _summed(self, x: jax.Array) -> jax.Array:
        """The sum over the ranks of a few rows, by the collective: it may be a part of a CUDA graph."""
        _, total = self.net.collective(x, jnp.zeros_like(x), jnp.ones(x.shape[-1], jnp.float32))
        return total

    def _draw(
        self,
        candidates: int,
        params: Params,
        h: jax.Array,
        pos: jax.Array,
        drawn: jax.Array,
        uniforms: jax.Array,
        request: Request,
    ) -> State:
        logits, net = _blocks.logits(self.net, params, h), self.net
        summed = self._summed if net.apart else None

        def one(logits: jax.Array, uniform: jax.Array) -> jax.Array:
            return _sample.sample(logits, candidates, net.config.vocab, net.axis, request.chosen, uniform, summed)

        # Under `vmap` the ranks meet once for all sequences.
        tokens = jax.vmap(one)(logits, uniforms) if logits.shape[0] > 1 else one(logits[0], uniforms[0])[None]
        done = jnp.any(tokens[:, None] == request.stop, axis=1) | (drawn + 1 >= request.wanted)
        return State(tokens, jnp.asarray(pos, jnp.int32), drawn + 1, done)
