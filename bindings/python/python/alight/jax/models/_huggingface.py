"""A folder of Hugging Face's as it is: `config.json` as a `Config`, its tensors by what they are for.

For networks of the plain kind; `alight convert` knows more of them, and makes a GGUF file. Rows of queries and keys stay in halves,
as they are there, where GGUF's llama has pairs: the rotary embedding is NeoX's then. What is not understood is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ... import Catalog, FormatError, Tensor
from ._config import Config, Local, Rope
from ._tensors import Layer, Tensors


@dataclass(frozen=True)
class Kind:
    """What the architecture alone says; the rest is in the configuration."""

    name: str
    """GGUF's."""
    context: int
    theta: float = 10000.0
    gemma: bool = False
    qk_norm: bool = False
    period: int = 0
    """The last of so many layers has no window, unless the configuration says otherwise."""
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    tied: bool = False


KINDS = {
    "LlamaForCausalLM": Kind("llama", 2048),
    "Qwen2ForCausalLM": Kind("qwen2", 32768),
    "Qwen3ForCausalLM": Kind("qwen3", 32768, qk_norm=True),
    "Gemma2ForCausalLM": Kind("gemma2", 8192, gemma=True, period=2, attention_softcap=50.0, logit_softcap=30.0, tied=True),
    "Gemma3ForCausalLM": Kind("gemma3", 131072, theta=1e6, gemma=True, qk_norm=True, period=6, tied=True),
}
MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
BIASES = dict(zip(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), MATRICES.values(), strict=True))
NORMS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
OF_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NEVER = ("quantization_config", "use_sliding_window", "use_bidirectional_attention", "partial_rotary_factor")
"""Keys that change what is computed, in ways that this engine does not know."""


class Folder:
    """What `config.json` says."""

    def __init__(self, catalog: Catalog) -> None:
        self.path = Path(catalog.files[0]).parent / "config.json"
        try:
            found = json.loads(self.path.read_text())
        except FileNotFoundError:
            raise FormatError(f"{self.path}: it is not there; expected beside safetensors, of a folder of Hugging Face's") from None
        except ValueError as problem:
            raise FormatError(f"{self.path}: {problem}") from None
        if not isinstance(found, dict):
            raise FormatError(f"{self.path}: expected an object")
        self.values: dict[str, Any] = found
        named = found.get("architectures")
        name = named[0] if isinstance(named, list) and named else named
        if name not in KINDS:
            known = ", ".join(KINDS)
            raise FormatError(f"{self.path}: architectures is {named}, expected one of {known}; `alight convert` knows more and makes a GGUF file")
        self.kind = KINDS[name]
        for key in NEVER:
            if found.get(key) not in (None, False, 1.0):
                raise FormatError(f"{self.path}: {key} is {found[key]!r}, which the JAX engine does not know; `alight convert` may")

    def number(self, key: str, default: float | None = None, least: float = 0.0) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= least:
            raise FormatError(f"{self.path}: {key} is {value!r}, expected a number above {least:g}")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value) or value > 2**31:
            raise FormatError(f"{self.path}: {key} is {value:g}, expected a whole number of 1 or more")
        return int(value)

    def cap(self, key: str, default: float | None) -> float | None:
        value = self.values.get(key, default)
        return None if not value else float(np.float32(self.number(key, default)))


