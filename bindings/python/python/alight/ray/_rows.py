"""Batches of rows as Ray Data passes them (columns of NumPy arrays, or a pyarrow table), and the columns that are added to them."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from .. import OptionError

Batch = Any
"""A dictionary of columns, or a `pyarrow.Table`."""

NULLS = {"string": None, "int64": 0, "float64": float("nan")}
"""What a column has where a row has an error, by the column's type; of a table it is null."""


def row_seed(key: object, seed: int = 0) -> int:
    """The seed of a row: a hash of its key, from 0 to 2⁶³ − 1. Another `seed` gives all rows others."""
    digest = hashlib.sha256(f"alight row\0{seed}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def plain(value: Any) -> Any:
    """A value of a column as JSON has it. A field that is null is left out of its object: a table gives all its objects all fields."""
    if isinstance(value, Mapping):
        return {str(name): plain(field) for name, field in value.items() if field is not None}
    if hasattr(value, "tolist"):
        # NumPy's arrays and single values, some of which are Python's own kinds, too.
        return plain(value.tolist())
    if isinstance(value, (str, int, float, bool, bytes)) or value is None:
        return value
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return value


def canonical(value: object) -> str:
    """JSON that is the same for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


class Columns:
    """The columns of a batch, and the rows in them."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.is_table = not isinstance(batch, Mapping)
        if self.is_table and not hasattr(batch, "column_names"):
            found = type(batch).__name__
            raise TypeError(f'expected a batch that is a dictionary of arrays or a pyarrow.Table, found {found}: batch_format="pyarrow" gives the latter')
        self.names: list[str] = list(batch.column_names if self.is_table else batch)
        self.rows: int = batch.num_rows if self.is_table else max((len(column) for column in batch.values()), default=0)

    def values(self, name: str) -> list[Any]:
        """A column as values of Python."""
        if name not in self.names:
            raise OptionError(f"the rows have no column '{name}', only {', '.join(map(repr, self.names))}: name the column that it is")
        column = self.batch[name]
        return [missing(plain(value)) for value in (column.to_pylist() if self.is_table else column)]

    def keys(self, name: str | None) -> list[str | None]:
        """The keys of rows: of the column that was named, or `custom_id` if there is one; `None` where a row has none."""
        if name is None and "custom_id" not in self.names:
            return [None] * self.rows
        return [None if value is None else str(value) for value in self.values(name or "custom_id")]

    def with_columns(self, added: Mapping[str, tuple[str, Sequence[Any]]]) -> Batch:
        """The batch with further columns: for each its type and its values, of which `None` stands where a row has none. The type `vector` is a
        list of float32."""
        for name in added:
            if name in self.names:
                raise OptionError(f"the rows have a column '{name}' already: prefix='out_', or another prefix, gives the new columns other names")
        return self._table(added) if self.is_table else self._arrays(added)

    def _table(self, added: Mapping[str, tuple[str, Sequence[Any]]]) -> Batch:
        pa: Any = import_module("pyarrow")

        kinds = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "vector": pa.list_(pa.float32())}
        table = self.batch
        for name, (kind, values) in added.items():
            table = table.append_column(name, pa.array(values, kinds[kind]))
        return table

    def _arrays(self, added: Mapping[str, tuple[str, Sequence[Any]]]) -> Batch:
        import numpy as np

        arrays = dict(self.batch)
        for name, (kind, values) in added.items():
            if kind == "vector":
                width = next((len(value) for value in values if value is not None), 0)
                rows = np.full((len(values), width), np.nan, np.float32)
                for row, value in zip(rows, values, strict=True):
                    if value is not None:
                        row[:] = value
                arrays[name] = rows
            elif kind == "string":
                arrays[name] = np.array(values, object)
            else:
                arrays[name] = np.array([NULLS[kind] if value is None else value for value in values], kind)
        return arrays


def missing(value: Any) -> Any:
    """A value of a column; `None` if it is NaN, which NumPy and pandas have where there is no number."""
    return None if isinstance(value, float) and value != value else value


class Counts:
    """Counts of rows and tokens, which Ray's dashboard and its Prometheus endpoint show as `ray_alight_…`."""

    def __init__(self, of: str) -> None:
        self.counters: dict[str, Any] = {}
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return
        metrics: Any = import_module("ray.util.metrics")
        for name, what in (
            ("rows", "Rows that were computed"),
            ("row_errors", "Rows that have an error instead"),
            ("prompt_tokens", "Tokens that were read"),
            ("completion_tokens", "Tokens that were generated"),
        ):
            counter = metrics.Counter(f"alight_{name}", description=what, tag_keys=("of",))
            counter.set_default_tags({"of": of})
            self.counters[name] = counter

    def add(self, **numbers: int) -> None:
        for name, number in numbers.items():
            if number and name in self.counters:
                self.counters[name].inc(number)
