"""Whole processes: from the start to the first token of a five-token prompt, and to the end after that one token.

State: warm (the file is in the page cache), a new process every time, nothing resident. The clock starts before the
process is made and stops at the first byte on its standard output (the prompt is not echoed), and again when it
is gone. llama.cpp twice: as it comes, and at its best for this (no warm-up, no repacking, no fitting). Interleaved,
medians and spread.
"""

from evidence.lib import common, peers, process, rounds

# The targets, ms to the first token.
TARGET = {"smollm2": 50, "gemma3": 120, "3b": 250, "7b": 450}


def commands(args, name) -> dict[str, list[str]]:
    path, prompt = common.model_path(name, args.models), peers.PROMPTS[name]
    out = {"alight": peers.alight_run(args, path, prompt, tokens=1)}
    for peer in args.peers:
        out[peer.name] = peers.peer_run(args, peer, path, prompt, tokens=1)
        if peer is peers.LLAMA_CPP:
            out["llama.cpp best"] = [*out[peer.name], "--no-warmup", "--no-repack", "-fit", "off"]
    return out


def measure(args, name) -> dict:
    commands_of = commands(args, name)
    common.warm(common.model_path(name, args.models))
    for command in commands_of.values():
        process.answer(command, args.timeout)  # the programs' own pages
    runs = rounds.interleaved(args, commands_of, lambda who: process.answer(commands_of[who], args.timeout), name)
    told = process.told([*commands_of["alight"], "--json"])  # where ours says its time goes
    return {
        "model": name,
        "threads": args.threads,
        **{key: {who: rounds.by_key(runs[who])[key] for who in runs} for key in ("first_token_ms", "process_ms")},
        "target_ms": TARGET[name],
        "parts_ms": common.numbers(told["timings"]) | {"prompt": told["prompt_tokens"]},
    }


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(peers.PROMPTS), default=["smollm2", "gemma3"])
    rounds.add_arguments(parser, 7, timeout=120)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def run(args) -> None:
    args.peers = peers.present(args)
    results = [measure(args, name) for name in args.model]
    if common.as_json(args, results):
        return
    common.machine()
    rows = [["model", "engine", "first token ms", "whole process ms", "target"]]
    for r in results:
        for who, s in r["first_token_ms"].items():
            target = f"< {r['target_ms']}" if who == "alight" else ""
            rows.append([r["model"], who, common.spread(s), common.spread(r["process_ms"][who]), target])
    common.table(rows)
    for r in results:
        told = ", ".join(f"{k.removesuffix('_ms')} {v:g}" for k, v in r["parts_ms"].items())
        print(f"\n{r['model']}: alight's own account of one run, ms: {told}")
