"""Meta's folder: params.json and consolidated.00.pth … in 1, 2, 4, 8 parts.

Rows of wq, wk, wv, w1, w3 and output are dealt out, columns of wo and w2, norms are repeated. The embedding is split by
columns in LLaMA 1 and 2, by rows in Llama 3. Where there are more parts than key/value heads, a head's rows of wk
and wv are in each of the parts that share it.
"""

from __future__ import annotations

import base64
import json

from evidence.lib.lazy import lazily

from . import model as mod
from . import spm, torchzip

np = lazily("numpy")

NAMES = {"attn_norm": "attention_norm", "attn_q": "attention.wq", "attn_k": "attention.wk", "attn_v": "attention.wv",
         "attn_output": "attention.wo", "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3",
         "ffn_down": "feed_forward.w2"}
ORDER = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ffn_up", "attn_norm", "ffn_norm"]
COLUMNS = {"attn_output", "ffn_down"}


def names(n_layer: int) -> dict[str, str]:
    """Name in GGUF → name in the file, in Meta's order."""
    out = {"token_embd.weight": "tok_embeddings.weight", "output_norm.weight": "norm.weight", "output.weight": "output.weight"}
    for n in range(n_layer):
        out |= {f"blk.{n}.{short}.weight": f"layers.{n}.{NAMES[short]}.weight" for short in ORDER}
    return out


def split_of(name: str, embedding: str) -> str:
    short = name.split(".")[-2]
    if name == "token_embd.weight":
        return embedding
    return "whole" if short.endswith("norm") else "columns" if short in COLUMNS else "rows"


def piece(x: np.ndarray, split: str, part: int, parts: int) -> np.ndarray:
    if split == "whole":
        return x
    axis = 0 if split == "rows" else 1
    n = x.shape[axis] // parts
    assert n * parts == x.shape[axis], (x.shape, split, parts)
    return x[part * n:(part + 1) * n] if axis == 0 else x[:, part * n:(part + 1) * n]


def params(m, **more) -> dict:
    out = {"dim": m.n_embd, "n_layers": m.n_layer, "n_heads": m.n_head, "multiple_of": m.n_mult, "norm_eps": m.eps,
           "vocab_size": m.n_vocab}
    if m.n_kv != m.n_head:
        out["n_kv_heads"] = m.n_kv
    if m.rope_base != 10000.0:
        out["rope_theta"] = m.rope_base
    return out | more


def write(folder, m, dtype: str = "F16", parts: int = 1, embedding: str = "columns", repeat_kv: bool = False,
          nested: bool = False, rope: bool = False, tokenizer: bool = True, modern: bool = True, hands_off=None, **more):
    """`repeat_kv`: parts share key/value heads. `rope`: with the `rope.freqs` of LLaMA 1. `hands_off(part, tensors)`:
    a chance to spoil them. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    about = params(m, **more)
    (folder / "params.json").write_text(json.dumps({"model": about} if nested else about))
    stored = {name: mod.cast(x, dtype) for name, x in m.untied().tensors.items()}
    for part in range(parts):
        out = {}
        for name, theirs in names(m.n_layer).items():
            x, split = stored[name], split_of(name, embedding)
            short = name.split(".")[-2]
            if repeat_kv and short in ("attn_k", "attn_v"):
                assert parts % m.n_kv == 0
                out[theirs] = piece(x, "rows", part * m.n_kv // parts, m.n_kv)
            else:
                out[theirs] = np.ascontiguousarray(piece(x, split, part, parts))
        if rope:
            half = np.arange(0, m.head_dim, 2, dtype=np.float32)[:m.head_dim // 2] / m.head_dim
            out["rope.freqs"] = mod.cast(1 / np.float32(10000) ** half, dtype)
        if hands_off:
            out = hands_off(part, out)
        torchzip.write(folder / f"consolidated.{part:02d}.pth", out, modern=modern)
    if m.vocab.kind == "ranks":
        (folder / "tokenizer.model").write_text("".join(f"{base64.b64encode(t).decode()} {rank}\n" for rank, t in enumerate(m.vocab.tokens)))
    elif tokenizer and m.vocab.kind == "spm":
        (folder / "tokenizer.model").write_bytes(spm.model(m.vocab))
    elif tokenizer:
        from . import hf

        hf.tokenizer_files(folder, m)
    return folder
