"""Whether a change costs speed: another commit beside the working tree, in one interleaved run.

    python -m evidence bench before-after --base 98686d2

Decoding and prompts (`alight bench`, in place and packed), the first token of a new process, `alight convert` of a
checkpoint in 8 parts and `alight cp` of a file, both until the result is on the disk, from a cold source. Ratios are ours
over the base's within a round, such that more than 1 is better.

`--at-once` is for machines whose speed changes from second to second: of decoding and prompts, both programs run at the
same time, each with one thread on a core of its own, then with cores exchanged; a round's ratio is the geometric mean.
"""

import json
import os
import shutil
import subprocess

from evidence.lib import cached, commits, common, peers, process, rounds
from evidence.lib.sources import big

CASES = ["decode", "prefill", "start", "convert", "cp"]


def rate(args, program, case, path) -> float:
    """Tokens per second."""
    size = ["-p", 512] if case == "prefill" else ["-n", 128]
    told = process.told([program, "bench", case, path, "--json", *size, "-r", args.inner, "-t", args.threads], args.timeout)
    return told["tokens_per_second"]["median"]


def at_once(args, programs, case, path) -> dict:
    """Tokens per second of both at the same time: the geometric mean over both cores."""
    size = ["-p", 512] if case == "prefill" else ["-n", 128]
    cores = sorted(os.sched_getaffinity(0))[:2]
    rates = {who: 1.0 for who in programs}
    for order in (cores, cores[::-1]):
        running = {}
        for core, (who, program) in zip(order, programs.items(), strict=True):
            line = ["taskset", "-c", core, program, "bench", case, path, "--json", *size, "-r", args.inner, "-t", 1]
            running[who] = subprocess.Popen([str(word) for word in line], stdout=subprocess.PIPE)
        for who, child in running.items():
            told = json.loads(child.communicate(timeout=args.timeout)[0])
            rates[who] *= told["tokens_per_second"]["median"] ** 0.5
    return rates


def first_token(args, program, path) -> float:
    """Per second, of a process that begins anew."""
    line = [program, "run", path, "--raw", peers.PROMPTS["smollm2"], "-n", 1, "--temp", 0, "-t", args.threads]
    return 1000 / process.answer([str(word) for word in line], args.timeout)["first_token_ms"]


def durable(args, line, parts, target) -> float:
    """Bytes per second, from a cold source until the result is on the disk."""
    for part in parts:
        cached.evict(part)
    target.mkdir(parents=True)
    done = cached.to_disk([*line, target / "out"], lambda: [p for p in target.rglob("*") if p.is_file()], None)
    shutil.rmtree(target)
    return sum(part.stat().st_size for part in parts) / done["durable_s"]


def measure(args, programs, what, once) -> dict:
    found = rounds.interleaved(args, programs, lambda who: once(programs[who]), what)
    result = {"case": what, "ratio": rounds.ratios(found["ours"], found["base"])}
    common.say(f"{what}: {common.spread(result['ratio'], 3)}")
    return result | {who: common.summary(values) for who, values in found.items()}


def measure_at_once(args, programs, what, case, path) -> dict:
    found = [at_once(args, programs, case, path) for _ in range(args.rounds)]
    by_program = {who: [rates[who] for rates in found] for who in programs}
    result = {"case": what, "ratio": rounds.ratios(by_program["ours"], by_program["base"])}
    common.say(f"{what}: {common.spread(result['ratio'], 3)}")
    return result | {who: common.summary(values) for who, values in by_program.items()}


def cases(args, programs, work):
    for name in args.model:
        path = common.model_path(name, args.models)
        packed = common.packed_file(programs["base"], name, path, work)
        for file, kind in ((path, "in place"), (packed, "packed")):
            common.warm(file)
            for case in ("decode", "prefill"):
                what = f"{name}, {kind}, {case}, tokens/s"
                if case in args.case and args.at_once:
                    yield measure_at_once(args, programs, what, case, file)
                elif case in args.case:
                    yield measure(args, programs, what, lambda program, c=case, f=file: rate(args, program, c, f))
            if "start" in args.case:
                what = f"{name}, {kind}, first token, 1/s"
                yield measure(args, programs, what, lambda program, f=file: first_token(args, program, f))
    if {"convert", "cp"} & set(args.case):
        source, _ = big.write(work / "source", args.gigabytes)
        parts = sorted(part for part in (work / "source").iterdir() if part.suffix == ".pth")
        if "convert" in args.case:
            line = ["convert", source, "-t", args.threads, "-o"]
            yield measure(args, programs, "convert, bytes/s", lambda program: durable(args, [program, *line], parts, work / "to"))
        if "cp" in args.case:
            yield measure(args, programs, "cp, bytes/s", lambda program: durable(args, [program, "cp", parts[0]], parts[:1], work / "to"))


def add_arguments(parser) -> None:
    parser.add_argument("--base", default="98686d2", help="the commit to compare with (default: %(default)s)")
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["smollm2", "gemma3"])
    parser.add_argument("--inner", type=int, default=1, help="repetitions inside each process (default: %(default)s)")
    parser.add_argument("--at-once", action="store_true", help="both programs at the same time, a core and a thread each")
    parser.add_argument("--gigabytes", type=float, default=2, help="of the source that is converted (default: %(default)s)")
    rounds.add_arguments(parser, 9, timeout=600)
    common.add_arguments(parser)


def run(args) -> None:
    base, ours = commits.both(args.base)
    programs, work = {"base": base / "alight", "ours": ours / "alight"}, common.ROOT / "target" / "before_after"
    shutil.rmtree(work / "to", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    results = list(cases(args, programs, work))
    if common.as_json(args, results):
        return
    common.machine()
    common.table([["case", args.base, "working tree", "ratio"]] + [
        [r["case"], common.spread(r["base"]), common.spread(r["ours"]), common.spread(r["ratio"], 3)] for r in results])
