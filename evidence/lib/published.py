"""Tiny models as their makers publish them: `transformers` makes the configuration, the network with random weights of odd
shapes, and the folder (`save_pretrained`), so that keys, names and shapes are nobody's reading of them.

A folder's config.json has the form of `transformers` 5 (rope_parameters, dtype); `as_it_was` makes of it that of 4
(rope_theta, rope_scaling, torch_dtype), which most folders have that can be downloaded.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from evidence.lib.lazy import lazily

torch = lazily("torch")
transformers = lazily("transformers")

VOCAB = 384
SMALL = dict(vocab_size=VOCAB, hidden_size=96, intermediate_size=144, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256, rms_norm_eps=1e-5, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
EXPERTS = dict(moe_intermediate_size=48, num_experts_per_tok=3)


@dataclass(frozen=True)
class Published:
    """A case: its name, the class of transformers without `Config`, what differs from SMALL, and changes of config.json (of
    its text part, if it has one), by what they are, that must not pass for it (a dot leads into an object)."""

    name: str
    kind: str
    changes: dict
    mistakes: dict = field(default_factory=dict)
    # Whether the form of transformers 4 is tried too.
    old: bool = True
    # The class of the whole model without `Config`, of which `kind` is the text part.
    whole: str = ""

    @property
    def experts(self) -> bool:
        return any("experts" in key for key in self.changes)


def rope(**parameters) -> dict:
    return dict(rope_parameters=dict(dict(rope_type="default", rope_theta=10000.0), **parameters))


YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)
EPS = {"another epsilon": {"rms_norm_eps": 0.3}}
BASE = {"another base": {"rope_parameters.rope_theta": 50.0}}
DELTA_NET = dict(num_hidden_layers=5, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
                 linear_num_value_heads=6, linear_conv_kernel_dim=4)
HYBRID = EPS | BASE | {"all of a head rotates": {"rope_parameters.partial_rotary_factor": 1.0}}
LATENT = dict(kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=24, v_head_dim=20, num_key_value_heads=4, first_k_dense_replace=1)
SHORT = dict(num_hidden_layers=5, layer_types=["conv", "conv", "full_attention", "conv", "full_attention"])
LONG = rope(rope_type="longrope", original_max_position_embeddings=32, partial_rotary_factor=0.75,
            short_factor=[1.0 + 0.1 * i for i in range(9)], long_factor=[1.5 + 0.7 * i for i in range(9)])
GRANITE = dict(embedding_multiplier=3.0, logits_scaling=0.7, residual_multiplier=0.6, attention_multiplier=0.25)
SCALES = {f"another {key}": {key: 1.0} for key in GRANITE}
# Not divisors of one another where they need not be.
MAMBA = dict(mamba_n_heads=6, mamba_n_groups=2, mamba_d_state=20, mamba_d_head=32, mamba_d_conv=4, mamba_expand=2)
LLAMA4 = dict(num_hidden_layers=6, head_dim=32, intermediate_size=80, intermediate_size_mlp=112, num_local_experts=7, num_experts_per_tok=3,
              interleave_moe_layer_step=2, attention_chunk_size=40)
GEMMA4_ROPE = dict(rope_parameters=dict(
    full_attention=dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25), sliding_attention=dict(rope_type="default", rope_theta=1e4)))
GEMMA4 = dict(num_hidden_layers=6, head_dim=24, global_head_dim=40, sliding_window=40, final_logit_softcapping=15.0, vocab_size_per_layer_input=VOCAB,
              layer_types=["sliding_attention", "full_attention"] * 3, tie_word_embeddings=True, **GEMMA4_ROPE)
GEMMA4_MISTAKES = EPS | {"another window": {"sliding_window": 24}, "no cap": {"final_logit_softcapping": None},
                         "another base": {"rope_parameters.full_attention.rope_theta": 50.0}, "another local base": {"rope_parameters.sliding_attention.rope_theta": 50.0},
                         "another share rotates": {"rope_parameters.full_attention.partial_rotary_factor": 0.5},
                         "other layers with a window": {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}}
HYBRID_LAYERS = ["linear_attention", "full_attention", "linear_attention"]

CASES = [
    Published("qwen3_moe", "Qwen3Moe", dict(EXPERTS, num_experts=7, head_dim=40, norm_topk_prob=True, **rope(rope_theta=1e6)),
              EPS | BASE | {"two experts": {"num_experts_per_tok": 2}, "weights not normed": {"norm_topk_prob": False}}),
    Published("qwen2_moe", "Qwen2Moe", dict(EXPERTS, num_experts=7, shared_expert_intermediate_size=80, **rope(rope_theta=1e6)),
              EPS | BASE | {"two experts": {"num_experts_per_tok": 2}, "weights normed": {"norm_topk_prob": True}}),
    Published("mixtral", "Mixtral", dict(num_local_experts=5, num_experts_per_tok=2, head_dim=40, sliding_window=None, **rope(rope_theta=1e6)),
              EPS | BASE | {"three experts": {"num_experts_per_tok": 3}}),
    Published("granite", "Granite", dict(GRANITE, **rope()), EPS | BASE | SCALES),
    Published("granitemoe", "GraniteMoe", dict(GRANITE, num_local_experts=7, num_experts_per_tok=3, **rope()),
              EPS | BASE | SCALES | {"two experts": {"num_experts_per_tok": 2}}),
    Published("granitemoe-shared", "GraniteMoeShared",
              dict(GRANITE, num_local_experts=7, num_experts_per_tok=3, shared_intermediate_size=80, **rope()), SCALES),
    Published("granite-hybrid", "GraniteMoeHybrid", dict(GRANITE, **MAMBA, num_local_experts=7, num_experts_per_tok=3, shared_intermediate_size=80,
                                                         layer_types=HYBRID_LAYERS), EPS | SCALES | {"two experts": {"num_experts_per_tok": 2}}),
    Published("granite-hybrid-dense", "GraniteMoeHybrid", dict(GRANITE, **dict(MAMBA, mamba_n_groups=1), num_local_experts=0, num_experts_per_tok=0,
                                                               shared_intermediate_size=80, layer_types=HYBRID_LAYERS), SCALES),
    Published("granite-attention", "GraniteMoeHybrid", dict(GRANITE, **MAMBA, num_local_experts=0, num_experts_per_tok=0,
                                                            shared_intermediate_size=80, position_embedding_type="rope",
                                                            layer_types=["full_attention"] * 3, **rope()), EPS | BASE | SCALES | {"no rotation": {"position_embedding_type": None}}),
    Published("olmo2", "Olmo2", rope(rope_theta=5e5), EPS | BASE),
    Published("olmo3", "Olmo3", dict(num_hidden_layers=5, sliding_window=12, **rope(rope_theta=5e5)),
              EPS | {"another window": {"sliding_window": 24}, "another base": {"rope_parameters.full_attention.rope_theta": 50.0}}),
    Published("smollm3", "SmolLM3", dict(num_hidden_layers=4, tie_word_embeddings=True, **rope(rope_theta=2e6)), EPS | BASE),
    Published("qwen3_next", "Qwen3Next", dict(**EXPERTS, **DELTA_NET, num_experts=7, shared_expert_intermediate_size=80, norm_topk_prob=True,
                                              **rope(rope_theta=1e7, partial_rotary_factor=0.25)), HYBRID),
    Published("qwen3_5", "Qwen3_5Text", dict(DELTA_NET, **rope(rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1])),
              HYBRID, old=False),
    Published("qwen3_5_moe", "Qwen3_5MoeText", dict(**EXPERTS, **DELTA_NET, num_experts=7, shared_expert_intermediate_size=80,
                                                    **rope(rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1])),
              HYBRID, old=False),
    Published("deepseek_v3", "DeepseekV3", dict(
        EXPERTS, **LATENT, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2, routed_scaling_factor=2.5,
        **rope()), EPS | BASE | {"two experts": {"num_experts_per_tok": 2}, "another scale": {"routed_scaling_factor": 1.0},
                                 "weights not normed": {"norm_topk_prob": False}, "no groups": {"n_group": 1, "topk_group": 1},
                                 "softmax": {"scoring_func": "softmax"}}),
    Published("deepseek_v3-yarn", "DeepseekV3", dict(
        EXPERTS, **LATENT, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, n_group=2, topk_group=1,
        rope_parameters=dict(YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)),
              {"no scale of attention": {"rope_parameters.mscale_all_dim": 0.0}, "another factor": {"rope_parameters.factor": 2.0}}),
    Published("deepseek_v2", "DeepseekV2", dict(
        EXPERTS, **LATENT, q_lora_rank=None, n_routed_experts=8, n_shared_experts=2, n_group=1, topk_group=1, topk_method="greedy", **rope()),
              EPS | BASE | {"weights normed": {"norm_topk_prob": True}}),
    Published("glm4", "Glm4", dict(head_dim=32, attention_bias=True, **rope(partial_rotary_factor=0.5)),
              EPS | BASE | {"all of a head rotates": {"rope_parameters.partial_rotary_factor": 1.0}}),
    Published("glm4_moe", "Glm4Moe", dict(
        EXPERTS, num_key_value_heads=2, head_dim=32, attention_bias=True, use_qk_norm=True, n_routed_experts=8, n_shared_experts=1, n_group=1,
        topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5, **rope(partial_rotary_factor=0.5)),
              EPS | BASE | {"another scale": {"routed_scaling_factor": 1.0}, "all of a head rotates": {"rope_parameters.partial_rotary_factor": 1.0}}),
    Published("phi3-long", "Phi3", dict(num_hidden_layers=2, original_max_position_embeddings=32, **LONG), EPS | {
        "no magnitude": {"rope_parameters.attention_factor": 1.0}, "another context": {"max_position_embeddings": 128},
        "other factors": {"rope_parameters.long_factor": [1.0] * 9}}, old=False),
    Published("minimax_m2", "MiniMaxM2", dict(num_local_experts=7, num_experts_per_tok=3, head_dim=32, rotary_dim=16,
                                              **rope(rope_theta=5e6, partial_rotary_factor=0.5)),
              EPS | BASE | {"all of a head rotates": {"rotary_dim": 32}, "two experts": {"num_experts_per_tok": 2}}),
    Published("lfm2", "Lfm2", dict(SHORT, norm_eps=1e-5, **rope(rope_theta=1e6)), BASE | {"another epsilon": {"norm_eps": 0.3}}),
    Published("lfm2_moe", "Lfm2Moe", dict(**EXPERTS, **SHORT, num_experts=7, num_dense_layers=2, norm_eps=1e-5, tie_word_embeddings=True, **rope(rope_theta=1e6)),
              BASE | {"two experts": {"num_experts_per_tok": 2}, "another scale": {"routed_scaling_factor": 2.0},
                      "weights not normed": {"norm_topk_prob": False}}),
    Published("seed_oss", "SeedOss", dict(head_dim=40, attention_bias=True, attention_out_bias=False, **rope(rope_theta=1e7)), EPS | BASE),
    Published("llama4", "Llama4Text", LLAMA4, EPS | {
        "another base": {"rope_parameters.rope_theta": 50.0}, "another chunk": {"attention_chunk_size": 64}, "no chunks": {"attention_chunk_size": None},
        "queries and keys not normed": {"use_qk_norm": False}, "no growing queries": {"attn_temperature_tuning": False},
        "another layer without rotation": {"no_rope_layers": [1, 1, 0, 1, 1, 1]}, "experts elsewhere": {"moe_layers": [0, 2, 4]}}),
    Published("llama4-scout", "Llama4Text", dict(
        LLAMA4, num_experts_per_tok=1, interleave_moe_layer_step=1,
        **rope(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=64)),
              {"two experts": {"num_experts_per_tok": 2}, "another factor": {"rope_parameters.factor": 2.0}}, whole="Llama4"),
    Published("gemma4", "Gemma4Text", dict(GEMMA4, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1),
              GEMMA4_MISTAKES, old=False),
    Published("gemma4-small", "Gemma4Text", dict(GEMMA4, hidden_size_per_layer_input=20, num_kv_shared_layers=2, use_double_wide_mlp=True),
              GEMMA4_MISTAKES, old=False, whole="Gemma4"),
    Published("gemma4-moe", "Gemma4Text", dict(
        GEMMA4, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=7,
        top_k_experts=3, moe_intermediate_size=48), {"two experts": {"top_k_experts": 2}},
              old=False, whole="Gemma4"),
    Published("gemma", "Gemma", dict(head_dim=32, tie_word_embeddings=True, **rope()), EPS | BASE),
    Published("arcee", "Arcee", dict(attention_bias=True, mlp_bias=True, **rope()), EPS | BASE),
    Published("exaone4", "Exaone4", dict(num_hidden_layers=5, head_dim=32, sliding_window=12, sliding_window_pattern=4, **rope(rope_theta=1e6)),
              EPS | {"another window": {"sliding_window": 24}} | BASE),
    Published("exaone4-full", "Exaone4", dict(sliding_window=None, layer_types=["full_attention"] * 3, **rope(rope_theta=1e6)), EPS | BASE),
    Published("ernie4_5", "Ernie4_5", dict(head_dim=32, use_bias=False, **rope(rope_theta=5e5)), EPS | BASE),
    Published("ernie4_5_moe", "Ernie4_5_Moe", dict(
        moe_intermediate_size=48, moe_num_experts=7, moe_k=3, moe_num_shared_experts=2, moe_layer_start_index=1, use_bias=False, tie_word_embeddings=True,
        **rope(rope_theta=5e5)), EPS | BASE | {"two experts": {"moe_k": 2}}),
    Published("olmoe", "Olmoe", dict(num_experts=7, num_experts_per_tok=3, norm_topk_prob=False, **rope()), BASE | {"two experts": {"num_experts_per_tok": 2}}),
    Published("dots1", "Dots1", dict(
        EXPERTS, head_dim=32, n_routed_experts=8, n_shared_experts=2, n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, layer_types=["full_attention"] * 3, sliding_window=None, **rope()),
              EPS | BASE | {"another scale": {"routed_scaling_factor": 1.0}, "weights not normed": {"norm_topk_prob": False}}),
    Published("hunyuan-dense", "HunYuanDenseV1", dict(head_dim=32, **rope()), EPS | BASE),
    Published("starcoder2", "Starcoder2", dict(norm_epsilon=1e-5, use_bias=True, tie_word_embeddings=True, **rope()), BASE | {"another epsilon": {"norm_epsilon": 0.3}}),
    Published("nemotron", "Nemotron", dict(num_hidden_layers=2, norm_eps=1e-5, head_dim=24, **rope(partial_rotary_factor=0.5)),
              BASE | {"another epsilon": {"norm_eps": 0.3}, "all of a head rotates": {"rope_parameters.partial_rotary_factor": 1.0}}),
    Published("stablelm", "StableLm", dict(layer_norm_eps=1e-5, use_qkv_bias=True, **rope(partial_rotary_factor=0.25)), BASE | {"another epsilon": {"layer_norm_eps": 0.3}}),
    Published("cohere", "Cohere", dict(layer_norm_eps=1e-5, logit_scale=0.3, tie_word_embeddings=True, use_qk_norm=True, **rope()),
              BASE | {"another epsilon": {"layer_norm_eps": 0.3}, "another factor": {"logit_scale": 1.0}}),
    Published("cohere2", "Cohere2", dict(
        num_hidden_layers=5, layer_norm_eps=1e-5, logit_scale=0.3, tie_word_embeddings=True, sliding_window=12, head_dim=24, rotary_pct=1.0, **rope()),
              BASE | {"another window": {"sliding_window": 24}, "another factor": {"logit_scale": 1.0}}),
    Published("afmoe", "Afmoe", dict(
        EXPERTS, num_hidden_layers=5, head_dim=32, num_experts=7, num_shared_experts=2, num_dense_layers=1, route_scale=2.0, sliding_window=12,
        global_attn_every_n_layers=4, mup_enabled=True, **rope()),
              EPS | BASE | {"another window": {"sliding_window": 24}, "another scale": {"route_scale": 1.0}, "two experts": {"num_experts_per_tok": 2}}),
    Published("gpt_neox", "GPTNeoX", dict(num_key_value_heads=4, layer_norm_eps=1e-5, **rope(partial_rotary_factor=0.25)), BASE | {"another epsilon": {"layer_norm_eps": 0.3}}),
    Published("gpt_neox-serial", "GPTNeoX", dict(num_key_value_heads=4, layer_norm_eps=1e-5, use_parallel_residual=False, **rope(partial_rotary_factor=0.5)),
              {"parallel": {"use_parallel_residual": True}}),
    Published("falcon", "Falcon", dict(num_kv_heads=1, num_key_value_heads=1, ffn_hidden_size=144, layer_norm_epsilon=1e-5, tie_word_embeddings=True, multi_query=True, **rope()), BASE | {"another epsilon": {"layer_norm_epsilon": 0.3}}, old=False),
    Published("falcon-grouped", "Falcon", dict(layer_norm_epsilon=1e-5, num_kv_heads=2, ffn_hidden_size=144, new_decoder_architecture=True, **rope()), BASE, old=False),
    Published("gpt2", "GPT2", dict(n_inner=144, num_key_value_heads=4, layer_norm_epsilon=1e-5, tie_word_embeddings=True), {"another epsilon": {"layer_norm_epsilon": 0.3}}, old=False),
    Published("mamba2", "Mamba2", dict(layer_norm_epsilon=1e-5, num_heads=6, head_dim=32, expand=2, n_groups=2, state_size=20, conv_kernel=4),
              {"another epsilon": {"layer_norm_epsilon": 0.3}}, old=False),
    Published("phi3", "Phi3", dict(original_max_position_embeddings=256, sliding_window=40, **rope()),
              EPS | BASE | {"another window": {"sliding_window": 80}}),
]


# What whole models have beside their text part, small.
OTHER_PARTS = {
    "Llama4": dict(tie_word_embeddings=False, vision_config=dict(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128, vision_output_dim=64, image_size=28,
        projector_input_dim=64, projector_output_dim=64)),
    "Gemma4": dict(
        vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                           position_embedding_size=64),
        audio_config=dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, output_proj_dims=32)),
}


def fill(model) -> None:
    """Random weights of a size at which every one of them matters."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(weights.shape, generator=generator, dtype=torch.float32)
            if weights.ndim == 1:
                # Around what the class starts them with: 1 or 0 of norms, rates of recurrences.
                weights.add_(0.3 * noise)
                # What is added to 1 is small.
                if name.endswith("norm.weight") and type(model).__name__ == "NemotronForCausalLM":
                    weights.sub_(1.0)
                # Where attention has no scale of its own, queries are as long as their norm makes them.
                if name.endswith("q_norm.weight") and "Gemma4" in type(model).__name__:
                    weights.mul_(weights.shape[0] ** -0.5)
            else:
                weights.copy_(noise * (1.4 / weights.shape[-1] ** 0.5 if "embed" not in name else 0.2))
        for name, scale in model.named_buffers():
            if name.endswith("layer_scalar"):
                scale.copy_(torch.tensor([0.6 + zlib.crc32(name.encode()) % 8 / 10]))


