"""What a network of each family is made of: its tensors under GGUF's names and under Hugging Face's."""

from __future__ import annotations

import math

from evidence.lib.lazy import lazily

np = lazily("numpy")

GEMMAS = ("gemma2", "gemma3", "gemma3n", "gemma4")
# Of gemma3n the streams of a token, the length of the row past attention, and what a layer takes from a token.
STREAMS, LAUREL, FROM_TOKEN = 4, 64, 256
QKV = ("attn_q", "attn_k", "attn_v")
MLP = ("ffn_gate", "ffn_up", "ffn_down")
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps")
SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
# Whose keys and values are made of one short row per token.
LATENT = ("deepseek2", "mistral4", "deepseek32", "glm-dsa")
# Their shared experts are behind a gate of their own.
GATED_SHARED = ("qwen2moe", "qwen35moe", "qwen3next")
# Their experts are chosen with a bias, which has no matrix.
CHOSEN_BY_BIAS, ONLY_BIASES = ("glm4moe", "lfm2moe", "minimax-m2", "nemotron_h_moe", "bailingmoe2", "dots1", "ernie4_5-moe", "exaone-moe", "afmoe", "hy_v3", "laguna", "step35", "mimo2", "kimi-linear",
                               "bailingmoe3", "minimax-m3",
                               *LATENT), ("exp_probs_b",)
# Whose files say how many experts a network for all tokens is as wide as.
SHARED_COUNTED = ("glm4moe", "bailingmoe", "bailingmoe2", "deepseek", "dots1", "afmoe", "cohere2moe", "kimi-linear", "bailingmoe3", "minimax-m3", *LATENT)
# Of whose layers each is a mixer or a feed-forward part.
ONE_PART = ("nemotron_h", "nemotron_h_moe")
SIZES = ("layers", "embd", "ff", "heads", "kv_heads", "head_dim", "vocab", "tied")
# Of a layer, in Hugging Face's files. Gemma has four norms in a layer, and other names for two of them.
IN_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
# Whose attention has a score for each head that is of no position.
SINKS = ("gpt-oss", "granite_swa", "mimo2")
# Whose attention makes a gate beside each query, and of whose layers most are gated delta nets.
HYBRIDS = ("qwen35", "qwen35moe", "qwen3next")
# The mixers of layers: a short convolution, Mamba-2's, Mamba's, Kimi delta attention, attention; or the one part of a layer, where it is a feed-forward part.
LAYOUT = "cmskaf"
# What the last norm is called, where it is not output_norm.
LAST_NORM = dict.fromkeys(("lfm2", "lfm2moe"), "token_embd_norm")
# Matrices that are never of a smaller type.
ALWAYS_F32 = ("ffn_gate_inp", "_lerp_", "conv1d", "shortconv.conv", "ssm_norm", "altup_router", "altup_predict", "altup_correct")
# Of whose layers queries, keys and values, or gate and up, are one matrix.
FUSED_QKV = ("phi3", "gpt2", "starcoder", "gptneox", "codeshell", "phi2", "falcon", "qwen", "bailingmoe2", "chatglm", "dbrx", "openelm", "mpt", "bloom", "jais",
             "plamo3")
FUSED_UP = ("phi3", "glm4", "chatglm", "plamo3")
# Whose positions have an embedding each.
POSITIONED = ("gpt2", "starcoder")
# Layers of RWKV's mixer and feed-forward part; and what has the mixer of RWKV-7.
RWKV, RWKV7 = ("rwkv6", "rwkv7"), ("rwkv7", "arwkv7")
# Whose norms are LayerNorm.
LAYER_NORMED = ("phimoe", *RWKV, "starcoder2", "stablelm", "command-r", "cohere2", "gpt2", "starcoder", "gptneox", "codeshell", "phi2", "falcon", "orion", "nemotron", "jais2",
                "cohere2moe", "dbrx", "mpt", "bloom", "jais", "olmo")
