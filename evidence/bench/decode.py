"""Tokens per second beside llama.cpp, in one interleaved run.

Cases: tg128 (128 tokens, one by one), pp512 (a prompt of 512 tokens; also pp128 and pp16), tg32@4096 (32 tokens after 4096 others;
llama.cpp with flash attention auto, on and off, so that its best is known), tg32x8 (32 tokens of each of 8 sequences, computed together
after prompts of 16: the example `sequences`, and llama-batched-bench). In every round each engine runs once,
in its own process, one right after the other; the ratio is taken within the round, where both met the same
machine, and the median over the rounds is reported with its spread. With `--packed-in FOLDER` the same weights in a packed
file (FOLDER/MODEL.packed.gguf, made by `alight pack` if it is not there) run as one more engine.

`--record SET` puts the figures into evidence/results/speed.jsonl, from which the tables of the documentation are made (`make tables`).

`llama-bench` and `alight bench` both warm up and time the computation alone, without loading. A case at depth takes
minutes on the large models (their prompt of 4096 has to be computed first): choose it with --case.
"""

import re
import shlex
import statistics
import sys
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

from evidence.lib import common, peers, process, results, rounds


@dataclass(frozen=True)
class Case:
    """What is measured: tokens of a prompt, or tokens that are generated after `depth` others, by one sequence or several at once."""

    prompt: int = 0
    generate: int = 0
    depth: int = 0
    sequences: int = 1
    usual: bool = True
    """Whether it is measured where no case is asked for."""
    variants: dict = field(default_factory=lambda: {"default": []})
    """llama.cpp's."""


CASES = {
    "tg128": Case(generate=128),
    "pp512": Case(prompt=512),
    "tg32@4096": Case(generate=32, depth=4096, variants={"default": ["-fa", "auto"], "fa on": ["-fa", "on"], "fa off": ["-fa", "off"]}),
    "tg32": Case(generate=32, usual=False),
    "pp128": Case(prompt=128, usual=False),
    "pp16": Case(prompt=16, usual=False),
    "tg32x8": Case(prompt=16, generate=32, sequences=8, usual=False),
}
# Where a case is not asked for by name, the depth is measured on the models where it takes seconds.
SMALL = {"smollm2", "gemma3"}
# Names of models and of cases in the results.
NAMES = {"smollm2": "SmolLM2 135M Q4_1", "gemma3": "Gemma 3 270M Q4_K_M", "3b": "random 3B Q4_0", "7b": "random 7B Q4_0"}
RECORDED = {"tg32@4096": "tg32 at depth 4096", "tg32x8": "tg32 of 8 sequences"}
# Of what `alight bench` says of itself.
ACCOUNT = ("isa", "work", "bytes_per_second", "macs_per_second", "limits", "share_of_read_bandwidth", "share_of_int8_peak")


def ours(args, path, case: Case, last: dict, engine: str) -> float:
    if case.sequences > 1:
        command = [common.example("sequences"), path, "-t", args.threads, "-n", case.generate, "-r", args.inner, case.sequences]
        last[engine] = {}
        return float(re.search(r"sequences: +([\d.]+) t/s", process.output(command, args.timeout)).group(1))
    command = [common.alight(args.alight), "bench", "prefill" if case.prompt else "decode", path, "--json",
               "-p" if case.prompt else "-n", case.prompt or case.generate, "-r", args.inner, "-t", args.threads, *(["-d", case.depth] if case.depth else [])]
    last[engine] = process.told(command, args.timeout)
    return last[engine]["tokens_per_second"]["median"]


def theirs(args, peer, path, case: Case, extra, versions: dict) -> float:
    if case.sequences > 1:
        return statistics.median(together(args, peer, path, case, extra) for _ in range(args.inner))
    if peer is peers.LLAMA_CPP:
        what = ["-p", case.prompt, "-n", case.generate, "-d", case.depth]
    else:
        what = ["-p", 0, "-n", 0, "-gp", f"{case.depth},{case.generate}"] if case.depth else ["-p", case.prompt, "-n", case.generate]
    [result] = process.told([peer.tool(args, "llama-bench"), "-m", path, *what, "-r", args.inner, "-t", args.threads, "-o", "json",
                             *extra], args.timeout)
    versions[peer.name] = result.get("build_commit") or "not recorded"
    return statistics.median(result["samples_ts"])