def write(case: Published, folder: Path) -> None:
    """Makes the folder, without a tokenizer."""
    config = getattr(transformers, f"{case.kind}Config")(**SMALL | case.changes)
    kind = "GPT2LMHeadModel" if case.kind == "GPT2" else f"{case.kind.removesuffix('Text')}ForCausalLM"
    if case.whole:
        config = getattr(transformers, f"{case.whole}Config")(text_config=config.to_dict(), **OTHER_PARTS[case.whole])
        kind = f"{case.whole}ForConditionalGeneration"
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config).float().eval()
    fill(model)
    model.save_pretrained(folder)
    path = folder / "config.json"
    said = json.loads(path.read_text())
    if case.name == "gemma4-moe":
        # As Google has it: two keys for all layers without a window, where transformers 5 writes an object for each.
        del said["text_config"]["per_layer_config"]
        said["text_config"] |= {key: case.changes[key] for key in ("global_head_dim", "num_global_key_value_heads")}
        path.write_text(json.dumps(said))
    if case.name == "gemma4-small":
        # As Google has it: layers that have the keys and values of earlier ones have some of their own as well, which nobody reads.
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        for layer in ("4", "5"):
            for part in ("k_proj", "v_proj", "k_norm"):
                of = "self_attn." + part + ".weight"
                weights[f"model.language_model.layers.{layer}.{of}"] = weights[f"model.language_model.layers.{int(layer) - 2}.{of}"].clone()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if case.kind == "GraniteMoeHybrid":
        # As IBM has them; transformers 5 writes its own names, which llama.cpp's converter does not know.
        said["layer_types"] = [{"linear_attention": "mamba", "full_attention": "attention"}[kind] for kind in said["layer_types"]]
        path.write_text(json.dumps(said))


