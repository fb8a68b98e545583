"""32 tokens on two threads while another process spins on a core.

Three states: idle; `yes` in another session (a desktop's and a server's usual case: the scheduler shares the cores
between sessions, not between threads); `yes` in the same session. Whole processes, interleaved, medians and
spread; each process gets --timeout seconds. Exit status 1 if ours takes more than --limit times its idle time.
"""

import subprocess
import time
from pathlib import Path

from evidence.lib import common, peers, rounds

PROMPT = "Once upon a time, in a village at the foot of a mountain,"
STATES = ["idle", "other session", "same session"]


def once(command, timeout) -> tuple[float, bool]:
    """Seconds, and whether it had to be stopped."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if process.wait(timeout) != 0:
            raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
        return time.perf_counter() - start, False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return timeout, True


class Neighbour:
    """`yes > /dev/null` for as long as the block runs."""

    def __init__(self, state):
        self.state, self.process = state, None

    def __enter__(self):
        if self.state != "idle":
            self.process = subprocess.Popen(["yes"], stdout=subprocess.DEVNULL, start_new_session=self.state == "other session")
            time.sleep(0.3)  # until the scheduler has seen what it is

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()


def measure(args, name, grouped: bool) -> list[dict]:
    path = common.model_path(name, args.models)
    run = {"alight": peers.alight_run(args, path, PROMPT, "--ignore-eos", tokens=args.tokens)}
    run |= {peer.name: peers.peer_run(args, peer, path, PROMPT, "--ignore-eos", tokens=args.tokens) for peer in args.peers}
    common.warm(path)
    for command in run.values():
        once(command, args.timeout)

    def in_state(state) -> dict:
        with Neighbour(state):
            return {who: once(command, args.timeout) for who, command in run.items()}

    found, results = rounds.interleaved(args, STATES, in_state, name), []
    for who in run:
        summaries = {state: common.summary([one[who][0] for one in found[state]]) for state in STATES}
        results.append({"model": name, "engine": who, "threads": args.threads, "sessions_grouped": grouped, "seconds": summaries,
                        "ratio": {state: summaries[state]["median"] / summaries["idle"]["median"] for state in STATES},
                        "stopped": {state: sum(one[who][1] for one in found[state]) for state in STATES}})
    return results


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["smollm2"])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--limit", type=float, default=2.2)
    rounds.add_arguments(parser, 5, pause=0, timeout=60)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def run(args) -> int:
    args.peers = peers.present(args)
    autogroup = Path("/proc/sys/kernel/sched_autogroup_enabled")
    grouped = autogroup.exists() and autogroup.read_text().strip() == "1"
    if not grouped:
        common.say("this kernel does not share the cores between sessions: both busy states are the same here")
    results = [result for name in args.model for result in measure(args, name, grouped)]
    too_slow = any(r["engine"] == "alight" and max(r["ratio"].values()) > args.limit for r in results)
    if common.as_json(args, results):
        return int(too_slow)
    common.machine()
    rows = [["model", "engine", "state", "seconds", "× idle", f"stopped after {args.timeout:g} s"]]
    for r in results:
        for state in STATES:
            rows.append([r["model"], r["engine"], state, common.spread(r["seconds"][state], 2),
                         f"{r['ratio'][state]:.2f}", f"{r['stopped'][state]} of {r['seconds'][state]['n']}"])
    common.table(rows)
    if too_slow:
        common.say(f"ours took more than {args.limit} times its idle time")
    return int(too_slow)