# Whose files have the key of LayerNorm's epsilon.
EPS_OF_LAYER_NORM = (*(arch for arch in LAYER_NORMED if arch != "phimoe"), *ONE_PART)
# Whose feed-forward parts have no gate, and whose feed-forward parts take what attention takes. (Of stablelm those whose heads
# are normed are parallel.)
UNGATED = ("starcoder2", "arcee", "gpt2", "starcoder", "gptneox", "codeshell", "phi2", "falcon", "nemotron", "jais2", "apertus", "plm", "mpt", "bloom", *ONE_PART)
PARALLEL = ("command-r", "cohere2", "cohere2moe", "phi2", "falcon", "plamo")
# Whose layers have norms of inputs and of outputs.
SANDWICHES = ("glm4", "afmoe", "muse-glimmer", "plamo3")
# Whose attention has a gate of what heads put out, by a projection of its own: for each element, or each head.
GATED, HEADS_GATED = ("afmoe", "laguna", "muse-glimmer"), ("step35", "spark2_5")
# Whose norms have no weights.
UNWEIGHTED = ("olmo",)
# Whose layers norm what their parts put out, and not what they take in.
OUTPUTS_NORMED = ("olmo2", "exaone4")
# What the norm before the feed-forward part is called in GGUF, where it is not ffn_norm.
SECOND_NORM = dict.fromkeys(("seed_oss", "gpt-oss", "glm4moe", *HYBRIDS), "post_attention_norm") | {"dbrx": "attn_output_norm"}
IN_GEMMAS = IN_LAYER | {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
                        "post_ffw_norm": "post_feedforward_layernorm"}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def shapes(arch: str, *, layers: int, embd: int, ff: int, heads: int, kv_heads: int, head_dim: int, vocab: int, tied: bool,
           biases: tuple = (), qk_norm: bool | str = False, experts: int = 0, expert_ff: int = 0, shared_ff: int = 0,
           delta: tuple = (), local: tuple = (), leading: int = 0, layout: str = "", short_conv: int = 0,
           mamba: tuple = (), latent: tuple = (), interleave: int = 0, latent_experts: int = 0, context: int = 0, two_norms: bool = False,
           value_dim: int = 0, per_layer: tuple = (), sinks: tuple = (), gate: str = "", positions: bool = False, kda: tuple = (),
           indexer: tuple = (), rwkv: tuple = ()) -> dict[str, tuple]:
    """Name and shape, [rows, columns], [experts, rows, columns] or [length], of every tensor in the order of the forward
    pass. `biases`: the parts of a layer that have one. `qk_norm`: whether queries and keys are normed, per head or "whole", or
    "own": each head with its own weights.
    `delta`: of gated delta nets the heads of keys and of values, their length, the taps, and the interval at which there is
    attention in place of one. `local`: of gemma4 which layers have a window, the length of their heads, how many of the last
    layers have no keys and values of their own, whether full layers have values, and how many numbers a layer takes from a
    token. `latent`: of latent attention what `latent_attention` takes. `layout`: the mixers of the layers, by their letters in `LAYOUT`. `interleave`: there are
    experts in every so many layers alone. `latent_experts`: the length of what experts take, if it is one of its own.
    `value_dim`: the length of values, if it is not that of keys. `per_layer`: heads, heads of keys and the width of the feed-forward part of each layer,
    where they differ. `sinks`: the layers that have sinks, where only some have. `gate`: "head" or "element", where an architecture has either.
    `positions`: whether positions have an embedding each.
    """
    if per_layer:
        more = dict(embd=embd, head_dim=head_dim, vocab=vocab, tied=tied, biases=biases, qk_norm=qk_norm, experts=experts, expert_ff=expert_ff,
                    shared_ff=shared_ff, value_dim=value_dim, gate=gate)
        out = {}
        for i, (here, kv_here, width) in enumerate(per_layer):
            one = shapes(arch, layers=1, heads=here, kv_heads=kv_here, ff=width, leading=int(i < leading), sinks=sinks[i : i + 1], **more)
            out |= {name.replace("blk.0.", f"blk.{i}."): shape for name, shape in one.items()}
        return out
    value_dim = value_dim or head_dim
    q, kv, values = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
    inputs, outputs = arch not in OUTPUTS_NORMED, arch in (*GEMMAS, *OUTPUTS_NORMED, *SANDWICHES)
    normed = {"whole": ((q,), (kv,)), "own": ((heads, head_dim), (kv_heads, head_dim))}.get(qk_norm, ((head_dim,), (head_dim,)))
    parallel = arch in PARALLEL or (arch, qk_norm) == ("stablelm", "own")
    queries = 2 * q if arch in HYBRIDS else q
    layer = ({"attn_norm": (embd,)} if inputs else {}) | {"attn_q": (queries, embd), "attn_k": (kv, embd), "attn_v": (values, embd)}
    layer |= {"attn_q_norm": normed[0], "attn_k_norm": normed[1]} if qk_norm else {}
    layer |= {"attn_sinks": (heads,)} if arch in SINKS and all(sinks) else {}
    layer |= {"attn_gate": (heads if arch in HEADS_GATED or gate == "head" else q, embd)} if arch in (*GATED, *HEADS_GATED) and gate != "none" else {}
    layer |= {"attn_sub_norm": (q,), "ffn_sub_norm": (ff,)} if arch == "bitnet" else {}
    layer |= {"attn_output": (embd, heads * value_dim)} | ({"post_attention_norm": (embd,)} if outputs else {})
    layer |= {SECOND_NORM.get(arch, "ffn_norm"): (embd,)} if inputs and not parallel else {}
    layer |= {"attn_norm_2": (embd,)} if two_norms else {}
    gate_up = {"ffn_up": (2 * ff, embd)} if arch in FUSED_UP else {"ffn_gate": (ff, embd), "ffn_up": (ff, embd)}
    gate_up = {"ffn_up": (ff, embd)} if arch in UNGATED else gate_up
    dense = gate_up | {"ffn_down": (embd, ff)}
    feed_forward = mixture(arch, embd, experts, expert_ff, shared_ff, latent_experts) if experts else dense
    after = {"post_ffw_norm": (embd,)} if outputs else {}
    if arch in FUSED_QKV:
        layer = {**dict.fromkeys(["attn_norm", "attn_qkv"]), **layer, "attn_qkv": (q + 2 * kv, embd)}
        layer = {name: shape for name, shape in layer.items() if name not in QKV}
    if latent:
        layer = latent_attention(layer, embd, heads, *latent) | (token_indexer(embd, latent[0], *indexer[:2]) if indexer else {}) | ({"attn_gate": (heads, embd)} if arch == "bailingmoe3" else {})
    out = {"token_embd.weight": (vocab, embd)} | ({"position_embd.weight": (context, embd)} if arch in POSITIONED or positions else {})
    out |= {"token_embd_norm.weight": (embd,), "token_embd_norm.bias": (embd,)} if arch in ("bloom", *RWKV) else {}
    for i in range(layers):
        here = layer | (dense if i < leading or interleave and (i + 1) % interleave else feed_forward) | after
        if local:
            here = gemma4_layer(i, layers, local, (embd, heads, kv_heads, head_dim, ff), (experts, expert_ff))
        if arch in HYBRIDS and (i + 1) % delta[4]:
            here = delta_net(arch, here, embd, *delta)
        if layout and layout[i] in "cmsk":
            mixers = {"c": lambda: short_convolution(embd, short_conv), "m": lambda: mamba2(embd, *mamba), "s": lambda: mamba1(arch, embd, *mamba),
                      "k": lambda: kimi_delta(arch, embd, heads, *kda)}
            here = instead_of_attention(here, mixers[layout[i]]())
        if arch == "gemma3n":
            here = here | gemma3n_layer(embd)
        if arch == "falcon-h1":
            here = here | mamba2(embd, *mamba)
        if arch == "deci":
            here = with_holes(here, heads, kv_heads, ff)
        if arch in UNWEIGHTED:
            here = {name: shape for name, shape in here.items() if not name.endswith("_norm")}
        if arch in ("mamba", "mamba2"):
            here = {"attn_norm": (embd,)} | (mamba2(embd, *mamba) if arch == "mamba2" else mamba1(arch, embd, *mamba))
        if arch in ONE_PART:
            here = one_part(here, feed_forward, layout[i])
        if rwkv:
            here = rwkv7(arch, i, embd, ff, *rwkv) if arch in RWKV7 else rwkv6(arch, embd, ff, kv_heads, *rwkv)
        if arch == "minimax-m3" and "ffn_gate_inp" in here:
            count, length = indexer[:2]
            here = here | {"indexer.q_proj": (count * length, embd), "indexer.k_proj": (length, embd), "indexer.q_norm": (length,), "indexer.k_norm": (length,)}
        for name, shape in here.items():
            if name in WHOLE or name.endswith(".bias") or (arch, name) in UNSUFFIXED:
                out[f"blk.{i}.{name}"] = shape[:-1] if name in ONLY_BIASES else shape
                continue
            if name not in ONLY_BIASES:
                out[f"blk.{i}.{name}.weight"] = shape
            if name in biases or name in ONLY_BIASES:
                out[f"blk.{i}.{name}.bias"] = shape[:-1] or shape
    if arch == "gemma3n":
        out |= dict.fromkeys(("altup_proj.weight", "altup_unembd_proj.weight"), (STREAMS - 1, embd, embd))
        local = (FROM_TOKEN,)
    if local and local[-1]:
        out |= {"per_layer_token_embd.weight": (vocab, layers * local[-1]), "per_layer_model_proj.weight": (layers * local[-1], embd),
                "per_layer_proj_norm.weight": (local[-1],)}
    out |= {} if arch in UNWEIGHTED else {f"{LAST_NORM.get(arch, 'output_norm')}.weight": (embd,)}
    out |= {"output_norm.bias": (embd,)} if "output_norm" in biases else {}
    out |= {} if tied else {"output.weight": (vocab, embd)}
    return out | ({"output.bias": (vocab,)} if "output" in biases else {})


