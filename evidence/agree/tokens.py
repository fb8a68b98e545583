"""Compares our token ids with llama.cpp's and Hugging Face's on tests/data/tokenizer_strings.json.

Every text is tokenized twice, as plain text and with the spellings of special tokens recognised,
and once more with the beginning of sequence that the file asks for. Three tokenizers answer:

- ours, through `crates/text/examples/tokenize.rs`;
- llama.cpp, through the package `xllamacpp` (its server's /tokenize);
- Hugging Face `tokenizers`, built here from the arrays of the same GGUF file.

llama.cpp has to agree on every id. Hugging Face differs from it in known ways, which are listed
with a reason below; any other difference counts as a failure.

    python -m evidence agree tokens                compare all three on both models
    python -m evidence agree tokens --golden       write llama.cpp's answers to tests/data/ instead
"""

import json
from pathlib import Path

from evidence.lib import common, gguf_files
from evidence.lib.common import MODELS, ROOT, model_path, models_folder, say
from evidence.lib.llama import token_ids

STRINGS = ROOT / "tests/data/tokenizer_strings.json"
TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_BYTE = 1, 2, 3, 4, 6


def our_binary() -> Path:
    return common.example("tokenize")


def our_ids(binary: Path, model: Path, questions: list) -> list:
    """Of (text, add special tokens as the file asks, recognise special tokens)."""
    asked = ({"text": text, "add_bos": None if add_special else False, "parse_special": parse_special}
             for text, add_special, parse_special in questions)
    return common.answers(binary, asked, model)


# --- Hugging Face ---------------------------------------------------------------------------

