"""Weights of a model file as JAX arrays, without a copy wherever that can be.

    import alight.jax
    from jax.sharding import PartitionSpec as P

    weights = alight.jax.load("model.gguf")
    weights = alight.jax.load("model.gguf", mesh, [(r"attn_q|ffn_up", P("tp", None))])
    print(alight.jax.plan("model.gguf", mesh, rules))     # what would be mapped, copied, and why

Needs JAX, 0.10.2 to 0.12 (the extra `jax`). JAX itself is imported when the first of these is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._cache import use_cache
    from ._collective import allreduce_norm
    from ._connect import connect
    from ._cuda import check_collectives
    from ._load import load
    from ._meet import meet
    from ._plan import Part, Placement, Plan, plan

__all__ = ["Part", "Placement", "Plan", "allreduce_norm", "check_collectives", "connect", "load", "meet", "plan", "use_cache"]

_WHERE = {
    "Part": "_plan",
    "Placement": "_plan",
    "Plan": "_plan",
    "allreduce_norm": "_collective",
    "check_collectives": "_cuda",
    "connect": "_connect",
    "load": "_load",
    "meet": "_meet",
    "plan": "_plan",
    "use_cache": "_cache",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as problem:
        if problem.name not in ("jax", "jaxlib", "numpy"):
            raise
        raise ImportError(f"alight.jax needs {problem.name}: pip install 'jax>=0.10.2,<0.13'", name=problem.name) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
