"""Tiny encoders with random weights beside Hugging Face `transformers`: the final state of every token, pooled vectors and scores of pairs, in float64,
by the classes of those who made them.

    PYTHON -m evidence agree encoders [NAME…] [--binary target/release/examples/vectors]
    PYTHON -m evidence agree encoders --peer [NAME…]    networks that transformers does not have, beside llama.cpp (xllamacpp): mean vectors

The weights of transformers' own classes go into GGUF files under llama.cpp's names (`gguf`). Texts of several lengths are computed together. What is
compared is the root mean square of all differences, as a share of the numbers' own, and the cosine of each vector; of scores, the largest difference, too.
Encoders compute in f32 throughout, so transformers' own network in float32 is the measure: ours may be as far from float64 as four times that, or the share
TIGHT. A decoder keeps keys and values as F16 (half a unit in 2^11), so `qwen3` has a tolerance of its own. The mistakes are transformers' own network with
one thing changed: each has to differ from ours by ten times as much.

Needs torch and transformers, which are in no requirements.txt, besides numpy and gguf:
    python3 -m venv VENV && VENV/bin/pip install torch transformers gguf
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from evidence.lib import checks, common
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")
torch = lazily("torch")
transformers = lazily("transformers")

# Of root mean squares, where keys and values are F16 and where they are f32; how far from float64 in comparison with float32; of cosines; of scores.
TOLERANCE, TIGHT, TIMES = 2e-3, 3e-6, 4
COSINE, SCORES = 0.99999, 1e-4
SEEN = 10
VOCAB, HIDDEN, FF, LAYERS, CONTEXT = 300, 48, 80, 4, 128
LENGTHS = (1, 2, 17, 60)

SIZES = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, intermediate_size=FF, pad_token_id=0,
             bos_token_id=1, eos_token_id=2, attn_implementation="eager")
POST = [
    (r"embeddings\.word_embeddings\.(.*)", r"token_embd.\1"),
    (r"embeddings\.position_embeddings\.(.*)", r"position_embd.\1"),
    (r"embeddings\.token_type_embeddings\.(.*)", r"token_types.\1"),
    (r"embeddings\.LayerNorm\.(.*)", r"token_embd_norm.\1"),
]
BERT = POST + [
    (r"encoder\.layer\.(\d+)\.attention\.self\.query\.(.*)", r"blk.\1.attn_q.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.self\.key\.(.*)", r"blk.\1.attn_k.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.self\.value\.(.*)", r"blk.\1.attn_v.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(.*)", r"blk.\1.attn_output.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(.*)", r"blk.\1.attn_output_norm.\2"),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.(.*)", r"blk.\1.ffn_up.\2"),
    (r"encoder\.layer\.(\d+)\.output\.dense\.(.*)", r"blk.\1.ffn_down.\2"),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.(.*)", r"blk.\1.layer_output_norm.\2"),
    (r"pooler\.dense\.(.*)", r"cls.\1"),
    (r"classifier\.dense\.(.*)", r"cls.\1"),
    (r"classifier\.out_proj\.(.*)", r"cls.output.\1"),
    (r"classifier\.(weight|bias)", r"cls.output.\1"),
]
LLAMA = [
    (r"embed_tokens\.(.*)", r"token_embd.\1"),
    (r"layers\.(\d+)\.self_attn\.([qkv])_proj\.(.*)", r"blk.\1.attn_\2.\3"),
    (r"layers\.(\d+)\.self_attn\.([qk])_norm\.(.*)", r"blk.\1.attn_\2_norm.\3"),
    (r"layers\.(\d+)\.self_attn\.o_proj\.(.*)", r"blk.\1.attn_output.\2"),
    (r"layers\.(\d+)\.mlp\.(gate|up|down)_proj\.(.*)", r"blk.\1.ffn_\2.\3"),
    (r"layers\.(\d+)\.input_layernorm\.(.*)", r"blk.\1.attn_norm.\2"),
    (r"norm\.(.*)", r"output_norm.\1"),
]
ROTATED = POST + LLAMA + [
    (r"layers\.(\d+)\.mlp\.fc1\.(.*)", r"blk.\1.ffn_up.\2"),
    (r"layers\.(\d+)\.mlp\.fc2\.(.*)", r"blk.\1.ffn_down.\2"),
    (r"layers\.(\d+)\.post_attention_layernorm\.(.*)", r"blk.\1.attn_output_norm.\2"),
    (r"layers\.(\d+)\.post_mlp_layernorm\.(.*)", r"blk.\1.layer_output_norm.\2"),
]
MODERN = [
    (r"embeddings\.tok_embeddings\.(.*)", r"token_embd.\1"),
    (r"embeddings\.norm\.(.*)", r"token_embd_norm.\1"),
    (r"layers\.(\d+)\.attn_norm\.(.*)", r"blk.\1.attn_norm.\2"),
    (r"layers\.(\d+)\.attn\.Wqkv\.(.*)", r"blk.\1.attn_qkv.\2"),
    (r"layers\.(\d+)\.attn\.Wo\.(.*)", r"blk.\1.attn_output.\2"),
    (r"layers\.(\d+)\.mlp_norm\.(.*)", r"blk.\1.ffn_norm.\2"),
    (r"layers\.(\d+)\.mlp\.Wi\.(.*)", r"blk.\1.ffn_up.\2"),
    (r"layers\.(\d+)\.mlp\.Wo\.(.*)", r"blk.\1.ffn_down.\2"),
    (r"final_norm\.(.*)", r"output_norm.\1"),
    (r"head\.dense\.(.*)", r"cls.\1"),
    (r"head\.norm\.(.*)", r"cls.norm.\1"),
    (r"classifier\.(.*)", r"cls.output.\1"),
]
T5 = [
    (r"shared\.(.*)", r"token_embd.\1"),
    (r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.([qkvo])\.(.*)", r"enc.blk.\1.attn_\2.\3"),
    (r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\.(.*)", r"enc.blk.\1.attn_rel_b.\2"),
    (r"encoder\.block\.(\d+)\.layer\.0\.layer_norm\.(.*)", r"enc.blk.\1.attn_norm.\2"),
    (r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi_0\.(.*)", r"enc.blk.\1.ffn_gate.\2"),
    (r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi(?:_1)?\.(.*)", r"enc.blk.\1.ffn_up.\2"),
    (r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wo\.(.*)", r"enc.blk.\1.ffn_down.\2"),
    (r"encoder\.block\.(\d+)\.layer\.1\.layer_norm\.(.*)", r"enc.blk.\1.ffn_norm.\2"),
    (r"encoder\.final_layer_norm\.(.*)", r"enc.output_norm.\1"),
]
PRE = [(r"layers\.(\d+)\.post_attention_layernorm\.(.*)", r"blk.\1.ffn_norm.\2")]
GEMMA = LLAMA + [
    (r"layers\.(\d+)\.post_attention_layernorm\.(.*)", r"blk.\1.post_attention_norm.\2"),
    (r"layers\.(\d+)\.pre_feedforward_layernorm\.(.*)", r"blk.\1.ffn_norm.\2"),
    (r"layers\.(\d+)\.post_feedforward_layernorm\.(.*)", r"blk.\1.post_ffw_norm.\2"),
]


def rope(base: float) -> dict:
    return dict(rope_type="default", rope_theta=base)


def both(full: float, sliding: float) -> dict:
    return dict(full_attention=rope(full), sliding_attention=rope(sliding))


@dataclass
class Case:
    """A network of transformers, and what its GGUF file is."""

    name: str
    arch: str
    # The names of its class and of its configuration.
    model: str
    config: str
    given: dict
    renamed: list
    keys: dict
    # What `wrong` changes in the configuration, by what it is; "" changes the inputs instead.
    wrong: dict = field(default_factory=dict)
    # Scores instead of states.
    rank: bool = False
    # What becomes of a tensor.
    tensor: Callable = lambda name, weights: weights
    # Queries, keys and values are one tensor in the file.
    fused: bool = False
    # Its keys and values are kept for tokens to come.
    decodes: bool = False


def at(rows: int) -> Callable:
    """Leaves the first rows of the positions out, as converters do: RoBERTa begins to count after its padding."""
    return lambda name, weights: weights[rows:] if name == "position_embd.weight" else weights


def gemma(name: str, weights):
    return weights + 1.0 if "norm" in name else weights


LAYER_NORM, RMS = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
HEADS = dict(num_attention_heads=3)
OTHER_GELU = {"GELU in its tanh form": dict(hidden_act="gelu_pytorch_tanh")}
BERTS = SIZES | HEADS | dict(max_position_embeddings=CONTEXT)
FREQ = {"attention.layer_norm_epsilon": 1e-12, "attention.causal": False}

CASES = [
    Case("bert", "bert", "BertModel", "BertConfig", BERTS, BERT, FREQ,
         OTHER_GELU | {"one segment": "segments", "another eps": dict(layer_norm_eps=0.1)}),
    Case("bert, pairs", "bert", "BertForSequenceClassification", "BertConfig", BERTS | dict(num_labels=1), BERT,
         FREQ | {"pooling_type": 4}, {"one segment": "segments"}, rank=True),
    Case("xlm-roberta", "bert", "XLMRobertaForSequenceClassification", "XLMRobertaConfig",
         BERTS | dict(num_labels=3, type_vocab_size=1, max_position_embeddings=CONTEXT + 1), BERT, FREQ | {"pooling_type": 4},
         OTHER_GELU, rank=True, tensor=at(1)),
    Case("nomic-bert", "nomic-bert", "NomicBertModel", "NomicBertConfig", BERTS | dict(head_dim=16, rope_parameters=rope(1000.0)),
         ROTATED, FREQ | {"rope.freq_base": 1000.0}, {"another base": dict(rope_parameters=rope(1500.0)), "one segment": "segments"},
         fused=True),
    Case("jina-bert-v3", "jina-bert-v3", "JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config",
         BERTS | dict(rope_parameters=rope(20000.0), layer_norm_eps=1e-5), ROTATED,
         {LAYER_NORM: 1e-5, "attention.causal": False, "rope.freq_base": 20000.0},
         OTHER_GELU | {"another base": dict(rope_parameters=rope(30000.0))}, fused=True),
    Case("modern-bert", "modern-bert", "ModernBertModel", "ModernBertConfig",
         SIZES | HEADS | dict(local_attention=8, sep_token_id=2, cls_token_id=1, num_hidden_layers=7), MODERN,
         {LAYER_NORM: 1e-5, "attention.causal": False, "rope.freq_base": 160000.0, "attention.sliding_window": 8,
          "attention.sliding_window_pattern": 3, "block_count": 7},
         {"GELU in its tanh form": dict(hidden_activation="gelu_pytorch_tanh"), "a wider window": dict(local_attention=10),
          "one base": dict(rope_parameters=both(160000.0, 160000.0))}),
    Case("modern-bert, scores", "modern-bert", "ModernBertForSequenceClassification", "ModernBertConfig",
         SIZES | HEADS | dict(local_attention=8, sep_token_id=2, cls_token_id=1, num_labels=2, classifier_pooling="mean"), MODERN,
         {LAYER_NORM: 1e-5, "attention.causal": False, "rope.freq_base": 160000.0, "attention.sliding_window": 8, "pooling_type": 4},
         {"of the first token": dict(classifier_pooling="cls")}, rank=True),
    Case("eurobert", "eurobert", "EuroBertModel", "EuroBertConfig",
         SIZES | HEADS | dict(num_key_value_heads=1, head_dim=16, rope_parameters=rope(250000.0), mask_token_id=3), LLAMA + PRE,
         {RMS: 1e-5, "attention.causal": False, "rope.freq_base": 250000.0, "attention.head_count_kv": 1},
         {"another base": dict(rope_parameters=rope(500000.0))}),
    Case("gemma-embedding", "gemma-embedding", "Gemma3TextModel", "Gemma3TextConfig",
         SIZES | HEADS | dict(num_key_value_heads=1, head_dim=24, query_pre_attn_scalar=24, sliding_window=12, num_hidden_layers=7,
                              use_bidirectional_attention=True), GEMMA,
         {RMS: 1e-6, "attention.causal": False, "rope.freq_base": 1e6, "attention.head_count_kv": 1, "attention.key_length": 24,
          "attention.value_length": 24, "attention.sliding_window": 12, "block_count": 7},
         {"a wider window": dict(sliding_window=14), "causal": dict(use_bidirectional_attention=False)}, tensor=gemma),
    Case("qwen3", "qwen3", "Qwen3Model", "Qwen3Config",
         SIZES | HEADS | dict(num_key_value_heads=1, head_dim=24, rope_parameters=rope(1e6)), LLAMA + PRE,
         {RMS: 1e-6, "rope.freq_base": 1e6, "attention.head_count_kv": 1, "attention.key_length": 24, "attention.value_length": 24,
          "pooling_type": 3}, {"another base": dict(rope_parameters=rope(2e6))}, decodes=True),
    *(Case(f"t5encoder, {kind}", "t5encoder", "T5EncoderModel", "T5Config",
           dict(vocab_size=VOCAB, d_model=HIDDEN, d_kv=16, d_ff=FF, num_layers=LAYERS, num_heads=3, feed_forward_proj=kind,
                relative_attention_num_buckets=16, pad_token_id=0, eos_token_id=1), T5,
           {RMS: 1e-6, "attention.key_length": 16, "attention.value_length": 16, "attention.relative_buckets_count": 16},
           {"other buckets": dict(relative_attention_max_distance=100)})
      for kind in ("relu", "gated-gelu")),
]


def network(case: Case, change: dict | str | None = None, scale: float = 1.3):
    given = case.given | (change if isinstance(change, dict) else {})
    model = getattr(transformers, case.model)(getattr(transformers, case.config)(**given)).double().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            random = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
            if weights.dim() == 1:
                random = 0.2 * random + (1.0 if name.endswith("weight") and case.arch != "gemma-embedding" else 0.0)
            elif "embed" not in name and "shared" not in name and "relative" not in name:
                random = random * scale / weights.shape[-1] ** 0.5
            if "SelfAttention.q." in name:  # T5 has this factor in its weights
                random = random / model.config.d_kv**0.5
            weights.copy_(random.float().double())
    return model


def put(path: Path, arch: str, keys: dict, tensors: dict) -> None:
    """A file of these keys and F32 tensors."""
    w = gguf.GGUFWriter(path, arch)
    for name, value in keys.items():
        add = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, list: w.add_array}[type(value)]
        add(f"{arch}.{name}", value)
    w.add_string("tokenizer.ggml.model", "llama")
    w.add_array("tokenizer.ggml.tokens", ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [f"w{i}" for i in range(259, VOCAB)])
    w.add_array("tokenizer.ggml.scores", [0.0] * VOCAB)
    w.add_array("tokenizer.ggml.token_type", [2, 3, 3] + [6] * 256 + [1] * (VOCAB - 259))
    if "bert" in arch:  # which llama.cpp wants to know
        w.add_uint32("tokenizer.ggml.token_type_count", 2)
    for name, values in tensors.items():
        w.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write(case: Case, model, path: Path) -> None:
    keys = {"block_count": LAYERS, "context_length": CONTEXT, "embedding_length": HIDDEN, "feed_forward_length": FF,
            "attention.head_count": 3} | case.keys
    tensors = {}
    for name, weights in model.state_dict().items():
        short = re.sub(r"^(bert|roberta|model)\.", "", name)
        for pattern, to in case.renamed:
            if found := re.fullmatch(pattern, short):
                out = found.expand(to)
                tensors[out] = case.tensor(out, weights.numpy())
                break
        else:
            if "pooler" not in short and short != "encoder.embed_tokens.weight":
                raise SystemExit(f"{case.name}: no place for {name}")
    if case.fused:
        for layer in range(LAYERS):
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"blk.{layer}.attn_{part}.{kind}", None) for part in "qkv"]
                if parts[0] is not None:
                    tensors[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)
    put(path, case.arch, keys, tensors)


def texts(seed: int) -> list[tuple[list[int], int]]:
    """Token ids, and where the second segment begins."""
    random = np.random.default_rng(seed)
    return [([int(id) for id in random.integers(4, VOCAB, n)], max(1, n // 3)) for n in LENGTHS]


def theirs(case: Case, model, text, segments: bool = True) -> np.ndarray:
    """States `[tokens, hidden]`, or scores `[1, labels]`."""
    ids, second = text
    given = {}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        kinds = [int(segments and i >= second) for i in range(len(ids))]
        given["token_type_ids"] = torch.tensor([kinds])
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **given)
    return (out.logits if case.rank else out.last_hidden_state[0]).numpy()


def ours(program: Path, path: Path, asked: list) -> list[np.ndarray]:
    lines = "".join(f"{pooling} {second} {' '.join(map(str, ids))}\n" for pooling, (ids, second) in asked)
    done = subprocess.run([program, path, "-t", "1", "-b", "64"], input=lines, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    return [np.array(line.split(), dtype=np.float64) for line in done.stdout.splitlines()]


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(-1) / np.sqrt(np.square(a).sum(-1) * np.square(b).sum(-1))).min())


def compare(args, report, case: Case, program: Path, path: Path) -> None:
    model = network(case)
    write(case, model, path)
    all_texts = texts(args.seed)
    exact = [theirs(case, model, text) for text in all_texts]
    found = ours(program, path, [("rank" if case.rank else "none", text) for text in all_texts])
    found = [f.reshape(e.shape) for f, e in zip(found, exact)]
    together = np.concatenate(exact)
    worst = apart(np.concatenate(found), together)
    near = 1.0 if case.rank else min(cosine(f, e) for f, e in zip(found, exact))
    single = apart(np.concatenate([theirs(case, model.float(), text) for text in all_texts]), together)
    model.double()
    tolerance = TOLERANCE if case.decodes else max(TIGHT, TIMES * single)
    report.add(worst <= tolerance and near >= COSINE, f"{case.name}: {worst:.1e} apart (float32: {single:.1e}), cosine at least 1 - {1 - near:.1e}")
    if case.rank:
        for scale in (0.3, 1.3, 4.0):
            score_apart(args, report, case, program, path, scale)
    else:
        pooled = [("cls", lambda e: e[0]), ("last", lambda e: e[-1]), ("mean", lambda e: e.mean(0))]
        for pooling, of in pooled:
            vectors = ours(program, path, [(pooling, text) for text in all_texts])
            near = min(cosine(f, of(e)) for f, e in zip(vectors, exact))
            report.add(near >= COSINE, f"{case.name}, {pooling}: cosine at least 1 - {1 - near:.1e}")
    for what, change in case.wrong.items():
        other = model if change == "segments" else network(case, change)
        wrong = [theirs(case, other, text, change != "segments") for text in all_texts]
        far, limit = apart(np.concatenate(wrong), np.concatenate(found)), SEEN * worst
        report.add(far > limit, f"{case.name}, with a mistake: {what}: {far:.1e} apart (wanted > {limit:.1e})")


def score_apart(args, report, case: Case, program: Path, path: Path, scale: float) -> None:
    """Scores of 50 texts, with weights of this scale: as large as 1e-4, or as four times transformers' own in float32."""
    model = network(case, scale=scale)
    write(case, model, path)
    many = [text for seed in range(args.seed, args.seed + 13) for text in texts(seed)][:50]
    exact = np.concatenate([theirs(case, model, text) for text in many])
    single = np.abs(np.concatenate([theirs(case, model.float(), text) for text in many]) - exact).max()
    found = np.stack([f.reshape(exact.shape[1:]) for f in ours(program, path, [("rank", text) for text in many])])
    far, size = np.abs(found - exact).max(), np.abs(exact).max()
    report.add(far <= max(SCORES, TIMES * single), f"{case.name}, weights of scale {scale}: scores up to {size:.1f} differ by {far:.1e} at most (float32: {single:.1e})")


