"""Folders of Hugging Face's straight into models: the network that `alight convert` makes of them, and every device with its own
bytes alone."""

import dataclasses
import json
import subprocess

import alight
import jax
import ml_dtypes
import numpy as np
import pytest
from alight.jax.models import Sampling, _config, _huggingface, load_model
from conftest import write_safetensors
from evidence.lib import networks, tiny_models
from evidence.lib.sources import hf, model as sources
from evidence.lib.tiny_models import Tiny

BIASES = ("attn_q", "attn_k", "attn_v")
NETWORKS = {
    "LlamaForCausalLM": Tiny("llama", "llama", layers=2, head_dim=24, heads=4, base=5e5, eps=1e-5, tied=False, factors=True),
    "Qwen2ForCausalLM": Tiny("qwen2", "qwen2", layers=2, base=1e6, biases=BIASES, vocab=403),
    "Qwen3ForCausalLM": Tiny("qwen3", "qwen3", layers=2, head_dim=40, heads=4, base=1e6, qk_norm=True, tied=False),
    "Gemma2ForCausalLM": Tiny("gemma2", "gemma2", layers=3, head_dim=40, heads=4, window=12, attn_cap=8.0, logit_cap=9.0, vocab=733),
    "Gemma3ForCausalLM": Tiny("gemma3", "gemma3", layers=3, head_dim=48, heads=4, kv_heads=1, base=1e6, qk_norm=True, window=12, pattern=2,
                              vocab=733, scaling=("linear", 8.0, None)),
}  # fmt: skip
# As `tiny_models` has them.
FACTORS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def configuration(name, tiny):
    found = {"architectures": [name], "hidden_size": tiny.embd, "intermediate_size": tiny.ff, "num_attention_heads": tiny.heads,
             "num_key_value_heads": tiny.kv_heads, "num_hidden_layers": tiny.layers, "rms_norm_eps": tiny.eps, "rope_theta": tiny.base,
             "vocab_size": tiny.vocab, "max_position_embeddings": tiny.context, "head_dim": tiny.head_dim,
             "tie_word_embeddings": tiny.tied}  # fmt: skip
    if tiny.factors:
        found["rope_scaling"] = FACTORS
    if tiny.arch.startswith("gemma"):
        found |= {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": tiny.window, "query_pre_attn_scalar": tiny.head_dim,
                  "attn_logit_softcapping": tiny.attn_cap, "final_logit_softcapping": tiny.logit_cap}  # fmt: skip
    if tiny.pattern:
        found |= {"sliding_window_pattern": tiny.pattern, "rope_scaling": {"rope_type": "linear", "factor": tiny.scaling[1]}}
    return found


