"""What a conversion has to say: the keys and tensors of the GGUF file, from the descriptions of the formats.

`Expected.keys`: key → (type in the file, value). A value of ANY has to be there and may be anything; a key in `may` may
be absent, but not different. What else is in the file has to be in FREE.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evidence.lib import gguf_files
from evidence.lib.lazy import lazily

np = lazily("numpy")


ANY = object()
# Words about the file, which no format prescribes.
FREE = {"general.name", "general.basename", "general.size_label", "general.quantization_version", "general.type",
        "general.description", "general.license", "general.finetune", "general.source.url", "general.organization",
        "general.parameter_count"}
FILE_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32}
ORDER = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]


@dataclass
class Expected:
    tensors: dict  # name → (type, array or bytes as rows)
    keys: dict
    may: dict = field(default_factory=dict)


def f32(x) -> float:
    return float(np.float32(x))


def tensors_of(arrays: dict) -> dict:
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}
    from .model import widen

    return {name: ("F32", widen(x)) if x.ndim == 1 else (kinds[x.dtype], x) for name, x in arrays.items()}


def network(m, file_type: str, context=None, eps=None) -> tuple[dict, dict]:
    a = m.arch
    keys = {
        "general.architecture": ("STRING", a), "general.alignment": ("UINT32", 4096),
        "general.file_type": ("UINT32", FILE_TYPE[file_type]),
        f"{a}.block_count": ("UINT32", m.n_layer), f"{a}.context_length": ("UINT32", m.context if context is None else context),
        f"{a}.embedding_length": ("UINT32", m.n_embd), f"{a}.feed_forward_length": ("UINT32", m.n_ff),
        f"{a}.attention.head_count": ("UINT32", m.n_head), f"{a}.attention.head_count_kv": ("UINT32", m.n_kv),
        f"{a}.attention.layer_norm_rms_epsilon": ("FLOAT32", f32(m.eps) if eps is None else eps),
        f"{a}.rope.freq_base": ("FLOAT32", f32(m.rope_base)),
    }
    may = {f"{a}.vocab_size": ("UINT32", m.n_vocab), f"{a}.attention.key_length": ("UINT32", m.head_dim),
           f"{a}.attention.value_length": ("UINT32", m.head_dim), f"{a}.rope.dimension_count": ("UINT32", m.head_dim)}
    if a == "llama":
        keys[f"{a}.rope.dimension_count"] = may.pop(f"{a}.rope.dimension_count")
    if a == "gemma3":
        for key in ("key_length", "value_length"):
            keys[f"{a}.attention.{key}"] = may.pop(f"{a}.attention.{key}")
        keys[f"{a}.attention.sliding_window"] = ("UINT32", m.window)
        may[f"{a}.rope.freq_base_swa"] = ("FLOAT32", 10000.0)
        may[f"{a}.attention.sliding_window_pattern"] = ("ARRAY", ANY)
    return keys, may


def vocabulary(v, config: bool = True) -> tuple[dict, dict]:
    """`config`: with tokenizer_config.json beside it."""
    keys = {"tokenizer.ggml.model": ("STRING", "gpt2" if v.kind == "bpe" else "llama"),
            "tokenizer.ggml.pre": ("STRING", v.pre), "tokenizer.ggml.tokens": ("ARRAY", v.tokens),
            "tokenizer.ggml.token_type": ("ARRAY", v.types)}
    if v.kind == "bpe":
        keys["tokenizer.ggml.merges"] = ("ARRAY", v.merges)
    else:
        # As llama.cpp's converter has it: what tokenizer_config.json adds is never merged.
        keys["tokenizer.ggml.scores"] = ("ARRAY", [-1000.0 if config and t in (3, 4) else f32(x) for x, t in zip(v.scores, v.types)])
    long = {"unk": "unknown", "pad": "padding"}
    special = {f"tokenizer.ggml.{long.get(k, k)}_token_id": ("UINT32", i) for k, i in v.special.items()}
    may = {"tokenizer.ggml.add_space_prefix": ("BOOL", v.add_space_prefix), "tokenizer.ggml.add_bos_token": ("BOOL", v.add_bos),
           "tokenizer.ggml.add_eos_token": ("BOOL", False), "tokenizer.ggml.add_sep_token": ("BOOL", False)}
    if config or v.kind == "spm":
        keys |= special
    else:
        may |= special
    if config and v.chat_template:
        keys["tokenizer.chat_template"] = ("STRING", v.chat_template)
    return keys, may


def legacy_vocabulary(tokens: list[bytes], scores) -> dict:
    """By the rules for vocabularies from before GGUF. `scores`: None for a file without."""
    texts, types = [], []
    for i, raw in enumerate(tokens):
        if i < 3:
            text, kind = ["<unk>", "<s>", "</s>"][i], 2 if i == 0 else 3
        elif not raw:
            text, kind = "", 3
        elif i < 259 and len(raw) == 1:
            text, kind = f"<0x{raw[0]:02X}>", 6
        else:
            text, kind = raw.decode().replace(" ", "\u2581"), 1
        texts.append(text)
        types.append(kind)
    keys = {"tokenizer.ggml.model": ("STRING", "llama"), "tokenizer.ggml.pre": ("STRING", "default"),
            "tokenizer.ggml.tokens": ("ARRAY", texts), "tokenizer.ggml.token_type": ("ARRAY", types),
            "tokenizer.ggml.unknown_token_id": ("UINT32", 0), "tokenizer.ggml.bos_token_id": ("UINT32", 1),
            "tokenizer.ggml.eos_token_id": ("UINT32", 2)}
    keys["tokenizer.ggml.scores"] = ("ARRAY", [f32(x) for x in scores] if scores is not None else ANY)
    return keys


# --- holding a file against it -------------------------------------------------------------------


def read(path):
    import gguf

    return gguf.GGUFReader(path)


def kind_of(field) -> str:
    return field.types[0].name


def differences(path, want: Expected) -> list[str]:
    """What is not as it should be, in words."""
    import gguf

    reader, out = read(path), []
    found = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    for key, (kind, value) in {**want.may, **want.keys}.items():
        if key not in found:
            if key in want.keys:
                out.append(f"{key} is missing")
            continue
        got = found[key].contents()
        if kind_of(found[key]) != kind:
            out.append(f"{key} has type {kind_of(found[key])} instead of {kind}")
        elif value is not ANY and got != value:
            out.append(f"{key}: {gguf_files.difference(got, value)}")
    for key in found:
        if key not in want.keys and key not in want.may and key not in FREE:
            out.append(f"{key} = {found[key].contents()!r:.60} is not known to this test")
    names = [t.name for t in reader.tensors]
    for name in sorted(set(names) ^ set(want.tensors)):
        out.append(f"tensor {name} is {'missing' if name in want.tensors else 'too many'}")
    for t in reader.tensors:
        if t.name not in want.tensors:
            continue
        kind, x = want.tensors[t.name]
        if t.data_offset % 4096:
            out.append(f"{t.name} is at {t.data_offset}, not at a multiple of 4096")
        if t.tensor_type != gguf.GGMLQuantizationType[kind]:
            out.append(f"{t.name} has type {t.tensor_type.name} instead of {kind}")
            continue
        shape = list(x.shape)
        if x.dtype == np.uint8 and kind not in ("F32", "F16", "BF16"):
            block, size = gguf.GGML_QUANT_SIZES[t.tensor_type]
            shape[-1] = shape[-1] // size * block
        if [int(n) for n in t.shape] != shape[::-1]:
            out.append(f"{t.name} has dimensions {[int(n) for n in t.shape]} instead of {shape[::-1]}")
        elif (differ := gguf_files.raw(t.data) != gguf_files.raw(x)).any():
            out.append(f"{t.name}: {np.count_nonzero(differ)} of {len(differ)} bytes differ, the first at {int(np.argmax(differ))}")
    return out + order(names)


def order(names: list[str]) -> list[str]:
    """The order of use: embedding, the layers, what is inside a layer, the last norm, the output. An embedding that is the
    output too may be in either's place: at first only a few of its rows are read."""
    def rank(name):
        part = name.split(".")
        if part[0] == "blk":
            return (1, int(part[1]), ORDER.index(part[2]) if part[2] in ORDER else -1)
        if name == "token_embd.weight" and "output.weight" not in names and name == names[-1]:
            return (3,)
        return {"token_embd": (0,), "rope_freqs": None, "output_norm": (2,), "output": (3,)}.get(part[0])

    ranks = [r for name in names if (r := rank(name)) and -1 not in r]
    at = next((i for i in range(1, len(ranks)) if ranks[i] < ranks[i - 1]), None)
    return [] if at is None else [f"tensors are not in the order of use: {ranks[at]} after {ranks[at - 1]}"]


# --- a file to compare answers with --------------------------------------------------------------


def reference(path, want: Expected) -> None:
    """The same model, written by the `gguf` package."""
    import gguf

    writer = gguf.GGUFWriter(path, want.keys["general.architecture"][1])
    for key, (kind, value) in {**want.may, **want.keys}.items():
        if key in ("general.architecture", "general.alignment") or value is ANY:
            continue
        if kind == "ARRAY":
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, gguf.GGUFValueType[kind])
    for name, (kind, x) in want.tensors.items():
        x = x.view(np.uint8) if kind == "BF16" else x
        writer.add_tensor(name, x, raw_dtype=gguf.GGMLQuantizationType[kind])
    gguf_files.finish(writer)
