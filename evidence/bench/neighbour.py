"""32 tokens on two threads while another process spins on a core.

Three states: idle; `yes` in another session (a desktop's and a server's usual case: the scheduler shares the cores
between sessions, not between threads); `yes` in the same session. Whole processes, interleaved, medians and
spread; each process gets --timeout seconds. Exit status 1 if ours takes more than --limit times its idle time.
"""

import json
import subprocess
import time
from pathlib import Path

from evidence.lib import common

PROMPT = "Once upon a time, in a village at the foot of a mountain,"
STATES = ["idle", "other session", "same session"]


def commands(args, name) -> dict:
    path = common.model_path(name, args.models)
    out = {"alight": [common.alight(args.alight), "run", path, "--raw", "--temp", 0, "--ignore-eos", "-n", args.tokens,
                      "-c", 2048, "-t", args.threads, PROMPT]}
    if args.peer:
        out["llama.cpp"] = [common.llama_tool("llama-completion", args.llama), "-m", path, "-no-cnv", "--temp", 0,
                            "--ignore-eos", "-n", args.tokens, "-c", 2048, "-t", args.threads, "-p", PROMPT]
    return {who: [str(c) for c in command] for who, command in out.items()}


def once(command, timeout) -> tuple[float, bool]:
    """Seconds, and whether it had to be stopped."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
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
            self.process = subprocess.Popen(["yes"], stdout=subprocess.DEVNULL,
                                            start_new_session=self.state == "other session")
            time.sleep(0.3)  # until the scheduler has seen what it is

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["smollm2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--limit", type=float, default=2.2)
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    common.add_arguments(parser)


def run(args) -> int:
    args.peer = not args.alone and common.has_llama("llama-completion", args.llama)
    autogroup = Path("/proc/sys/kernel/sched_autogroup_enabled")
    grouped = autogroup.exists() and autogroup.read_text().strip() == "1"
    if not grouped:
        common.say("this kernel does not share the cores between sessions: both busy states are the same here")
    results, too_slow = [], False
    for name in args.model:
        run = commands(args, name)
        common.warm(common.model_path(name, args.models))
        times = {who: {state: [] for state in STATES} for who in run}
        stopped = {who: {state: 0 for state in STATES} for who in run}
        for who in run:
            once(run[who], args.timeout)
        for _ in range(args.rounds):
            for state in STATES:
                with Neighbour(state):
                    for who in run:
                        seconds, late = once(run[who], args.timeout)
                        times[who][state].append(seconds)
                        stopped[who][state] += late
        for who in run:
            summaries = {state: common.summary(v) for state, v in times[who].items()}
            idle = summaries["idle"]["median"]
            ratios = {state: summaries[state]["median"] / idle for state in STATES}
            results.append({"model": name, "engine": who, "threads": args.threads, "sessions_grouped": grouped,
                            "seconds": summaries, "ratio": ratios, "stopped": stopped[who]})
            if who == "alight" and max(ratios.values()) > args.limit:
                too_slow = True
    if args.json:
        print(json.dumps(results))
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