def folder_of(folder, name, tiny, change=lambda tensors: None, **config):
    """The same weights as `tiny_models.write` gives GGUF."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(configuration(name, tiny) | config))
    made = {}
    for key, values in tiny_models.tensors(tiny):
        part = key.split(".")[-2]
        if tiny.arch == "llama" and part in ("attn_q", "attn_k"):
            values = networks.to_halves(values, tiny.heads if part == "attn_q" else tiny.kv_heads)
        if tiny.arch.startswith("gemma") and values.ndim == 1:
            values = values - np.float32(1)
        if part != "rope_freqs":
            made[networks.hf_name(tiny.arch, key)] = np.ascontiguousarray(values)
    change(made)
    write_safetensors(folder / "model.safetensors", made)
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folder_is_the_network_that_its_gguf_file_is(name, tmp_path):
    tiny = NETWORKS[name]
    folder, path = folder_of(tmp_path / "folder", name, tiny), tiny_models.write(tiny, tmp_path / "model.gguf")
    found, _ = _huggingface.read(alight.open(folder))
    wanted = _config.read(alight.open(path))
    plain = {"rope": None, "local": None, "neox": True}
    assert dataclasses.replace(found, **plain) == dataclasses.replace(wanted, **plain)
    for one, other in ((found.rope, wanted.rope), (found.local and found.local.rope, wanted.local and wanted.local.rope)):
        if one is not None:
            np.testing.assert_allclose(one.frequencies, other.frequencies, rtol=2e-6)
    assert (found.local and found.local.layers) == (wanted.local and wanted.local.layers)
    assert (found.local and found.local.window) == (wanted.local and wanted.local.window)
    # Two chunks of one length.
    prompt = np.random.default_rng(0).integers(3, tiny.vocab, 52).tolist()
    logits = [load_model(one, weights="f32", tp=ranks, context=64).logits(prompt) for one, ranks in ((folder, 3), (path, 1))]
    assert np.abs(logits[0] - logits[1]).max() < 0.01 < logits[1].std()


def test_what_alight_convert_makes_of_it(tmp_path, command):
    """Of a folder that others wrote: shards, BF16, a tokenizer."""
    made = sources.tiny(seed=2, n_kv=2, tied=False)
    folder = hf.write(tmp_path / "folder", made, "BF16", shards=3)
    path = tmp_path / "model.gguf"
    subprocess.run([command, "convert", folder, "-o", path], check=True, capture_output=True)
    prompt = np.random.default_rng(0).integers(3, made.n_vocab, 30).tolist()
    one, other = (load_model(source, weights="f32", tp=2, context=64) for source in (folder, path))
    assert np.abs(one.logits(prompt) - other.logits(prompt)).max() < 0.01
    options = {"max_tokens": 12, "sampling": Sampling.greedy()}
    assert list(one.generate(prompt, **options)) == list(other.generate(prompt, **options))


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_every_device_reads_its_own_bytes_alone(ranks, tmp_path):
    """All ranks together read each matrix once, and norms are read once for all."""
    tiny = dataclasses.replace(NETWORKS["Qwen3ForCausalLM"], heads=16, kv_heads=8, ff=256, vocab=512, embd=128)

    def narrow(tensors):
        for name, values in tensors.items():
            tensors[name] = values.astype(ml_dtypes.bfloat16)

    folder = folder_of(tmp_path / "folder", "Qwen3ForCausalLM", tiny, narrow)
    catalog = alight.open(folder)
    matrices = sum(tensor.nbytes for tensor in catalog.tensors.values() if len(tensor.shape) > 1)
    vectors = sum(tensor.nbytes for tensor in catalog.tensors.values()) - matrices
    model = load_model(catalog, tp=ranks, weights="bf16", context=64)
    assert model.read_bytes == {None: vectors} | dict.fromkeys(range(ranks), matrices // ranks)
    held = jax.tree.leaves((model.params["weights"], model.params["matrices"]))
    shared = 2 if model.params["weights"]["output"] is model.params["weights"]["embedding"] else 1
    assert shared == 1
    for device in jax.devices()[:ranks]:
        parts = [part.data.nbytes for array in held for part in array.addressable_shards if part.device == device]
        assert sum(parts) == matrices // ranks


def test_what_is_not_understood_is_refused(tmp_path):
    name, tiny = "Qwen3ForCausalLM", NETWORKS["Qwen3ForCausalLM"]
    number = iter(range(100))

    def fails(words, change=lambda tensors: None, error=alight.FormatError, weights="f32", **config):
        folder = folder_of(tmp_path / str(next(number)), name, tiny, change, **config)
        with pytest.raises(error, match=words):
            load_model(folder, weights=weights, context=64)

    fails("weights='native' computes with GGUF files; 'bf16' or 'f32' loads this one", error=ValueError, weights="native")
    fails(r"architectures is \['MambaForCausalLM'\], expected one of Llama.*; `alight convert` knows more", architectures=["MambaForCausalLM"])
    fails("quantization_config is {'bits': 4}, which the JAX engine does not know", quantization_config={"bits": 4})
    fails("config.json: rope_type 'yarn' is not known to the JAX engine here; .* may know it$", rope_scaling={"rope_type": "yarn", "factor": 4.0})
    fails("rope_scaling of 'linear' has no 'factor'$", rope_scaling={"rope_type": "linear"})
    fails("rope_scaling of 'linear': could not convert string to float: 'x'$", rope_scaling={"rope_type": "linear", "factor": "x"})
    fails("hidden_size is 'wide', expected a number above 0", hidden_size="wide")
    fails("hidden_act is 'relu', expected 'silu'", hidden_act="relu")
    fails(r"tensor 'model.layers.0.self_attn.q_proj.weight' is \[160, 96\], expected \[200, 96\]", num_attention_heads=5)
    fails("tensor 'lm_head.weight' is missing", lambda tensors: tensors.pop("lm_head.weight"))
    fails("tensor 'model.layers.0.extra.weight' is not known", lambda tensors: tensors.update({"model.layers.0.extra.weight": np.zeros(3, np.float32)}))
    folder = folder_of(tmp_path / "none", name, tiny)
    (folder / "config.json").unlink()
    with pytest.raises(alight.FormatError, match="config.json: it is not there; expected beside safetensors"):
        load_model(folder, weights="f32", context=64)
