"""Writes tiny models with random weights as Hugging Face has them, one folder for each architecture and each
form of config.json, for comparing `alight convert` with llama.cpp's convert_hf_to_gguf.py.

config.json is written by the configuration classes of `transformers`, so that its form is the real one; the form
that models of 2023 to 2025 have (rope_theta, rope_scaling, torch_dtype, no layer_types) is made of it. Names and
shapes of tensors are by our own hand; --check-names compares them with the models of `transformers` (needs
torch). --configs also writes what tests of crates/convert keep: NAME.json (config.json as it is) and
NAME.tensors (a line for each tensor: its name and its extents). --record also writes NAME.gguf.json there, what
llama.cpp's convert_hf_to_gguf.py made of the folder (GGUFS/NAME.gguf): metadata but that of the tokenizer, tensors
with extents, and the numbers of rope_freqs.weight (needs gguf).

Needs transformers, sentencepiece and numpy, in an environment of their own (they are in no requirements.txt):
    python3 -m venv VENV && VENV/bin/pip install transformers sentencepiece numpy     [torch, for --check-names]
"""

from __future__ import annotations

import io
import json
import sys
import zlib
from pathlib import Path

from evidence.lib import networks, published
from evidence.lib.lazy import lazily
from evidence.lib.sources import hf, model

np = lazily("numpy")
sentencepiece = lazily("sentencepiece")
transformers = lazily("transformers")


VOCAB = 384
# What the pieces of the vocabulary are learned from.
TEXT = ["It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,",
        "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of",
        "Darkness, it was the spring of hope, it was the winter of despair. fn main() { let x = 0; } 1 2 3 4 5 6 7 8 9"]
SMALL = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
GEMMA = dict(head_dim=32, query_pre_attn_scalar=32, rms_norm_eps=1e-6, sliding_window=64)
EIGHT = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"]


def rope(**parameters):
    return dict(rope_parameters=dict(dict(rope_type="default", rope_theta=10000.0), **parameters))


def gemma3_rope(**full):
    full = dict(dict(rope_type="default", rope_theta=1e6), **full)
    return dict(rope_parameters=dict(full_attention=full, sliding_attention=dict(rope_type="default", rope_theta=1e4)))


