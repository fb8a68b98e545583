"""Servers under load, beside llama-server: the first answer after a start, several clients, a long prompt beside a stream.

Every server is started anew in every round, warm, with the same places and the same context of each sequence. Clients are threads of
this process over loopback, each of which asks again as soon as it was answered (closed loop): a chat of some 40 tokens, continued by
`--tokens` tokens without end of its own, streamed. Prompts differ in their first words, so nothing but the template is shared. Times
are a client's: from before it connects to the first piece of text, and between two pieces. Tokens are those of `usage`.
"""

import http.client
import json
import statistics
import subprocess
import threading
import time
from pathlib import Path

from evidence.lib import common, peers, process, rounds

CLIENTS = (1, 4, 8, 16)
CONTEXT = 4096
TARGET_GAP_MS = 250


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", default=["smollm2"], help="names of models, or files (default: smollm2)")
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS)
    parser.add_argument("--requests", type=int, default=4, help="of each client (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: %(default)s)")
    rounds.add_arguments(parser, 3, timeout=600)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def commands(args, path: Path) -> dict[str, list[str]]:
    """By their names; the port is added."""
    places = max(args.clients)
    out = {"alight": peers.words(common.alight(args.alight), "serve", path, "--no-cache", "--ctx-size", CONTEXT, "--parallel", places,
                                 "-t", args.threads)}
    for peer in args.peers:
        # Its context is divided by the places.
        out[peer.name] = peers.words(peer.tool(args, "llama-server"), "-m", path, "-c", CONTEXT * places, "-np", places,
                                     "-t", args.threads)
    return out


class Server:
    """A server, from its start until the block ends."""

    def __init__(self, command: list[str], timeout: float):
        self.command, self.port, self.timeout = command, process.free_port(), timeout

    def __enter__(self) -> "Server":
        self.began = time.perf_counter()
        self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()

    def memory_mib(self) -> dict:
        """Now, and at most; PSS counts what is shared by its shares."""
        lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        lines += Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines if ":" in line)
        kib = {name: int(found[key].split()[0]) for name, key in
               (("pss_mib", "Pss"), ("anonymous_mib", "Anonymous"), ("peak_rss_mib", "VmHWM"))}
        return {name: value / 1024 for name, value in kib.items()}

    def ask(self, text: str, tokens: int, each=lambda: None) -> dict:
        """A streamed answer: its times in seconds, and its tokens. `each` is called when a piece has come."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}}
        start = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                # llama-server answers so while it loads.
                raise ConnectionError(f"status {response.status}: {response.read(300)!r}")
            times, told = [], 0
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if event.get("usage"):
                    told = event["usage"]["completion_tokens"]
                if any(choice["delta"].get("content") for choice in event.get("choices", [])):
                    times.append(time.perf_counter())
                    each()
        finally:
            connection.close()
        if not times or not told:
            raise SystemExit(f"{self.command[0]}: an answer without text or without usage")
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        return {"first": times[0] - start, "longest_gap": max(gaps, default=0.0), "tokens": told}

    def first_answer_ms(self) -> float:
        """From the start of the process to the first piece of an answer: whoever is not answered yet asks again."""
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(self.command)}: ended with {self.process.returncode}")
            came = []
            try:
                self.ask("Hi", 1, lambda came=came: came.append(time.perf_counter()))
                return (came[0] - self.began) * 1e3
            except OSError:
                if time.perf_counter() - self.began > self.timeout:
                    raise
                time.sleep(0.002)


def prompt(number: int) -> str:
    return f"Number {number}: write a long story about a lighthouse, its keeper and {number} birds that come back every spring. Begin."


def load(server: Server, clients: int, args) -> dict:
    """What clients see that ask at the same time."""
    answers, failures = [], []

    def client(which: int) -> None:
        try:
            for i in range(args.requests):
                answers.append(server.ask(prompt(1000 * clients + 100 * which + i), args.tokens))
        except Exception as error:  # noqa: BLE001 - a thread's failure is told below
            failures.append(error)

    threads = [threading.Thread(target=client, args=(which,)) for which in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if failures:
        raise SystemExit(f"{server.command[0]}, {clients} clients: {failures[0]!r}")
    firsts = sorted(answer["first"] * 1e3 for answer in answers)
    return {
        f"requests_s_{clients}": len(answers) / seconds,
        f"tokens_s_{clients}": sum(answer["tokens"] for answer in answers) / seconds,
        f"first_token_ms_{clients}": statistics.median(firsts),
        # Of few answers that is the last one.
        f"first_token_p99_ms_{clients}": firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
    }


def beside_long_prompt(server: Server) -> float:
    """The longest gap of a stream, in milliseconds, while a prompt of some 3000 tokens arrives."""
    seen, wanted, other = [0], threading.Event(), []

    def count() -> None:
        seen[0] += 1
        if seen[0] == 10:
            wanted.set()

    def long() -> None:
        wanted.wait(server.timeout)
        server.ask("Count the birds. " + "A bird sat on the wall and another one on the roof. " * 230, 1)
        other.append(True)

    thread = threading.Thread(target=long)
    thread.start()
    streamed = server.ask(prompt(7), 400, count)
    thread.join()
    if not other:
        raise SystemExit(f"{server.command[0]}: the long prompt was not answered")
    return streamed["longest_gap"] * 1e3


def once(args, command: list[str]) -> dict:
    with Server(command, args.timeout) as server:
        out = {"first_answer_ms": server.first_answer_ms()}
        for clients in args.clients:
            out |= load(server, clients, args)
        out["longest_gap_ms"] = beside_long_prompt(server)
        return out | server.memory_mib()


def measure(args, name: str) -> dict:
    path = common.model_path(name, args.models)
    commands_of = commands(args, path)
    common.warm(path)
    runs = rounds.interleaved(args, commands_of, lambda who: once(args, commands_of[who]), name)
    return {"model": name, "threads": args.threads, "servers": {who: rounds.by_key(runs[who]) for who in runs}}


def run(args) -> None:
    args.peers = [peer for peer in peers.present(args, "llama-server") if peer is peers.LLAMA_CPP]
    results = [measure(args, name) for name in args.model]
    if common.as_json(args, results):
        return
    common.machine()
    for result in results:
        servers = result["servers"]
        keys = list(next(iter(servers.values())))
        common.table([[result["model"], *servers], *([key, *(common.spread(servers[who][key]) for who in servers)] for key in keys)])
        ours = servers["alight"]
        asked = [(f"no gap of a stream above {TARGET_GAP_MS} ms while a long prompt arrives", ours["longest_gap_ms"]["median"] <= TARGET_GAP_MS)]
        for other in (servers[who] for who in servers if who != "alight"):
            asked.append(("5 times sooner answered after a start",
                          other["first_answer_ms"]["median"] >= 5 * ours["first_answer_ms"]["median"]))
            asked += [(f"1.5 times the tokens a second of {clients} clients",
                       ours[f"tokens_s_{clients}"]["median"] >= 1.5 * other[f"tokens_s_{clients}"]["median"]) for clients in args.clients]
        common.verdicts(asked, result["model"])