# Of llama.cpp, whose GELU goes through a table of F16, and is the tanh form where the makers' is not.
PEER = 5e-3


@dataclass
class Peer:
    """A network by the names and shapes of its file, beside llama.cpp."""

    name: str
    arch: str
    keys: dict
    # Shapes, rows first: of the file, and of each layer, which may follow from its number.
    tensors: dict
    layer: dict | Callable
    # Keys that a mistake changes, by what it is.
    wrong: dict = field(default_factory=dict)
    # What the names of a layer's tensors begin with.
    prefix: str = "blk"


def biased(**shapes) -> dict:
    """Matrices, or norms of one number, with biases."""
    out = {}
    for name, shape in shapes.items():
        out |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return out


def weights(**shapes) -> dict:
    return {f"{name}.weight": shape for name, shape in shapes.items()}


# Of each layer of gemma-embedding2: whether it has a window; and how many numbers a layer takes from a token.
WINDOWED, TAKEN = [True, True, False, True], 16


def gemma_2(layer: int) -> dict:
    """A layer of EmbeddingGemma 2, whose heads are longer where there is no window."""
    dim = 16 if WINDOWED[layer] else 24
    return weights(attn_norm=E, attn_q=(3 * dim, HIDDEN), attn_k=(dim, HIDDEN), attn_v=(dim, HIDDEN), attn_q_norm=(dim,), attn_k_norm=(dim,),
                   attn_output=(HIDDEN, 3 * dim), post_attention_norm=E, ffn_norm=E, ffn_gate=UP, ffn_up=UP, ffn_down=DOWN, post_ffw_norm=E,
                   inp_gate=(TAKEN, HIDDEN), proj=(HIDDEN, TAKEN), post_norm=E, layer_output_scale=(1,))


