"""Rules by name: which tensor is cut how, and which is converted to what."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Rules: TypeAlias = Sequence[tuple[str, PartitionSpec]]
"""(regular expression, how to cut). The first that is found anywhere in a name counts."""

Dequantize: TypeAlias = Any
"""A dtype for all quantised tensors, or (regular expression, dtype) as in `Rules`."""

FLOATS = ("bfloat16", "float16", "float32")


class Names:
    """Values by regular expression."""

    def __init__(self, what: str, rules: Iterable[Any]) -> None:
        self.rules: list[tuple[re.Pattern[str], Any]] = []
        if isinstance(rules, str) or not isinstance(rules, Iterable):
            raise TypeError(f"{what}: expected a sequence of (pattern, value), found {rules!r}")
        for number, rule in enumerate(rules):
            if not isinstance(rule, (tuple, list)) or len(rule) != 2:
                raise TypeError(f"{what}[{number}]: expected (pattern, value), found {rule!r}")
            pattern, value = rule
            try:
                self.rules.append((re.compile(pattern), value))
            except (re.error, TypeError) as error:
                raise ValueError(f"{what}[{number}]: {pattern!r} is no pattern: {error}") from None

    def get(self, name: str) -> Any:
        """The value of the first pattern that is found in the name; `None` if there is none."""
        return next((value for pattern, value in self.rules if pattern.search(name)), None)


def specs(rules: Rules | None) -> Names:
    """Checks sharding rules by themselves."""
    names = Names("rules", () if rules is None else rules)
    for number, (_, spec) in enumerate(names.rules):
        if not isinstance(spec, PartitionSpec):
            raise TypeError(f"rules[{number}]: expected a PartitionSpec, found {spec!r}")
    return names


def floats(dequantize: Dequantize) -> Names:
    """Checks what is to be converted: a dtype, or rules with dtypes."""
    if dequantize is None:
        return Names("dequantize", ())
    listed = isinstance(dequantize, (list, tuple))
    names = Names("dequantize", dequantize if listed else [("", dequantize)])
    names.rules = [(pattern, None if to is None else _float(to)) for pattern, to in names.rules]
    return names


def _float(dtype: Any) -> str:
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = repr(dtype)
    if name not in FLOATS:
        raise ValueError(f"dequantize: {name} is none of {', '.join(FLOATS)}")
    return name


def sharding(name: str, mesh: Mesh, spec: PartitionSpec, shape: tuple[int, ...], grain: int) -> NamedSharding:
    """The sharding of an array, after a check that it can be cut like that. `grain`: elements of the
    last dimension that belong together."""
    if len(spec) > len(shape):
        raise ValueError(f"tensor {name!r}: {spec} has {len(spec)} dimensions, its shape {shape} has {len(shape)}")
    seen: set[str] = set()
    for axis, entry in enumerate(spec):
        if entry is None:
            continue
        if entry is PartitionSpec.UNCONSTRAINED:
            raise ValueError(f"tensor {name!r}: {spec} leaves dimension {axis} open; say None, or an axis")
        axes: tuple[str, ...] = (entry,) if isinstance(entry, str) else tuple(entry)
        for one in axes:
            if one not in mesh.shape:
                known = ", ".join(repr(axis) for axis in mesh.shape)
                raise ValueError(f"tensor {name!r}: {spec} names the axis {one!r}, the mesh has {known}")
            if one in seen:
                raise ValueError(f"tensor {name!r}: {spec} names the axis {one!r} twice")
            seen.add(one)
        ways = math.prod(mesh.shape[one] for one in axes)
        unit = grain if axis == len(shape) - 1 else 1
        if ways > 1 and shape[axis] % (ways * unit):
            what = f"{shape[axis]}" if unit == 1 else f"{shape[axis]} bytes in blocks of {unit}"
            raise ValueError(
                f"tensor {name!r}: dimension {axis} ({what}) cannot be cut into {ways} equal parts by {spec}; "
                f"its shape is {shape}"
            )
    return NamedSharding(mesh, spec)
