"""Which experts random models with the routing of real ones choose, beside what was intended and what was published of those.

    python -m evidence check routing                                       two small models, some seconds: skewed and flat
    python -m evidence check routing --model FILE --routing qwen3 -n 64    one that `make random-model … --routing qwen3` has made

`alight bench experts` lets the model write a text, records which experts it chooses, and says what share of the choices would have
been in memory with room for a part of all experts, if the least recently used one goes. Three numbers stand side by side: of the model;
of choices that are drawn by the profile, without a model, with as many layers and experts ("intended"); and what was published of the
model that the profile is fitted to, which has more experts than the small ones here. How often an expert is chosen again within so many
tokens is what the slow part of a router decides.

What is asked: a model's hits are those intended, and those of the other profile are not; and llama.cpp, which runs the same file, begins
with the same words. (That both engines choose the same experts is shown by `agree architectures`.)
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from evidence.lib import common, process, routing
from evidence.lib.checks import Checks
from evidence.lib.llama import Llama

SMALL = ("qwen3", "flat")
# Routers that are drawn, of which the mean counts; their static parts differ.
DRAWN = 4
# Percentage points that hits may be away from those intended, at most and on average; and a profile's from the other's.
AWAY, AWAY_MEAN, APART = 8.0, 4.0, 12.0
# Percentage points for choices that come again.
AWAY_AGAIN = 4.0
WITHIN = (1, 8)
# Tokens that both engines begin with, of those that are compared: later two may be as likely.
SAME, COMPARED = 4, 16
PROMPT = "bat wars sale bat sun"


def visits(trace: str) -> tuple[int, int, int, list[list[frozenset]]]:
    """Layers, experts of each, how many a token chooses, and by layer what each token has chosen."""
    _, sizes, *lines = trace.splitlines()
    sizes = [int(size) for size in sizes.split()]
    chosen: list[list[frozenset]] = [[] for _ in sizes]
    for line in lines:
        layer, *experts = map(int, line.split())
        chosen[layer].append(frozenset(experts))
    return len(sizes), sizes[0], len(chosen[0][0]), chosen


def again(trace: str) -> list[float]:
    """The percentage of choices that come again within so many tokens, for `WITHIN`."""
    *_, chosen = visits(trace)
    out = []
    for within in WITHIN:
        pairs = [(one, frozenset().union(*layer[i + 1:i + 1 + within])) for layer in chosen for i, one in enumerate(layer[:-within])]
        out.append(100 * sum(len(one & later) for one, later in pairs) / sum(len(one) for one, _ in pairs))
    return out


def replayed(program: Path, trace: Path) -> dict[int, float]:
    """With room for so many percent of the experts, the percentage of the chosen ones that is there, by last use."""
    rows = map(json.loads, process.output([program, "bench", "experts", "--replay", trace, "--json"]).splitlines())
    return {round(100 * row["room"] / row["experts"]): 100 * row["least_recent"] for row in rows}


def drawn(program: Path, profile: routing.Profile, like: str, folder: Path) -> tuple[dict[int, float], list[float]]:
    """Hits and choices that come again, of routers that are drawn, with the sizes of a trace."""
    layers, experts, used, chosen = visits(like)
    curves, agains = [], []
    for seed in range(DRAWN):
        text = routing.trace(profile, layers, experts, used, len(chosen[0]), seed)
        path = folder / "drawn.trace"
        path.write_text(text)
        curves.append(replayed(program, path))
        agains.append(again(text))
    return {room: sum(curve[room] for curve in curves) / DRAWN for room in curves[0]}, [sum(values) / DRAWN for values in zip(*agains)]


def recorded(args, program: Path, model: Path, folder: Path) -> tuple[dict[int, float], str]:
    """Hits of a model's own choices, and the choices."""
    path = folder / "model.trace"
    path.unlink(missing_ok=True)
    process.output([program, "bench", "experts", model, "--memory", args.memory, "-n", args.tokens, "-t", args.threads, "--trace-experts",
                    path])
    return replayed(program, path), path.read_text()