def hf_tokenizers(model: Path):
    """Two tokenizers from the arrays of the file: (without control tokens, with them)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    fields = gguf_files.quick_reader(model).fields
    def value(key):
        return fields["tokenizer.ggml." + key].contents()
    texts, types = value("tokens"), value("token_type")
    ids = {text: i for i, text in enumerate(texts)}
    merges = ([tuple(merge.split(" ")) for merge in value("merges")] if value("model") == "gpt2"
              else merges_from_scores(ids, types, value("scores")))

    def build(with_control: bool):
        if value("model") == "gpt2":
            tokenizer = Tokenizer(models.BPE(ids, merges))
            if value("pre") != "smollm":
                raise SystemExit(f"no Hugging Face recipe for pre-tokeniser {value('pre')}")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ])
            tokenizer.decoder = decoders.ByteLevel()
        else:
            if value("add_space_prefix"):
                raise SystemExit("no Hugging Face recipe for add_space_prefix")
            unknown = texts[value("unknown_token_id")]
            tokenizer = Tokenizer(models.BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown))
            tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        added = []
        for text, kind in zip(texts, types):
            if kind == TYPE_USER or (with_control and kind in (TYPE_CONTROL, TYPE_UNKNOWN)):
                added.append(AddedToken(text, special=kind != TYPE_USER, normalized=False))
        tokenizer.add_tokens(added)
        return tokenizer

    return build(False), build(True)


def merges_from_scores(ids: dict, types: list, scores: list) -> list:
    """Merges that do what merging by score does: of every token, each way to cut it in two tokens,
    the best score first."""
    able = {text for text, i in ids.items() if types[i] in (TYPE_NORMAL, TYPE_USER)}
    found = []
    for text in able:
        ways = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        ways = [(left, right) for left, right in ways if left in able and right in able]
        ways.sort(key=lambda way: (ids[way[0]], ids[way[1]]))
        found.append((-scores[ids[text]], ids[text], ways))
    found.sort()
    return [way for _, _, ways in found for way in ways]


# Why Hugging Face may differ: (reason, does it apply to this text and model?).
KNOWN = [
    ("llama.cpp takes every </s> for a control token, which plain text does not become; Gemma 3 has it "
     "as a user-defined token (HTML), which Hugging Face finds in plain text",
     lambda model, text, special: model == "gemma3" and "</s>" in text and not special),
]


def hf_reason(model: str, text: str, special: bool) -> str | None:
    return next((reason for reason, applies in KNOWN if applies(model, text, special)), None)


# --- comparing ------------------------------------------------------------------------------

def first_difference(a: list, b: list) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"from token {at}: {a[at:at + 8]} and {b[at:at + 8]}"


def compare(name: str, model: Path, texts: list, binary: Path, work: Path, with_hf: bool) -> dict:
    questions = [(t, False, False) for t in texts] + [(t, False, True) for t in texts] + [(t, True, False) for t in texts]
    ours = our_ids(binary, model, questions)
    peers = token_ids(model, questions, work)
    result = {"model": name, "texts": len(texts), "questions": len(questions), "llama_differs": [], "hf_differs": [], "hf_explained": {}}
    for (text, add, special), mine, theirs in zip(questions, ours, peers, strict=True):
        if mine != theirs:
            result["llama_differs"].append([text, add, special, first_difference(mine, theirs)])
    if with_hf:
        plain, control = hf_tokenizers(model)
        for (text, add, special), mine in zip(questions, ours, strict=True):
            if add:
                continue
            theirs = (control if special else plain).encode(text, add_special_tokens=False).ids
            if mine != theirs:
                reason = hf_reason(name, text, special)
                if reason:
                    result["hf_explained"][reason] = result["hf_explained"].get(reason, 0) + 1
                else:
                    result["hf_differs"].append([text, special, first_difference(mine, theirs)])
    return result


def write_golden(name: str, model: Path, texts: list, work: Path) -> None:
    """llama.cpp's ids, one text a line: as plain text, and, where they differ, with specials."""
    n = len(texts)
    both = token_ids(model, [(t, False, False) for t in texts] + [(t, False, True) for t in texts], work)
    lines = [json.dumps([plain] if plain == special else [plain, special], separators=(",", ":"))
             for plain, special in zip(both[:n], both[n:])]
    out = ROOT / f"tests/data/tokenizer_ids_{name}.json"
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    say(f"{n} texts -> {out}")


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", default=["smollm2", "gemma3"], help="models (default: smollm2 gemma3)")
    parser.add_argument("--models", type=Path, default=models_folder())
    parser.add_argument("--golden", action="store_true", help="write llama.cpp's ids to tests/data/")
    parser.add_argument("--binary", type=Path, help="the built example (default: builds it)")
    parser.add_argument("--hf", nargs="*", help="models whose ids Hugging Face gives, too (default: all); its merges of Gemma's 262,144 tokens take most of the time")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args) -> None:
    unknown = [name for name in args.names if name not in MODELS]
    if unknown:
        args.error(f"unknown model {unknown[0]} (known: {', '.join(MODELS)})")

    texts = json.loads(STRINGS.read_text())
    work = ROOT / "target" / "agree_tokens"
    work.mkdir(parents=True, exist_ok=True)
    if args.golden:
        for name in args.names:
            write_golden(name, model_path(name, args.models), texts, work)
        return
    binary = args.binary or our_binary()
    with_hf = set(args.names if args.hf is None else args.hf)
    results = [compare(name, model_path(name, args.models), texts, binary, work, name in with_hf) for name in args.names]
    if not common.as_json(args, results):
        for result in results:
            report(result, result["model"] in with_hf)
    if any(r["llama_differs"] or r["hf_differs"] for r in results):
        raise SystemExit(1)


def report(result: dict, with_hf: bool) -> None:
    questions = result["questions"]
    same = questions - len(result["llama_differs"])
    print(f"{result['model']}: {result['texts']} texts, {questions} questions")
    print(f"  llama.cpp:    {same} of {questions} identical")
    for text, add, special, where in result["llama_differs"]:
        print(f"    differs: {text!r} (add_special {add}, parse_special {special}) {where}")
    if not with_hf:
        return
    asked = 2 * result["texts"]
    explained = sum(result["hf_explained"].values())
    print(f"  Hugging Face: {asked - len(result['hf_differs']) - explained} of {asked} identical")
    for reason, count in result["hf_explained"].items():
        print(f"    {count} differ: {reason}")
    for text, special, where in result["hf_differs"]:
        print(f"    differs: {text!r} (parse_special {special}) {where}")