def together(args, peer, path, case: Case, extra) -> float:
    """A peer's tokens per second of sequences that are computed together."""
    context = case.sequences * (case.prompt + case.generate)
    # There -rtr is a switch.
    switches = [word for word in extra if word == "-rtr"]
    # A log is written into the current folder.
    done = process.run([peer.tool(args, "llama-batched-bench"), "-m", path.resolve(), "-c", context, "-npp", case.prompt, "-ntg", case.generate,
                        "-npl", case.sequences, "-t", args.threads, *switches], args.timeout, cwd=common.TARGET)
    rows = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if re.match(r"\| *\d", line)]
    if len(rows) != 1:
        raise SystemExit(f"{' '.join(done.args)}: exit status {done.returncode}, and no row of a table\n{done.stderr[-4000:]}")
    return float(rows[0].split("|")[8])


def measure(args, name, case) -> dict:
    path, last, versions, asked = common.model_path(name, args.models), {}, {}, CASES[case]
    files = {"alight": path}
    if args.packed_in and (packed := common.packed_file(common.alight(args.alight), name, path, args.packed_in)):
        files["packed"] = packed
    variants, others = {}, {}
    for peer in args.peers:
        if peer is peers.LLAMA_CPP:
            variants = {what: partial(theirs, args, peer, path, asked, extra, versions) for what, extra in asked.variants.items()}
        else:
            # It repacks only if it is asked to, and either way may be the faster one.
            others[peer.name] = partial(theirs, args, peer, path, asked, [], versions)
            others[f"{peer.name} -rtr 1"] = partial(theirs, args, peer, path, asked, ["-rtr", 1], versions)
    engines = {engine: partial(ours, args, file, asked, last, engine) for engine, file in files.items()} | variants | others
    rates = rounds.interleaved(args, engines, lambda who: engines[who](), f"{name} {case}")
    best = [max(each) for each in zip(*(rates[who] for who in variants))]
    return {
        "model": name,
        "case": case,
        "threads": args.threads,
        "rates": {who: common.summary(values) for who, values in rates.items()},
        "ratio_to_default": {who: rounds.ratios(rates[who], rates["default"]) for who in files if "default" in rates},
        "ratio_to_best": {who: rounds.ratios(rates[who], best) for who in files if best},
        "ratio_to_others": {other: {who: rounds.ratios(rates[who], rates[other]) for who in files} for other in others},
        "last": {engine: {key: run.get(key) for key in ACCOUNT} for engine, run in last.items()},
        "versions": versions,
    }


def line(r: dict, into: str, commit: str, command: str) -> dict:
    """The line of the results for a case that was measured."""
    def figure(found: dict, unit: str, digits: int) -> dict:
        return {"values": [round(found["median"], digits)], "least": round(found["min"], digits), "most": round(found["max"], digits), "unit": unit}

    ours = {"packed": "alight, packed", "alight": "alight, GGUF"}
    figures = {name: figure(r["rates"][who], "tokens/s", 1) for who, name in ours.items() if who in r["rates"]}
    theirs = [rate for who, rate in r["rates"].items() if who not in ours and who not in r["ratio_to_others"]]
    if theirs:
        figures["llama.cpp"] = figure(max(theirs, key=lambda rate: rate["median"]), "tokens/s", 1)
    others = list(r["ratio_to_others"])
    if others:
        runs = [r["rates"][other] for other in others]
        figures["ik_llama.cpp"] = {"values": [round(run["median"], 1) for run in runs], "of": ["-rtr 0", "-rtr 1"][: len(runs)],
                                   "least": round(min(run["min"] for run in runs), 1), "most": round(max(run["max"] for run in runs), 1), "unit": "tokens/s"}
        best = max(others, key=lambda other: r["rates"][other]["median"])
    for who, name in (("packed", "packed"), ("alight", "GGUF")):
        if who in r["ratio_to_best"]:
            figures[f"{name} / llama.cpp"] = figure(r["ratio_to_best"][who], "times", 2)
        if others and who in r["ratio_to_others"][best]:
            figures[f"{name} / ik_llama.cpp"] = figure(r["ratio_to_others"][best][who], "times", 2)
    for who, name in (("packed", "packed"), ("alight", "GGUF")):
        share = r["last"].get(who, {}).get("share_of_int8_peak" if r["case"].startswith("pp") else "share_of_read_bandwidth")
        if share is not None:
            figures[f"{name}, share of the limit"] = {"values": [round(100 * share)], "unit": "%"}
    turns = r["rates"]["alight"]["n"]
    return {"set": into, "case": f"{NAMES[r['model']]}, {RECORDED.get(r['case'], r['case'])}", "date": date.today().isoformat(), "commit": commit,
            "machine": common.machine_name(), "command": command, **({"peers": r["versions"]} if r["versions"] else {}),
            "note": f"{turns} round{'s' * (turns != 1)}, {r['threads']} threads", "figures": figures, "source": "evidence/bench/decode.py"}