def gemma3n_layer(embd: int) -> dict[str, tuple]:
    """What a layer has beside a Gemma's."""
    return {"laurel_l": (LAUREL, embd), "laurel_r": (embd, LAUREL), "laurel_post_norm": (embd,), "altup_router_norm": (embd,),
            "altup_router": (STREAMS, embd), "altup_predict_coef": (STREAMS**2, STREAMS), "altup_correct_coef": (STREAMS, STREAMS),
            "altup_correct_scale": (embd,), "inp_gate": (FROM_TOKEN, embd), "proj": (embd, FROM_TOKEN), "post_norm": (embd,)}


def gemma4_layer(i: int, layers: int, local: tuple, sizes: tuple, mixture: tuple) -> dict[str, tuple]:
    windowed, dim, shared, values, width = local
    embd, heads, kv_heads, head_dim, ff = sizes
    length = dim if windowed[i] else head_dim
    layer = {"attn_norm": (embd,), "attn_q": (heads * length, embd), "attn_q_norm": (length,)}
    if i < layers - shared:
        layer |= {"attn_k": (kv_heads * length, embd), "attn_k_norm": (length,)}
        layer |= {"attn_v": (kv_heads * length, embd)} if values or windowed[i] else {}
    layer |= {"attn_output": (embd, heads * length), "post_attention_norm": (embd,), "ffn_norm": (embd,), "ffn_gate": (ff, embd),
              "ffn_up": (ff, embd), "ffn_down": (embd, ff), "post_ffw_norm": (embd,), "layer_output_scale": (1,)}
    if mixture[0]:
        experts, expert_ff = mixture
        layer |= {"ffn_gate_inp": (experts, embd), "ffn_gate_inp.scale": (embd,), "ffn_gate_up_exps": (experts, 2 * expert_ff, embd),
                  "ffn_down_exps": (experts, embd, expert_ff), "ffn_down_exps.scale": (experts,), "pre_ffw_norm_2": (embd,),
                  "post_ffw_norm_1": (embd,), "post_ffw_norm_2": (embd,)}
    return layer | ({"inp_gate": (width, embd), "proj": (embd, width), "post_norm": (embd,)} if width else {})