def same_words(args, program: Path, model: Path) -> int:
    """How many tokens llama.cpp and we begin with alike."""
    ours = process.told([program, "run", model, "--raw", "--temp", 0, "-n", COMPARED, "--ignore-eos", "-t", args.threads, "--json",
                         PROMPT])["tokens"]
    with Llama(model) as llama:
        theirs = llama.tokens(PROMPT, COMPARED)
    return next((i for i, (one, other) in enumerate(zip(ours, theirs)) if one != other), COMPARED)


def look(args, checks: Checks, program: Path, model: Path, name: str, folder: Path) -> dict:
    profile = routing.PROFILES[name]
    measured, trace = recorded(args, program, model, folder)
    intended, agains = drawn(program, profile, trace, folder)
    far = {room: abs(measured[room] - intended[room]) for room in measured}
    mean = sum(far.values()) / len(far)
    checks.add(max(far.values()) <= AWAY and mean <= AWAY_MEAN,
               f"{name}: hits are {mean:.1f} points away from those intended, at most {max(far.values()):.1f} ({AWAY_MEAN:g} and {AWAY:g} are allowed)")
    off = max(abs(a - b) for a, b in zip(again(trace), agains))
    checks.add(off <= AWAY_AGAIN, f"{name}: choices that come again are {off:.1f} points away from those intended ({AWAY_AGAIN:g} are allowed)")
    others = [other for other in SMALL if other != name]
    for other in others:
        theirs, _ = drawn(program, routing.PROFILES[other], trace, folder)
        apart = max(abs(measured[room] - theirs[room]) for room in measured)
        checks.add(apart >= APART, f"{name}: hits are {apart:.1f} points away from those of {other} ({APART:g} are asked)")
    layers, experts, used, _ = visits(trace)
    return {"routing": name, "model": str(model), "layers": layers, "experts": experts, "used": used, "measured": measured, "intended": intended,
            "published": profile.published, "of": profile.of, "again": dict(zip(WITHIN, again(trace))), "again_intended": dict(zip(WITHIN, agains)),
            "again_published": profile.again}


def show(found: dict) -> None:
    print(f"\n{found['routing']}: {found['layers']} layers, top {found['used']} of {found['experts']}; published of {found['of']}\n")
    rooms = sorted({*found["measured"], *found["published"]})

    def cells(of: int, *parts: str) -> list[str]:
        return [f"{found[part][of]:.0f} %" if of in found[part] else "-" for part in parts]

    common.table([["", "measured", "intended", "published"],
                  *([f"room for {room} %", *cells(room, "measured", "intended", "published")] for room in rooms),
                  *([f"again within {within}", *cells(within, "again", "again_intended", "again_published")] for within in WITHIN)])


def add_arguments(parser) -> None:
    parser.add_argument("--model", type=Path, metavar="FILE", help="this one, in place of two small ones that are made")
    parser.add_argument("--routing", choices=list(routing.PROFILES), help="what it was made with")
    parser.add_argument("-n", "--tokens", type=int, default=256, help="of the text, half of it (default: %(default)s)")
    parser.add_argument("--memory", default="64G", help="that the model may take (default: %(default)s)")
    common.add_arguments(parser)


def run(args) -> int:
    program, checks, results = common.alight(args.alight), Checks(), []
    if bool(args.model) != bool(args.routing):
        raise SystemExit("--model and --routing go together")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        models = {args.routing: args.model} if args.model else {name: folder / f"{name}.gguf" for name in SMALL}
        for name, model in models.items():
            if not args.model:
                maker = [sys.executable, "-m", "evidence", "make", "random-model", "tiny-moe", model, "--routing", name]
                process.output(maker, cwd=common.ROOT)
            results.append(look(args, checks, program, model, name, folder))
            if not args.model:
                same = same_words(args, program, model)
                checks.add(same >= SAME, f"{name}: llama.cpp begins with the same {same} tokens ({SAME} are asked)")
    if not common.as_json(args, results):
        for found in results:
            show(found)
    return checks.status()
