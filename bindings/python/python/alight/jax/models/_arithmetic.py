"""What a forward pass needs of weights and cache: the seam between the two ways to compute with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import jax
from jax.sharding import PartitionSpec

Arrays: TypeAlias = Mapping[str, jax.Array]
Specs: TypeAlias = Mapping[str, PartitionSpec]
Cache: TypeAlias = tuple[jax.Array, ...]
"""Keys and values of all layers, on one rank; of a cache of pages also the table `[B, n]` of those that each sequence has."""


class Arithmetic(Protocol):
    """Products with the matrices of a network, and its attention, on one rank of a mesh.

    Called inside `shard_map`. `x` is `[tokens, features]`. What a rank does not have is zero in the results, but for
    `logits`, whose rows beyond the vocabulary are anything. `weights` are `arrays` as a rank sees them, `layer` the slice
    of `stacks` of one layer.
    """

    arrays: Arrays
    """Weights that are not a layer's."""
    array_specs: Specs
    stacks: Arrays | tuple[Arrays, ...]
    """Weights of all layers, `[layers, …]`; or of each layer by itself."""
    stack_specs: Specs | tuple[Specs, ...]
    stream: Any
    """The type of the residual stream."""
    page: int
    """Positions of a page, in a cache of pages."""

    def cache(self, batch: int) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        """Shapes of keys and values of so many sequences on a rank, `[…, what is cut between ranks, …]`, and their type."""

    def pages(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        """The same of so many pages, which `attend` finds by a table."""

    def embed(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        """`[tokens, embedding]`, the same on every rank."""

    def embed_part(self, weights: Arrays, tokens: jax.Array, scale: float) -> jax.Array:
        """What `embed` is the sum over the ranks of."""

    def qkv(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries, keys and values of the rank's heads, float32."""

    def attend(
        self,
        qkv: tuple[jax.Array, jax.Array, jax.Array],
        cache: Cache,
        layer: jax.Array,
        pos: jax.Array,
        window: jax.Array,
        sinks: jax.Array | None,
    ) -> tuple[jax.Array, Cache]:
        """Stores keys and values of each sequence at its `pos` `[B]` and on, and attends: `[tokens, the rank's heads × value_dim]`, the
        tokens of one sequence after those of the other, equally many. `sinks`: a score of each of the rank's heads that is of no
        position."""

    def output(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        """The rank's part of the sum that attention adds to the residual."""

    def gate_up(self, weights: Arrays, layer: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The rank's part of the feed-forward, before the gate."""

    def down(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        """The rank's part of the sum that the feed-forward adds to the residual."""

    def router(self, weights: Arrays, layer: Arrays, x: jax.Array) -> jax.Array:
        """Logits of all experts `[tokens, experts]`, float32, without bias, the same on every rank."""

    def experts(self, weights: Arrays, layer: Arrays, x: jax.Array, chosen: jax.Array, shares: jax.Array) -> jax.Array:
        """What the rank's experts add to the residual: `chosen` (int32) and `shares` are `[tokens, used]`."""

    def logits(self, weights: Arrays, x: jax.Array) -> jax.Array:
        """Logits of the rank's part of the vocabulary, float32, without bias and cap."""
