"""The process behind `alight run --engine jax`: token ids in, tokens out. Everything else is done by that command.

The command sends orders on one pipe and gets reports on another, one JSON value a line. Standard error is the
user's. Times are in seconds.

    {"open": {"context": 4096, "memory": null, "options": {…}}}     {"ready": {"jax": 0.6, "model": 0.4}}
    {"answer": {"ids": […], "max_tokens": 9, "stop": […], …}}       {"kept": 0} {"token": 17} … "done"
    "stop"                                                          the answer ends before its next token: "done"
                                                                    {"error": "…"}, and the process ends

The end of the first pipe is the end of the command, and so of this process, whatever it is at.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import sys
import threading
import time
from typing import Any, NoReturn

from .. import open as open_catalog

STEPS = 8
"""Tokens per launch, which come together."""
LONGEST = 8000
"""Characters of an error."""
GPU = "/dev/nvidiactl"
"""What NVIDIA's driver makes where there is a GPU."""


def need_jax() -> None:
    if importlib.util.find_spec("jax") is None:
        raise ImportError(f"jax is not installed for this Python ({sys.executable}): pip install 'jax>=0.10.2,<0.13'")


class Front:
    """The command, at the other ends of the pipes."""

    def __init__(self, orders: int, reports: int) -> None:
        self.orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """Ends with `None`."""
        self.stopped = threading.Event()
        self.idle = False
        """Whether nothing is being done: only then can the command have left on purpose."""
        self._reports = reports
        for pipe in (orders, reports):
            os.set_inheritable(pipe, False)
        threading.Thread(target=self._listen, args=[orders], name="alight-orders", daemon=True).start()

    def _listen(self, orders: int) -> None:
        try:
            with open(orders, "rb") as lines:
                for line in lines:
                    order = json.loads(line)
                    if order == "stop":
                        self.stopped.set()
                        continue
                    self.stopped.clear()
                    self.idle = False
                    self.orders.put(order)
        finally:
            if not self.idle:
                os._exit(1)
            self.orders.put(None)

    def tell(self, report: Any) -> None:
        line = json.dumps(report).encode() + b"\n"
        while line:
            line = line[os.write(self._reports, line) :]

    def done(self, report: Any) -> None:
        """Tells of the end of what was ordered."""
        self.idle = True
        self.tell(report)


def main(arguments: list[str], prog: str) -> NoReturn:
    """`arguments`: the descriptors of the pipes, and the path of the model."""
    orders, reports, path = arguments
    front = Front(int(orders), int(reports))
    status = 1
    try:
        serve(front, path)
        status = 0
    except BrokenPipeError:
        pass  # the command is gone
    except (ImportError, OSError, ValueError, TypeError, RuntimeError, MemoryError) as problem:
        front.tell({"error": said(problem)})
    except Exception:
        sys.excepthook(*sys.exc_info())
    if sys.stderr is not None:
        sys.stderr.flush()
    # Taking JAX apart piece by piece before that would only keep the user waiting.
    os._exit(status)


def said(problem: Exception) -> str:
    text = str(problem) or type(problem).__name__
    if isinstance(problem, OSError) and problem.filename is not None and problem.strerror is not None:
        text = f"'{problem.filename}': {problem.strerror}"
    # An error is one line. A name of a file that is not UTF-8 has no other form in JSON.
    return " ".join(text[:LONGEST].splitlines()).encode(errors="replace").decode()


def serve(front: Front, path: str) -> None:
    began = time.perf_counter()
    need_jax()
    import jax

    order = front.orders.get()
    assert order is not None, "the command has not begun"
    context, options = order["open"]["context"], order["open"]["options"]
    weights = options.pop("weights")
    set_up(**options)
    if (hint := unused_gpu()) is not None:
        print(f"note: {hint}", file=sys.stderr)
    from .models import load_model

    imported = time.perf_counter()
    catalog = open_catalog(path)
    model = load_model(catalog, tp=options["tp"], weights=weights, context=context, memory=order["open"]["memory"])
    front.done({"ready": {"jax": imported - began, "model": time.perf_counter() - imported}})
    while (order := front.orders.get()) is not None:
        answer(front, model, **order["answer"])
        catalog.check()
        front.done("done")
    if options["processes"] > 1:
        # Waits for the other processes: a process that left earlier would end them all with an error.
        distributed: Any = jax.distributed
        distributed.shutdown()


def set_up(
    *, tp: int, coordinator: str | None, processes: int, process: int | None, no_cache: bool
) -> None:
    """JAX made ready for a run: its devices, other processes, the cache of compiled programs. No backend has started yet."""
    import jax

    config: Any = jax.config
    if "cpu" in (config.jax_platforms or "cpu"):
        config.update("jax_num_cpu_devices", tp // processes)
    if processes > 1:
        # This has to come before the backend starts. A process that does not come is an error after some minutes.
        jax.distributed.initialize(coordinator, processes, process)
        from ._connect import connect

        connect()
    if not no_cache:
        from ._cache import use_cache

        use_cache()


def unused_gpu() -> str | None:
    """What to do about a GPU that is here and that JAX does not see, unless somebody has chosen what it sees."""
    import jax

    if "JAX_PLATFORMS" in os.environ or not os.path.exists(GPU) or jax.devices()[0].platform != "cpu":
        return None
    return (
        f"a GPU is here that the JAX of this Python ({sys.executable}) does not use: pip install 'jax[cuda13]'; "
        f"with JAX_PLATFORMS=cpu in the environment this is not said again"
    )


def answer(
    front: Front, model: Any, *, ids: list[int], max_tokens: int, stop: list[int], sampling: dict[str, Any]
) -> None:
    from .models import Sampling

    how = Sampling(**sampling)
    tokens = model.generate(ids, max_tokens=max_tokens, sampling=how, steps_per_launch=STEPS, stop=stop)
    token = next(tokens, None)
    front.tell({"kept": model.kept})
    while token is not None:
        front.tell({"token": token})
        token = None if front.stopped.is_set() else next(tokens, None)
