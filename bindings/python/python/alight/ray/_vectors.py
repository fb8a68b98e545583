"""`Embed` and `Rerank`: rows whose texts become vectors, or scores, in this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import AlightError, ClosedError, ComputeError, ContextFullError, FileChangedError, Model, NotEnoughMemoryError
from ._hosts import assigned_threads
from ._rows import Batch, Columns, Counts

Made = tuple[Any, int]
"""A vector or a score, and the tokens that were read."""

GENERAL = (ClosedError, ComputeError, FileChangedError, NotEnoughMemoryError)
"""Errors of the model and no row's: they end the batch, which is then tried again."""


def each(compute: Callable[[list[Any]], list[Made]], texts: Sequence[Any]) -> list[Made | tuple[str, str]]:
    """What is computed of all texts at once; if one of them cannot be, of each alone, with the message and the code of its error."""
    if not texts:
        return []
    try:
        return list(compute(list(texts)))
    except GENERAL:
        raise
    except (AlightError, TypeError, ValueError) as error:
        if len(texts) == 1:
            code = "context_length_exceeded" if isinstance(error, ContextFullError) else "invalid_request"
            return [(str(error), code)]
    half = len(texts) // 2
    return each(compute, texts[:half]) + each(compute, texts[half:])


class _Vectors:
    def __init__(self, model: str, *, sequences: int, threads: int | None, prefix: str, isa: str | None, options: dict[str, Any]) -> None:
        self._prefix = prefix
        self._model = Model(model, sequences=sequences, threads=threads or assigned_threads(), isa=isa, **options)
        self._counts = Counts(type(self).__name__)

    def _with(self, columns: Columns, name: str, kind: str, made: Sequence[Made | tuple[str, str]]) -> Batch:
        """The rows with what was computed, or with their errors."""
        good = [one if not isinstance(one[0], str) else None for one in made]
        bad = [one if isinstance(one[0], str) else (None, None) for one in made]
        tokens = [one[1] if one else 0 for one in good]
        self._counts.add(rows=len(made), row_errors=sum(one is None for one in good), prompt_tokens=sum(map(int, tokens)))
        added: dict[str, tuple[str, Sequence[Any]]] = {
            name: (kind, [one[0] if one else None for one in good]),
            "prompt_tokens": ("int64", tokens),
            "error": ("string", [message for message, _ in bad]),
            "error_code": ("string", [code for _, code in bad]),
        }
        return columns.with_columns({self._prefix + name: column for name, column in added.items()})

    def close(self) -> None:
        """Gives the model's memory back."""
        self._model.close()


class Embed(_Vectors):
    """Vectors of texts, as `alight embed` makes them."""

    def __init__(
        self,
        model: str,
        *,
        column: str = "text",
        pooling: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        sequences: int = 32,
        threads: int | None = None,
        isa: str | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        """Opens a model: a file, or a name of the hub.

        `column`: that of the texts. `pooling`, `normalize`, `dimensions`, `prompt_name` and `truncate` are those of `alight.Model.embed`: unless
        `truncate` is set, a text that is too long is an error of its row. `prefix`: of the names of the new columns. The others are options of
        `alight.Model`."""
        self._column = column
        self._how: dict[str, Any] = {
            "pooling": pooling, "normalize": normalize, "dimensions": dimensions, "prompt_name": prompt_name, "truncate": truncate,
        }  # fmt: skip
        super().__init__(model, sequences=sequences, threads=threads, prefix=prefix, isa=isa, options=options)
        # An option that makes no sense ends the job here and is no error of each row.
        self._embed(["a"])

    def _embed(self, texts: list[Any]) -> list[Made]:
        vectors, tokens = self._model.embed(texts, **self._how, usage=True)
        return list(zip(vectors.numpy(), tokens, strict=True))

    def __call__(self, batch: Batch) -> Batch:
        """The rows with their vectors. Any number of threads may call this at the same time."""
        columns = Columns(batch)
        return self._with(columns, "embedding", "vector", each(self._embed, columns.values(self._column)))


class Rerank(_Vectors):
    """Scores of pairs of a query and a document, as `alight rerank` makes them."""

    def __init__(
        self,
        model: str,
        *,
        query: str = "query",
        document: str = "document",
        raw: bool = False,
        truncate: bool = True,
        sequences: int = 32,
        threads: int | None = None,
        isa: str | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        """Opens a model: a file, or a name of the hub.

        `query` and `document`: the columns of the two texts. `raw` and `truncate` are those of `alight.Model.rerank`. `prefix`: of the names
        of the new columns. The others are options of `alight.Model`."""
        self._columns, self._how = (query, document), {"raw": raw, "truncate": truncate}
        super().__init__(model, sequences=sequences, threads=threads, prefix=prefix, isa=isa, options=options)
        self._score("a", ["a"])

    def _score(self, query: str, documents: list[Any]) -> list[Made]:
        scores, tokens = self._model.rerank(query, documents, raw=self._how["raw"], truncate=self._how["truncate"], usage=True)
        return list(zip(scores, tokens, strict=True))

    def __call__(self, batch: Batch) -> Batch:
        """The rows with their scores. Any number of threads may call this at the same time."""
        columns = Columns(batch)
        queries, documents = (columns.values(name) for name in self._columns)
        of_query: defaultdict[Any, list[int]] = defaultdict(list)
        for row, query in enumerate(queries):
            of_query[query if isinstance(query, str) else None].append(row)
        made: list[Any] = [None] * columns.rows
        for query, rows in of_query.items():
            if query is None:
                found: list[Any] = [(f"{self._columns[0]}: it is no text", "invalid_request")] * len(rows)
            else:
                found = each(partial(self._score, query), [documents[row] for row in rows])
            for row, one in zip(rows, found, strict=True):
                made[row] = one
        return self._with(columns, "score", "float64", made)
