"""Real tokenizers, converted by `alight convert` with a tiny model around them, against those who know them.

Each case is a folder as a publisher would ship it: the files of a tokenizer that nobody here made
(`fetch models tokenizers` gets them), a config.json, and weights of one layer, all zero. The folder is converted, and then

- tokens, scores, types and ids are compared with what the package `sentencepiece` says of the same tokenizer.model;
- our tokenizer encodes tests/data/tokenizer_strings.json from the new file, and Hugging Face's `tokenizers`,
  `sentencepiece` or `tiktoken` do from the original: ids have to be the same, but for differences with a known reason;
- llama.cpp (the package `xllamacpp`, if it is there) loads the new file and encodes the same texts: every id has to be
  the same;
- with --llama-cpp, llama.cpp's own convert_hf_to_gguf.py makes its keys of the same folder, and all keys of the
  tokenizer are compared, but for differences with a known reason.

    python -m evidence agree tokenizers                          what is there; says what is missing
    python -m evidence agree tokenizers llama3 --llama-cpp DIR   one case, and llama.cpp's converter in DIR (needs torch and
                                                         transformers; --python says which Python has them)
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from evidence.agree import tokens
from evidence.lib import gguf_files, networks
from evidence.lib.common import ROOT, alight, models_folder, say
from evidence.lib.lazy import lazily
from evidence.lib.llama import token_ids
from evidence.lib.sources import hf, model

np = lazily("numpy")

FOLDER = models_folder() / "tokenizers"

# Name: (folder of the originals, architecture, rows of the embedding, how the original is asked).
CASES = {
    "llama2": ("llama2", "llama", 32000, "huggingface"),
    "llama3": ("llama3", "llama", 128256, "huggingface"),
    "llama3-meta": ("llama3-meta", "llama", 128256, "tiktoken"),
    "qwen3": ("qwen3", "qwen3", 151936, "huggingface"),
    "deepseek-v3": ("deepseek-v3", "llama", 129280, "huggingface"),
    "gemma3": ("gemma3", "gemma3", 262144, "huggingface"),
    "mistral-v1": ("mistral-v1", "llama", 32000, "sentencepiece"),
    "mistral-v3": ("mistral-v3", "llama", 32768, "sentencepiece"),
    "mistral-v7": ("mistral-v7", "llama", 32768, "sentencepiece"),
}


# --- a model around a tokenizer ----------------------------------------------------------------

def make_folder(source: Path, to: Path, arch: str, rows: int) -> None:
    """The files of a tokenizer, and a model of one layer around it whose weights are all zero."""
    shutil.rmtree(to, ignore_errors=True)
    m = model.Model(name=to.name, arch=arch, n_vocab=rows, n_embd=32, n_ff=32, n_head=2, n_kv=2, head_dim=16, n_layer=1, eps=1e-5,
                    rope_base=10000.0, context=512, window=512, vocab=model.Vocab("", [], []), tensors={})
    shapes = networks.shapes(arch, layers=1, embd=32, ff=32, heads=2, kv_heads=2, head_dim=16, vocab=rows, tied=True,
                             qk_norm=arch in ("qwen3", "gemma3"))
    m.tensors.update({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    hf.write(to, m, "F16", tokenizer=False)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    for file in source.iterdir():
        os.link(file, to / file.name) if same_disk(file, to) else shutil.copy(file, to)


def same_disk(a: Path, b: Path) -> bool:
    return a.stat().st_dev == b.stat().st_dev


# --- keys of a file ------------------------------------------------------------------------------

def keys_of(path: Path) -> dict:
    import gguf

    fields = gguf.GGUFReader(path).fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}


# Why llama.cpp's converter may have another value: (key, does it apply?, reason).
def control(base, theirs, mine):
    return all(a == b or (a, b) == (1, 4) for a, b in zip(theirs, mine))


KNOWN_KEYS = [
    ("tokenizer.ggml.token_type", lambda case, theirs, mine: case.startswith("mistral") and control(case, theirs, mine),
     "llama.cpp's converter calls SentencePiece's user-defined pieces ordinary ones"),
    ("tokenizer.ggml.scores", lambda case, theirs, mine: case == "llama2",
     "llama.cpp's converter gives every token of a tokenizer.json the score -1000, so that text is cut otherwise"),
    ("tokenizer.ggml.pre", lambda case, theirs, mine: (case, theirs, mine) == ("llama3", "smaug-bpe", "llama-bpe"),
     "llama.cpp's converter goes by a hash of ids, which has no begin of text here; its smaug-bpe cuts as llama-bpe does "
     "but merges what is a token as a whole"),
    ("tokenizer.ggml.pre", lambda case, theirs, mine: (theirs, mine) == ("joyai-llm", "deepseek-v3"),
     "two names of the same rules in llama.cpp, which goes by a hash of ids"),
    ("tokenizer.ggml.add_bos_token", lambda case, theirs, mine: case == "deepseek-v3",
     "tokenizer_config.json says that a beginning of text is added, and the class of the tokenizer does so"),
]


def compare_keys(case: str, mine: dict, theirs: dict) -> tuple[list, list]:
    """Differences without a reason, and those with one."""
    bad, explained = [], []
    for key in sorted(mine.keys() | theirs.keys()):
        if key not in theirs:
            (explained if key in EXTRA else bad).append(f"{key}: only ours has it: {mine[key]!r:.60}")
        elif key not in mine:
            bad.append(f"{key}: only llama.cpp has it: {theirs[key]!r:.60}")
        elif mine[key] != theirs[key]:
            reason = next((r for k, applies, r in KNOWN_KEYS if k == key and applies(case, theirs[key], mine[key])), None)
            if reason:
                explained.append(f"{key}: {reason}")
            else:
                bad.append(f"{key}: {gguf_files.difference(mine[key], theirs[key])}")
    order = [k for k in mine if k in theirs]
    if order != [k for k in theirs if k in mine]:
        bad.append(f"order: {order} and {[k for k in theirs if k in mine]}")
    return bad, explained


# Keys that llama.cpp's converter leaves to guessing.
EXTRA = {
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eos_token_ids", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
}


def llama_keys(folder: Path, out: Path, converter: Path, python: str) -> dict | None:
    done = subprocess.run([python, str(converter / "convert_hf_to_gguf.py"), "--vocab-only", "--outfile", str(out),
                           str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        say("  llama.cpp's converter failed: " + done.stderr.strip().rpartition("\n")[2][:300])
        return None
    return keys_of(out)


# --- the originals -------------------------------------------------------------------------------

def original(folder: Path, kind: str):
    """Encodes a text: (as text only, with special tokens recognised); None for what it cannot do."""
    if kind == "huggingface":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return None, lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    if kind == "sentencepiece":
        from sentencepiece import SentencePieceProcessor

        model = SentencePieceProcessor()
        model.LoadFromFile(str(folder / "tokenizer.model"))
        return model.EncodeAsIds, None
    import base64

    import tiktoken
    lines = (folder / "tokenizer.model").read_bytes().split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    # Meta's package, llama_models/llama3/tokenizer.py.
    special = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1",
               "finetune_right_pad_id", "step_id", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag",
               "image", *(f"reserved_special_token_{n}" for n in range(2, 246))]
    encoding = tiktoken.Encoding(
        "llama3", mergeable_ranks=ranks, special_tokens={f"<|{s}|>": len(ranks) + i for i, s in enumerate(special)},
        pat_str=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")
    return encoding.encode_ordinary, lambda text: encoding.encode(text, allowed_special="all")


def pieces_differ(folder: Path, mine: dict) -> list:
    """What `sentencepiece` says otherwise of tokenizer.model."""
    from sentencepiece import SentencePieceProcessor
    from sentencepiece import sentencepiece_model_pb2 as pb2

    model = SentencePieceProcessor()
    model.LoadFromFile(str(folder / "tokenizer.model"))
    proto = pb2.ModelProto.FromString((folder / "tokenizer.model").read_bytes())
    bad = []
    for i in range(model.vocab_size()):
        theirs = (model.IdToPiece(i), model.GetScore(i), proto.pieces[i].type)
        ours = (mine["tokenizer.ggml.tokens"][i], mine["tokenizer.ggml.scores"][i], mine["tokenizer.ggml.token_type"][i])
        if theirs != ours:
            bad.append((i, theirs, ours))
    for name, theirs in (("bos", model.bos_id()), ("eos", model.eos_id()), ("unknown", model.unk_id())):
        if mine.get(f"tokenizer.ggml.{name}_token_id", -1) != theirs:
            bad.append((name, theirs))
    return bad


# Why the original may differ: (case begins with, does it apply to the text?, reason).
def changes_under_nfc(text):
    import unicodedata
    return unicodedata.normalize("NFC", text) != text


KNOWN_IDS = [
    ("qwen3", changes_under_nfc, "Qwen composes characters (NFC), which GGUF cannot say"),
    ("qwen3", lambda text: "</s>" in text, "llama.cpp takes every token </s> for an end, and so do we; in Qwen it is HTML"),
    ("gemma3", lambda text: "▁" in text, "`▁` in the text itself: Gemma's tokens of several spaces are, in GGUF, found as spaces"),
    ("gemma3", lambda text: "<image_soft_token>" in text, "the embedding of this text model has no row for images"),
]


def compare_ids(case: str, texts: list, mine: list, theirs) -> tuple[list, dict]:
    bad, explained = [], {}
    for text, ids in zip(texts, mine, strict=True):
        expected = theirs(text)
        if ids != expected:
            reason = next((r for c, applies, r in KNOWN_IDS if case.startswith(c) and applies(text)), None)
            if reason:
                explained[reason] = explained.get(reason, 0) + 1
            else:
                bad.append((text, ids, expected))
    return bad, explained


def add_arguments(parser) -> None:
    parser.add_argument("cases", nargs="*", help=f"of {' '.join(CASES)} (default: all)")
    parser.add_argument("--originals", type=Path, default=FOLDER, help="their folders (default: models/tokenizers)")
    parser.add_argument("--alight", type=Path, help="the binary (default: target/release/alight)")
    parser.add_argument("--llama-cpp", type=Path, help="folder of convert_hf_to_gguf.py")
    parser.add_argument("--python", default=sys.executable, help="the Python for it")


def run(args) -> int:
    program = alight(args.alight)
    tokenize = tokens.our_binary()
    texts = json.loads(tokens.STRINGS.read_text())
    work = ROOT / "target" / "agree_tokenizers"
    failed = done = 0
    for case in args.cases or CASES:
        folder, arch, rows, kind = CASES[case]
        source = args.originals / folder
        if not source.is_dir():
            say(f"{case}: left out, {source} is missing (python -m evidence fetch models tokenizers gets it)")
            continue
        model, new = work / case, work / f"{case}.gguf"
        make_folder(source, model, arch, rows)
        convert = subprocess.run([program, "convert", model, "-o", new, "--force"], capture_output=True, text=True)
        if convert.returncode != 0:
            say(f"{case}: {convert.stderr}")
            failed += 1
            continue
        done += 1
        mine = keys_of(new)
        print(f"{case}: {len(mine['tokenizer.ggml.tokens'])} tokens, {mine['tokenizer.ggml.model']}/{mine['tokenizer.ggml.pre']}")
        if kind == "sentencepiece":
            bad = pieces_differ(source, mine)
            failed += bool(bad)
            print(f"  sentencepiece: {len(bad)} pieces differ {bad[:3] if bad else ''}")
        for special, ask in enumerate(original(source, kind)):
            if ask is None:
                continue
            bad, explained = compare_ids(case, texts, tokens.our_ids(tokenize, new, [(t, False, bool(special)) for t in texts]), ask)
            failed += bool(bad)
            same = len(texts) - len(bad) - sum(explained.values())
            print(f"  ids by {kind}{', special tokens recognised' if special else ''}: {same} of {len(texts)} texts identical")
            for reason, count in explained.items():
                print(f"    {count} differ: {reason}")
            for text, ids, expected in bad[:8]:
                print(f"    {text[:80]!r}: {ids[:12]} and {expected[:12]}")
        if importlib.util.find_spec("xllamacpp"):
            questions = [(t, add, special) for add, special in ((False, False), (False, True), (True, False)) for t in texts]
            theirs, ours = token_ids(new, questions, work), tokens.our_ids(tokenize, new, questions)
            bad = [(q, a, b) for q, a, b in zip(questions, ours, theirs, strict=True) if a != b]
            failed += bool(bad)
            print(f"  ids by llama.cpp: {len(questions) - len(bad)} of {len(questions)} questions identical {bad[:3] or ''}")
        if args.llama_cpp:
            theirs = llama_keys(model, work / f"{case}.llama.gguf", args.llama_cpp, args.python)
            if theirs is not None:
                bad, explained = compare_keys(case, mine, theirs)
                failed += bool(bad)
                print(f"  llama.cpp's keys: {len(bad)} of {len(mine.keys() | theirs.keys())} differ without a reason")
                for line in [*bad, *(f"explained: {e}" for e in explained)]:
                    print(f"    {line}")
        shutil.rmtree(model)
    print(f"{done} tokenizers, {failed} failures")
    return 1 if failed else 0
