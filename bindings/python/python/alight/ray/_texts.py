"""`Generate` and `Chat`: rows whose requests are those of `alight batch`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ._command import BatchCommand, Result
from ._hosts import assigned_threads
from ._rows import Batch, Columns, Counts, canonical, plain, row_seed

OUTPUT = {
    "answer": "string",
    "reasoning_content": "string",
    "tool_calls": "string",
    "finish_reason": "string",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "seed": "int64",
    "error": "string",
    "error_code": "string",
}
"""The columns that rows get, and their types."""


class _Texts:
    """What the two classes share: a row becomes a line of `alight batch`, and the line's result becomes columns."""

    _column: ClassVar[str]
    _url: ClassVar[str]

    def __init__(
        self,
        model: str,
        *,
        column: str | None = None,
        key: str | None = None,
        fields: Iterable[str] | Mapping[str, str] = (),
        defaults: Mapping[str, Any] | None = None,
        seed: int = 0,
        prefix: str = "",
        **options: Any,
    ) -> None:
        """Opens a model: a file, or a name of the hub.

        `column`: that of the prompts, or of the conversations; a table of OpenAI's batches has `body` instead. `key`: the column that names a
        row (`custom_id`, if there is one), from which its seed follows. `fields`: further columns that are fields of the request, by their names
        or as {column: field}. `defaults`: fields of every request that does not have them. `seed`: another one gives all rows other seeds.
        `prefix`: of the names of the new columns. The others are options of `alight batch`, such as `sequences=16` or `system="…"`."""
        self._named = column
        self._key, self._seed, self._prefix = key, seed, prefix
        self._fields = dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields}
        self._defaults = dict(defaults or {})
        options.setdefault("threads", assigned_threads())
        self._command = BatchCommand(str(model), options)
        self._counts = Counts(type(self).__name__)

    def __call__(self, batch: Batch) -> Batch:
        """The rows with their answers. Any number of threads may call this at the same time."""
        columns = Columns(batch)
        requests = self._requests(columns)
        keys = columns.keys(self._key)
        lines, seeds, refused = [], [], {}
        for row, (request, key) in enumerate(zip(requests, keys, strict=True)):
            if isinstance(request, str):
                refused[row] = {"error": {"code": "invalid_json", "message": request}}
                seeds.append(0)
                continue
            body = request.get("body", request)
            if body.get("seed") is None:
                body["seed"] = row_seed(canonical(request) if key is None else key, self._seed)
            seeds.append(body["seed"] if isinstance(body["seed"], int) and abs(body["seed"]) < 2**63 else 0)
            lines.append(json.dumps(request, ensure_ascii=False))
        results = iter(self._command.answer([line.encode("utf-8", "replace").decode() for line in lines]))
        rows = [output(refused.get(row) or next(results)) | {"seed": seed} for row, seed in enumerate(seeds)]
        self._counts.add(
            rows=len(rows),
            row_errors=sum(row["error"] is not None for row in rows),
            prompt_tokens=sum(row["prompt_tokens"] for row in rows),
            completion_tokens=sum(row["completion_tokens"] for row in rows),
        )
        return columns.with_columns({self._prefix + name: (kind, [row.get(name) for row in rows]) for name, kind in OUTPUT.items()})

    def _requests(self, columns: Columns) -> list[dict[str, Any] | str]:
        """The request of each row as `alight batch` reads it; a text is the reason why it is none."""
        fields = {field: columns.values(name) for name, field in self._fields.items()}
        own = [{field: values[row] for field, values in fields.items() if values[row] is not None} for row in range(columns.rows)]
        if self._named is None and "body" in columns.names:
            urls = columns.values("url") if "url" in columns.names else [None] * columns.rows
            bodies = columns.values("body")
            return [self._of_body(body, url, more) for body, url, more in zip(bodies, urls, own, strict=True)]
        values = columns.values(self._named or self._column)
        return [self._defaults | {self._column: value} | more for value, more in zip(values, own, strict=True)]

    def _of_body(self, body: Any, url: Any, more: Mapping[str, Any]) -> dict[str, Any] | str:
        if isinstance(body, str):
            try:
                body = json.loads(body)
            except ValueError as error:
                return f"body: it is not JSON: {error}"
        if not isinstance(body, dict):
            return f"body: it is {json.dumps(plain(body), default=str)}, expected an object, or its JSON"
        return {"method": "POST", "url": url or self._url, "body": self._defaults | body | dict(more)}

    def close(self) -> None:
        """Ends the process that computes, and what it computes."""
        self._command.close()

    def __del__(self) -> None:
        if command := getattr(self, "_command", None):
            command.close()


class Generate(_Texts):
    """Answers prompts: a text in the column `prompt`, through the model's chat template as `alight run` takes it, or token ids."""

    _column, _url = "prompt", "/v1/completions"


class Chat(_Texts):
    """Answers conversations: lists of messages in the column `messages`."""

    _column, _url = "messages", "/v1/chat/completions"


def output(result: Result) -> dict[str, Any]:
    """The columns of a line's result."""
    if error := result.get("error"):
        # Its number is that of a line of a process, and another one when it is computed again.
        message = error["message"].removeprefix(f"line {error.get('line')}: ")
        return {"prompt_tokens": 0, "completion_tokens": 0, "error": message, "error_code": error["code"]}
    body = result["response"]["body"]
    choice, usage = body["choices"][0], body["usage"]
    message = choice.get("message") or {"content": choice.get("text")}
    calls = message.get("tool_calls")
    return {
        "answer": message.get("content"),
        "reasoning_content": message.get("reasoning_content"),
        "tool_calls": json.dumps(calls, ensure_ascii=False) if calls else None,
        "finish_reason": choice["finish_reason"],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "error": None,
    }
