"""How many replicas of `alight serve` behave together, by a simulation of their steps: measured times of one, arrivals and prefixes as published traces have them.

    PYTHON -m evidence simulate cluster [--model NAME] [--replicas 1 10 100 1000 10000] [--load 0.6] [--times FILE]

Measured here: the time of a step that computes one token of one sequence, of eight sequences, and a token of a prompt; each with `--threads`. Computed: all
else. A replica computes steps as the engine does: one token of each sequence that answers, and up to 512 tokens of one prompt; `--parallel` sequences at a time, the
others wait in order.

Arrivals are bursts (gamma-distributed intervals with a coefficient of variation of 2, as BurstGPT reports of its service, arXiv:2401.17644). Lengths are log-normal with
the medians of Azure's conversation trace, 1020 tokens of a prompt and 129 of an answer (Splitwise, arXiv:2311.18677); a share of requests continues a conversation and
begins with all of it, and the first ones of conversations begin with one of 50 system prompts, drawn by Zipf's law (Mooncake, arXiv:2407.00079, reports that about half of
the tokens of its prompts could be reused). Routings: random; least loaded (of 8 drawn); prefix (the replica that has the longest beginning, unless it has more than
`--parallel` requests more than the least loaded one); shared (least loaded, with a folder from which any replica maps what another has computed). Replicas fail
at random, lose what they keep, and are back after a second; their requests begin again elsewhere.

Every request ends and is counted once, and the tokens that were computed or reused are those that were asked for: that is checked after each run.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import subprocess
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from evidence.lib import common

ROUTINGS = ("random", "least loaded", "prefix", "shared")
CHUNK = 512
SYSTEM_PROMPTS, SYSTEM_TOKENS = 50, 400
CONTINUES = 0.5
"""The share of requests that continue a conversation."""
PROMPT, ANSWER = (1020, 0.8), (129, 0.9)
"""Medians, and the standard deviations of the logarithms."""


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--times", type=Path, help="times that were measured before: JSON with `one`, `eight` and `prompt`, in seconds")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--routing", nargs="+", default=list(ROUTINGS), choices=ROUTINGS)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.6, help="work that arrives, as a share of what replicas can do without reuse")
    parser.add_argument("--requests", type=int, default=4000, help="at least; 30 for each replica")
    parser.add_argument("--kept", type=int, default=45_000, help="tokens of prompts that a replica keeps (1 GiB of SmolLM2: 45,000)")
    parser.add_argument("--mapped", type=float, default=78_000.0, help="tokens a second that a prompt's file brings (docs/reference/prompt-cache.md: 4383 in 56 ms)")
    parser.add_argument("--failures", type=float, default=0.2, help="of each replica, an hour")
    parser.add_argument("--seed", type=int, default=1)


@dataclass(frozen=True)
class Times:
    """Seconds of a step: of one sequence, of eight, and of a token of a prompt."""

    one: float
    eight: float
    prompt: float

    def step(self, sequences: int, prompt: int) -> float:
        each = (self.eight - self.one) / 7
        decode = self.one + each * (sequences - 1) if sequences else 0.0
        # Weights are read once for both.
        return max(decode, 0.0) + prompt * self.prompt

    def work(self, prompt: int, answer: int, parallel: int) -> float:
        """Seconds of a replica that a request costs in a full batch."""
        return prompt * self.prompt + answer * self.step(parallel, 0) / parallel


def measured(program: Path, model: Path, threads: int) -> Times:
    def batch(sequences: int, tokens: int) -> float:
        lines = "".join(json.dumps({"prompt": f"Count {n}", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}) + "\n" for n in range(sequences))
        command = [program, "batch", model, "-", "--sequences", str(sequences), "--speculate", "off", "-t", str(threads), "-q"]
        began = time.perf_counter()
        subprocess.run(command, input=lines, text=True, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    def step(sequences: int) -> float:
        return min((batch(sequences, 80) - batch(sequences, 16)) / 64 for _ in range(3))

    found = subprocess.run([program, "bench", "prefill", model, "-r", "3", "--json", "-t", str(threads)], capture_output=True, text=True, check=True).stdout
    one = max(step(1), 1e-5)
    return Times(one, max(step(8), one), 1 / json.loads(found)["tokens_per_second"]["max"])


@dataclass
class Asked:
    """A request: the conversation that it belongs to, and how much of its prompt others begin with."""

    at: float
    prompt: int
    answer: int
    beginnings: tuple[tuple[str, int], ...]
    """Names of beginnings and their lengths, the longest first."""
    names: str
    """The name under which its whole prompt is kept."""
    first: float | None = None
    begun: int = 0
    left: int = 0
    reused: int = 0
    lost: int = 0


def workload(args, count: int, rate: float, drawn: random.Random) -> list[Asked]:
    shape = 1 / 4  # A coefficient of variation of 2.
    weights = [1 / (n + 1) for n in range(SYSTEM_PROMPTS)]
    found, open_ones, now = [], [], 0.0
    for number in range(count):
        now += drawn.gammavariate(shape, 1 / (shape * rate))
        new = int(min(max(drawn.lognormvariate(math.log(PROMPT[0] / 2), PROMPT[1]), 16), 8000))
        answer = int(min(max(drawn.lognormvariate(math.log(ANSWER[0]), ANSWER[1]), 2), 2000))
        if open_ones and drawn.random() < CONTINUES:
            name, turn, length, beginning = open_ones.pop(drawn.randrange(len(open_ones)))
            whole = (f"{name}:{turn}", length), beginning
            length, turn = length + new, turn + 1
        else:
            name, turn, system = f"c{number}", 0, drawn.choices(range(SYSTEM_PROMPTS), weights)[0]
            beginning = (f"s{system}", SYSTEM_TOKENS)
            whole, length = (beginning,), SYSTEM_TOKENS + new
        found.append(Asked(now, length, answer, whole, f"{name}:{turn}"))
        if length < 16_000:
            open_ones.append((name, turn, length, beginning))
    return found


@dataclass
class Kept:
    """Beginnings that are kept, the least recently used of which go."""

    limit: int
    tokens: int = 0
    entries: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def longest(self, asked: Asked) -> int:
        return next((length for name, length in asked.beginnings if name in self.entries), 0)

    def add(self, asked: Asked) -> None:
        before = 0
        for name, length in (*reversed(asked.beginnings), (asked.names, asked.prompt)):
            # A beginning within another one costs what is new of it.
            if name in self.entries:
                self.entries.move_to_end(name)
            else:
                self.entries[name] = length - before
                self.tokens += length - before
            before = length
        while self.tokens > self.limit and len(self.entries) > 1:
            self.tokens -= self.entries.popitem(last=False)[1]


class Replica:
    def __init__(self, kept: int):
        self.kept = Kept(kept)
        self.waiting: list[Asked] = []
        self.reading: list[Asked] = []
        self.answering: list[Asked] = []
        self.version = self.busy = 0
        self.until = self.worked = 0.0
        self.step: tuple[float, int, int] = (0.0, 0, 0)

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.reading) + len(self.answering)


class Cluster:
    """Replicas, and the events of all of them in their order."""

    def __init__(self, args, times: Times, number: int, routing: str, drawn: random.Random):
        self.args, self.times, self.routing, self.drawn = args, times, routing, drawn
        self.replicas = [Replica(args.kept) for _ in range(number)]
        self.events: list[tuple[float, int, str, object, int]] = []
        self.order = self.lost = self.ended = self.computed = self.reused = 0
        self.owners: dict[str, int] = {}
        self.shared: set[str] = set()
        self.first: list[float] = []
        self.whole: list[float] = []

    def push(self, at: float, kind: str, what: object, version: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, self.order, kind, what, version))

    def route(self, asked: Asked) -> int:
        few = [self.drawn.randrange(len(self.replicas)) for _ in range(1 if self.routing == "random" else 8)]
        least = min(few, key=lambda i: self.replicas[i].load)
        if self.routing == "prefix":
            for name, _ in asked.beginnings:
                owner = self.owners.get(name)
                if owner is not None and name in self.replicas[owner].kept.entries:
                    if self.replicas[owner].load <= self.replicas[least].load + self.args.parallel:
                        return owner
        return least

    def arrive(self, asked: Asked, now: float) -> None:
        at = self.route(asked)
        self.replicas[at].waiting.append(asked)
        if self.replicas[at].until <= now:
            self.begin(at, now)

    def begin(self, at: int, now: float) -> None:
        """Begins the next step, or several that are alike."""
        one = self.replicas[at]
        while one.waiting and len(one.reading) + len(one.answering) < self.args.parallel:
            asked = one.waiting.pop(0)
            known = one.kept.longest(asked)
            mapped = 0
            if self.routing == "shared":
                mapped = next((length for name, length in asked.beginnings if name in self.shared), 0)
            asked.reused = min(max(known, mapped), asked.prompt - 1)
            asked.left = asked.prompt - asked.reused
            asked.begun = asked.answer
            # Mapping takes time of this replica, too.
            one.worked += max(mapped - known, 0) / self.args.mapped
            now += max(mapped - known, 0) / self.args.mapped
            one.reading.append(asked)
        tokens = min(CHUNK, one.reading[0].left) if one.reading else 0
        steps = 1 if tokens else min((asked.begun for asked in one.answering), default=0)
        if not steps:
            one.until = 0.0
            return
        seconds = self.times.step(len(one.answering), tokens)
        if not tokens and not one.waiting:
            # A request that arrives meanwhile begins at the end of a step: cut at some of them.
            steps = min(steps, 8)
        one.step = (seconds, steps, tokens)
        one.until = now + seconds * steps
        one.worked += seconds * steps
        one.version += 1
        self.push(one.until, "step", at, one.version)

    def end_of_step(self, at: int, now: float) -> None:
        one = self.replicas[at]
        _, steps, tokens = one.step
        for asked in one.answering:
            asked.begun -= steps
        for asked in [asked for asked in one.answering if asked.begun <= 0]:
            self.finish(asked, now)
        one.answering = [asked for asked in one.answering if asked.begun > 0]
        if tokens:
            asked = one.reading[0]
            asked.left -= tokens
            self.computed += tokens
            if asked.left == 0:
                one.reading.pop(0)
                self.reused += asked.reused
                if asked.first is None:
                    asked.first = now
                one.kept.add(asked)
                for name in (*(name for name, _ in asked.beginnings), asked.names):
                    self.owners[name] = at
                    self.shared.add(name)
                asked.begun -= 1
                if asked.begun > 0:
                    one.answering.append(asked)
                else:
                    self.finish(asked, now)
        self.begin(at, now)

    def finish(self, asked: Asked, now: float) -> None:
        self.ended += 1
        self.first.append(asked.first - asked.at)
        self.whole.append((now - asked.first) / max(asked.answer - 1, 1))

    def fail(self, at: int, now: float) -> None:
        """A replica loses what it has; its requests begin again elsewhere."""
        one = self.replicas[at]
        gone = one.waiting + one.reading + one.answering
        one.waiting, one.reading, one.answering = [], [], []
        one.kept = Kept(self.args.kept)
        one.version += 1
        one.until = now + 1.0
        self.push(one.until, "step", at, -one.version)
        for asked in gone:
            # What was computed of it is computed again, and counted again.
            asked.lost += 1
            self.lost += 1
            asked.first = None
            self.push(now, "request", asked)

    def run(self, requests: list[Asked]) -> float:
        for asked in requests:
            self.push(asked.at, "request", asked)
        end = requests[-1].at
        for at in range(len(self.replicas)):
            failure = self.drawn.expovariate(self.args.failures / 3600) if self.args.failures else math.inf
            if failure < end:
                self.push(failure, "failure", at)
        now = 0.0
        while self.events:
            now, _, kind, what, version = heapq.heappop(self.events)
            if kind == "request":
                self.arrive(what, now)
            elif kind == "failure":
                self.fail(what, now)
            elif version == self.replicas[what].version:
                self.end_of_step(what, now)
            elif -version == self.replicas[what].version:
                self.begin(what, now)
        return now


def share(values: list[float], at: float) -> float:
    return sorted(values)[min(int(at * len(values)), len(values) - 1)]


def one(args, times: Times, replicas: int, routing: str) -> dict:
    drawn = random.Random(args.seed)
    count = max(args.requests, 30 * replicas)
    # Of a few thousand requests, what one of them costs without reuse.
    sample = workload(args, 4000, 1.0, random.Random(args.seed))
    work = sum(times.work(asked.prompt, asked.answer, args.parallel) for asked in sample) / len(sample)
    rate = args.load * replicas / work
    requests = workload(args, count, rate, random.Random(args.seed))
    cluster = Cluster(args, times, replicas, routing, drawn)
    began = time.perf_counter()
    end = cluster.run(requests)
    if cluster.ended != count or (not cluster.lost and cluster.computed + cluster.reused != sum(asked.prompt for asked in requests)):
        raise SystemExit(f"{replicas} replicas, {routing}: {cluster.ended} of {count} requests have ended; tokens {cluster.computed} + {cluster.reused}, "
                         f"expected {sum(asked.prompt for asked in requests)}")
    return {
        "replicas": replicas, "routing": routing, "requests": count, "requests_per_second": rate,
        "first_token_s": [share(cluster.first, 0.5), share(cluster.first, 0.99)],
        "between_tokens_ms": [share(cluster.whole, 0.5) * 1e3, share(cluster.whole, 0.99) * 1e3],
        "reused": cluster.reused / (cluster.computed + cluster.reused), "busy": sum(r.worked for r in cluster.replicas) / (end * replicas),
        "replica_seconds": sum(r.worked for r in cluster.replicas) / count, "begun_again": cluster.lost, "simulated_in_s": time.perf_counter() - began,
    }  # fmt: skip


def run(args) -> int:
    """Prints a table."""
    if args.times:
        times = Times(**json.loads(args.times.read_text()))
    else:
        times = measured(common.alight(args.alight), common.model_path(args.model, common.models_folder()), args.threads)
    common.say(f"measured: a step of one sequence {times.one * 1e3:.2f} ms, of eight {times.eight * 1e3:.2f} ms; {1 / times.prompt:.0f} tokens of a prompt a second")
    found = [one(args, times, replicas, routing) for replicas in args.replicas for routing in args.routing]
    if common.as_json(args, {"times": vars(times), "runs": found}):
        return 0
    rows = [["replicas", "routing", "requests/s", "first token, s (p50, p99)", "between tokens, ms (p50, p99)", "reused", "busy", "replica-seconds/request", "begun again"]]
    for line in found:
        first, between = line["first_token_s"], line["between_tokens_ms"]
        rows.append([str(line["replicas"]), line["routing"], f"{line['requests_per_second']:.2f}", f"{first[0]:.2f}, {first[1]:.1f}", f"{between[0]:.0f}, {between[1]:.0f}",
                     f"{line['reused']:.0%}", f"{line['busy']:.0%}", f"{line['replica_seconds']:.2f}", str(line["begun_again"])])
    common.table(rows)
    return 0