# Name: class, what differs from SMALL, and how the folder is written: form of config.json, prefixes, type, shards.
CASES = {
    "llama": ("Llama", dict(num_key_value_heads=None), dict(form="old", type="F16", inv_freq=True)),
    "llama-new": ("Llama", dict(), dict(type="F32")),
    "llama-3.1": ("Llama", dict(hidden_size=256, head_dim=64, max_position_embeddings=131072, **rope(**LLAMA3)),
                  dict(form="old", shards=2)),
    "llama-3.2-new": ("Llama", dict(hidden_size=256, head_dim=64, tie_word_embeddings=True, max_position_embeddings=131072,
                                    **rope(**dict(LLAMA3, factor=32.0))), dict()),
    "llama-linear": ("Llama", rope(rope_type="linear", factor=4.0), dict(form="old")),
    "llama-dynamic": ("Llama", rope(rope_type="dynamic", factor=2.0), dict(form="old")),
    "llama-yarn": ("Llama", rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=24.0,
                                 beta_slow=2.0, attention_factor=1.25), dict()),
    "llama-biases": ("Llama", dict(attention_bias=True, mlp_bias=True), dict()),
    "smollm2": ("Llama", dict(tie_word_embeddings=True, num_attention_heads=4, num_key_value_heads=1, **rope(rope_theta=1e5)),
                dict(form="old")),
    "llama-base": ("Llama", dict(tie_word_embeddings=True), dict(prefix="", architecture="LlamaModel")),
    "mistral": ("Mistral", dict(sliding_window=128), dict(form="old")),
    "mistral-head-dim": ("Mistral", dict(head_dim=32, sliding_window=None, **rope(rope_theta=1e6)), dict()),
    "qwen2": ("Qwen2", dict(rms_norm_eps=1e-6, **rope(rope_theta=1e6)), dict(form="old")),
    "qwen2-tied": ("Qwen2", dict(tie_word_embeddings=True, **rope(rope_theta=1e6)), dict()),
    "qwen2-yarn": ("Qwen2", rope(rope_type="yarn", factor=4.0, rope_theta=1e6, original_max_position_embeddings=128),
                   dict(form="old")),
    "qwen3": ("Qwen3", dict(head_dim=32, **rope(rope_theta=1e6)), dict(form="old")),
    "qwen3-tied": ("Qwen3", dict(head_dim=32, tie_word_embeddings=True, **rope(rope_theta=1e6)), dict()),
    # Published ones say truncate false, for which GGUF has no key: that is noted.
    "gpt_oss": ("GptOss", dict(num_local_experts=5, num_experts_per_tok=2, head_dim=16, intermediate_size=64, sliding_window=64,
                               **rope(rope_type="yarn", rope_theta=150000.0, factor=8.0, original_max_position_embeddings=64,
                                      beta_fast=32.0, beta_slow=1.0, truncate=True)), dict()),
    "granite": ("Granite", dict(embedding_multiplier=12.0, logits_scaling=6.0, residual_multiplier=0.22, attention_multiplier=0.2,
                                **rope(rope_theta=1e6)), dict(form="old")),
    "granitemoe": ("GraniteMoe", dict(num_local_experts=5, num_experts_per_tok=2, embedding_multiplier=12.0, logits_scaling=6.0,
                                      residual_multiplier=0.22, attention_multiplier=0.2), dict()),
    "granitemoe-shared": ("GraniteMoeShared", dict(num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=80), dict()),
    "olmo2": ("Olmo2", dict(rope(rope_theta=5e5)), dict()),
    "olmo3": ("Olmo3", dict(num_hidden_layers=4, sliding_window=64, **rope(rope_theta=5e5)), dict()),
    "phi3": ("Phi3", dict(original_max_position_embeddings=512, sliding_window=64, pad_token_id=0), dict(form="old")),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, **rope(rope_theta=2e6)), dict()),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None, **rope(rope_theta=1e6)), dict()),
    "qwen2moe": ("Qwen2Moe", dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=80,
                                  **rope(rope_theta=1e6)), dict()),
    "qwen3moe": ("Qwen3Moe", dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=32, head_dim=32, norm_topk_prob=True,
                                  **rope(rope_theta=1e6)), dict()),
    "seed_oss": ("SeedOss", dict(head_dim=32, **rope(rope_theta=1e7)), dict()),
    "gemma2": ("Gemma2", dict(GEMMA, num_hidden_layers=4), dict(form="old", lm_head=True)),
    "gemma2-new": ("Gemma2", dict(GEMMA, num_hidden_layers=4, attn_logit_softcapping=40.0), dict()),
    "gemma3": ("Gemma3Text", dict(GEMMA, num_hidden_layers=7, **gemma3_rope()), dict(form="old")),
    "gemma3-new": ("Gemma3Text", dict(GEMMA, num_hidden_layers=7, **gemma3_rope()), dict()),
    "gemma3-linear": ("Gemma3Text", dict(GEMMA, num_hidden_layers=7, **gemma3_rope(rope_type="linear", factor=8.0)),
                      dict(form="old")),
    "gemma3-untied": ("Gemma3Text", dict(GEMMA, tie_word_embeddings=False, **gemma3_rope()), dict()),
    "gemma3-pattern": ("Gemma3Text", dict(GEMMA, num_hidden_layers=8, layer_types=EIGHT, **gemma3_rope()), dict()),
    "gemma3-pictures": ("Gemma3Text", dict(GEMMA, num_hidden_layers=7, **gemma3_rope(rope_type="linear", factor=8.0)),
                        dict(pictures=True, prefix="language_model.model.", form="old")),
    "gemma3-pictures-new": ("Gemma3Text", dict(GEMMA, num_hidden_layers=7, **gemma3_rope()),
                            dict(pictures=True, prefix="model.language_model.")),
}