def latent_attention(layer: dict, embd: int, heads: int, query_rank: int, rank: int, unrotated: int, rotated: int, value_dim: int,
                     together: bool) -> dict[str, tuple]:
    """The layer with latent attention: `query_rank` is 0 where queries are one projection, `together` whether projections of keys
    and of values are one tensor, as in old files."""
    width = heads * (unrotated + rotated)
    queries = {"attn_q_a": (query_rank, embd), "attn_q_a_norm": (query_rank,), "attn_q_b": (width, query_rank)}
    mixer = (queries if query_rank else {"attn_q": (width, embd)}) | {"attn_kv_a_mqa": (rank + rotated, embd), "attn_kv_a_norm": (rank,)}
    apart = {"attn_k_b": (heads, rank, unrotated), "attn_v_b": (heads, value_dim, rank)}
    mixer |= {"attn_kv_b": (heads * (unrotated + value_dim), rank)} if together else apart
    return instead_of_attention(layer, mixer | {"attn_output": (embd, heads * value_dim)})


def with_holes(layer: dict, heads: int, kv_heads: int, ff: int) -> dict[str, tuple]:
    """The layer without attention, or with its last projection alone, or without a feed-forward part."""
    layer = layer if heads else {name: shape for name, shape in layer.items() if not name.startswith("attn_")}
    layer = layer if kv_heads else {name: (shape[0],) * 2 if name == "attn_output" else shape for name, shape in layer.items() if name not in QKV}
    return layer if ff else {name: shape for name, shape in layer.items() if not name.startswith("ffn_")}