def selftest() -> list[str]:
    """A line that is recorded is one that `make tables` takes, and it replaces the one before."""
    rate = {who: common.summary([value, value + 1.0, value + 3.0]) for who, value in (
        ("alight", 10.0), ("packed", 20.0), ("default", 5.0), ("ik_llama.cpp", 6.0), ("ik_llama.cpp -rtr 1", 8.0))}
    measured = {"model": "3b", "case": "tg128", "threads": 2, "rates": rate, "ratio_to_best": {who: rounds.ratios(rate[who]["values"], rate["default"]["values"]) for who in ("alight", "packed")},
                "ratio_to_others": {other: {who: rounds.ratios(rate[who]["values"], rate[other]["values"]) for who in ("alight", "packed")} for other in ("ik_llama.cpp", "ik_llama.cpp -rtr 1")},
                "last": {"packed": {"share_of_read_bandwidth": 0.8}}, "versions": {"llama.cpp": "abc", "ik_llama.cpp": "def"}}
    made = line(measured, "zen4", "0123456789", "a command")
    out = [wrong for wrong in (results.wrong_shape(made), results.untraceable(made)) if wrong]
    if made["figures"]["packed / ik_llama.cpp"]["values"] != [2.33] or made["figures"]["packed, share of the limit"]["values"] != [80]:
        out.append(f"the ratio to the better way of a peer, or the share of the limit: {made['figures']}")
    other = made | {"case": "another"}
    once = results.kept([], [other, made])
    if results.kept(once, [made | {"note": "new"}, made | {"set": "b"}, made | {"case": "third"}]) != results.kept(
            [], [other, made | {"note": "new"}, made | {"case": "third"}, made | {"set": "b"}]):
        out.append("a new line is not in the place of the one before, or not after its set")
    return out


def rows_of(r: dict):
    variants = [rate for who, rate in r["rates"].items() if who not in r["last"] and who not in r["ratio_to_others"]]
    best = max(variants, key=lambda s: s["median"], default=None)
    key, kind = ("share_of_int8_peak", "of int8 peak") if r["case"].startswith("pp") else ("share_of_read_bandwidth", "of bandwidth")
    for engine, last in r["last"].items():
        ratio, to_best, share = r["ratio_to_default"].get(engine), r["ratio_to_best"].get(engine), last.get(key)
        yield [
            r["model"], r["case"], "packed" if engine == "packed" else "GGUF", common.spread(r["rates"][engine]),
            common.spread(r["rates"].get("default")), common.spread(best), common.spread(ratio, 2), common.spread(to_best, 2),
            f"{100 * share:.0f} % {kind}" if share is not None else "-",
            *(f"{common.spread(r['rates'][other])}, {common.spread(of[engine], 2)}" for other, of in r["ratio_to_others"].items()),
        ]


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["smollm2", "gemma3"])
    parser.add_argument("--case", nargs="+", choices=list(CASES), help="default: tg128, pp512, and on the small models tg32@4096")
    parser.add_argument("--inner", type=int, default=1, help="repetitions inside each process")
    parser.add_argument("--record", metavar="SET", help="put the figures into evidence/results/speed.jsonl as lines of this set")
    parser.add_argument("--packed-in", type=Path, metavar="FOLDER", help="also with packed files, kept in FOLDER")
    rounds.add_arguments(parser, 5, pause=0.2, timeout=1200)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def run(args) -> None:
    commit = results.measured_commit() if args.record else ""
    args.peers = peers.present(args, "llama-bench")
    found = [measure(args, name, case) for name in args.model
               for case in args.case or [c for c in CASES if CASES[c].usual and (name in SMALL or not CASES[c].depth)]]
    if args.record:
        results.record("speed", [line(one, args.record, commit, f"python -m evidence {shlex.join(sys.argv[1:])}") for one in found])
    if common.as_json(args, found):
        return
    common.machine()
    rows = [["model", "case", "file", "alight t/s", "llama.cpp t/s", "its best t/s", "ratio", "to its best", "limit",
             *(f"{other} t/s, ratio" for other in found[0]["ratio_to_others"])]]
    common.table(rows + [row for result in found for row in rows_of(result)])