# --- config.json ---------------------------------------------------------------------------------


def configuration(kind, changes, how):
    """config.json as `transformers` writes it, or wrote it."""
    changes = dict(SMALL, **changes)
    if kind == "Mistral" and "num_key_value_heads" not in changes:
        changes["num_key_value_heads"] = 2
    config = getattr(transformers, f"{kind}Config")(**changes)
    architecture = how.get("architecture", f"{kind.removesuffix('Text')}ForCausalLM")
    config.architectures = [architecture]
    config.dtype = {"F16": "float16", "F32": "float32"}.get(how.get("type"), "bfloat16")
    if how.get("pictures"):
        vision = transformers.SiglipVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                                 num_attention_heads=2, image_size=56, patch_size=14)
        config.architectures = None
        config = transformers.Gemma3Config(text_config=config, vision_config=vision, mm_tokens_per_image=4)
        config.architectures = ["Gemma3ForConditionalGeneration"]
    said = json.loads(config.to_json_string(use_diff=True))
    if kind == "GptOss":
        said["quantization_config"] = {"quant_method": "mxfp4"}
    if how.get("form") == "old":
        as_it_was(said)
        if text := said.get("text_config"):
            as_it_was(text)
            # What google/gemma-3-4b-it has is what differs from the defaults.
            usual = transformers.Gemma3TextConfig().to_dict()
            for key in [key for key, value in text.items() if key != "model_type" and usual.get(key, value) == value]:
                if not key.startswith("rope"):
                    del text[key]
    return config, said


