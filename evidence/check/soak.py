"""A server for an hour under random requests of every endpoint, a third of whose clients leave, hostile schemas and bodies among them.

It holds if (1) every answer that was waited for equals, to the bit, the one that the same request had from a server with nothing else to do;
(2) resident memory that no file backs is flat after the first sixth of the time, ten minutes of an hour, which fills what the server keeps of
prompts (`--cache-ram`, here 256 MiB, so that this happens on a slow machine too): the highest of no later sixth is more than a tenth above that of
the second; (3) /health is 200 throughout; (4) no status is 500; and
(5) nothing is left when the server ends: no process, and an exit status of 0.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from evidence.lib import common, results

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Answers that must be equal are of one of these.
SEEDS = range(24)


def add_arguments(parser) -> None:
    """How long, and how many clients at a time."""
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="clients at a time (default: %(default)s)")
    parser.add_argument("--model", type=Path, default=common.models_folder() / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--binary", type=Path, default=common.TARGET / "release/alight")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the samples of memory and the counts to this file")
    parser.add_argument("--record", action="store_true", help="put the result into evidence/results, if it has passed")


def answered(seed: int) -> tuple[str, dict]:
    """A request whose answer depends on nothing but itself."""
    text = ["Why is the sky blue?", "Count to ten.", "Name three animals.", "Write a line of Python."][seed % 4]
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 8 + seed % 9, "seed": seed, "temperature": 0.7}
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9 + seed}}, "required": ["a"], "additionalProperties": False}
    return [
        (CHAT, chat),
        (CHAT, chat | {"n": 2, "logprobs": True, "top_logprobs": 3}),
        (CHAT, chat | {"response_format": {"type": "json_schema", "json_schema": {"schema": schema, "strict": True}}}),
        (COMPLETIONS, {"prompt": text, "max_tokens": 6, "seed": seed, "echo": True, "logprobs": 2}),
        ("/v1/embeddings", {"input": [text, text[::-1]]}),
        ("/v1/messages", {"model": "m", "max_tokens": 7, "messages": chat["messages"], "temperature": 0}),
        ("/api/chat", {"model": "m", "messages": chat["messages"], "stream": False, "options": {"num_predict": 6, "seed": seed}}),
        ("/tokenize", {"content": text * (1 + seed), "with_pieces": True}),
    ][seed % 8]


def hostile(rng: random.Random) -> tuple[str, bytes]:
    """A request that costs much, or is nothing."""
    n = rng.randrange(1 << 20)
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    schema = rng.choice([
        {"type": "integer", "multipleOf": 62_000_000 + n},
        {"type": "string", "allOf": [{"pattern": f"(a|b)*{'ab'[i % 2]}(a|b){{{i}}}{n}"} for i in range(1, 50)]},
        {"$ref": "#"},
        {"type": "string", "minLength": 1 << 40},
    ])
    whole = [
        (CHAT, chat | {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
        (CHAT, chat | {"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {
            "name": "f", "arguments": "[" * 5000 if n % 2 else "[" + "1," * 600_000 + "1]"}}]}]}),
        (COMPLETIONS, {"prompt": ["a b c " * 300] * 16, "echo": True, "logprobs": 5, "n": 8, "max_tokens": 1}),
        ("/api/embed", {"model": "m", "input": [f"{n} words of a text " * 300] * 2}),
        (CHAT, chat | {"grammar": "root ::= " + "(" * (n % 3000)}),
        (COMPLETIONS, {"prompt": "x" * (1 << 22)}),
        ("/tokenize", {"content": "aé\0 " * (n % 400_000), "with_pieces": True}),
    ]
    path, body = rng.choice(whole)
    raw = json.dumps(body).encode()
    return path, raw if rng.random() < 0.8 else raw[: rng.randrange(len(raw))]


class Soak:
    """The server, what its answers must be, and what has been seen."""

    def __init__(self, args):
        self.args, self.stop = args, threading.Event()
        self.commit = results.measured_commit() if args.record else ""
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []
        self.samples: list[tuple[float, int]] = []
        self.lock = threading.Lock()
        command = [args.binary, "serve", args.model, "--no-cache", "--port", "0", "--parallel", "4", "--ctx-size", "2048", "--queue", "64",
                   "--cache-ram", "256"]
        self.server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.server.stderr:
            if line.startswith("listening on http://"):
                host, _, port = line.split("//")[1].strip().rpartition(":")
                self.address = (host, int(port))
                break
        threading.Thread(target=self.read_log, daemon=True).start()

    def read_log(self) -> None:
        """Keeps the pipe empty, and the last lines."""
        self.log = []
        for line in self.server.stderr:
            self.log = [*self.log[-50:], line]

    def count(self, what: str) -> None:
        """Counts an outcome."""
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what: str) -> None:
        """Notes what must not be."""
        with self.lock:
            self.wrong.append(what)
        print(what, file=sys.stderr, flush=True)

    def post(self, path: str, body: bytes, leaves_after: float | None = None) -> tuple[int, bytes] | None:
        """The status and the body of an answer; `None`: the client has left."""
        connection = http.client.HTTPConnection(*self.address, timeout=1800 if leaves_after is None else leaves_after)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def client(self, number: int) -> None:
        """Sends requests until the end."""
        rng = random.Random(self.args.seed * 1000 + number)
        while not self.stop.is_set():
            leaves = rng.random() < 1 / 3
            seed = rng.choice(SEEDS)
            is_hostile = rng.random() < 0.3
            path, body = hostile(rng) if is_hostile else (lambda p, b: (p, json.dumps(b).encode()))(*answered(seed))
            try:
                status, answer = self.post(path, body, rng.choice([0.001, 0.02, 0.2, 1.0]) if leaves else None)
            except (OSError, http.client.HTTPException) as error:
                self.count("left" if leaves else f"cut {type(error).__name__}")
                if not leaves and not is_hostile:
                    self.fail(f"{path}, seed {seed}: {error!r}")
                continue
            self.count(f"{status}{' hostile' if is_hostile else ''}")
            if status >= 500 and status != 503:
                self.fail(f"{path}: {status} {answer[:300]!r}")
            if not is_hostile and status == 200 and comparable(answer) != self.expected[seed]:
                self.fail(f"{path}, seed {seed}: another answer: {answer[:300]!r}")
            elif not is_hostile and status not in (200, 503):
                self.fail(f"{path}, seed {seed}: {status} {answer[:300]!r}")

    def watch(self) -> None:
        """Samples memory, and asks for the server's health."""
        while not self.stop.wait(5):
            status = Path(f"/proc/{self.server.pid}/status").read_text()
            anonymous = int(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]) << 10
            self.samples.append((time.monotonic() - self.began, anonymous))
            try:
                connection = http.client.HTTPConnection(*self.address, timeout=60)
                with contextlib.closing(connection):
                    connection.request("GET", "/health")
                    if (found := connection.getresponse().status) != 200:
                        self.fail(f"/health: {found}")
            except OSError as error:
                self.fail(f"/health: {error!r}")

    def run(self) -> int:
        """The exit status."""
        self.expected = {}
        for seed in SEEDS:
            path, body = answered(seed)
            status, answer = self.post(path, json.dumps(body).encode())
            assert status == 200, (path, status, answer)
            self.expected[seed] = comparable(answer)
        self.began = time.monotonic()
        threads = [threading.Thread(target=self.client, args=(n,), daemon=True) for n in range(self.args.clients)]
        threads.append(threading.Thread(target=self.watch, daemon=True))
        for thread in threads:
            thread.start()
        with contextlib.suppress(KeyboardInterrupt):
            self.stop.wait(60 * self.args.minutes)
        self.stop.set()
        for thread in threads:
            thread.join(timeout=1800)
        return self.judge()

    def judge(self) -> int:
        """Ends the server, and prints what was found."""
        time.sleep(2)
        children = sum(len(path.read_text().split()) for path in Path(f"/proc/{self.server.pid}/task").glob("*/children"))
        if children:
            self.fail(f"{children} processes are left")
        self.server.send_signal(signal.SIGTERM)
        try:
            if (status := self.server.wait(timeout=30)) != 0:
                self.fail(f"the server has ended with status {status}: {''.join(self.log[-20:])}")
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.fail("the server has not ended within 30 s of SIGTERM")
        sixths = by_sixths(self.samples, self.args.minutes)
        if all(sixths):
            highest = [max(sixth) >> 20 for sixth in sixths]
            print("memory that no file backs, MiB, at most, by sixths of the time: " + ", ".join(map(str, highest)))
            if max(highest[2:]) > highest[1] * 1.1:
                self.fail(f"memory grows: {highest[1]} MiB at most in the second sixth, {max(highest[2:])} later")
        print(f"{sum(self.counts.values())} requests: " + ", ".join(f"{what}: {n}" for what, n in sorted(self.counts.items())))
        facts = {"date": time.strftime("%Y-%m-%d"), "minutes": self.args.minutes, "clients": self.args.clients, "counts": self.counts,
                 "wrong": self.wrong, "memory": [[round(at), bytes] for at, bytes in self.samples]}
        if self.args.json:
            self.args.json.write_text(json.dumps(facts) + "\n")
        passed = sum(n for what, n in self.counts.items() if what == "200")
        print(f"soak: {passed} passed, {len(self.wrong)} failed")
        if self.wrong or not passed:
            return 1
        if self.args.record:
            results.record("server", [result(facts, self.commit)])
        return 0


