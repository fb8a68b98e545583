"""A fresh process to its first token with the JAX engine: nothing compiled before, everything kept, beside `alight run`.

State: warm (the file is in the page cache), a new process every time. `cold` has an empty folder for compiled programs,
`warm` one that a run before has filled; `no cache` keeps nothing. The clock starts before the process is made, and stops at
the first byte on its standard output. Interleaved, medians and spread. The package has to be installed where --python is:
`make test-python` does that, with a debug build; `make python` makes the wheel that others get.
"""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from evidence.bench.start import CONTEXT, PROMPTS
from evidence.lib import common


def once(command, environment, timeout) -> float:
    """ms to the first byte."""
    start = time.perf_counter_ns()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    first = os.read(process.stdout.fileno(), 1)
    seen = time.perf_counter_ns()
    _, said = process.communicate(timeout=timeout)
    if process.returncode != 0 or not first.strip(b"\n"):
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}: {said.decode()}")
    return (seen - start) / 1e6


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(PROMPTS), default=["smollm2", "gemma3"])
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--weights", default="native")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two processes")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--python", type=Path, default=common.ROOT / "bindings/python/.venv/bin/python",
                        help="a Python with the package and jax")
    common.add_arguments(parser)


def run(args) -> int:
    if not args.python.exists():
        raise SystemExit(f"{args.python} is missing: make test-python makes it")
    with tempfile.TemporaryDirectory() as folder:
        results = [row for name in args.model for row in measured(args, name, Path(folder))]
    if args.json:
        print(json.dumps(results))
        return 0
    common.machine()
    rows = [["model", "engine", "first token ms", "of another run: import of JAX", "model", "prompt and programs"]]
    for r in results:
        parts = r["parts_ms"]
        told = [f"{parts[key]:.0f}" if key in parts else "" for key in ("jax_ms", "model_ms", "prompt_ms")]
        rows.append([r["model"], r["engine"], common.spread(r["first_token_ms"]), *told])
    common.table(rows)
    return 0


def measured(args, name: str, folder: Path) -> list:
    path = common.model_path(name, args.models)
    common.warm(path)
    # Two tokens: the programs of decoding are made, and kept, as well; the first byte comes before them.
    asked = [path, PROMPTS[name], "--raw", "--temp", 0, "-n", 2, "--ignore-eos", "-c", CONTEXT]
    python = [args.python, "-m", "alight.jax", *asked, "--weights", args.weights]
    run = {"alight run": ([common.alight(args.alight), "run", *asked, "-t", args.threads], None)}
    for tp in args.tp:
        kept = folder / f"{name}-{tp}"
        run[f"jax, tp {tp}, warm"] = ([*python, "--tp", tp], kept)
        run[f"jax, tp {tp}, cold"] = ([*python, "--tp", tp], "new")
        run[f"jax, tp {tp}, no cache"] = ([*python, "--tp", tp, "--no-cache"], None)
    run = {who: ([str(part) for part in command], cache) for who, (command, cache) in run.items()}
    times, parts = {who: [] for who in run}, {who: [] for who in run}

    def go(who: str, json_too: bool = False):
        command, cache = run[who]
        with tempfile.TemporaryDirectory(dir=folder) as new:
            environment = os.environ | ({} if cache is None else {"XDG_CACHE_HOME": str(new if cache == "new" else cache)})
            if not json_too:
                return once(command, environment, args.timeout)
            done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=environment)
            return json.loads(done.stdout)["timings"]

    for who in run:
        if not who.endswith(("cold", "no cache")):
            go(who)  # the programs' own pages, and the cache
    for i in range(args.rounds):
        for who in list(run) if i % 2 == 0 else reversed(list(run)):
            times[who].append(go(who))
            time.sleep(args.pause)
    for who in run:
        parts[who] = {key: value for key, value in go(who, True).items() if isinstance(value, (int, float))}
    return [
        {"model": name, "engine": who, "first_token_ms": common.summary(times[who]), "parts_ms": parts[who]} for who in run
    ]