def as_it_was(said):
    """Turns the form of `transformers` 5 into that of 4, in place."""
    said["transformers_version"] = "4.40.0"
    said["torch_dtype"] = said.pop("dtype", "bfloat16")
    types = said.get("layer_types")
    if said.get("model_type") == "granitemoehybrid":
        said["layers_block_type"] = said.pop("layer_types")
    elif types and set(types) <= {"full_attention", "sliding_attention"}:
        del said["layer_types"]
    said.pop("_sliding_window_pattern", None)
    # What came later, and goes without saying.
    for key in ("attention_bias", "mlp_bias"):
        if said.get(key) is False:
            del said[key]
    heads = said.get("num_attention_heads")
    if heads and said.get("head_dim") == said["hidden_size"] // heads and said["model_type"] in ("llama", "mistral"):
        del said["head_dim"]
    parameters = said.pop("rope_parameters", None)
    if parameters is None:
        return
    if "full_attention" in parameters:
        said["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
        said["sliding_window_pattern"] = types.index("full_attention") + 1 if "full_attention" in types else 6
    if said["model_type"] == "gpt_neox":
        said |= dict(rotary_pct=parameters["partial_rotary_factor"], rotary_emb_base=parameters["rope_theta"])
        return
    said["rope_theta"] = parameters.pop("rope_theta")
    said["rope_scaling"] = None if parameters.get("rope_type") == "default" else parameters


# --- tensors -------------------------------------------------------------------------------------

ARCHITECTURES = {"Llama": "llama", "Mistral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3", "Gemma2": "gemma2", "Gemma3Text": "gemma3",
                 "Granite": "granite", "SeedOss": "seed_oss", "Mixtral": "llama", "SmolLM3": "smollm3", "Qwen2Moe": "qwen2moe", "Qwen3Moe": "qwen3moe"}

# What the files of a mixture call its parts; a `*` is the number of an expert.
MIXTURE = {"ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.*.gate_proj", "ffn_up_exps": "mlp.experts.*.up_proj",
           "ffn_down_exps": "mlp.experts.*.down_proj", "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
           "ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj",
           "ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
MIXTRAL = {"ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
           "ffn_up_exps": "block_sparse_moe.experts.*.w3", "ffn_down_exps": "block_sparse_moe.experts.*.w2"}


def mixture_names(kind: str, name: str, shape: tuple) -> dict[str, tuple]:
    """Name and shape of the tensors that make one of a mixture."""
    *layer, part, what = name.split(".")
    theirs = (MIXTRAL if kind == "Mixtral" else MIXTURE).get(part) if layer else None
    if theirs is None:
        return {}
    start = f"model.layers.{layer[1]}.{theirs}.{what}"
    if "*" not in start:
        return {start: (1, *shape) if part == "ffn_gate_inp_shexp" else shape}
    return {start.replace("*", str(expert)): shape[1:] for expert in range(shape[0])}


def gpt_oss_tensors(c) -> dict[str, tuple]:
    """As it is published: experts in blocks of MXFP4, whose scales are apart."""
    q, kv, ff, experts = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim, c.intermediate_size, c.num_local_experts
    layer = {f"self_attn.{part}_proj.{what}": (rows, cols) if what == "weight" else (rows,)
             for part, rows, cols in (("q", q, c.hidden_size), ("k", kv, c.hidden_size), ("v", kv, c.hidden_size), ("o", c.hidden_size, q))
             for what in ("weight", "bias")}
    layer |= {"self_attn.sinks": (c.num_attention_heads,), "input_layernorm.weight": (c.hidden_size,),
              "post_attention_layernorm.weight": (c.hidden_size,), "mlp.router.weight": (experts, c.hidden_size), "mlp.router.bias": (experts,)}
    for name, rows, cols in (("gate_up_proj", 2 * ff, c.hidden_size), ("down_proj", c.hidden_size, ff)):
        layer |= {f"mlp.experts.{name}_blocks": (experts, rows, cols // 32, 16), f"mlp.experts.{name}_scales": (experts, rows, cols // 32),
                  f"mlp.experts.{name}_bias": (experts, rows)}
    return of_layers(c, layer)


def granitemoe_tensors(c) -> dict[str, tuple]:
    """Gate and up are one tensor, of all experts together."""
    kv = c.num_key_value_heads * c.hidden_size // c.num_attention_heads
    experts, ff, shared = c.num_local_experts, c.intermediate_size, getattr(c, "shared_intermediate_size", 0)
    layer = {f"self_attn.{part}_proj.weight": (rows, c.hidden_size)
             for part, rows in (("q", c.hidden_size), ("k", kv), ("v", kv), ("o", c.hidden_size))}
    layer |= {"input_layernorm.weight": (c.hidden_size,), "post_attention_layernorm.weight": (c.hidden_size,),
              "block_sparse_moe.router.layer.weight": (experts, c.hidden_size),
              "block_sparse_moe.input_linear.weight": (experts, 2 * ff, c.hidden_size),
              "block_sparse_moe.output_linear.weight": (experts, c.hidden_size, ff)}
    if shared:
        layer |= {"shared_mlp.input_linear.weight": (2 * shared, c.hidden_size),
                  "shared_mlp.output_linear.weight": (c.hidden_size, shared)}
    return of_layers(c, layer)


def olmo_tensors(c) -> dict[str, tuple]:
    """Norms of what a part gives, and of all heads together."""
    kv, ff = c.num_key_value_heads * c.hidden_size // c.num_attention_heads, c.intermediate_size
    layer = {f"self_attn.{part}_proj.weight": (rows, c.hidden_size)
             for part, rows in (("q", c.hidden_size), ("k", kv), ("v", kv), ("o", c.hidden_size))}
    layer |= {"self_attn.q_norm.weight": (c.hidden_size,), "self_attn.k_norm.weight": (kv,),
              "post_attention_layernorm.weight": (c.hidden_size,), "post_feedforward_layernorm.weight": (c.hidden_size,),
              "mlp.gate_proj.weight": (ff, c.hidden_size), "mlp.up_proj.weight": (ff, c.hidden_size),
              "mlp.down_proj.weight": (c.hidden_size, ff)}
    return of_layers(c, layer)


def of_layers(c, layer: dict[str, tuple]) -> dict[str, tuple]:
    out = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size), "model.norm.weight": (c.hidden_size,)}
    out |= {} if c.tie_word_embeddings else {"lm_head.weight": (c.vocab_size, c.hidden_size)}
    return out | {f"model.layers.{i}.{name}": shape for i in range(c.num_hidden_layers) for name, shape in layer.items()}


def phi3_tensors(c) -> dict[str, tuple]:
    """Queries, keys and values are one tensor, gate and up another."""
    kv = c.num_key_value_heads * c.hidden_size // c.num_attention_heads
    return of_layers(c, {
        "self_attn.qkv_proj.weight": (c.hidden_size + 2 * kv, c.hidden_size), "self_attn.o_proj.weight": (c.hidden_size, c.hidden_size),
        "mlp.gate_up_proj.weight": (2 * c.intermediate_size, c.hidden_size), "mlp.down_proj.weight": (c.hidden_size, c.intermediate_size),
        "input_layernorm.weight": (c.hidden_size,), "post_attention_layernorm.weight": (c.hidden_size,)})


OTHERS = {"GptOss": gpt_oss_tensors, "GraniteMoe": granitemoe_tensors, "GraniteMoeShared": granitemoe_tensors,
          "Phi3": phi3_tensors, "Olmo2": olmo_tensors, "Olmo3": olmo_tensors}


def tensors(kind, config, how):
    """Name -> shape."""
    if kind in OTHERS:
        return OTHERS[kind](config)
    c, arch, prefix = getattr(config, "text_config", config), ARCHITECTURES[kind], how.get("prefix", "model.")
    head, attention_bias = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads, getattr(c, "attention_bias", False)
    biases = networks.QKV if kind in ("Qwen2", "Qwen2Moe") or attention_bias else ()
    biases += ("attn_output",) if getattr(c, "attention_out_bias", attention_bias) else ()
    biases += networks.MLP if getattr(c, "mlp_bias", False) else ()
    theirs = networks.shapes(
        arch, layers=c.num_hidden_layers, embd=c.hidden_size, ff=c.intermediate_size, heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads, head_dim=head, vocab=c.vocab_size, tied=c.tie_word_embeddings and not how.get("lm_head"),
        biases=biases, qk_norm=kind in ("Qwen3", "Qwen3Moe", "Gemma3Text"),
        experts=getattr(c, "num_experts", 0) or getattr(c, "num_local_experts", 0),
        expert_ff=getattr(c, "moe_intermediate_size", c.intermediate_size), shared_ff=getattr(c, "shared_expert_intermediate_size", 0))
    out = {}
    for name, shape in theirs.items():
        if of_mixture := mixture_names(kind, name, shape):
            out |= of_mixture
            continue
        name = networks.hf_name(arch, name)
        out[prefix + name.removeprefix("model.") if name.startswith("model.") else name] = shape
    if how.get("inv_freq"):
        out |= {f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq": (head // 2,) for i in range(c.num_hidden_layers)}
    if how.get("pictures"):
        vision = "model." if prefix.startswith("model.") else ""
        out |= {f"{vision}vision_tower.vision_model.embeddings.patch_embedding.weight": (32, 3, 14, 14),
                f"{vision}multi_modal_projector.mm_input_projection_weight": (32, c.hidden_size),
                f"{vision}multi_modal_projector.mm_soft_emb_norm.weight": (32,)}
    return out


def check_names(kind, config, how, shapes):
    """Holds the names and shapes against the model that `transformers` makes of the configuration."""
    import torch

    text = getattr(config, "text_config", config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(text)
    theirs = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    prefix = how.get("prefix", "model.")
    ours = {}
    for name, shape in shapes.items():
        if "inv_freq" in name or "vision_tower" in name or "multi_modal" in name:
            continue
        ours["model." + name.removeprefix(prefix) if name.startswith(prefix) and name != "lm_head.weight" else name] = shape
    if text.tie_word_embeddings:
        theirs.pop("lm_head.weight", None)
        ours.pop("lm_head.weight", None)
    return sorted(set(ours.items()) ^ set(theirs.items()))


def values(rng, kind, name, shape):
    if name.endswith("_blocks"):
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if name.endswith("_scales"):
        return rng.integers(118, 124, shape, dtype=np.uint8)
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
    if name.endswith("norm.weight") and not kind.startswith("Gemma"):
        values += 1
    return values


# --- folders -------------------------------------------------------------------------------------


def tokenizer(kind):
    """A SentencePiece model of VOCAB pieces, with the special ones of its kind."""
    made = io.BytesIO()
    special = {}
    if kind.startswith("Gemma"):
        special = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>", add_dummy_prefix=False)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=made, model_type="bpe", vocab_size=VOCAB, byte_fallback=True,
        num_threads=1, character_coverage=1.0, minloglevel=2, **special)
    return made.getvalue()


def write(folder, kind, how, said, shapes, spm):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "config.json").write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
    settings = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "do_sample": True}
    settings |= {key: said[key] for key in ("bos_token_id", "eos_token_id") if said.get(key) is not None}
    (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "tokenizer.model").write_bytes(spm)
    ty = how.get("type", "BF16")
    rng = np.random.default_rng(zlib.crc32(folder.name.encode()))
    made = {name: values(rng, kind, name, shape) for name, shape in sorted(shapes.items())}
    data = {name: x if x.dtype == np.uint8 else model.cast(x, ty) for name, x in made.items()}
    hf.write_weights(folder, data, how.get("shards", 1))


