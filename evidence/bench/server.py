"""Servers under load, beside llama-server: the first answer after a start, several clients, a long prompt beside a stream.

Every server is started anew in every round, warm, with the same places and the same context of each sequence. Clients are threads of
this process over loopback: a chat of some 40 tokens, continued by `--tokens` tokens without end of its own, streamed. Each of
`--clients` asks again as soon as it was answered (closed loop). At `--rates`, requests come at random (exponential) intervals, whether
others were answered or not (open loop), at the same moments for each server. Prompts differ in their first words, so nothing but
the template is shared. Times are a client's: from before it connects to the first piece of text, and between two pieces. Tokens are
those of `usage`.

With `--packed-in FOLDER` our server runs the same weights in a packed file. A server that does not do what is asked is left out from
then on, and said.
"""

import contextlib
import http.client
import json
import random
import statistics
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from evidence.lib import common, peers, process, rounds

CLIENTS = (1, 4, 8, 16)
CONTEXT = 4096
TARGET_GAP_MS = 250


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", default=["smollm2"], help="names of models, or files (default: smollm2)")
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS)
    parser.add_argument("--requests", type=int, default=4, help="of each client (default: %(default)s)")
    parser.add_argument("--rates", nargs="*", type=float, default=[], metavar="R", help="requests a second that come at random")
    parser.add_argument("--seconds", type=float, default=20, help="for which they come (default: %(default)s)")
    parser.add_argument("--packed-in", type=Path, metavar="FOLDER", help="ours with a packed file, kept in FOLDER")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: %(default)s)")
    parser.add_argument("--long", type=int, default=3000, metavar="TOKENS", help="of the prompt that comes beside a stream (default: %(default)s)")
    rounds.add_arguments(parser, 3, timeout=600)
    common.add_arguments(parser)
    peers.add_arguments(parser)


class Failed(Exception):
    """A server has not done what was asked."""


