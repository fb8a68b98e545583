"""Prompts that ask for what belongs between two texts, beside llama-server's `/infill`.

The real SmolLM2 gets keys in its metadata that make tokens of its vocabulary stand around a gap: the three that are needed, and with
two more for names. For every case llama-server tells the text of its prompt and the number of its tokens; ours
(`crates/text/examples/tokenize.rs --infill`) have to be the same, and `alight serve` has to count the same where nothing is left out.

    python -m evidence agree infill
"""

import json
import tempfile
from pathlib import Path

from evidence.bench.server import Server
from evidence.lib import common, gguf_files, peers
from evidence.lib.lazy import lazily

gguf = lazily("gguf")

CONTEXT, BATCH, ANSWER = 8192, 2048, 64
NEEDED = {"fim_pre": "<gh_stars>", "fim_suf": "<issue_start>", "fim_mid": "<issue_comment>"}
NAMES = {"fim_rep": "<repo_name>", "fim_sep": "<file_sep>"}
CODE = "def add(a, b):\n    return a + b\n\n"
WORDS = "Täglich grüßt 42 mal das Murmeltier: 今日は 🎉\n"
FILES = [("a/b.py", CODE), ("ä.md", WORDS)]
# The text before the gap, its line, the text behind it, other files.
CASES = [
    (CODE + "print(", "", ")\n", []),
    (CODE, "    x = add(", "1, 2)\n" + CODE, []),
    ("", "", "", []),
    ("", "x", "", FILES),
    (WORDS, " ", WORDS, FILES),
    # llama-server lets names of special tokens in the line be special, which it does not in the other texts.
    ("<|im_start|> is <issue_start> text", " x", "<issue_comment>", [("<file_sep>", "<repo_name>")]),
    (CODE * 400, "    y = ", CODE * 300, FILES),
    (WORDS * 300, "", WORDS * 300, [("long.py", CODE * 900), *FILES]),
]


def with_keys(source: Path, target: Path, names: dict[str, str]) -> Path:
    """A copy of a model whose metadata says which tokens stand around a gap."""
    reader = gguf.GGUFReader(source)
    texts = reader.fields["tokenizer.ggml.tokens"].contents()
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents(), use_temp_file=False)
    gguf_files.copy_keys(reader, writer, lambda name: name != "general.architecture")
    for key, text in names.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", texts.index(text))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    gguf_files.finish(writer)
    return target


def body(case) -> dict:
    before, line, after, files = case
    return {"input_prefix": before, "prompt": line, "input_suffix": after, "n_predict": 1, "temperature": 0,
            "input_extra": [{"filename": name, "text": text} for name, text in files]}


def ask(server: Server, case) -> dict:
    with server.post("/infill", body(case)) as response:
        answer = json.load(response)
    if "tokens_evaluated" not in answer:
        raise SystemExit(f"{server.command[0]}: {answer}")
    return answer


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    peers.add_arguments(parser)


def run(args) -> int:
    program = common.example("tokenize")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind, names in (("three tokens", NEEDED), ("names, too", NEEDED | NAMES)):
            model = with_keys(common.model_path("smollm2", common.models_folder()), Path(folder) / f"{len(names)}.gguf", names)
            # llama-server gives other files what its context has beside a batch and two answers, however little of the batch is used.
            most = CONTEXT - 2 * ANSWER + 1
            asked = [{"before": before, "line": line, "after": after, "files": files, "around": BATCH, "all": most}
                     for before, line, after, files in CASES]
            ours = common.answers(program, asked, model, "--infill")
            theirs = peers.words(peers.LLAMA_CPP.tool(args, "llama-server"), "-m", model, "-c", CONTEXT, "-b", BATCH, "-n", ANSWER,
                                 "-np", 1, "-t", args.threads)
            with Server(theirs, 120) as server:
                server.wait()
                theirs = [ask(server, case) for case in CASES]
            served = peers.words(common.alight(args.alight), "serve", model, "--no-cache", "-c", CONTEXT, "-t", args.threads)
            with Server(served, 120) as server:
                server.wait()
                served = [ask(server, case) for case in CASES]
            for case, own, other, answer in zip(CASES, ours, theirs, served, strict=True):
                # What is left out follows from the context and the answer, each in its own way.
                whole = other["tokens_evaluated"] < CONTEXT - BATCH
                agrees = (own["text"] == other["prompt"] and own["tokens"] == other["tokens_evaluated"]
                          and (answer["tokens_evaluated"] == own["tokens"] or not whole))
                wrong += not agrees
                if not agrees:
                    print(f"{kind}, {body(case)!r:.80}: {own['tokens']} and {answer['tokens_evaluated']} tokens, "
                          f"llama.cpp {other['tokens_evaluated']}: {gguf_files.difference(list(own['text']), list(other['prompt']))}")
    print(f"{2 * len(CASES) - wrong} of {2 * len(CASES)} prompts are llama-server's")
    return 1 if wrong else 0