def record(path):
    """What a GGUF file says, without the weights."""
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {}
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "tokenizer.")):
            keys[field.name] = ["/".join(ty.name for ty in field.types), field.contents()]
    tensors = {t.name: [int(n) for n in reversed(t.shape)] for t in reader.tensors}
    freqs = [t.data.tolist() for t in reader.tensors if t.name == "rope_freqs.weight"]
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in (("tensors", tensors), ("rope_freqs", freqs))]
    keys = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items())
    return "{\n  \"keys\": {\n" + keys + "\n  },\n" + ",\n".join(lines) + "\n}\n"


def add_arguments(parser) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME")
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--check-names", action="store_true")
    parser.add_argument("--published", action="store_true", help="the models of evidence/lib/published.py instead (needs torch)")
    parser.add_argument("--record", type=Path, metavar="GGUFS")


def run(args):
    for case in published.CASES if args.published else []:
        published.write(case, args.out / case.name)
        published.tokenizer(case, args.out / case.name, tokenizer(case.kind))
    wrong = 0
    for name in [] if args.published else args.only or CASES:
        kind, changes, how = CASES[name]
        config, said = configuration(kind, changes, how)
        shapes = tensors(kind, config, how)
        if args.check_names:
            for difference in check_names(kind, config, how, shapes):
                print(f"{name}: {difference} is only in one of ours and transformers'", file=sys.stderr)
                wrong += 1
        write(args.out / name, kind, how, said, shapes, tokenizer(kind))
        if args.configs:
            args.configs.mkdir(parents=True, exist_ok=True)
            (args.configs / f"{name}.json").write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
            lines = (" ".join([tensor, *map(str, shape)]) for tensor, shape in sorted(shapes.items()))
            (args.configs / f"{name}.tensors").write_text("\n".join(lines) + "\n")
        if args.record and args.configs:
            (args.configs / f"{name}.gguf.json").write_text(record(args.record / f"{name}.gguf"))
        print(args.out / name)
    return 1 if wrong else 0