def commands(args, name: str, path: Path) -> dict[str, list[str]]:
    """By their names; the port is added."""
    places, own = max(args.clients), path
    if args.packed_in and (packed := common.packed_file(common.alight(args.alight), name, path, args.packed_in)):
        own = packed
    common.warm(own)
    out = {"alight": peers.words(common.alight(args.alight), "serve", own, "--no-cache", "--ctx-size", CONTEXT, "--parallel", places,
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

    def wait(self) -> None:
        """Returns when it answers."""
        while time.perf_counter() < self.began + self.timeout:
            if self.process.poll() is not None:
                raise Failed(f"{self.command[0]} ended with {self.process.returncode}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health"):
                return
            time.sleep(0.05)
        raise Failed(f"{self.command[0]} does not answer")

    @contextlib.contextmanager
    def post(self, path: str, body: dict):
        """The response to a request of its own connection, which ends with the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            yield connection.getresponse()

    def ask(self, text: str, tokens: int, each=lambda: None) -> dict:
        """A streamed answer: its times in seconds, and its tokens. `each` is called when a piece has come."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}}
        start = time.perf_counter()
        with self.post("/v1/chat/completions", body) as response:
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
        if not times or not told:
            raise Failed("an answer without text or without usage")
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        return {"first": times[0] - start, "longest_gap": max(gaps, default=0.0), "tokens": told}

    def count(self, text: str) -> int:
        """Its tokens."""
        with self.post("/tokenize", {"content": text}) as response:
            return len(json.load(response)["tokens"])

    def first_answer_ms(self) -> float:
        """From the start of the process to the first piece of an answer: whoever is not answered yet asks again."""
        while True:
            if self.process.poll() is not None:
                raise Failed(f"ended with {self.process.returncode}")
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


def threads(work: list) -> float:
    """Does all of it at the same time, and gives the seconds that it took."""
    failures = []

    def one(part) -> None:
        try:
            part()
        except Exception as error:  # noqa: BLE001 - a thread's failure is told below
            failures.append(error)

    running = [threading.Thread(target=one, args=(part,)) for part in work]
    start = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise Failed(f"{len(failures)} of {len(work)} clients failed: {failures[0]!r}")
    return time.perf_counter() - start


def seen(answers: list[dict], seconds: float, what: str) -> dict:
    """What clients have seen. The 99th percentile is the last one where there are fewer than a hundred."""
    firsts = sorted(answer["first"] * 1e3 for answer in answers)
    return {
        f"requests_s_{what}": len(answers) / seconds,
        f"tokens_s_{what}": sum(answer["tokens"] for answer in answers) / seconds,
        f"first_token_ms_{what}": statistics.median(firsts),
        f"first_token_p99_ms_{what}": firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
    }


def closed(server: Server, clients: int, args) -> dict:
    """What clients see that ask at the same time, each one again when it was answered."""
    answers: list[dict] = []

    def client(which: int) -> None:
        for i in range(args.requests):
            answers.append(server.ask(prompt(1000 * clients + 100 * which + i), args.tokens))

    seconds = threads([lambda which=which: client(which) for which in range(clients)])
    return seen(answers, seconds, str(clients))


def open_loop(server: Server, rate: float, args) -> dict:
    """What they see who come at random, `rate` a second."""
    rng, at, arrivals = random.Random(rate), 0.0, []
    while (at := at + rng.expovariate(rate)) < args.seconds or not arrivals:
        arrivals.append(at)
    answers: list[dict] = []
    start = time.perf_counter()

    def client(number: int, at: float) -> None:
        time.sleep(max(0.0, start + at - time.perf_counter()))
        answers.append(server.ask(prompt(50_000 + number), args.tokens))

    seconds = threads([lambda number=number, at=at: client(number, at) for number, at in enumerate(arrivals)])
    return seen(answers, seconds, f"at_{rate:g}_a_second")


def beside_long_prompt(server: Server, tokens: int) -> float:
    """The longest gap of a stream, in milliseconds, while a prompt of some `tokens` tokens arrives."""
    text = "A bird sat on the wall and another one on the roof. "
    times = tokens // server.count(text)
    seen, wanted, other = [0], threading.Event(), []

    def count() -> None:
        seen[0] += 1
        if seen[0] == 10:
            wanted.set()

    def long() -> None:
        wanted.wait(server.timeout)
        server.ask("Count the birds. " + text * times, 1)
        other.append(True)

    thread = threading.Thread(target=long)
    thread.start()
    streamed = server.ask(prompt(7), 400, count)
    thread.join()
    if not other:
        raise Failed("the long prompt was not answered")
    return streamed["longest_gap"] * 1e3


def once(args, command: list[str]) -> dict:
    with Server(command, args.timeout) as server:
        out = {"first_answer_ms": server.first_answer_ms()}
        for clients in args.clients:
            out |= closed(server, clients, args)
        for rate in args.rates:
            out |= open_loop(server, rate, args)
        out["longest_gap_ms"] = beside_long_prompt(server, args.long)
        return out | server.memory_mib()


def measure(args, name: str) -> dict:
    path = common.model_path(name, args.models)
    commands_of = commands(args, name, path)
    common.warm(path)
    failed: dict[str, str] = {}

    def one(who: str) -> dict | None:
        if who in failed:
            return None
        try:
            return once(args, commands_of[who])
        except (Failed, OSError) as why:
            failed[who] = str(why)
            common.say(f"{name}: {' '.join(commands_of[who])}: {why}: left out from here on")
            return None

    runs = rounds.interleaved(args, commands_of, one, name)
    done = {who: [run for run in all_of_it if run] for who, all_of_it in runs.items()}
    servers = {who: rounds.by_key(some) for who, some in done.items() if some}
    return {"model": name, "threads": args.threads, "servers": servers, "failed": failed}


def run(args) -> None:
    args.peers = [peer for peer in peers.present(args, "llama-server") if peer is peers.LLAMA_CPP]
    results = [measure(args, name) for name in args.model]
    if common.as_json(args, results):
        return
    common.machine()
    for result in results:
        servers = result["servers"]
        if "alight" not in servers:
            raise SystemExit(f"{result['model']}: no figures of ours: {result['failed']['alight']}")
        keys = list(next(iter(servers.values())))
        common.table([[result["model"], *servers], *([key, *(common.spread(servers[who][key]) for who in servers)] for key in keys)])
        ours = servers["alight"]
        asked = [(f"no gap of a stream above {TARGET_GAP_MS} ms while a long prompt arrives", ours["longest_gap_ms"]["median"] <= TARGET_GAP_MS)]
        for other in (servers[who] for who in servers if who != "alight"):
            asked.append(("5 times sooner answered after a start",
                          other["first_answer_ms"]["median"] >= 5 * ours["first_answer_ms"]["median"]))
            asked += [(f"1.5 times the {what} a second of {clients} clients",
                       ours[f"{what}_s_{clients}"]["median"] >= 1.5 * other[f"{what}_s_{clients}"]["median"])
                      for clients in args.clients for what in ("tokens", "requests")]
        common.verdicts(asked, result["model"])