# Tensors whose names end so in the file, in all architectures, or in one.
UNSUFFIXED = (("hy_v3", "exp_probs_b"), ("falcon-h1", "ffn_norm"), ("plamo3", "post_attention_norm"), ("plamo3", "post_ffw_norm"))
WHOLE = ("ssm_a", "ssm_d", "ssm_conv1d.bias", "ssm_dt.bias", "ffn_gate_inp.scale", "ffn_down_exps.scale", "indexer.k_norm.bias")


def delta_net(arch: str, layer: dict, embd: int, key_heads: int, value_heads: int, dim: int, taps: int, _interval: int,
              together: bool = False) -> dict[str, tuple]:
    """The layer with a gated delta net in place of attention. `together`: as old files of qwen3next have its inputs."""
    inner, mixed = value_heads * dim, (2 * key_heads + value_heads) * dim
    # Of qwen3next one tensor makes both.
    rates = {"ssm_ba": (2 * value_heads, embd)} if arch == "qwen3next" else dict.fromkeys(("ssm_alpha", "ssm_beta"), (value_heads, embd))
    inputs = {"ssm_in": (mixed + inner, embd)} if together else {"attn_qkv": (mixed, embd), "attn_gate": (inner, embd)}
    mixer = {**inputs, **rates,
             "ssm_conv1d": (mixed, taps), "ssm_dt.bias": (value_heads,), "ssm_a": (value_heads,),
             "ssm_norm": (dim,), "ssm_out": (embd, inner)}
    return instead_of_attention(layer, mixer)


def short_convolution(embd: int, taps: int) -> dict[str, tuple]:
    return {"shortconv.in_proj": (3 * embd, embd), "shortconv.conv": (embd, taps), "shortconv.out_proj": (embd, embd)}