def by_sixths(samples, minutes: float) -> list[list[int]]:
    """The samples of memory in each sixth of the time."""
    return [[bytes for at, bytes in samples if 10 * n * minutes < at <= 10 * (n + 1) * minutes] for n in range(6)]


def result(facts: dict, commit: str) -> dict:
    """The line of the results for a run that has passed."""
    minutes, clients, counts = facts["minutes"], facts["clients"], facts["counts"]
    answered, left = (counts.get(what, 0) for what in ("200", "left"))
    memory = [max(sixth) >> 20 for sixth in by_sixths(facts["memory"], minutes)]
    others = sum(counts.values()) - answered - left
    return {
        "set": "soak", "case": f"{minutes:g} minutes, {clients} clients at a time", "date": facts["date"], "commit": commit, "machine": common.machine_name(),
        "command": f"python -m evidence check soak --minutes {minutes:g} --clients {clients} --record",
        "note": "random and hostile requests of all endpoints; memory that no file backs, at most, in each sixth of the time, of which the server may keep 256 MiB of prompts",
        "figures": {"answered": {"values": [answered], "unit": "requests"}, "left": {"values": [left], "unit": "requests"},
                    "others": {"values": [others], "unit": "requests"}, "memory": {"values": memory, "unit": "MiB"}},
        "source": "evidence/check/soak.py",
    }


def comparable(answer: bytes):
    """An answer without what differs each time: ids and times."""
    drop = {"id", "created", "created_at", "timings", "system_fingerprint", "usage", "total_duration", "load_duration", "prompt_eval_duration",
            "eval_duration", "prompt_eval_count"}

    def clean(value):
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items() if key not in drop}
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    return clean(json.loads(answer))


def run(args) -> int:
    """Runs it; the exit status."""
    socket.setdefaulttimeout(1800)
    os.environ["ALIGHT_CONFIG"] = ""
    return Soak(args).run()
