"""A fresh process to its first token with the JAX engine: nothing compiled before, everything kept, beside `alight run`.

State: warm (the file is in the page cache), a new process every time. `cold` has an empty folder for compiled programs,
`warm` one that a run before has filled; `no cache` keeps nothing. The clock starts before the process is made, and stops at
the first byte on its standard output. Interleaved, medians and spread. The package has to be installed where --python is:
`make test-python` does that, with a debug build; `make python` makes the wheel that others get.
"""

import os
import tempfile
from pathlib import Path

from evidence.lib import common, peers, process, rounds


def measured(args, name: str, folder: Path) -> list:
    path = common.model_path(name, args.models)
    common.warm(path)
    # Two tokens: the programs of decoding are made, and kept, as well; the first byte comes before them.
    asked = [path, peers.PROMPTS[name], "--raw", "--temp", 0, "-n", 2, "--ignore-eos", "-c", 2048]
    native = [common.alight(args.alight), "run", *asked]
    jax = [*native, "--engine", "jax", "--weights", args.weights]
    # The command, and the folder of its compiled programs.
    run = {"alight run": ([*native, "-t", args.threads], None)}
    for tp in args.tp:
        run[f"jax, tp {tp}, warm"] = ([*jax, "--tp", tp], folder / f"{name}-{tp}")
        run[f"jax, tp {tp}, cold"] = ([*jax, "--tp", tp], "new")
        run[f"jax, tp {tp}, no cache"] = ([*jax, "--tp", tp, "--no-cache"], None)

    def go(who: str, told: bool = False):
        command, cache = run[who]
        with tempfile.TemporaryDirectory(dir=folder) as new:
            environment = os.environ | {"ALIGHT_PYTHON": str(args.python)}
            if cache is not None:
                environment["XDG_CACHE_HOME"] = str(new if cache == "new" else cache)
            if told:
                return common.numbers(process.told([*command, "--json"], env=environment)["timings"])
            return process.answer(peers.words(*command), args.timeout, environment)["first_token_ms"]

    for who in run:
        if not who.endswith(("cold", "no cache")):
            go(who)  # the programs' own pages, and the cache
    times = rounds.interleaved(args, run, go, name)
    return [{"model": name, "engine": who, "first_token_ms": common.summary(times[who]), "parts_ms": go(who, True)} for who in run]


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(peers.PROMPTS), default=["smollm2", "gemma3"])
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--weights", default="native")
    parser.add_argument("--python", type=Path, default=common.ROOT / "bindings/python/.venv/bin/python",
                        help="a Python with the package and jax")
    rounds.add_arguments(parser, 7)
    common.add_arguments(parser)


def run(args) -> None:
    if not args.python.exists():
        raise SystemExit(f"{args.python} is missing: make test-python makes it")
    with tempfile.TemporaryDirectory() as folder:
        results = [row for name in args.model for row in measured(args, name, Path(folder))]
    if common.as_json(args, results):
        return
    common.machine()
    rows = [["model", "engine", "first token ms", "of another run: import of JAX", "model", "prompt and programs"]]
    for r in results:
        parts = r["parts_ms"]
        told = [f"{parts[key]:.0f}" if key in parts else "" for key in ("jax_ms", "model_ms", "prompt_ms")]
        rows.append([r["model"], r["engine"], common.spread(r["first_token_ms"]), *told])
    common.table(rows)
