"""Tiny models with random weights of every architecture, written with the `gguf` package: as small as can be with
everything that makes their family what it is. Not for talking to: for comparing what two programs compute.

A tensor's weights follow from its name and the seed alone, so that two models that differ by a key differ by nothing
else.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

from evidence.lib import gguf_files
from evidence.lib.lazy import lazily
from evidence.make import random_model as vocabulary

gguf = lazily("gguf")
np = lazily("numpy")

GEMMAS = ("gemma2", "gemma3")


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
    qk_norm: bool = False
    window: int | None = None
    # A period, or a flag per layer.
    pattern: int | list | None = None
    attn_cap: float | None = None
    logit_cap: float | None = None
    # A rope_freqs tensor.
    factors: bool = False
    # Granite's: of the embedding, of scores, of what parts add, and what logits are divided by.
    scales: tuple | None = None
    # (type, factor, original context[, YaRN's magnitude])
    scaling: tuple | None = None
    # Of the weights of q and k: large ones make large scores, which caps bend.
    qk_gain: float = 1.0
    logit_gain: float = 2.0
    # Of matrices, as the `gguf` package names it.
    kind: str = "F32"
    seed: int = 1

    def random(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


def rope_factors(m: Tiny) -> np.ndarray:
    """As Llama 3's: long wavelengths are stretched, short ones kept, but for a context of 32."""
    frequency = m.base ** -(np.arange(0, m.head_dim, 2) / m.head_dim)
    smooth = np.clip((32 * frequency / (2 * math.pi) - 1.0) / 3.0, 0, 1)
    return (1.0 / ((1 - smooth) / 8.0 + smooth)).astype(np.float32)


