"""What two processes on one model cost in memory, and whether a context is paid for before it is used.

Each process answers until it has written some bytes, is stopped (SIGSTOP) and read:
  /proc/PID/smaps_rollup   Rss, Pss (shared pages counted in parts) and the anonymous part
  /proc/PID/smaps          the pages of the model file apart from the rest
Three questions, each with a limit that makes the exit status 1:
  1. two processes share the weights: the sum of their Pss on the model file is at most 1.02 of its size;
  2. the context is not paid for before it is used: anonymous memory after a short answer with -c 4096
     is at most 4 MiB above that with -c 256;
  3. the cache is paid for as it is used: after a prompt of ~1000 tokens, anonymous memory has grown by at most
     1.5 times the bytes that the K and V of those tokens take in f16, and 8 MiB (buffers for a batch).
llama.cpp beside it, where it is built.
"""

from evidence.lib import common, peers, process
from evidence.lib.process import Answering

SHORT = "Once upon a time, in a village at the foot of a mountain,"
WORDS = 700  # of the long prompt


def long_prompt() -> str:
    names = ["harbour", "library", "bridge", "market", "mill", "tower", "garden", "station"]
    return " ".join(f"{i} the {names[i % 8]} of the town" for i in range(WORDS // 5)) + ". In short,"


def kv_bytes_per_token(path) -> int:
    """f16 K and V of all layers, from the file's metadata."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    arch = reader.get_field("general.architecture").contents()

    def number(key, default=None):
        field = reader.get_field(f"{arch}.{key}")
        return default if field is None else field.contents()

    heads = number("attention.head_count")
    head = number("embedding_length") // heads
    kv = number("attention.head_count_kv", heads)
    both = number("attention.key_length", head) + number("attention.value_length", head)
    return number("block_count") * kv * both * 2


def measure(args, name, who) -> dict:
    path = common.model_path(name, args.models).resolve()
    common.warm(path)

    def started(context, prompt) -> Answering:
        if who == "alight":
            command = peers.alight_run(args, path, prompt, context=context)
        else:
            # One thread: this measures memory, and with more it hardly moves while anything else runs.
            command = peers.peer_run(args, who, path, prompt, "-t", 1, context=context)
        return Answering(command, args.bytes, args.timeout)

    def one(context, prompt) -> dict:
        with started(context, prompt) as process:
            return process.memory(path)

    with started(4096, SHORT) as first:
        alone = first.memory(path)
        with started(4096, SHORT) as second:
            pair = [first.memory(path), second.memory(path)]
    return {"model": name, "engine": getattr(who, "name", who), "file_mib": path.stat().st_size / process.MIB, "alone": alone,
            "pair": pair, "context_256": one(256, SHORT), "prompt_long": one(4096, long_prompt())}


def asked(args, r) -> list[str]:
    """What of the three questions is not so, of a result of ours."""
    name, path, failed = r["model"], common.model_path(r["model"], args.models), []
    shared = sum(p["model_pss"] for p in r["pair"])
    if shared > 1.02 * r["file_mib"]:
        failed.append(f"{name}: two processes hold {shared:.1f} MiB of a file of {r['file_mib']:.1f}")
    early = r["alone"]["anonymous"] - r["context_256"]["anonymous"]
    if early > 4:
        failed.append(f"{name}: -c 4096 costs {early:.1f} MiB more than -c 256 before it is used")
    r["long_tokens"] = process.told([*peers.alight_run(args, path, long_prompt(), tokens=1, context=4096), "--json"])["prompt_tokens"]
    r["kv_mib"] = kv_bytes_per_token(path) * r["long_tokens"] / process.MIB
    grown = r["prompt_long"]["anonymous"] - r["alone"]["anonymous"]
    if grown > 1.5 * r["kv_mib"] + 8:
        failed.append(f"{name}: {r['long_tokens']} tokens cost {grown:.1f} MiB, their cache is {r['kv_mib']:.1f}")
    return failed


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", choices=list(common.MODELS), default=["smollm2", "gemma3"])
    parser.add_argument("--bytes", type=int, default=40, help="of the answer before a process is stopped")
    parser.add_argument("--timeout", type=float, default=120)
    common.add_arguments(parser)
    peers.add_arguments(parser)


def run(args) -> int:
    engines = ["alight", *peers.present(args)]
    results = [measure(args, name, who) for name in args.model for who in engines]
    failed = [line for r in results if r["engine"] == "alight" for line in asked(args, r)]
    for line in failed:
        common.say(line)
    if common.as_json(args, results):
        return int(bool(failed))
    rows = [["model", "engine", "file MiB", "anonymous, -c 4096", "-c 256", f"after ~{WORDS} words", "their f16 cache",
             "model file, Rss", "Pss of two", "process Pss of two"]]
    for r in results:
        rows.append([
            r["model"], r["engine"], f"{r['file_mib']:.1f}", f"{r['alone']['anonymous']:.1f}",
            f"{r['context_256']['anonymous']:.1f}", f"{r['prompt_long']['anonymous']:.1f}",
            f"{r['kv_mib']:.1f}" if "kv_mib" in r else "", f"{r['alone']['model_rss']:.1f}",
            " + ".join(f"{p['model_pss']:.1f}" for p in r["pair"]), " + ".join(f"{p['pss']:.1f}" for p in r["pair"]),
        ])
    common.table(rows)
    return int(bool(failed))