def mamba2(embd: int, heads: int, groups: int, dim: int, length: int, taps: int) -> dict[str, tuple]:
    inner, mixed = heads * dim, heads * dim + 2 * groups * length
    return {"ssm_in": (inner + mixed + heads, embd), "ssm_conv1d": (mixed, taps), "ssm_conv1d.bias": (mixed,), "ssm_dt.bias": (heads,),
            "ssm_a": (heads, 1), "ssm_d": (heads, 1), "ssm_norm": (groups, inner // groups), "ssm_out": (embd, inner)}


def token_indexer(embd: int, rank: int, heads: int, length: int) -> dict[str, tuple]:
    """What chooses the tokens that a token sees, in long texts."""
    return {"indexer.attn_q_b": (heads * length, rank), "indexer.attn_k": (length, embd), "indexer.k_norm": (length,), "indexer.k_norm.bias": (length,),
            "indexer.proj": (heads, embd)}


def rwkv7(arch: str, i: int, embd: int, ff: int, _dim: int, decay: int, rate: int, share: int, gate: int) -> dict[str, tuple]:
    """A layer of RWKV-7: the length of heads, and the widths between the two projections for decays, rates, shares of the first values, and gates (0: none)."""
    alone = arch == "rwkv7"
    vector, matrix = (embd,), (embd, embd)
    layer = {"attn_norm": vector} | ({"attn_norm.bias": vector, "attn_norm_2": vector, "attn_norm_2.bias": vector} if alone else {})
    for letter, rank in (("w", decay), ("a", rate), ("v", share if i else rate), ("g", gate)):
        if rank:
            layer |= {f"time_mix_{letter}0": vector} if letter != "g" else {}
            layer |= {f"time_mix_{letter}1": (rank, embd), f"time_mix_{letter}2": (embd, rank)}
    layer |= {"time_mix_lerp_fused": (6 if gate else 5, 1, 1, embd)} | dict.fromkeys(("time_mix_k_k", "time_mix_k_a", "time_mix_r_k"), vector)
    layer |= dict.fromkeys(("time_mix_key", "time_mix_value", "time_mix_receptance", "time_mix_output"), matrix)
    if not alone:
        return layer | {"ffn_norm": vector, "ffn_gate": (ff, embd), "ffn_up": (ff, embd), "ffn_down": (embd, ff)}
    return layer | {"time_mix_ln": vector, "time_mix_ln.bias": vector, "channel_mix_lerp_k": (1, 1, embd), "channel_mix_key": (ff, embd), "channel_mix_value": (embd, ff)}


def rwkv6(arch: str, embd: int, ff: int, kv_heads: int, dim: int, decay: int, share: int) -> dict[str, tuple]:
    """A layer of RWKV-6: the length of heads, and the widths between the two projections for decays, and of the short rows of shares."""
    alone, kv = arch == "rwkv6", kv_heads * dim
    vector, matrix = (embd,), (embd, embd)
    layer = {"attn_norm": vector} | ({"attn_norm.bias": vector, "attn_norm_2": vector, "attn_norm_2.bias": vector} if alone else {})
    layer |= {"time_mix_lerp_x": (1, 1, embd), "time_mix_w1": (5 * share, embd), "time_mix_w2": (5, embd, share), "time_mix_lerp_fused": (5, 1, 1, embd)}
    layer |= {"time_mix_decay": vector, "time_mix_decay_w1": (decay, embd), "time_mix_decay_w2": (embd, decay)} | ({"time_mix_first": (embd // dim, dim)} if alone else {})
    layer |= dict.fromkeys(("time_mix_receptance", "time_mix_gate", "time_mix_output"), matrix) | {"time_mix_key": (kv, embd), "time_mix_value": (kv, embd)}
    if not alone:
        return layer | {"time_mix_receptance.bias": vector, "time_mix_key.bias": (kv,), "time_mix_value.bias": (kv,), "ffn_norm": vector, "ffn_gate": (ff, embd), "ffn_up": (ff, embd),
                        "ffn_down": (embd, ff)}
    return layer | {"time_mix_ln": vector, "time_mix_ln.bias": vector, "channel_mix_lerp_k": (1, 1, embd), "channel_mix_lerp_r": (1, 1, embd), "channel_mix_key": (ff, embd),
                    "channel_mix_value": (embd, ff), "channel_mix_receptance": matrix}


def mamba1(arch: str, embd: int, channels: int, length: int, rank: int, taps: int) -> dict[str, tuple]:
    normed = {"ssm_dt_norm": (rank,), "ssm_b_norm": (length,), "ssm_c_norm": (length,)} if arch == "jamba" else {}
    return {"ssm_in": (2 * channels, embd), "ssm_conv1d": (channels, taps), "ssm_conv1d.bias": (channels,), "ssm_x": (rank + 2 * length, channels), **normed,
            "ssm_dt": (channels, rank), "ssm_dt.bias": (channels,), "ssm_a": (channels, length), "ssm_d": (channels,), "ssm_out": (embd, channels)}


def kimi_delta(arch: str, embd: int, heads: int, dim: int, taps: int, _bound: float | None = None) -> dict[str, tuple]:
    inner, low_rank = heads * dim, arch == "kimi-linear"
    mixer = {"attn_q": (inner, embd), "attn_k": (inner, embd), "attn_v": (inner, embd)} | dict.fromkeys(("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"), (1, inner, 1, taps))
    for name in "fg":
        mixer |= {f"ssm_{name}_a": (dim, embd), f"ssm_{name}_b": (inner, dim)} if low_rank else {f"ssm_{name}_a": (inner, embd)}
    return mixer | {"ssm_beta": (heads, embd), "ssm_dt.bias": (inner,), "ssm_a": (heads, 1), "ssm_norm": (dim,), "attn_output": (embd, inner)}


def instead_of_attention(layer: dict, mixer: dict) -> dict[str, tuple]:
    """The layer with another mixer."""
    kept = {name: shape for name, shape in layer.items() if not name.startswith("attn_") or name == "attn_norm"}
    return {"attn_norm": kept.pop("attn_norm")} | mixer | kept


def one_part(layer: dict, feed_forward: dict, kind: str) -> dict[str, tuple]:
    """The layer without its feed-forward part, or that part alone, with the one norm."""
    mixer = {name: shape for name, shape in layer.items() if name != "ffn_norm" and name not in feed_forward}
    return {"attn_norm": layer["attn_norm"]} | (feed_forward if kind == "f" else mixer)


def mixture(arch: str, embd: int, experts: int, ff: int, shared_ff: int, latent: int = 0) -> dict[str, tuple]:
    """The router and the experts of a layer, and a network for all tokens if it has a width."""
    width = latent or embd
    layer = {"ffn_gate_inp": (experts, embd)} | ({"exp_probs_b": (experts, embd)} if arch in CHOSEN_BY_BIAS else {})
    layer |= {"ffn_latent_down": (latent, embd), "ffn_latent_up": (embd, latent)} if latent else {}
    layer |= dict.fromkeys(EXPERTS[:2], (experts, ff, width)) | {"ffn_down_exps": (experts, width, ff)}
    if shared_ff:
        layer |= {"ffn_gate_inp_shexp": (embd,)} if arch in GATED_SHARED else {}
        layer |= dict(zip(SHARED, [(shared_ff, embd)] * 2 + [(embd, shared_ff)]))
    if arch in UNGATED:
        layer = {name: shape for name, shape in layer.items() if name not in ("ffn_gate_exps", "ffn_gate_shexp")}
    return layer


def usual_name(arch: str, name: str) -> str:
    """What other architectures call a tensor."""
    return name.replace(f".{SECOND_NORM[arch]}.", ".ffn_norm.") if arch in SECOND_NORM else name


def shapes_of(m, **more) -> dict[str, tuple]:
    """The same of something that has its sizes under these names."""
    return shapes(m.arch, **{size: getattr(m, size) for size in SIZES}, **more)


def names_in_layer(arch: str) -> dict[str, str]:
    """GGUF's name of each part of a layer: Hugging Face's."""
    return IN_GEMMAS if arch in GEMMAS else IN_LAYER | {SECOND_NORM.get(arch, "ffn_norm"): IN_LAYER["ffn_norm"]}


def hf_name(arch: str, name: str) -> str:
    """Hugging Face's name of a tensor."""
    *layer, part, what = name.split(".")
    if not layer:
        return f"{OUTSIDE[part]}.{what}"
    return f"model.layers.{layer[1]}.{names_in_layer(arch)[part]}.{what}"


def to_halves(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q and k as GGUF's llama has them (pairs) in Hugging Face's order: the inverse of what a converter does."""
    return np.ascontiguousarray(x.reshape(heads, x.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(x.shape))


def rope_factors(base: float, head_dim: int, factor: float, original: int) -> np.ndarray:
    """As Llama 3's: long wavelengths are stretched by `factor`, those of which `original` tokens have four turns are kept."""
    frequency = base ** -(np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original * frequency / (2 * math.pi) - 1.0) / 3.0, 0, 1)
    return 1.0 / ((1 - smooth) / factor + smooth)