def tokenizer(case: Published, folder: Path, model: bytes) -> None:
    """Writes the tokenizer: SentencePiece's model as it is, or what Gemma 4 has, the same with merges in place of scores."""
    path = folder / "tokenizer.model"
    path.write_bytes(model)
    if not case.name.startswith("gemma4"):
        return
    from sentencepiece import SentencePieceProcessor
    from transformers.convert_slow_tokenizer import generate_merges

    pieces = SentencePieceProcessor(str(path))
    path.unlink()
    vocab = {pieces.id_to_piece(i): i for i in range(pieces.vocab_size())}
    ranks = {piece: i for piece, i in vocab.items() if not (pieces.is_byte(i) or pieces.is_control(i) or pieces.is_unknown(i))}
    merges = generate_merges(vocab, {piece: pieces.get_score(i) for piece, i in ranks.items()})
    made = transformers.GemmaTokenizer(vocab=vocab, merges=merges, mask_token=None)
    made.save_pretrained(folder)


def joined(folder: Path) -> bool:
    """Joins the experts of every layer in a folder's weights, as transformers 5 has them in memory; false if there are none to join."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights = {name.replace(".block_sparse_moe.", ".mlp."): tensor for name, tensor in weights.items()}
    parts = {name: name.split(".experts.0.") for name in weights if ".experts.0." in name}
    layers = {layer for layer, _ in parts.values()}
    names = {name for _, name in parts.values()}
    gate, up, down = (next((name for name in pair if name in names), "") for pair in (
        ("gate_proj.weight", "w1.weight"), ("up_proj.weight", "w3.weight"), ("down_proj.weight", "w2.weight")))
    for layer in layers:
        count = sum(name.startswith(f"{layer}.experts.") for name in weights) // 3
        both = [torch.cat([weights.pop(f"{layer}.experts.{i}.{part}") for part in (gate, up)]) for i in range(count)]
        weights[f"{layer}.experts.gate_up_proj"] = torch.stack(both)
        weights[f"{layer}.experts.down_proj"] = torch.stack([weights.pop(f"{layer}.experts.{i}.{down}") for i in range(count)])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return bool(layers)


def changed(said: dict, changes: dict) -> dict:
    """A configuration with other values; a dot leads into an object."""
    said = json.loads(json.dumps(said))
    text = said.get("text_config", said)
    for key, value in changes.items():
        *path, last = key.split(".")
        inner = text
        for part in path:
            inner = inner[part]
        inner[last] = value
    return said
