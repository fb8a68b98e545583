"""Replicas of Ray Serve under OpenAI's client: one that is killed loses its own streams alone, and a change of the model loses none.

    PYTHON -m evidence check ray-serve [--model FILE] [--streams 9]

PYTHON has `alight[ray]` and `openai`. What is killed with SIGKILL while all replicas stream is the native server of one, and then the actor of one. The
streams that end early have to end with an error of the client's, all others have to be those of a server that nobody kills, and no process may be left.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evidence.lib import common
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily
from evidence.lib.process import free_port

ray = lazily("ray")
openai = lazily("openai")

REPLICAS = 3


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--model", type=Path, help="a GGUF file that answers (default: SmolLM2)")
    parser.add_argument("--streams", type=int, default=9, help="answers at the same time")
    parser.add_argument("--tokens", type=int, default=120, help="tokens of each answer")


def processes() -> dict[int, tuple[int, str]]:
    """Of each process its parent and its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            found[int(folder.name)] = parent, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return found


def servers(sockets: str) -> dict[int, int]:
    """The native servers of our replicas, and the actor of each."""
    there = processes()
    ours = {pid: parent for pid, (parent, line) in there.items() if f"--api-key={sockets}" in line and "/sh " not in line[:9]}
    return {pid: there[shell][0] for pid, shell in ours.items() if shell in there}


class Streams:
    """Answers that are read at the same time."""

    def __init__(self, port: int, key: str, number: int, tokens: int):
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
        self.number, self.tokens = number, tokens
        self.started = 0

    def one(self, i: int) -> tuple[str, str]:
        """What came of a stream, and the error that it has ended with."""
        text, begun = "", False
        messages = [{"role": "user", "content": f"Tell a long story, number {i}."}]
        try:
            for event in self.client.chat.completions.create(model="", messages=messages, max_tokens=self.tokens, temperature=0, stream=True):
                self.started += not begun
                begun = True
                text += (event.choices[0].delta.content or "") if event.choices else ""
        except openai.OpenAIError as error:
            return text, f"{type(error).__name__}: {error}"
        return text, ""

    def all(self, meanwhile=None) -> list[tuple[str, str]]:
        """What came of all of them; `meanwhile` is called once all have begun."""
        self.started = 0
        with ThreadPoolExecutor(self.number) as pool:
            streams = [pool.submit(self.one, i) for i in range(self.number)]
            while self.started < self.number and not all(stream.done() for stream in streams):
                time.sleep(0.01)
            if meanwhile is not None:
                meanwhile()
            return [stream.result() for stream in streams]


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    from alight.ray import serve_app
    from ray import serve

    checks, key, port = Checks(), f"of-{os.getpid()}", free_port()
    model = str(args.model or common.model_path("smollm2", common.models_folder()))
    os.environ |= {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
    ray.init(address="local", num_cpus=REPLICAS, log_to_driver=False, include_dashboard=False, object_store_memory=100 * 2**20, logging_level="ERROR")

    def start(**more) -> None:
        serve.run(serve_app(model, replicas=REPLICAS, parallel=4, api_key=key, drain_seconds=60, **more), route_prefix="/")

    def healthy() -> bool:
        for _ in range(240):
            deployment = serve.status().applications["default"].deployments["alight"]
            if deployment.replica_states == {"RUNNING": REPLICAS} and len(servers(key)) == REPLICAS:
                return True
            time.sleep(0.25)
        return False

    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        start()
        streams = Streams(port, key, args.streams, args.tokens)
        whole = streams.all()
        checks.add(not any(error for _, error in whole), f"{args.streams} streams of {REPLICAS} replicas, {sum(len(text) for text, _ in whole)} bytes")
        for what in ("server", "actor"):
            there = servers(key)
            victim, actor = next(iter(there.items()))
            found = streams.all(lambda: os.kill(victim if what == "server" else actor, signal.SIGKILL))
            lost = [error for _, error in found if error]
            same = all(text == alone if not error else alone.startswith(text) for (text, error), (alone, _) in zip(found, whole))
            checks.add(same and 0 < len(lost) < args.streams, f"one {what} that is killed loses {len(lost)} of {args.streams} streams, and the others are whole: {sorted(set(lost))}")
            checks.add(healthy(), f"another replica takes the place of the one whose {what} was killed")
        if not checks.failed:
            before = set(servers(key))
            found = streams.all(lambda: start(reasoning_budget=0))
            checks.add(found == whole and not before & set(servers(key)), f"a change of all replicas while they answer loses none of {args.streams} streams: {sorted({error for _, error in found if error})}")
    finally:
        serve.shutdown()
        ray.shutdown()
    for _ in range(100):
        if not servers(key):
            break
        time.sleep(0.1)
    checks.add(not servers(key), "no server is left")
    return checks.status()