def tensors(m: Tiny) -> list[tuple[str, np.ndarray]]:
    """Name and weights `[rows, columns]`, or `[length]`, of every tensor, in the order of the forward pass."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    out = []

    def matrix(name, rows, cols, gain=1.0):
        weights = m.random(name).standard_normal((rows, cols)) * (gain / math.sqrt(cols))
        out.append((name + ".weight", weights.astype(np.float32)))
        if name.rpartition(".")[2] in m.biases:
            out.append((name + ".bias", m.random(name + ".bias").uniform(-0.7, 0.7, rows).astype(np.float32)))

    def norm(name, length):
        out.append((name + ".weight", m.random(name).uniform(0.4, 1.6, length).astype(np.float32)))

    # A tied embedding makes the logits too: rows of length one times the norm's square root of the width. Gemma
    # scales its rows itself.
    matrix("token_embd", m.vocab, m.embd, m.logit_gain if m.tied else 1.0)
    if m.factors:
        out.append(("rope_freqs.weight", rope_factors(m)))
    for i in range(m.layers):
        p = f"blk.{i}."
        norm(p + "attn_norm", m.embd)
        matrix(p + "attn_q", q, m.embd, m.qk_gain)
        matrix(p + "attn_k", kv, m.embd, m.qk_gain)
        matrix(p + "attn_v", kv, m.embd)
        if m.qk_norm:
            norm(p + "attn_q_norm", m.head_dim)
            norm(p + "attn_k_norm", m.head_dim)
        matrix(p + "attn_output", m.embd, q)
        if m.arch in GEMMAS:
            norm(p + "post_attention_norm", m.embd)
        norm(p + "ffn_norm", m.embd)
        matrix(p + "ffn_gate", m.ff, m.embd, 1.5)
        matrix(p + "ffn_up", m.ff, m.embd)
        matrix(p + "ffn_down", m.embd, m.ff)
        if m.arch in GEMMAS:
            norm(p + "post_ffw_norm", m.embd)
    norm("output_norm", m.embd)
    if not m.tied:
        matrix("output", m.vocab, m.embd, m.logit_gain)
    return out


def add_metadata(w: gguf.GGUFWriter, m: Tiny) -> None:
    w.add_name(m.name)
    w.add_block_count(m.layers)
    w.add_context_length(m.context)
    w.add_embedding_length(m.embd)
    w.add_feed_forward_length(m.ff)
    w.add_head_count(m.heads)
    w.add_head_count_kv(m.kv_heads)
    if m.head_dim * m.heads != m.embd:
        w.add_key_length(m.head_dim)
        w.add_value_length(m.head_dim)
    if m.arch in ("llama", "granite"):
        w.add_rope_dimension_count(m.head_dim)
    w.add_rope_freq_base(m.base)
    w.add_layer_norm_rms_eps(m.eps)
    if m.local_base is not None:
        w.add_float32(f"{m.arch}.rope.freq_base_swa", m.local_base)
    if m.window is not None:
        w.add_sliding_window(m.window)
    if isinstance(m.pattern, int):
        w.add_uint32(f"{m.arch}.attention.sliding_window_pattern", m.pattern)
    elif m.pattern is not None:
        w.add_array(f"{m.arch}.attention.sliding_window_pattern", m.pattern)
    if m.attn_cap is not None:
        w.add_float32(f"{m.arch}.attn_logit_softcapping", m.attn_cap)
    if m.logit_cap is not None:
        w.add_float32(f"{m.arch}.final_logit_softcapping", m.logit_cap)
    if m.scales is not None:
        for key, value in zip(("embedding_scale", "attention.scale", "residual_scale", "logit_scale"), m.scales):
            w.add_float32(f"{m.arch}.{key}", value)
    if m.scaling is not None:
        kind, factor, original, *magnitude = m.scaling
        w.add_string(f"{m.arch}.rope.scaling.type", kind)
        w.add_rope_scaling_factor(factor)
        if original:
            w.add_rope_scaling_orig_ctx_len(original)
        if magnitude:
            w.add_rope_scaling_yarn_attn_factor(*magnitude)


def add_vocabulary(w: gguf.GGUFWriter, m: Tiny) -> None:
    rng = np.random.default_rng(0)  # one vocabulary for all models of a kind
    if m.arch in GEMMAS:
        tokens, scores, types = vocabulary.spm_vocabulary(m.vocab, rng)
        w.add_tokenizer_model("llama")
        w.add_tokenizer_pre("default")
        w.add_token_list(tokens)
        w.add_token_scores(scores)
        w.add_token_types(types)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(0)
        w.add_add_bos_token(True)
        w.add_add_space_prefix(False)
        return
    tokens, types, merges = vocabulary.bpe_vocabulary(m.vocab, rng)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.index("<|begin_of_text|>"))
    w.add_eos_token_id(tokens.index("<|eot_id|>"))
    w.add_add_bos_token(True)


def ends(m: Tiny) -> set[int]:
    """The tokens at which an answer ends."""
    if m.arch in GEMMAS:
        return {2}
    tokens, _, _ = vocabulary.bpe_vocabulary(m.vocab, np.random.default_rng(0))
    return {tokens.index("<|eot_id|>"), tokens.index("<|end_of_text|>")}


def plain(m: Tiny) -> int:
    """A token that is a whole character."""
    if m.arch in GEMMAS:
        tokens, _, _ = vocabulary.spm_vocabulary(m.vocab, np.random.default_rng(0))
        return tokens.index("a")
    return vocabulary.byte_alphabet().index("a")


def text(words: int, seed: int) -> str:
    """Words that these vocabularies cut into a few pieces each."""
    stream = vocabulary.made_up_words(np.random.default_rng(seed), " ")
    return "".join(next(stream) for _ in range(words)).strip()


def write(m: Tiny, path: Path) -> Path:
    w = gguf.GGUFWriter(path, m.arch)
    add_metadata(w, m)
    add_vocabulary(w, m)
    for name, weights in tensors(m):
        kind = gguf.GGMLQuantizationType[m.kind if weights.ndim == 2 else "F32"]
        w.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    gguf_files.finish(w)
    return path