E, F, X = (HIDDEN,), FF, 5
SQUARE, UP, DOWN = (HIDDEN, HIDDEN), (FF, HIDDEN), (HIDDEN, FF)
POSTNORMS = biased(attn_output=SQUARE, attn_output_norm=E, layer_output_norm=E)
ENCODER = {"attention.causal": False, "pooling_type": 1}
TYPES = weights(token_types=(2, HIDDEN)) | biased(token_embd_norm=E)
PEERS = [
    Peer("bert", "bert", ENCODER | {LAYER_NORM: 1e-12}, TYPES | weights(position_embd=(CONTEXT, HIDDEN)),
         POSTNORMS | biased(attn_q=SQUARE, attn_k=SQUARE, attn_v=SQUARE, ffn_up=UP, ffn_down=DOWN)),
    # Layers 1 and 3 have experts.
    Peer("nomic-bert-moe", "nomic-bert-moe", ENCODER | {LAYER_NORM: 1e-12, "rope.freq_base": 1000.0, "expert_count": X, "expert_used_count": 2,
                                                        "moe_every_n_layers": 2}, TYPES,
         POSTNORMS | biased(attn_qkv=(3 * HIDDEN, HIDDEN), ffn_up=UP, ffn_down=DOWN)
         | weights(ffn_gate_inp=(X, HIDDEN), ffn_up_exps=(X, FF, HIDDEN), ffn_down_exps=(X, HIDDEN, FF)),
         {"another base": {"rope.freq_base": 1500.0}, "three experts": {"expert_used_count": 3}}),
    Peer("jina-bert-v2", "jina-bert-v2", ENCODER | {LAYER_NORM: 1e-12, "attention.head_count": 6}, TYPES,
         POSTNORMS | biased(attn_q=SQUARE, attn_k=SQUARE, attn_v=SQUARE, attn_q_norm=E, attn_k_norm=E, attn_norm_2=E, ffn_down=DOWN)
         | weights(ffn_gate=UP, ffn_up=UP), {"other slopes": {"attention.head_count": 4}}),
    Peer("neo-bert", "neo-bert", ENCODER | {RMS: 1e-6, "rope.freq_base": 10000.0}, {"enc.output_norm.weight": E},
         weights(attn_norm=E, attn_qkv=(3 * HIDDEN, HIDDEN), attn_output=SQUARE, ffn_norm=E, ffn_up=(2 * FF, HIDDEN), ffn_down=DOWN),
         {"another base": {"rope.freq_base": 20000.0}}),
    Peer("llama-embed", "llama-embed", ENCODER | {RMS: 1e-5, "rope.freq_base": 5e5, "attention.head_count_kv": 1, "rope.dimension_count": 16},
         {"output_norm.weight": E},
         weights(attn_norm=E, attn_q=SQUARE, attn_k=(16, HIDDEN), attn_v=(16, HIDDEN), attn_output=SQUARE, ffn_norm=E, ffn_gate=UP, ffn_up=UP,
                 ffn_down=DOWN), {"another base": {"rope.freq_base": 1e6}}),
    Peer("gemma-embedding2", "gemma-embedding2",
         ENCODER | {RMS: 1e-6, "rope.freq_base": 1e5, "rope.freq_base_swa": 1e3, "attention.head_count_kv": 1, "attention.key_length": 24,
                    "attention.value_length": 24, "attention.key_length_swa": 16, "attention.value_length_swa": 16, "rope.dimension_count": 24,
                    "rope.dimension_count_swa": 16, "attention.sliding_window": 12, "attention.sliding_window_pattern": WINDOWED,
                    "embedding_length_per_layer_input": TAKEN, "embedding_length_out": 32},
         weights(output_norm=E, output=(32, HIDDEN), per_layer_model_proj=(LAYERS * TAKEN, HIDDEN), per_layer_proj_norm=(TAKEN,)), gemma_2,
         {"a wider window": {"attention.sliding_window": 14}, "another base": {"rope.freq_base": 2e5}}),
    # Without the key, its tokens see none after them in llama.cpp.
    Peer("t5encoder", "t5encoder", ENCODER | {RMS: 1e-6, "attention.key_length": 16, "attention.value_length": 16, "attention.relative_buckets_count": 16},
         {"enc.output_norm.weight": E, "enc.blk.0.attn_rel_b.weight": (16, 3)},
         weights(attn_norm=E, attn_q=SQUARE, attn_k=SQUARE, attn_v=SQUARE, attn_o=SQUARE, ffn_norm=E, ffn_up=UP, ffn_down=DOWN),
         {"another eps": {RMS: 0.1}}, prefix="enc.blk"),
]


