"""Weights of a model file as JAX arrays, without a copy wherever that can be.

    import alight.jax
    from jax.sharding import PartitionSpec as P

    weights = alight.jax.load("model.gguf")
    weights = alight.jax.load("model.gguf", mesh, [(r"attn_q|ffn_up", P("tp", None))])
    print(alight.jax.plan("model.gguf", mesh, rules))     # what would be mapped, copied, and why

Needs the extra: `pip install 'alight[jax]'`.
"""

from ._collective import allreduce_norm
from ._load import load
from ._plan import Part, Placement, Plan, plan

__all__ = ["Part", "Placement", "Plan", "allreduce_norm", "load", "plan"]
