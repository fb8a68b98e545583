"""What is compiled: chunks of a prompt, the first token, and several steps of decoding in one loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from .._cache import kept
from . import _blocks, _sample
from ._arithmetic import Cache
from ._blocks import Network, Params
from ._place import SAME, ranked
from ._sample import Chosen

NONE = -1
"""Stands where there is no token."""


class State(NamedTuple):
    """Where a generation stands, on the devices."""

    token: jax.Array
    """The last one, not in the cache yet."""
    pos: jax.Array
    """Positions in the cache."""
    drawn: jax.Array
    """Tokens that were drawn."""
    done: jax.Array
    """Whether the last one ends it: it is one of those that do, or the last that is wanted."""


class Request(NamedTuple):
    """What is asked for: arguments, so that nothing is compiled anew for them."""

    chosen: Chosen
    stop: Any
    """`[n]`, filled up with `NONE`."""
    wanted: Any
    """Most tokens."""


Specs: TypeAlias = Any


class Programs:
    """The compiled functions of a network on a mesh. Caches and states are donated."""

    def __init__(self, net: Network, mesh: Mesh, specs: Specs) -> None:
        self.net, self.mesh, self.specs = net, mesh, specs
        self.cache_spec = (ranked(net.axis, 1),) * 2
        self.made: dict[Any, Any] = {}

    def _made(self, what: Any, make: Callable[[], Any]) -> Any:
        if what not in self.made:
            self.made[what] = kept(make(), list(self.mesh.devices.flat), what, self._identity())
        return self.made[what]

    def _identity(self) -> tuple[Any, ...]:
        """What the functions are made from, besides their arguments and this package."""
        net = self.net
        arithmetic = (type(net.arithmetic).__name__, str(net.arithmetic.stream), net.arithmetic.cache())
        return (net.config, net.cut, net.capacity, net.axis, arithmetic, self.mesh, sorted(self.specs.items()))

    def _jit(self, body: Callable[..., Any], inputs: Any, outputs: Any, donated: tuple[int, ...]) -> Any:
        mapped = jax.shard_map(body, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
        return jax.jit(mapped, donate_argnums=donated)

    def empty(self) -> Cache:
        """A cache with nothing in it."""
        keys, values, kind = self.net.arithmetic.cache()

        def make() -> Any:
            return self._jit(lambda: (jnp.zeros(keys, kind), jnp.zeros(values, kind)), (), self.cache_spec, ())

        made: Cache = self._made("empty", make)()
        return made

    def prefill(self, params: Params, cache: Cache, tokens: Any, pos: Any, last: Any) -> tuple[jax.Array, Cache]:
        """A chunk of a prompt: the residual stream `[1, embedding]` of token `last` of it, and the cache. What follows
        that one is filling, which nothing sees and what comes next overwrites."""

        def body(params: Params, cache: Cache, tokens: jax.Array, pos: jax.Array, last: jax.Array) -> Any:
            h, cache = _blocks.forward(self.net, params, cache, tokens, pos)
            return lax.dynamic_slice_in_dim(h, last, 1), cache

        def make() -> Any:
            inputs = (self.specs, self.cache_spec, SAME, SAME, SAME)
            return self._jit(body, inputs, (SAME, self.cache_spec), (1,))

        result: tuple[jax.Array, Cache] = self._made("prefill", make)(params, cache, tokens, pos, last)
        return result

    def logits(self, params: Params, cache: Cache, tokens: Any, pos: Any) -> tuple[jax.Array, Cache]:
        """Logits `[tokens, ranks × slots]` of every position of a chunk, and the cache."""

        def body(params: Params, cache: Cache, tokens: jax.Array, pos: jax.Array) -> Any:
            h, cache = _blocks.forward(self.net, params, cache, tokens, pos)
            return _blocks.logits(self.net, params, h), cache

        def make() -> Any:
            inputs = (self.specs, self.cache_spec, SAME, SAME)
            return self._jit(body, inputs, (ranked(self.net.axis, 1), self.cache_spec), (1,))

        result: tuple[jax.Array, Cache] = self._made("logits", make)(params, cache, tokens, pos)
        return result

    def first(self, candidates: int, params: Params, h: jax.Array, pos: Any, uniforms: Any, request: Request) -> tuple[jax.Array, State]:
        """The first token `[1]` after a prompt of `pos` tokens."""

        def body(params: Params, h: jax.Array, pos: jax.Array, uniforms: jax.Array, request: Request) -> Any:
            state = self._draw(candidates, params, h, pos, jnp.int32(0), uniforms[0], request)
            return state.token[None], state

        def make() -> Any:
            return self._jit(body, (self.specs, SAME, SAME, SAME, SAME), (SAME, SAME), ())

        result: tuple[jax.Array, State] = self._made(("first", candidates), make)(params, h, pos, uniforms, request)
        return result

    def decode(
        self, candidates: int, params: Params, cache: Cache, state: State, uniforms: Any, request: Request
    ) -> tuple[jax.Array, Cache, State]:
        """Up to as many steps as there are `uniforms`: their tokens, filled up with `NONE`."""

        def body(params: Params, cache: Cache, state: State, uniforms: jax.Array, request: Request) -> Any:
            steps = uniforms.shape[0]

            def go_on(at: tuple[jax.Array, jax.Array, Cache, State]) -> jax.Array:
                return (at[0] < steps) & ~at[3].done

            def step(at: tuple[jax.Array, jax.Array, Cache, State]) -> Any:
                number, out, cache, state = at
                h, cache = _blocks.forward(self.net, params, cache, state.token[None], state.pos)
                state = self._draw(candidates, params, h, state.pos + 1, state.drawn, uniforms[number], request)
                return number + 1, out.at[number].set(state.token), cache, state

            start = (jnp.int32(0), jnp.full(steps, NONE, jnp.int32), cache, state)
            _, out, cache, state = lax.while_loop(go_on, step, start)
            return out, cache, state

        def make() -> Any:
            inputs = (self.specs, self.cache_spec, SAME, SAME, SAME)
            return self._jit(body, inputs, (SAME, self.cache_spec, SAME), (1, 2))

        program = self._made(("decode", candidates), make)
        result: tuple[jax.Array, Cache, State] = program(params, cache, state, uniforms, request)
        return result

    def _draw(
        self,
        candidates: int,
        params: Params,
        h: jax.Array,
        pos: jax.Array,
        drawn: jax.Array,
        uniform: jax.Array,
        request: Request,
    ) -> State:
        logits = _blocks.logits(self.net, params, h)[0]
        token = _sample.sample(logits, candidates, self.net.config.vocab, self.net.axis, request.chosen, uniform)
        done = jnp.any(token == request.stop) | (drawn + 1 >= request.wanted)
        return State(token, jnp.asarray(pos, jnp.int32), drawn + 1, done)