def write_peer(case: Peer, path: Path, change: dict) -> None:
    keys = {"block_count": LAYERS, "context_length": CONTEXT, "embedding_length": HIDDEN, "feed_forward_length": FF,
            "attention.head_count": 3} | case.keys | change
    random = np.random.default_rng(5)
    shapes = {"token_embd.weight": (VOCAB, HIDDEN)} | case.tensors
    for layer in range(LAYERS):
        here = case.layer(layer) if callable(case.layer) else case.layer
        if "moe_every_n_layers" in keys:
            experts = layer % 2 == 1
            here = {name: shape for name, shape in here.items() if not name.startswith("ffn") or ("_exps" in name or "_inp" in name) == experts}
        shapes |= {f"{case.prefix}.{layer}.{name}": shape for name, shape in here.items()}
    tensors = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape)
        if len(shape) == 1:
            values = 0.2 * values + name.endswith(("norm.weight", "norm_2.weight", "scale.weight"))
        elif "embd" not in name and "types" not in name:
            values *= 1.3 / shape[-1] ** 0.5
        tensors[name] = values.astype(np.float32)
    put(path, case.arch, keys, tensors)


def by_llama(path: Path, all_texts: list) -> np.ndarray:
    """Mean vectors by llama.cpp."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.n_ctx, params.n_batch, params.n_ubatch = str(path), True, 512, 512, 512
    params.n_parallel, params.embd_normalize, params.verbosity, params.warmup = 1, -1, 0, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    found = server.handle_embeddings({"input": [ids for ids, _ in all_texts], "embd_normalize": -1, "encoding_format": "float"})
    return np.array([one["embedding"] for one in sorted(found["data"], key=lambda one: one["index"])])


def compare_peer(args, report, case: Peer, program: Path, path: Path) -> None:
    write_peer(case, path, {})
    # llama.cpp knows no second segment.
    all_texts = [(ids, "-") for ids, _ in texts(args.seed)]
    exact = unit(by_llama(path, all_texts))
    asked = [("mean", text) for text in all_texts]
    far = apart(unit(np.array(ours(program, path, asked))), exact)
    report.add(far <= PEER, f"{case.name} beside llama.cpp: {far:.1e} apart")
    for what, change in case.wrong.items():
        write_peer(case, path, change)
        wrong = apart(unit(np.array(ours(program, path, asked))), exact)
        report.add(wrong > SEEN * far, f"{case.name}, with a mistake: {what}: {wrong:.1e} apart (wanted > {SEEN * far:.1e})")


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.sqrt(np.square(vectors).sum(-1, keepdims=True))


def add_arguments(parser) -> None:
    parser.add_argument("--peer", action="store_true", help="beside llama.cpp instead of transformers")
    parser.add_argument("names", nargs="*", help="cases whose names begin with one of these (default: all)")
    parser.add_argument("--binary", type=Path, help="the built example `vectors` (default: builds it)")
    parser.add_argument("--seed", type=int, default=1, help="of the texts")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what fails, and the sum")


def run(args) -> int:
    report = checks.Checks(args.quiet)
    program = args.binary or common.example("vectors")
    with tempfile.TemporaryDirectory() as folder:
        if not args.peer:
            transformers.logging.set_verbosity_error()
            torch.set_num_threads(1)  # for such small networks
        for case in PEERS if args.peer else CASES:
            if not args.names or any(case.name.startswith(name) for name in args.names):
                one = compare_peer if args.peer else compare
                one(args, report, case, program, Path(folder) / "model.gguf")
    by = "llama.cpp" if args.peer else f"transformers {transformers.__version__}"
    print(f"{by}: {report.passed} passed, {report.failed} failed")
    return report.status()
