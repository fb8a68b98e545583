"""Tiny models with random weights of every architecture, written with the `gguf` package: as small as can be with
everything that makes their family what it is. Not for talking to: for comparing what two programs compute.

A tensor's weights follow from its name (the usual one, where an architecture has another) and the seed alone, so that two models that differ by a key differ by nothing
else.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

from evidence.lib import gguf_files, networks, vocabularies
from evidence.lib.lazy import lazily
from evidence.lib.networks import GEMMAS

gguf = lazily("gguf")
np = lazily("numpy")


# llama.cpp computes RMSNorm where the original has LayerNorm. What is added to the residual stream has no mean here, so that both
# are the same: for each tensor the axis of the hidden size.
CENTRED = {"phimoe": {"token_embd": 1, "attn_output": 0, "ffn_down_exps": 1}}
SWAPPED = {"ffn_gate_exps": "ffn_up_exps", "ffn_up_exps": "ffn_gate_exps"}


@dataclass(frozen=True)
class Tiny:
    """What is None or 0 is left out of the file."""

    name: str
    arch: str
    layers: int = 4
    embd: int = 96
    ff: int = 160
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 401
    context: int = 2048
    base: float = 10000.0
    local_base: float | None = None
    eps: float = 1e-6
    tied: bool = True
    biases: tuple = ()
    # Per head, or "whole", or "own".
    qk_norm: bool | str = False
    # How many pairs follow each component of a position.
    sections: tuple = ()
    # Experts, how many of them a token goes through, their width, that of a network for all tokens.
    experts: int = 0
    used: int = 0
    expert_ff: int = 0
    shared_ff: int = 0
    # The length of what experts take in, where it is not the hidden size.
    latent_experts: int = 0
    # Gated delta nets: heads of keys and of values, their length, the taps of the convolution, and the interval at which
    # there is attention in place of one; true if all inputs are one tensor, as in old files of qwen3next.
    delta: tuple = ()
    # Latent attention: what `networks.latent_attention` takes, from the rank of queries on.
    latent: tuple = ()
    # What the mixer of each layer is, or its one part, where only some are attention: a letter of `networks.LAYOUT` each.
    layout: str = ""
    # The taps of short convolutions, or the heads, groups, lengths of heads and of keys, and taps of Mamba-2's mixers.
    short_conv: int = 0
    mamba: tuple = ()
    # Of Kimi delta attention the length of heads, the taps, and the lower bound of logarithms of decays; whether steps, keys and queries of Mamba are normed.
    kda: tuple = ()
    mamba_normed: bool = False
    # Of what chooses the positions that a token sees: its heads, their length, how many are chosen[, of how many positions each].
    indexer: tuple = ()
    # Of RWKV what `networks.rwkv7` takes, or `rwkv6`, from the length of heads on; after how many layers the residual stream is halved.
    rwkv: tuple = ()
    rescaled: int = 0
    # How often a token passes the layers, and whether there is no norm in between.
    passes: int = 0
    passes_unnormed: bool = False
    # Whether queries and keys are rotated, where the file says it.
    rotated: bool = True
    # Of queries at distant positions, and how much of YaRN's magnitude is in the scale of attention.
    temperature: float | None = None
    log_multiplier: float | None = None
    # Gemma 4: the length of heads in layers with a window, how many of the last layers have no keys and values of their own,
    # whether full layers have values, how many numbers a layer takes from a token.
    local_dim: int = 0
    shared_kv: int = 0
    values: bool = True
    token_input: int = 0
    # What is wrong with them: tensors are reversed along a row, value heads take the keys of their neighbours.
    flipped: tuple = ()
    rolled_keys: int = 0
    # Elements of a head that are rotated.
    rope_dims: int | None = None
    # Layers without experts before those with.
    leading: int = 0
    # There are experts in every so many layers alone.
    interleave: int = 0
    # Keys of the router: its function (llama.cpp's number), whether weights are normalised, a factor on them, groups of
    # experts and how many of them are chosen from.
    gating: int | None = None
    normed: bool | None = None
    weights_scale: float | None = None
    groups: tuple | None = None
    # What is wrong with the experts: they are in another order, gate and up are swapped, tensors are zero.
    rolled: int = 0
    swapped: bool = False
    zero: tuple = ()
    window: int | None = None
    # A period, or a flag per layer.
    pattern: int | list | None = None
    attn_cap: float | None = None
    logit_cap: float | None = None
    # A rope_freqs tensor.
    factors: bool = False
    # Granite's: of the embedding, of scores, of what parts add, and what logits are divided by.
    scales: tuple | None = None
    # Factors of long and of short sequences: the longest that is short, and what cosines and sines are multiplied by.
    long_context: tuple = ()
    # Whether attention has a norm beside the other part's, which is falcon's.
    two_norms: bool = False
    # Whether both parts of a layer take the same residual stream, where the file says it.
    parallel: bool | None = None
    # A factor on the logits.
    logit_scale: float | None = None
    # (type, factor, original context[, YaRN's magnitude])
    scaling: tuple | None = None
    # The length of values, if it is not that of keys, and a factor on them.
    value_dim: int = 0
    value_scale: float | None = None
    # Heads, heads of keys and the width of the feed-forward part of each layer, where layers differ.
    per_layer: tuple = ()
    # The layers with sinks, where only some have them.
    sinks: tuple = ()
    # What the outputs of heads have a gate for: "head" or "element".
    gate: str = ""
    # Elements of a head that are rotated in layers with a window.
    local_rope: int | None = None
    # What queries, keys and values are clamped to.
    clamp: float | None = None
    # Whether scores have biases, or positions embeddings, where the file says it.
    alibi: bool = False
    positions: bool = False
    # Of each layer: limits of the activations of experts, and of shared experts and dense parts; whether it is rotated.
    limits: tuple = ()
    rope_pattern: tuple = ()
    # xIELU's alphas, where x is positive and elsewhere, beta and epsilon.
    xielu: tuple = ()
    # Of the weights of q and k: large ones make large scores, which caps bend.
    qk_gain: float = 1.0
    logit_gain: float = 2.0
    # Of matrices, as the `gguf` package names it.
    kind: str = "F32"
    # Of those with a part of this in their names, another: the last that fits.
    kinds: tuple[tuple[str, str], ...] = ()
    seed: int = 1

    def random(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


def tensors(m: Tiny) -> list[tuple[str, np.ndarray]]:
    """Name and weights `[rows, columns]`, or `[length]`, of every tensor, in the order of the forward pass."""
    # A tied embedding makes the logits too: rows of length one times the norm's square root of the width. Gemma
    # scales its rows itself.
    gains = {"token_embd": m.logit_gain if m.tied else 1.0, "output": m.logit_gain, "attn_q": m.qk_gain, "attn_k": m.qk_gain,
             "ffn_gate": 1.5, "ffn_gate_exps": 1.5, "ffn_down_exps": 1.5, "ffn_gate_inp": 2.0}
    out = []
    more = ("biases", "qk_norm", "experts", "expert_ff", "shared_ff", "delta", "leading", "latent", "layout", "short_conv", "mamba", "interleave", "latent_experts", "context", "two_norms",
            "value_dim", "per_layer", "sinks", "gate", "positions", "kda", "indexer", "rwkv")
    more = {key: getattr(m, key) for key in more}
    if m.local_dim:
        more["local"] = (m.pattern, m.local_dim, m.shared_kv, m.values, m.token_input)
    for name, shape in networks.shapes_of(m, **more).items():
        part, what = name.split(".")[-2:]
        if m.swapped and part in SWAPPED:
            part = SWAPPED[part]
            name, stored = name.replace(f".{SWAPPED[part]}.", f".{part}."), name
        else:
            stored = name
        random = m.random(networks.usual_name(m.arch, name).removesuffix(".weight"))
        if what == "ssm_a":
            # Files of Ling 3 have them with the other sign.
            weights = random.uniform(0.1, 2.0, shape) * (1 if m.arch == "bailingmoe3" else -1)
        elif what == "bias":
            weights = random.uniform(-0.7, 0.7, shape)
        elif part == "ffn_gate_inp_shexp":
            weights = random.standard_normal(shape) / math.sqrt(shape[0])
        elif part == "attn_sinks":
            weights = random.standard_normal(shape) * 2.0
        elif what == "ssm_d":
            weights = random.uniform(0.4, 1.6, shape)
        elif "_lerp_" in part:
            weights = random.uniform(0.0, 1.0, shape)
        elif part == "position_embd":
            weights = random.standard_normal(shape) * 0.5
        elif len(shape) == 1 or part.endswith("_norm"):
            weights = random.uniform(0.4, 1.6, shape)
            if part == "attn_q_norm" and m.arch in ("gemma3n", "gemma4"):
                # Scores are not divided by the root of a head's length: what F16 does to keys is in them as it is.
                weights *= 0.3
        else:
            weights = random.standard_normal(shape) * (gains.get(part, 1.0) / math.sqrt(shape[-1]))
        if part in networks.EXPERTS:
            weights = np.roll(weights, m.rolled, axis=0)
        if m.arch in CENTRED and part in CENTRED[m.arch]:
            weights -= weights.mean(axis=CENTRED[m.arch][part], keepdims=True)
        names = {part, what, f"{part}.{what}"}
        if names & set(m.flipped):
            weights = weights[..., ::-1]
        if m.rolled_keys and part in ("attn_qkv", "ssm_conv1d"):
            weights = other_keys(weights, *m.delta[:3], m.rolled_keys)
        if names & set(m.zero):
            weights = np.zeros_like(weights)
        out.append((stored, weights.astype(np.float32)))
        if part == "token_embd" and m.local_dim:
            # Of a full layer's pairs the first quarter is rotated.
            pairs = m.head_dim // 2
            out.append(("rope_freqs.weight", np.where(np.arange(pairs) < pairs // 4, 1.0, 1e30).astype(np.float32)))
        if part == "token_embd" and m.long_context:
            rotated = (m.rope_dims or m.head_dim) // 2
            for kind, most in (("long", 6.0), ("short", 1.5)):
                factors = np.linspace(1.0, most, rotated)[:: -1 if kind in m.flipped else 1]
                out.append((f"rope_factors_{kind}.weight", factors.astype(np.float32)))
        if part == "token_embd" and m.factors:
            factors = networks.rope_factors(m.base, m.head_dim, 8.0, 32)
            out.append(("rope_freqs.weight", factors.astype(np.float32)))
    return out


def add_metadata(w: gguf.GGUFWriter, m: Tiny) -> None:
    vocabularies.add_sizes(w, m)
    if (m.head_dim * m.heads != m.embd or m.per_layer or m.value_dim) and not m.latent:
        w.add_key_length(m.head_dim)
        w.add_value_length(m.value_dim or m.head_dim)
    if m.arch in ("llama", "granite", "granitemoe", "granitehybrid", "smollm3", "mistral3") or m.arch in ("phi3", "phimoe") and m.rope_dims is None:
        w.add_rope_dimension_count(m.head_dim)
    if m.local_base is not None:
        w.add_float32(f"{m.arch}.rope.freq_base_swa", m.local_base)
    if m.window is not None:
        w.add_sliding_window(m.window)
    if isinstance(m.pattern, int):
        w.add_uint32(f"{m.arch}.attention.sliding_window_pattern", m.pattern)
    elif m.pattern is not None:
        w.add_array(f"{m.arch}.attention.sliding_window_pattern", list(m.pattern))
    if m.attn_cap is not None:
        w.add_float32(f"{m.arch}.attn_logit_softcapping", m.attn_cap)
    if m.logit_cap is not None:
        w.add_float32(f"{m.arch}.final_logit_softcapping", m.logit_cap)
    if m.delta:
        add_delta_net(w, *m.delta)
    if m.latent:
        add_latent_attention(w, *m.latent)
    if m.short_conv:
        w.add_shortconv_l_cache(m.short_conv)
    if m.mamba and m.arch in ("mamba", "jamba"):
        channels, length, rank, taps = m.mamba
        add_mamba(w, rank, 1, 0, length, taps, inner=channels)
        if m.mamba_normed:
            w.add_ssm_dt_b_c_rms(True)
    elif m.mamba:
        add_mamba(w, *m.mamba)
        w.add_rope_scaling_finetuned(m.rotated)
    for name, value in zip(("head_count", "key_length", "top_k", "block_size", "local_blocks"), m.indexer):
        w.add_uint32(f"{m.arch}.attention.indexer.{name}", value)
    if m.rwkv and m.arch not in networks.RWKV7:
        dim, decay, share = m.rwkv
        w.add_wkv_head_size(dim)
        w.add_time_decay_extra_dim(decay)
        w.add_time_mix_extra_dim(share)
        w.add_rescale_every_n_layers(m.rescaled)
        w.add_token_shift_count(2 if m.arch == "rwkv6" else 1)
    elif m.rwkv:
        dim, decay, rate, share, gate = m.rwkv
        w.add_wkv_head_size(dim)
        w.add_decay_lora_rank(decay)
        w.add_iclr_lora_rank(rate)
        w.add_value_residual_mix_lora_rank(share)
        w.add_gate_lora_rank(gate)
        w.add_token_shift_count(2 if m.arch in networks.RWKV else 1)
    if m.passes:
        w.add_uint32(f"{m.arch}.num_loops", m.passes)
        w.add_bool(f"{m.arch}.skip_loop_final_norm", m.passes_unnormed)
    if m.kda:
        dim, taps, *bound = m.kda
        w.add_uint32(f"{m.arch}.kda.head_dim", dim)
        w.add_ssm_conv_kernel(taps)
        if bound:
            w.add_float32(f"{m.arch}.kda.gate_lower_bound", *bound)
    if m.temperature is not None:
        w.add_float32(f"{m.arch}.attention.temperature_scale", m.temperature)
        if m.arch in networks.LATENT:
            w.add_uint32(f"{m.arch}.attention.temperature_length", m.scaling[2])
    if m.log_multiplier is not None:
        w.add_float32(f"{m.arch}.rope.scaling.yarn_log_multiplier", m.log_multiplier)
    if m.local_dim:
        w.add_uint32("gemma4.attention.key_length_swa", m.local_dim)
        w.add_uint32("gemma4.attention.value_length_swa", m.local_dim)
        w.add_uint32("gemma4.rope.dimension_count_swa", m.local_dim)
        w.add_uint32("gemma4.rope.dimension_count", m.head_dim)
        w.add_uint32("gemma4.attention.shared_kv_layers", m.shared_kv)
        w.add_uint32("gemma4.embedding_length_per_layer_input", m.token_input)
    if m.rope_dims is not None:
        w.add_rope_dimension_count(m.rope_dims)
    if m.value_scale is not None:
        w.add_float32(f"{m.arch}.attention.value_scale", m.value_scale)
    if m.local_rope is not None:
        w.add_uint32(f"{m.arch}.rope.dimension_count_swa", m.local_rope)
    if m.clamp is not None:
        w.add_clamp_kqv(m.clamp)
    if m.alibi:
        w.add_max_alibi_bias(8.0)
    for name, limits in zip(("exp", "shexp"), m.limits):
        w.add_array(f"{m.arch}.swiglu_clamp_{name}", list(limits))
    if m.rope_pattern:
        w.add_array(f"{m.arch}.attention.rope_pattern", list(m.rope_pattern))
    for name, numbers in zip(("alpha_p", "alpha_n", "beta", "eps"), m.xielu):
        w.add_array(f"xielu.{name}", list(numbers))
    if m.sections:
        w.add_rope_dimension_sections(m.sections)
    if m.scales is not None:
        for key, value in zip(("embedding_scale", "attention.scale", "residual_scale", "logit_scale"), m.scales):
            w.add_float32(f"{m.arch}.{key}", value)
    if m.long_context:
        original, magnitude = m.long_context
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(magnitude)
    if m.parallel is not None:
        w.add_parallel_residual(m.parallel)
    if m.logit_scale is not None:
        w.add_logit_scale(m.logit_scale)
    if m.experts:
        add_experts(w, m)
    if m.scaling is not None:
        add_scaling(w, m)


def add_scaling(w: gguf.GGUFWriter, m: Tiny) -> None:
    """The keys of what stretches the context."""
    kind, factor, original, *magnitude = m.scaling
    w.add_string(f"{m.arch}.rope.scaling.type", kind)
    w.add_rope_scaling_factor(factor)
    if original:
        w.add_rope_scaling_orig_ctx_len(original)
    if magnitude:
        w.add_rope_scaling_yarn_attn_factor(*magnitude)


def other_keys(rows: np.ndarray, key_heads: int, _value_heads: int, dim: int, by: int) -> np.ndarray:
    """The rows of queries, keys and values, with the heads of queries and of keys moved on."""
    both, values = np.split(rows, [2 * key_heads * dim])
    moved = np.roll(both.reshape(2, key_heads, dim, -1), by, axis=1)
    return np.concatenate([moved.reshape(both.shape), values])


def add_delta_net(w: gguf.GGUFWriter, key_heads: int, value_heads: int, dim: int, taps: int, interval: int, _together: bool = False) -> None:
    """The keys of gated delta nets."""
    w.add_ssm_conv_kernel(taps)
    w.add_ssm_state_size(dim)
    w.add_ssm_group_count(key_heads)
    w.add_ssm_time_step_rank(value_heads)
    w.add_ssm_inner_size(value_heads * dim)
    w.add_full_attention_interval(interval)


def add_latent_attention(w: gguf.GGUFWriter, query_rank: int, rank: int, unrotated: int, rotated: int, value_dim: int, together: bool) -> None:
    """The keys of latent attention, as files with their tensors have them."""
    w.add_q_lora_rank(query_rank)
    w.add_kv_lora_rank(rank)
    w.add_rope_dimension_count(rotated)
    w.add_key_length(unrotated + rotated if together else rank + rotated)
    w.add_value_length(value_dim if together else rank)
    if not together:
        w.add_key_length_mla(unrotated + rotated)
        w.add_value_length_mla(value_dim)


def add_mamba(w: gguf.GGUFWriter, heads: int, groups: int, dim: int, length: int, taps: int, inner: int = 0) -> None:
    """The keys of Mamba-2's mixers, and of Mamba's, which have a number of channels instead of heads."""
    w.add_ssm_conv_kernel(taps)
    w.add_ssm_state_size(length)
    w.add_ssm_group_count(groups)
    w.add_ssm_time_step_rank(heads)
    w.add_ssm_inner_size(inner or heads * dim)


def add_experts(w: gguf.GGUFWriter, m: Tiny) -> None:
    """The keys of a mixture of experts."""
    w.add_expert_count(m.experts)
    w.add_expert_used_count(m.used)
    w.add_expert_feed_forward_length(m.expert_ff)
    if m.interleave:
        w.add_interleave_moe_layer_step(m.interleave)
    if m.latent_experts:
        w.add_moe_latent_size(m.latent_experts)
    if m.shared_ff and m.arch in networks.SHARED_COUNTED:
        w.add_expert_shared_count(m.shared_ff // m.expert_ff)
    elif m.shared_ff:
        w.add_expert_shared_feed_forward_length(m.shared_ff)
    if m.leading:
        w.add_leading_dense_block_count(m.leading)
    if m.gating is not None:
        w.add_uint32(f"{m.arch}.expert_gating_func", m.gating)
    if m.normed is not None:
        w.add_expert_weights_norm(m.normed)
    if m.weights_scale is not None:
        w.add_expert_weights_scale(m.weights_scale)
    if m.groups is not None:
        w.add_uint32(f"{m.arch}.expert_group_count", m.groups[0])
        w.add_uint32(f"{m.arch}.expert_group_used_count", m.groups[1])


def add_vocabulary(w: gguf.GGUFWriter, m: Tiny) -> None:
    rng = np.random.default_rng(0)  # one vocabulary for all models of a kind
    if m.arch in GEMMAS:
        tokens, scores, types = vocabularies.spm_vocabulary(m.vocab, rng)
        vocabularies.add_tokenizer(w, "llama", "default", tokens, types, scores=scores, bos=1, eos=2, unk=0)
        w.add_add_space_prefix(False)
        return
    if m.arch in networks.RWKV:
        tokens, types = vocabularies.rwkv_vocabulary(m.vocab, rng)
        vocabularies.add_tokenizer(w, "rwkv", "default", tokens, types, bos=None, eos=None, add_bos=False)
        w.add_eot_token_id(tokens.index("z"))
        return
    tokens, types, merges = vocabularies.bpe_vocabulary(m.vocab, rng)
    bos, eos = (tokens.index(token) for token in ("<|begin_of_text|>", "<|eot_id|>"))
    vocabularies.add_tokenizer(w, "gpt2", "qwen2", tokens, types, merges=merges, bos=bos, eos=eos)


def ends(m: Tiny) -> set[int]:
    """The tokens at which an answer ends."""
    if m.arch in GEMMAS:
        return {2}
    if m.arch in networks.RWKV:
        return {1 + ord("z")}
    tokens, _, _ = vocabularies.bpe_vocabulary(m.vocab, np.random.default_rng(0))
    return {tokens.index("<|eot_id|>"), tokens.index("<|end_of_text|>")}


def plain(m: Tiny) -> int:
    """A token that is a whole character."""
    if m.arch in GEMMAS:
        tokens, _, _ = vocabularies.spm_vocabulary(m.vocab, np.random.default_rng(0))
        return tokens.index("a")
    if m.arch in networks.RWKV:
        return 1 + ord("a")
    return vocabularies.byte_alphabet().index("a")


def text(words: int, seed: int) -> str:
    """Words that these vocabularies cut into a few pieces each."""
    stream = vocabularies.made_up_words(np.random.default_rng(seed), " ")
    return "".join(next(stream) for _ in range(words)).strip()


# Where the types that the package does not quantise have f16 scales; NVFP4 has none, but a tensor beside it.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,),
          "IQ2_S": (0,), "IQ1_S": (0,), "IQ1_M": (), "NVFP4": (), "Q4_K": (0,), "Q5_K": (0,), "Q6_K": (208,)}
# What is subtracted is scaled by an f16 at byte 2: by so much more, which makes the mean of the weights nearly 0.
SUBTRACTED = {"Q4_K": 7.5, "Q5_K": 15.5}


def random_blocks(name: str, weights, kind):
    """Random bits `[..., rows, row bytes]` of which the weights are as large as these; and what products are multiplied with, of
    NVFP4: a number, or one for each expert."""
    length, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(zlib.crc32(name.encode()))
    blocks = random.integers(0, 256, (weights.size // length, size), np.uint8)

    def put(d: float) -> None:
        half = np.array([d], "<f2")
        for at in SCALES[kind.name]:
            blocks[:, at : at + 2] = half.view(np.uint8)
        if kind.name in SUBTRACTED:
            blocks[:, 2:4] = np.array([d * SUBTRACTED[kind.name]], "<f2").view(np.uint8)
        if kind.name == "IQ1_M":
            nibbles = half.view("<u2") >> np.array([0, 4, 8, 12], "<u2") & 15
            blocks[:, 49:56:2] = blocks[:, 49:56:2] & 15 | (nibbles << 4).astype(np.uint8)

    put(1.0)
    if kind.name == "NVFP4":
        blocks[:, :4] = blocks[:, :4] % 64
    found = gguf.quants.dequantize(blocks, kind)
    scale = float(np.sqrt(np.square(weights, dtype=np.float64).mean() / np.square(found, dtype=np.float64).mean()))
    shape = (*weights.shape[:-1], -1)
    if kind.name == "NVFP4":
        count = weights.shape[0] if weights.ndim == 3 else 1
        return blocks.reshape(shape), (scale * random.uniform(0.8, 1.2, count)).astype(np.float32)
    put(scale)
    return blocks.reshape(shape), None


def write(m: Tiny, path: Path, vocabulary=add_vocabulary) -> Path:
    """`vocabulary` adds the keys of the tokenizer."""
    w = gguf.GGUFWriter(path, m.arch)
    add_metadata(w, m)
    vocabulary(w, m)
    for name, weights in tensors(m):
        # Routers, convolutions and biases are never smaller.
        small = weights.ndim >= 2 and name.endswith(".weight") and not any(part in name for part in networks.ALWAYS_F32)
        # Rows of an embedding are read as they are, without what multiplies products.
        here = "Q8_0" if (m.kind, name) == ("NVFP4", "token_embd.weight") else m.kind
        here = next((kind for part, kind in reversed(m.kinds) if part in name), here)
        if small and weights.shape[-1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[here]][0]:
            here = "F16" if weights.shape[-1] % 32 else "Q8_0"
        kind = gguf.GGMLQuantizationType[here if small else "F32"]
        try:
            blocks, scales = gguf.quants.quantize(weights, kind), None
        except NotImplementedError:
            blocks, scales = random_blocks(name, weights, kind)
        w.add_tensor(name, blocks, raw_dtype=kind)
        if scales is not None:
            w.add_tensor(name.removesuffix(".weight") + ".scale", scales)
    gguf_files.finish(w)
    return path
