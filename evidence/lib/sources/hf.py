"""A Hugging Face folder: config.json, safetensors (one file, or shards with an index), tokenizer files.

The rows of q and k are in Hugging Face's order (halves instead of pairs) for llama; Gemma's norms are stored less one.
"""

from __future__ import annotations

import json
import struct

from evidence.lib.lazy import lazily
from evidence.lib.networks import hf_name, to_halves

from . import model as mod
from . import spm, torchzip

np = lazily("numpy")


def stored(m, dtype: str) -> dict[str, np.ndarray]:
    """Under their GGUF names, what the files hold (before the order of rows is changed)."""
    less = np.float32(1 if m.arch == "gemma3" else 0)
    return {name: mod.cast(x - less if x.ndim == 1 else x, dtype) for name, x in m.tensors.items()}


def expected(m, dtype: str) -> dict[str, np.ndarray]:
    """Under their GGUF names, what a converter has to make of `stored`."""
    more = np.float32(1 if m.arch == "gemma3" else 0)
    return {name: mod.widen(x) + more if x.ndim == 1 else x for name, x in stored(m, dtype).items()}


def safetensors(path, tensors: dict[str, np.ndarray], metadata=None, pad: int = 8) -> None:
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16", np.dtype(np.uint8): "U8"}
    for name, x in tensors.items():
        header[name] = {"dtype": kinds[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % pad)
    with open(path, "wb", buffering=1 << 20) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            file.write(x.reshape(-1).view(np.uint8).data)


def config(m, dtype: str) -> dict:
    torch_dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype]
    out = {"hidden_size": m.n_embd, "intermediate_size": m.n_ff, "num_attention_heads": m.n_head, "num_key_value_heads": m.n_kv,
           "num_hidden_layers": m.n_layer, "rms_norm_eps": m.eps, "rope_theta": m.rope_base, "vocab_size": m.n_vocab,
           "max_position_embeddings": m.context, "torch_dtype": torch_dtype, "transformers_version": "4.42.3", "use_cache": True,
           "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02,
           "bos_token_id": m.vocab.special.get("bos"), "eos_token_id": m.vocab.special.get("eos"), "rope_scaling": None}
    if m.arch == "gemma3":
        return out | {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": m.head_dim,
                      "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": m.vocab.special.get("pad"),
                      "sliding_window": m.window, "sliding_window_pattern": 6, "tie_word_embeddings": m.tied,
                      "query_pre_attn_scalar": m.head_dim, "rope_local_base_freq": 10000.0, "attn_logit_softcapping": None,
                      "final_logit_softcapping": None,
                      "layer_types": [("full" if n % 6 == 5 else "sliding") + "_attention" for n in range(m.n_layer)]}
    out |= {"hidden_act": "silu", "tie_word_embeddings": m.tied}
    if m.arch == "qwen3":
        return out | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": m.head_dim}
    return out | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False, "pretraining_tp": 1}


def tokenizer_files(folder, m, merges_as_lists: bool = False) -> None:
    """tokenizer.json (byte-level BPE) or tokenizer.model (SentencePiece), and what goes with them."""
    v = m.vocab
    specials = [i for i, kind in enumerate(v.types) if kind in (3, 4)]
    added = [{"id": i, "content": v.tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": v.types[i] == 3} for i in specials]
    about = {"add_bos_token": v.add_bos, "add_eos_token": False} if v.kind == "spm" else {"add_prefix_space": False}
    about |= {"added_tokens_decoder": {str(a.pop("id")): a for a in [dict(a) for a in added]},
              "clean_up_tokenization_spaces": False, "model_max_length": m.context}
    if v.kind == "bpe":
        about |= {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "tokenizer_class": "GPT2Tokenizer",
                  "vocab_size": m.n_vocab}
    else:
        about["tokenizer_class"] = "GemmaTokenizer" if m.arch == "gemma3" else "LlamaTokenizer"
    about |= {f"{key}_token": v.tokens[i] for key, i in v.special.items()}
    if v.chat_template:
        about["chat_template"] = v.chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2, ensure_ascii=False))
    ids = {f"{key}_token_id": i for key, i in v.special.items() if key != "unk"}
    (folder / "generation_config.json").write_text(json.dumps({"_from_model_config": True, **ids, "transformers_version": "4.42.3"}))
    if v.kind == "spm":
        (folder / "tokenizer.model").write_bytes(spm.model(v))
        return
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    merges = [merge.split(" ") for merge in v.merges] if merges_as_lists else v.merges
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None, "decoder": {**level, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(v.tokens)}, "merges": merges}}, ensure_ascii=False))


def write_weights(folder, tensors: dict[str, np.ndarray], shards: int = 1, pad: int = 8, torch: bool = False) -> None:
    """Tensors in the order of their names; with `shards` > 1 dealt out in runs of about the same size, with an index."""
    stem, ending = ("pytorch_model", "bin") if torch else ("model", "safetensors")

    def put(path, tensors) -> None:
        if torch:
            torchzip.write(path, tensors)
        else:
            safetensors(path, tensors, {"format": "pt"}, pad)

    tensors = dict(sorted(tensors.items()))
    if shards == 1:
        return put(folder / f"{stem}.{ending}", tensors)
    groups, at, total = [{} for _ in range(shards)], 0, sum(x.nbytes for x in tensors.values())
    for i, (name, x) in enumerate(tensors.items()):
        # By size, and by number where one tensor is as large as the others together.
        where = min(max(at * shards // total, 0), shards - 1) if i < len(tensors) - shards else shards - len(tensors) + i
        groups[where][name] = x
        at += x.nbytes
    files = [f"{stem}-{i + 1:05d}-of-{shards:05d}.{ending}" for i in range(shards)]
    for file, group in zip(files, groups):
        put(folder / file, group)
    where = {name: file for file, group in zip(files, groups) for name in group}
    (folder / f"{stem}.{ending}.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, indent=2))


def write(folder, m, dtype: str = "BF16", shards: int = 1, tokenizer: bool = True, merges_as_lists: bool = False, pad: int = 8,
          torch: bool = False):
    """Returns the folder. `torch`: PyTorch's files, as folders had them before safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(m, dtype), indent=2))
    tensors = {}
    for name, x in stored(m, dtype).items():
        heads = {"attn_q": m.n_head, "attn_k": m.n_kv}.get(name.split(".")[-2]) if m.arch == "llama" else None
        tensors[hf_name(m.arch, name)] = np.ascontiguousarray(to_halves(x, heads) if heads else x)
    write_weights(folder, tensors, shards, pad, torch)
    if tokenizer:
        tokenizer_files(folder, m, merges_as_lists)
    return folder
