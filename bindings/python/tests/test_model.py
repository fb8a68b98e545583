"""Hyper-parameters and tokenizers: what Rust has read of a model, as Python sees it."""

import json
import math
import os
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest

import alight
from conftest import write_safetensors

ROOT = Path(__file__).resolve().parents[3]
MODELS = Path(os.environ.get("ALIGHT_MODELS", ROOT / "models"))
FILES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}


@pytest.fixture(params=FILES)
def real(request):
    path = MODELS / FILES[request.param]
    if not path.is_file():
        pytest.skip(f"{path} is not there; `make models` fetches it")
    return request.param, path


def write_model(path, architecture="llama", factors=None, drop=(), **more):
    """A tiny model of random weights, with a vocabulary of 256 bytes and a few more."""
    width, heads, dim, ff, layers = 64, 4, 16, 96, 3
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {"block_count": layers, "embedding_length": width, "feed_forward_length": ff, "context_length": 128}
    numbers |= {"attention.head_count": heads, "attention.head_count_kv": 2}
    for key, value in numbers.items():
        writer.add_uint32(f"{architecture}.{key}", more.pop(key, value))
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in more.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(f"{architecture}.{key.replace('__', '.')}", value)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁the", "▁t", "he", "▁", "t", "h", "e"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-1.0, -2.0, -3.0, -9.0, -9.0, -9.0, -9.0])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 7)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), width), "output_norm": (width,)}
    for i in range(layers):
        kv = 2 * dim
        for name, shape in {
            "attn_norm": (width,), "attn_q": (width, width), "attn_k": (kv, width), "attn_v": (kv, width),
            "attn_output": (width, width), "ffn_norm": (width,), "ffn_gate": (ff, width), "ffn_up": (ff, width),
            "ffn_down": (width, ff),
        }.items():  # fmt: skip
            shapes[f"blk.{i}.{name}"] = shape
            if architecture.startswith("gemma"):
                shapes |= {f"blk.{i}.post_attention_norm": (width,), f"blk.{i}.post_ffw_norm": (width,)}
            if architecture == "gemma3":
                shapes |= {f"blk.{i}.attn_q_norm": (dim,), f"blk.{i}.attn_k_norm": (dim,)}
    for name, shape in shapes.items():
        if name not in drop:
            writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_hyper_parameters_of_real_models(real):
    name, path = real
    config = alight.config(path)
    assert config == alight.config(alight.open(path))
    if name == "smollm2":
        expected = {"architecture": "llama", "layers": 30, "embedding": 576, "feed_forward": 1536, "heads": 9}
        expected |= {"kv_heads": 3, "key_dim": 64, "value_dim": 64, "vocab": 49152, "context": 8192, "rope_dims": 64}
        expected |= {"rope_pairing": "interleaved", "local": None, "gate": "silu", "embedding_scale": 1.0}
        expected |= {"attention_scale": 0.125, "attention_softcap": None, "logit_softcap": None}
        expected |= {"qk_norm": False, "post_norms": False, "rope_magnitude": 1.0}
        base = 100_000.0
    else:
        expected = {"architecture": "gemma3", "layers": 18, "embedding": 640, "feed_forward": 2048, "heads": 4}
        expected |= {"kv_heads": 1, "key_dim": 256, "value_dim": 256, "vocab": 262144, "rope_pairing": "neox"}
        expected |= {"attention_scale": 1 / 16, "gate": "gelu_tanh", "qk_norm": True, "post_norms": True}
        expected |= {"embedding_scale": float(np.float32(math.sqrt(640)))}
        base = 1_000_000.0
        local = config["local"]
        assert local["window"] == 512 and local["rope_magnitude"] == 1.0 and local["rope_dims"] == 256
        assert local["layers"] == [(i + 1) % 6 != 0 for i in range(18)]
        np.testing.assert_allclose(local["rope_frequencies"], 10_000.0 ** (-2 * np.arange(128) / 256), rtol=1e-14)
    assert expected.items() <= config.items()
    dims = config["rope_dims"]
    np.testing.assert_allclose(config["rope_frequencies"], base ** (-2 * np.arange(dims // 2) / dims), rtol=1e-14)
    assert config["rms_eps"] == pytest.approx(1e-5 if name == "smollm2" else 1e-6)


def test_frequencies_have_scaling_and_factors_in_them(tmp_path):
    plain = 10_000.0 ** (-2 * np.arange(8) / 16)
    factors = [1, 1, 2, 2, 4, 4, 8, 8]
    path = write_model(tmp_path / "factors.gguf", factors=factors, rope__scaling__type="linear", rope__scaling__factor=2.0)
    np.testing.assert_allclose(alight.config(path)["rope_frequencies"], plain / 2 / factors, rtol=1e-14)
    path = write_model(tmp_path / "yarn.gguf", rope__scaling__type="yarn", rope__scaling__factor=4.0)
    config = alight.config(path)
    assert config["rope_magnitude"] == pytest.approx(1 + 0.1 * math.log(4))
    assert config["rope_frequencies"][0] == 1.0 and config["rope_frequencies"][-1] == pytest.approx(plain[-1] / 4)


def test_soft_caps_of_gemma2(tmp_path):
    config = alight.config(write_model(tmp_path / "g.gguf", "gemma2", attention__sliding_window=32))
    assert (config["attention_softcap"], config["logit_softcap"]) == (50.0, 30.0)
    assert config["local"]["window"] == 32 and config["local"]["layers"] == [True, False, True]


def test_scales_of_granite(tmp_path):
    scales = {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 4.0, "attention__scale": 0.0625}
    path = write_model(tmp_path / "granite.gguf", "granite", **scales)
    config = alight.config(path)
    found = [config[name] for name in ("embedding_scale", "residual_scale", "logit_scale", "attention_scale")]
    np.testing.assert_array_equal(np.float32(found), np.float32([12.0, 0.22, 0.25, 0.0625]))
    from alight.jax.models import _config

    with pytest.raises(alight.FormatError, match="'granite' is not supported by the JAX engine"):
        _config.read(alight.open(path))


def test_what_the_engine_refuses_is_refused(tmp_path, every_type):
    for wrong, made in [
        ('metadata "llama.rope.scaling.type" is dynamic', {"rope__scaling__type": "dynamic"}),
        ('tensor "rope_factors_short.weight" is missing', {"rope__scaling__type": "longrope"}),
        ('tensor "blk.1.ffn_up.weight" is missing', {"drop": ["blk.1.ffn_up"]}),
        ('tensor "rope_freqs.weight" has the value 0', {"factors": [0] * 8}),
        ('architecture "grok" is not supported', {"architecture": "grok"}),
    ]:
        path = write_model(tmp_path / "wrong.gguf", **made)
        for model in (path, alight.open(path)):
            with pytest.raises(alight.FormatError, match=f"wrong.gguf: {wrong}"):
                alight.config(model)
    # A file without a vocabulary, and one of another format.
    with pytest.raises(alight.FormatError, match="tokenizer.ggml.model"):
        alight.Tokenizer(every_type[0])
    path = write_safetensors(tmp_path / "model.safetensors", {"a": np.zeros(4, np.float32)})
    for ask in (alight.config, alight.Tokenizer):
        for model in (path, alight.open(path)):
            with pytest.raises(alight.FormatError, match="safetensors.*alight convert"):
                ask(model)
        with pytest.raises(FileNotFoundError):
            ask(tmp_path / "nothing.gguf")
        with pytest.raises(TypeError):
            ask(3)


def test_ids_are_those_of_llama_cpp(real):
    name, path = real
    tokenizer = alight.Tokenizer(path)
    strings = json.loads((ROOT / "tests/data/tokenizer_strings.json").read_text())
    golden = json.loads((ROOT / f"tests/data/tokenizer_ids_{name}.json").read_text())
    assert len(strings) == len(golden)
    for text, ids in zip(strings, golden, strict=True):
        # The second list is there where spellings of special tokens make a difference.
        assert tokenizer.encode(text, add_bos=False) == ids[0]
        assert tokenizer.encode(text, add_bos=False, parse_special=True) == ids[-1]
        # The vocabulary has no token for some control characters (and llama.cpp drops them, too); U+2581
        # stands for a space.
        if "▁" not in text and all(tokenizer.encode(char, add_bos=False) for char in text):
            assert tokenizer.decode(ids[0]) == text


def test_tokens_and_their_texts(real):
    name, path = real
    tokenizer = alight.Tokenizer(alight.open(path))
    assert len(tokenizer) == tokenizer.vocab_size == alight.config(path)["vocab"]
    expected = {"smollm2": (1, 2, [0, 2, 4], False), "gemma3": (2, 1, [1, 106, 212], True)}[name]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.ends, tokenizer.adds_bos) == expected
    text = "Grüße, 世界 👩‍💻!"
    ids = tokenizer.encode(text, add_bos=False)
    decoder = tokenizer.stream()
    pieces = [decoder.push(id) for id in ids]
    assert "".join(pieces) + decoder.finish() == text == tokenizer.decode(ids)
    assert tokenizer.encode(text) == [tokenizer.bos] * tokenizer.adds_bos + ids
    assert tokenizer.encode(text, add_bos=True) == [tokenizer.bos] + ids
    assert tokenizer.find(tokenizer.token(ids[0])) == ids[0] and tokenizer.find(b"\xff nothing") is None
    # A character that is cut off is told as such, at the end and not before.
    decoder = tokenizer.stream()
    [face] = [tokenizer.encode("\U0001fae8", add_bos=False)]
    if len(face) > 1:
        assert decoder.push(face[0]) == "" and decoder.finish() == "\ufffd"
    for outside in (tokenizer.vocab_size, 2**32 - 1):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.decode([outside])
    with pytest.raises(OverflowError):
        tokenizer.decode([-1])


def test_prompts_are_those_of_alight_run(real, command):
    name, path = real
    tokenizer = alight.Tokenizer(path)
    ask = "Say <|im_end|> or <end_of_turn>, please."

    def fed(*options):
        run = [command, "run", path, ask, "-n", "0", "--json", *options]
        return json.loads(subprocess.run(run, capture_output=True, check=True).stdout)["prompt_tokens"]

    # The command tells how many there are; which, is in what llama.cpp makes of the rendered text.
    assert len(tokenizer.prompt(ask)) == fed("--raw")
    assert len(tokenizer.prompt(ask, parse_special=True)) == fed("--raw", "--parse-special") != fed("--raw")
    if name == "gemma3":
        assert not tokenizer.has_chat_template and tokenizer.chat_template_error is None
        with pytest.raises(ValueError, match="no chat template"):
            tokenizer.chat([{"role": "user", "content": ask}])
        return
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ask}]
    ids = tokenizer.chat(messages)
    assert len(ids) == fed("--system", "Be brief.")
    assert len(tokenizer.chat(messages[1:])) == fed()
    text = tokenizer.render(messages)
    assert text == f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n"
    # What people wrote is text: three messages begin, and what is in the middle does not end one.
    start, end = tokenizer.find(b"<|im_start|>"), tokenizer.find(b"<|im_end|>")
    assert (ids.count(start), ids.count(end)) == (3, 2)
    assert tokenizer.chat(messages, parse_special=True) == tokenizer.encode(text, add_bos=False, parse_special=True)
    assert tokenizer.chat(messages, add_generation_prompt=False) == ids[: len(ids) - len(tokenizer.encode("<|im_start|>assistant\n", parse_special=True))]
    for wrong, error in [([{"role": "user"}], TypeError), ("hello", TypeError), ([{"role": "user", "content": 3}], TypeError)]:
        with pytest.raises(error):
            tokenizer.chat(wrong)