def read(catalog: Catalog) -> tuple[Config, Tensors]:
    """The network of a folder."""
    folder = Folder(catalog)
    kind = folder.kind
    heads, embedding = folder.count("num_attention_heads"), folder.count("hidden_size")
    usual = {"qwen3": 128, "gemma2": 256, "gemma3": 256}.get(kind.name, embedding // heads)
    head = folder.count("head_dim", usual)
    activation = "hidden_activation" if kind.gemma else "hidden_act"
    expected = "gelu_pytorch_tanh" if kind.gemma else "silu"
    if (found := folder.values.get(activation) or expected) != expected:
        raise FormatError(f"{folder.path}: {activation} is {found!r}, expected {expected!r}")
    layers, local = folder.count("num_hidden_layers"), None
    if kind.period and folder.values.get("sliding_window", 4096) is not None:
        flags = _windows(folder, layers)
        if any(flags):
            theta = folder.number("rope_local_base_freq", 10000.0) if kind.name == "gemma3" else _theta(folder)
            rope = Rope(tuple(theta ** -(np.arange(0, head, 2) / head)), 1.0)
            local = Local(folder.count("sliding_window", 4096), flags, rope)
    scale = folder.number("query_pre_attn_scalar", 256) if kind.gemma else head
    tied = folder.values.get("tie_word_embeddings", kind.tied)
    config = Config(
        architecture=kind.name,
        layers=layers,
        embedding=embedding,
        feed_forward=folder.count("intermediate_size"),
        experts=None,
        heads=heads,
        kv_heads=folder.count("num_key_value_heads", heads),
        key_dim=head,
        value_dim=head,
        vocab=_rows(catalog, "model.embed_tokens.weight"),
        context=folder.count("max_position_embeddings", kind.context),
        rms_eps=float(np.float32(folder.number("rms_norm_eps", 1e-6))),
        rope=_rope(folder, head),
        neox=True,
        local=local,
        embedding_scale=float(np.sqrt(np.float32(embedding))) if kind.gemma else 1.0,
        attention_scale=float(np.float32(1) / np.sqrt(np.float32(scale))),
        attention_softcap=folder.cap("attn_logit_softcapping", kind.attention_softcap),
        sinks=None,
        logit_softcap=folder.cap("final_logit_softcapping", kind.logit_softcap),
        gate="gelu_tanh" if kind.gemma else "silu",
        qk_norm=kind.qk_norm,
        feed_forward_norm="ffn_norm",
        post_norms=kind.gemma,
    )
    return config, _tensors(catalog, folder, config, bool(tied))


def _windows(folder: Folder, layers: int) -> tuple[bool, ...]:
    types = folder.values.get("layer_types")
    if types is None:
        period = folder.count("sliding_window_pattern", folder.kind.period)
        return tuple(number % period != 0 for number in range(1, layers + 1))
    if not isinstance(types, list) or len(types) != layers or not set(types) <= {"sliding_attention", "full_attention"}:
        raise FormatError(f"{folder.path}: layer_types: expected 'sliding_attention' or 'full_attention' for each of {layers} layers")
    return tuple(one == "sliding_attention" for one in types)


def _theta(folder: Folder) -> float:
    parameters = folder.values.get("rope_parameters")
    if isinstance(parameters, dict) and parameters.get("rope_theta") is not None:
        return float(parameters["rope_theta"])
    return folder.number("rope_theta", folder.kind.theta)


def _rope(folder: Folder, head: int) -> Rope:
    """The rotary embedding of layers without a window."""
    frequencies = _theta(folder) ** -(np.arange(0, head, 2) / head)
    scaling: Mapping[str, Any] = folder.values.get("rope_scaling") or folder.values.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "linear":
            frequencies = frequencies / float(scaling["factor"])
        elif kind == "llama3":
            # Waves longer than `low` turns of the original context are stretched, those shorter than `high` are kept.
            low, high, original = (float(scaling[k]) for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
            kept = np.clip((original * frequencies / (2 * np.pi) - low) / (high - low), 0, 1)
            frequencies = frequencies * ((1 - kept) / float(scaling["factor"]) + kept)
        elif kind != "default":
            raise FormatError(f"{folder.path}: rope_type {kind!r} is not known to the JAX engine here; `alight convert` may know it")
    except FormatError:
        raise
    except KeyError as problem:
        raise FormatError(f"{folder.path}: rope_scaling of {kind!r} has no {problem}") from None
    except (TypeError, ValueError, ZeroDivisionError) as problem:
        raise FormatError(f"{folder.path}: rope_scaling of {kind!r}: {problem}") from None
    return Rope(tuple(float(one) for one in frequencies), 1.0)


def _rows(catalog: Catalog, name: str) -> int:
    if name not in catalog.tensors:
        raise FormatError(f"{catalog.files[0]}: tensor {name!r} is missing")
    return int(catalog.tensors[name].shape[0])


class Shifted:
    """A norm as it is multiplied by: Gemma's are stored less one."""

    def __init__(self, of: Tensor) -> None:
        self.of, self.name, self.shape, self.nbytes = of, of.name, of.shape, of.nbytes
        # Its elements are nowhere in the file.
        self.type, self.packed, self.planes = None, False, False

    def read(self, ranges: Sequence[tuple[int, int]] | None = None, dtype: str | None = None) -> Any:
        block = self.of.read(ranges, dtype="float32")
        return np.ndarray(tuple(block.shape), np.float32, buffer=memoryview(block)) + np.float32(1)


def _tensors(catalog: Catalog, folder: Folder, c: Config, tied: bool) -> Tensors:
    """All of them, with the shapes that the configuration gives them, and no others."""
    left = dict(catalog.tensors)
    heads, kv = c.heads * c.key_dim, c.kv_heads * c.key_dim
    shapes = {"q": (heads, c.embedding), "k": (kv, c.embedding), "v": (kv, c.embedding), "o": (c.embedding, heads),
              "gate": (c.feed_forward, c.embedding), "up": (c.feed_forward, c.embedding), "down": (c.embedding, c.feed_forward)}  # fmt: skip

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        found = left.pop(name, None)
        if found is None:
            raise FormatError(f"{catalog.files[0]}: tensor {name!r} is missing")
        if found.shape != shape:
            raise FormatError(f"tensor {name!r} is {list(found.shape)}, expected {list(shape)} by {folder.path}")
        return found

    def norm(name: str, length: int) -> Any:
        found = take(name, (length,))
        return Shifted(found) if folder.kind.gemma else found

    names = NORMS | (OF_GEMMA if folder.kind.gemma else {})

    def layer(number: int) -> Layer:
        prefix = f"model.layers.{number}."
        matrices = {role: take(f"{prefix}{name}.weight", shapes[role]) for role, name in MATRICES.items()}
        vectors = {}
        for ours, name in names.items():
            of_heads = ours in ("attn_q_norm", "attn_k_norm")
            if not of_heads or c.qk_norm:
                vectors[ours] = norm(f"{prefix}{name}.weight", c.key_dim if of_heads else c.embedding)
        for (ours, name), role in zip(BIASES.items(), MATRICES, strict=True):
            if f"{prefix}{name}.bias" in left:
                vectors[f"{ours}.bias"] = take(f"{prefix}{name}.bias", shapes[role][:1])
        return Layer(**matrices, router=None, vectors=vectors)

    embedding = take("model.embed_tokens.weight", (c.vocab, c.embedding))
    if tied:
        # Some folders have it twice.
        left.pop("lm_head.weight", None)
    output = embedding if tied else take("lm_head.weight", (c.vocab, c.embedding))
    layers = tuple(layer(number) for number in range(c.layers))
    final = norm("model.norm.weight", c.embedding)
    # Buffers of old folders.
    strange = [name for name in left if not name.endswith("rotary_emb.inv_freq")]
    if strange:
        raise FormatError(f"tensor {strange[0]!r} is not known in {folder.path.parent}, of {folder.kind.name}")
    return Tensors(embedding=embedding, output=output, output_norm=final, output_bias=None, layers=layers)
