"""An application of Ray Serve whose replicas pass everything through to a native server of their own: all protocols, streams as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from typing import Any

from .. import OptionError
from ._server import NativeServer

PARALLEL = 8
"""Answers that a replica computes at the same time, unless `parallel` says otherwise."""

HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "host"})
"""Headers of one connection, which the next one has its own of."""

ENDED = "the replica's server has ended while it answered: ask again, and another replica answers"


class Replica:
    """One replica: a server, and what passes requests to it."""

    def __init__(self, models: list[str], options: dict[str, Any]) -> None:
        self._server = NativeServer(models, options)
        self._session: Any = None

    async def __call__(self, request: Any) -> Any:
        aiohttp: Any = import_module("aiohttp")
        responses: Any = import_module("starlette.responses")
        if self._session is None:
            connector = aiohttp.UnixConnector(path=str(self._server.socket), limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        headers["host"] = "localhost"
        try:
            answer = await self._session.request(request.method, f"http://localhost{path}", headers=headers, data=await request.body(), allow_redirects=False)
        except (aiohttp.ClientError, OSError):
            error = {"error": {"message": ENDED, "type": "server_error", "code": "replica_ended"}}
            return responses.JSONResponse(error, 503, headers={"retry-after": "1"})
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
        return responses.StreamingResponse(pieces(answer, aiohttp.ClientError), answer.status, headers=kept)

    async def check_health(self) -> None:
        """Raises an error if the server cannot answer, and then Serve makes another replica."""
        problem = await asyncio.get_running_loop().run_in_executor(None, self._server.problem)
        if problem is not None:
            raise RuntimeError(problem)

    def __del__(self) -> None:
        if server := getattr(self, "_server", None):
            server.close()


async def pieces(answer: Any, failed: type[Exception]) -> AsyncIterator[bytes]:
    """The body of an answer as it comes. Of one that breaks off, the last event says so, in the form of its protocol."""
    try:
        async for piece in answer.content.iter_any():
            yield piece
    except (failed, OSError):
        kind = answer.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            error = {"type": "error", "error": {"message": ENDED, "type": "server_error", "code": "replica_ended"}}
            yield f"\n\nevent: error\ndata: {json.dumps(error)}\n\n".encode()
        elif kind.startswith("application/x-ndjson"):
            yield f"\n{json.dumps({'error': ENDED})}\n".encode()
        else:
            raise
    finally:
        # A client that has left ends the answer in the server, too.
        answer.close()


def serve_app(
    *models: str,
    name: str = "alight",
    replicas: int | tuple[int, int] = 1,
    cpus: float | None = None,
    drain_seconds: float = 600.0,
    deployment: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """An application for `serve.run`: replicas of `alight serve`, each with these models and options.

    `replicas`: their number, or the least and the most, between which Serve chooses by the requests that are in work. `cpus`: of each replica,
    which computes with as many threads; by default 1. `drain_seconds`: how long a replica that is to end may take to end its answers.
    `deployment`: further arguments of `serve.deployment`. The others are options of `alight serve`, such as `parallel=16` or `cache_dir="…"`."""
    if not models:
        raise OptionError("there is no model: give a file that all hosts have, or a name of the hub")
    serve: Any = import_module("ray.serve")
    parallel = options.setdefault("parallel", PARALLEL)
    options.setdefault("threads", max(1, int(cpus or 1)))
    how: dict[str, Any] = {
        "name": name,
        "ray_actor_options": {"num_cpus": cpus or 1},
        # A few that wait are with the server, so that no place is empty.
        "max_ongoing_requests": 2 * parallel,
        "graceful_shutdown_timeout_s": drain_seconds,
        "health_check_period_s": 2.0,
    }
    if isinstance(replicas, int):
        how["num_replicas"] = replicas
    else:
        least, most = replicas
        how["autoscaling_config"] = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": parallel}
    made = serve.deployment(**(how | dict(deployment or {})))(Replica)
    return made.bind(list(models), options)
