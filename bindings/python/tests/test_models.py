"""Networks in JAX: tiny ones of every architecture against the native engine, for any number of ranks and both ways to
compute with weights. Real ones, and llama.cpp, are in `python -m evidence agree jax`."""

import dataclasses
import functools
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import alight
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alight.jax.models import Sampling, _blocks, _load, _model, _native, _sample, load_model
from alight.jax.models._programs import Request, State
from evidence.agree import architectures
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny
from jax.sharding import Mesh


BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NETWORKS = [
    Tiny("llama", "llama", layers=2, head_dim=40, heads=4, base=5e5, eps=1e-5, tied=False, biases=BIASES, factors=True),
    Tiny("qwen2", "qwen2", layers=2, base=1e6, biases=BIASES[:3], vocab=403, scaling=("yarn", 4.0, 64)),
    Tiny("qwen3", "qwen3", layers=2, head_dim=40, heads=4, base=1e6, qk_norm=True, tied=False),
    Tiny("gemma2", "gemma2", layers=3, head_dim=40, heads=4, window=12, attn_cap=8.0, logit_cap=9.0, vocab=733, qk_gain=2.0,
         tied=False),
    Tiny("gemma3", "gemma3", layers=3, head_dim=48, heads=4, kv_heads=1, base=1e6, qk_norm=True, window=12, pattern=2, vocab=733),
    Tiny("seed_oss", "seed_oss", layers=2, head_dim=40, heads=4, base=1e7, biases=BIASES[:3], tied=False),
    Tiny("qwen2vl", "qwen2vl", layers=2, base=1e6, biases=BIASES[:3], vocab=403, sections=(2, 3, 3, 0)),
    Tiny("qwen3vl", "qwen3vl", layers=2, head_dim=40, heads=4, base=1e6, qk_norm=True, sections=(8, 6, 6, 0)),
    Tiny("qwen3vlmoe", "qwen3vlmoe", layers=2, head_dim=40, heads=4, base=1e6, qk_norm=True, sections=(8, 6, 6, 0), experts=7,
         used=3, expert_ff=44),
    Tiny("ernie4_5", "ernie4_5", layers=2, base=1e4, eps=1e-5),
    Tiny("internlm2", "internlm2", layers=2, base=1e4, eps=1e-5, tied=False),
    Tiny("qwen3moe", "qwen3moe", layers=2, head_dim=40, heads=4, base=1e6, qk_norm=True, experts=7, used=3, expert_ff=44),
    Tiny("mixtral", "llama", layers=2, head_dim=40, heads=4, base=1e6, ff=44, experts=5, used=2, expert_ff=44),
    # Sinks, windows on every second layer, YaRN beyond its original context, and biases everywhere.
    dataclasses.replace(architectures.GPT_OSS, scaling=("yarn", 8.0, 16)),
]


def hashable(tiny, **change):
    """A model that differs by `change`, as a key of what has been made: lists are not."""
    tiny = dataclasses.replace(tiny, **change)
    return dataclasses.replace(tiny, pattern=tuple(tiny.pattern)) if isinstance(tiny.pattern, list) else tiny


# What `--engine native` alone runs: architectures of none of these, and what some of these may have.
NATIVE = [hashable(m) for m, _ in architectures.CASES if m.arch not in {tiny.arch for tiny in NETWORKS}] + [
    Tiny("ernie4_5, two lists of factors", "ernie4_5", long_context=(32, 1.2)),
]
LLAMA, GEMMA2, QWEN3MOE, GPT_OSS = NETWORKS[0], NETWORKS[3], NETWORKS[-3], NETWORKS[-1]
LENGTH = 52
"""Two chunks of 32, the last one not full; and so are the twelve tokens more that tests ask for: a model needs a program for one length of chunks."""
TOLERANCE = 0.02
"""Of log-probabilities: keys and values are float16, which two orders of summing round differently now and then."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@functools.cache
def written(folder, tiny):
    return tiny_models.write(tiny, folder / f"{abs(hash(tiny)):x}.gguf")


@functools.cache
def loaded(folder, tiny, **options):
    return load_model(written(folder, tiny), **options)


def ids_of(tiny, count=LENGTH, seed=0):
    return np.random.default_rng(seed).integers(3, tiny.vocab, count).tolist()


@pytest.mark.parametrize("tiny", NATIVE, ids=lambda tiny: tiny.name)
def test_other_architectures_are_refused_by_name(tiny, folder):
    sentence = f"architecture '{tiny.arch}' is not supported by the JAX engine( \\([^()]+\\))?; `--engine native` runs it"
    with pytest.raises(alight.FormatError, match=f"^{sentence}$"):
        load_model(written(folder, tiny))


def ollamas(tiny):
    """The tensors of gpt-oss by Ollama's names, some of which are of several of the others."""
    joined = {"attn_q": "attn_qkv", "attn_k": "attn_qkv", "attn_v": "attn_qkv", "ffn_gate_exps": "ffn_gate_up_exps",
              "ffn_up_exps": "ffn_gate_up_exps", "attn_output": "attn_out", "post_attention_norm": "ffn_norm"}  # fmt: skip
    found = {}
    for name, values in TENSORS(dataclasses.replace(tiny, arch="gpt-oss")):
        *layer, part, what = name.split(".")
        name = ".".join([*layer, part] if part == "attn_sinks" else [*layer, joined.get(part, part), what])
        found[name] = np.concatenate([found[name], values], axis=-2) if name in found else values
    return list(found.items())


TENSORS = tiny_models.tensors


def test_gpt_oss_as_ollama_has_it_is_refused_by_name(folder, monkeypatch):
    monkeypatch.setattr(tiny_models, "tensors", ollamas)
    test_other_architectures_are_refused_by_name(Tiny("gptoss", "gptoss", window=12, experts=7, used=3, expert_ff=44), folder)


# They generate nothing, and the JAX engine refuses norms and masks like theirs.
ENCODERS = {"bert", "eurobert", "gemma-embedding", "gemma-embedding2", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe",
            "t5encoder"}


def test_every_architecture_is_run_or_refused(folder):
    with pytest.raises(alight.FormatError, match="; supported are ") as error:
        alight.config(written(folder, Tiny("unknown", "unknown")))
    known = str(error.value).split("; supported are ")[1].split(", ")
    assert len(known) > 40
    assert sorted(known) == sorted({tiny.arch for tiny in NETWORKS + NATIVE} | {"gptoss"} | ENCODERS)


def test_a_number_beside_a_matrix_is_refused_by_name(folder):
    """What products of NVFP4 are multiplied with."""
    tiny = dataclasses.replace(NETWORKS[2], embd=128, ff=128, heads=2, head_dim=64, kind="NVFP4")
    with pytest.raises(ValueError, match=r"'blk.0.attn_\w+.scale' multiplies the products of a matrix, .* the native one does"):
        load_model(written(folder, tiny))


def log_probabilities(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def apart(a, b):
    """The largest difference of what is at all likely."""
    a, b = log_probabilities(a), log_probabilities(b)
    likely = a >= a.max(axis=-1, keepdims=True) - 10
    return np.abs(a - b)[likely].max()


def engine(command, path, folder, tokens):
    """What the native engine says of a text: its tokens, and log-probabilities of the second half."""
    text, saved = folder / "text.txt", folder / "saved.logits"
    text.write_text(tiny_models.text(100, 1))
    run = [command, "perplexity", path, text, "-c", tokens, "--chunks", 1, "-b", 1, "-t", 1, "--save-logits", saved, "--force"]
    subprocess.run([str(part) for part in run], check=True, capture_output=True)
    data = saved.read_bytes()
    assert data[:8] == b"_logits_"
    length, vocab, _ = np.frombuffer(data, "<u4", 3, 8)
    rows = np.frombuffer(data, np.uint8, offset=20 + 4 * length).reshape(length - 1 - length // 2, -1)
    scale, least = (rows[:, i : i + 4].copy().view("<f4") for i in (0, 4))
    logits = scale * rows[:, 8:].copy().view("<u2")[:, :vocab] + least
    return np.frombuffer(data, "<u4", length, 20).tolist(), logits


@pytest.mark.parametrize("tiny", NETWORKS, ids=lambda tiny: tiny.name)
def test_what_the_native_engine_says(tiny, folder, command):
    path = written(folder, tiny)
    tokens, wanted = engine(command, path, folder, LENGTH)
    first = LENGTH // 2
    found = loaded(folder, tiny, weights="f32", context=96).logits(tokens)
    assert apart(wanted, found[first : first + len(wanted)]) < TOLERANCE


@pytest.mark.parametrize(
    ("tiny", "weights", "counts"), [
        (LLAMA, "native", (1, 3)),
        (GEMMA2, "native", (2, 4)),
        (GEMMA2, "f32", (2, 8)),
        (QWEN3MOE, "native", (3,)),
        (QWEN3MOE, "f32", (2, 3)),
        (GPT_OSS, "native", (2, 3)),
        (GPT_OSS, "f32", (3,)),
    ],
)
def test_any_number_of_ranks(tiny, weights, counts, folder):
    """Beside one rank with float32, which `test_what_the_native_engine_says` looks at."""
    prompt, exact = ids_of(tiny), loaded(folder, tiny, weights="f32", context=96)
    wanted = exact.logits(prompt)
    for ranks in counts:
        model = loaded(folder, tiny, tp=ranks, weights=weights, context=96)
        assert model.tp == ranks
        assert apart(wanted, model.logits(prompt)) < TOLERANCE
        tokens = list(model.generate(prompt, max_tokens=12, sampling=Sampling.greedy()))
        assert tokens == exact.logits(prompt + tokens)[LENGTH - 1 : -1].argmax(axis=1).tolist() and len(set(tokens)) > 1


EVERY_SAMPLING = (Sampling.greedy(), Sampling(seed=3), Sampling(top_k=0, seed=4))


@pytest.mark.parametrize(
    ("tiny", "weights", "ranks", "samplings"),
    [
        (LLAMA, "f32", 3, EVERY_SAMPLING[:1]),
        (GEMMA2, "f32", 1, EVERY_SAMPLING[:1]),
        (GEMMA2, "f32", 2, EVERY_SAMPLING),
        (GEMMA2, "native", 2, EVERY_SAMPLING[:1]),
        (GPT_OSS, "f32", 2, EVERY_SAMPLING[1:2]),
        (GPT_OSS, "native", 3, EVERY_SAMPLING[1:2]),
    ],
)
def test_layers_one_after_the_other_are_the_loop(tiny, weights, ranks, samplings, folder):
    """As on GPUs, where the embedding's sum and the sampler's gathering go through the collective, too. Sampling is the same for all networks."""
    prompt = ids_of(tiny)
    looped = loaded(folder, tiny, weights=weights, context=96)
    model = loaded(folder, tiny, tp=ranks, weights=weights, context=96, unroll=True)
    assert isinstance(model._params["matrices"], tuple) and len(model._params["norms"]) == tiny.layers
    assert apart(looped.logits(prompt), model.logits(prompt)) < TOLERANCE
    for sampling in samplings:
        tokens, same = (list(one.generate(prompt, max_tokens=12, sampling=sampling)) for one in (model, looped))
        assert tokens == same


MISTAKES = {
    what: change for tiny, controls in architectures.CASES if tiny is architectures.GPT_OSS for what, change in controls.items()
} | {"odd layers local": dict(pattern=(False, True))}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_seen(mistake, folder):
    """The tolerance is one that gpt-oss with one thing wrong does not meet."""
    prompt = ids_of(GPT_OSS)
    wanted = loaded(folder, GPT_OSS, weights="native", context=96).logits(prompt)
    wrong = load_model(written(folder, hashable(GPT_OSS, **mistake)), weights="native", context=96)
    assert apart(wanted, wrong.logits(prompt)) > 5 * TOLERANCE


def test_the_clamped_gate():
    gate, up = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32) * 8
    g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
    wanted = g / (1 + np.exp(-1.702 * g)) * (u + 1)
    assert np.abs(_blocks.gated("clamped_silu", jnp.array(gate), jnp.array(up)) - wanted).max() < 1e-5
    with pytest.raises(ValueError, match="gate: 'relu'"):
        _blocks.gated("relu", gate, up)


ALL_EXPERTS = {"experts": 5, "used": 5, "expert_ff": 96}


@pytest.mark.parametrize(
    ("kind", "experts"), [
        ("F16", {}),
        ("Q8_0", {}),
        ("Q4_0", {}),
        ("Q8_0", {"arch": "qwen3moe", **ALL_EXPERTS}),
        ("MXFP4", {"arch": "gpt-oss", "qk_norm": False, "window": 12, "biases": GPT_OSS.biases, **ALL_EXPERTS}),
    ],
)
def test_weights_where_they_lie(kind, experts, folder):
    """Quantised, cut between blocks; a token at a time, since several are rounded to 8 bits. Of a mixture all experts are
    used, because rounding would choose others."""
    tiny = dataclasses.replace(NETWORKS[2], name="wide", embd=128, ff=224, heads=4, head_dim=32, kind=kind, **experts)
    prompt = ids_of(tiny, 20)
    wanted = loaded(folder, tiny, weights="f32", context=64).logits(prompt)
    for ranks in (1, 3):
        model = loaded(folder, tiny, tp=ranks, weights="native", context=64, chunks=(1,))
        assert apart(wanted, model.logits(prompt)) < 0.1


@pytest.mark.parametrize(
    ("experts", "name"), [({}, "ffn_down"), ({"arch": "qwen3moe", "experts": 5, "used": 2, "expert_ff": 96}, "ffn_down_exps")]
)
def test_tiles(experts, name, folder, tmp_path, command):
    """A packed file gives the same logits as the one that it was made of, and is cut as that is."""
    tiny = dataclasses.replace(NETWORKS[2], name="wide", embd=128, ff=224, heads=4, head_dim=32, kind="Q4_0", **experts)
    path, packed = written(folder, tiny), tmp_path / "packed.gguf"
    subprocess.run([command, "pack", path, "-o", packed], check=True, capture_output=True)
    assert alight.open(packed)[f"blk.0.{name}.weight"].packed
    prompt = ids_of(tiny, 20)
    found = [load_model(one, tp=3, context=64).logits(prompt) for one in (path, packed)]
    assert apart(*found) < TOLERANCE


@pytest.mark.parametrize(("form", "ranks"), [("gguf", 3), ("packed", 1)])
def test_a_mixture_in_less_memory(form, ranks, folder, tmp_path, command):
    """The same bits as with all of it in memory. Both forms on any number of ranks are in `test_experts.py`."""
    tiny = hashable(QWEN3MOE, name="large", layers=4, embd=128, heads=4, head_dim=32, experts=8, used=2, expert_ff=128, kind="Q8_0")
    path = written(folder, tiny)
    if form == "packed":
        subprocess.run([command, "pack", path, "-o", tmp_path / "packed.gguf"], check=True, capture_output=True)
        path = tmp_path / "packed.gguf"
    catalog = alight.open(path)
    experts = sum(tensor.nbytes for name, tensor in catalog.tensors.items() if "_exps." in name)
    whole = sum(tensor.nbytes for tensor in catalog.tensors.values())
    prompt = ids_of(tiny, 20)
    wanted = load_model(path, tp=ranks, context=96)
    assert wanted.store is None and load_model(path, tp=ranks, context=96, memory=whole).store is None
    model = load_model(path, tp=ranks, context=96, memory=whole - experts // 3)
    assert (model.logits(prompt) == wanted.logits(prompt)).all()
    found, expected = (list(one.generate(prompt, max_tokens=24)) for one in (model, wanted))
    assert found == expected and len(found) == 24
    pieces, room, asked, hits, read, reads = model.store.counts
    assert 0 < room < pieces == 8 * 4 and 0 < hits < asked and read > 0
    assert reads > pieces  # Some had to go, and to come again.
    with pytest.raises(alight.NotEnoughMemoryError, match="every token reads .* bytes beside them, and memory is"):
        load_model(path, tp=ranks, context=96, memory=whole - experts)
    with pytest.raises(ValueError, match="memory: .*weights='native' on CPU devices only"):
        load_model(path, tp=ranks, context=96, weights="f32", memory=whole)


def test_bfloat16(folder, monkeypatch):
    prompt = ids_of(GEMMA2, 20)
    wanted = loaded(folder, GEMMA2, weights="f32", context=96).logits(prompt)
    assert 0.01 < apart(wanted, loaded(folder, GEMMA2, tp=2, weights="bf16", context=96).logits(prompt)) < 0.3
    # As on a GPU: the residual stream and the cache, too.
    monkeypatch.setattr(_load, "_stream", lambda mesh, kind: jnp.bfloat16)
    model = load_model(written(folder, GEMMA2), tp=2, weights="bf16", context=96)
    assert 0.01 < apart(wanted, model.logits(prompt)) < 0.6
    assert all(one.dtype == jnp.bfloat16 for one in model._programs.empty())


@pytest.mark.parametrize("ranks", [1, 2])
def test_float32_is_float32_in_the_cache_too(ranks, folder):
    """Its rounding to float16 was the largest error of all: 0.01 in a logit."""
    model, prompt = loaded(folder, LLAMA, tp=ranks, weights="f32", context=96), ids_of(LLAMA)
    cache = model.empty_cache()
    wide = dataclasses.replace(cache, keys=cache.keys.astype(jnp.float32), values=cache.values.astype(jnp.float32))
    wanted, _ = jax.jit(model.forward)(model.params, jnp.array([prompt]), wide)
    assert np.abs(model.logits(prompt) - np.asarray(wanted)[0]).max() < 1e-4
    assert all(one.dtype == jnp.float32 for one in (*model._programs.empty(), *model._programs.empty_pages(2)))
    halves = loaded(folder, LLAMA, tp=ranks, weights="bf16", context=96)._programs.empty()
    assert all(one.dtype == jnp.float16 for one in halves)


@pytest.mark.parametrize("weights", ["f32", "native"])
def test_chunks_are_as_one_token_after_the_other(weights, folder, monkeypatch):
    """Whatever the filling of the last chunk is, nothing sees it; and what chunks there are makes no difference."""
    prompt = ids_of(GEMMA2, 45)
    model = loaded(folder, GEMMA2, tp=2, weights=weights, context=96)
    monkeypatch.setattr(model, "chunks", (1,))
    wanted = model.logits(prompt)
    tokens = list(model.generate(prompt, max_tokens=20, sampling=Sampling.greedy()))
    assert len(set(tokens)) > 10
    for chunks in ((16,), (16, 64)):
        monkeypatch.setattr(model, "chunks", chunks)
        assert apart(wanted, model.logits(prompt)) < TOLERANCE
        # Nothing of another one is in the cache, nor of the filling.
        model._free.clear()
        assert list(model.generate(prompt, max_tokens=20, sampling=Sampling.greedy())) == tokens


@pytest.mark.parametrize(("weights", "context"), [("f32", 31), ("native", 30), ("native", 400)])
def test_the_length_of_the_context_makes_no_difference(weights, context, folder):
    prompt = ids_of(GEMMA2, 30)
    wanted = loaded(folder, GEMMA2, weights="f32", context=96).logits(prompt)
    assert apart(wanted, load_model(written(folder, GEMMA2), weights=weights, context=context).logits(prompt)) < TOLERANCE


def test_a_context_that_is_full(folder):
    """What is computed anew begins anywhere, and its last chunk ends in the filling, which needs room, too."""
    model, whole = load_model(written(folder, LLAMA), context=32), loaded(folder, LLAMA, weights="f32", context=96)
    prompt = ids_of(LLAMA, 32)
    for same in (0, 7, 31):
        other = prompt[:same] + ids_of(LLAMA, 32, seed=same + 1)[same:]
        assert list(model.generate(other, max_tokens=9, sampling=Sampling.greedy())) == [whole.logits(other)[-1].argmax()]
        assert list(model.generate(prompt, max_tokens=9, sampling=Sampling.greedy())) == [whole.logits(prompt)[-1].argmax()]


def test_results_of_a_collective_that_failed_are_not_given(folder, monkeypatch):
    model = loaded(folder, LLAMA, tp=3, weights="native", context=96)
    tokens = model.generate(ids_of(LLAMA, 20), max_tokens=30, sampling=Sampling.greedy())
    next(tokens)
    monkeypatch.setattr("alight._alight.cuda_errors", lambda: ["rank 1 did not come"])
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        list(tokens)
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        model.logits(ids_of(LLAMA, 4))


def test_a_file_that_is_cut_short_is_an_error(folder):
    path = folder / "cut.gguf"
    path.write_bytes(Path(written(folder, LLAMA)).read_bytes())
    model = load_model(path, weights="native", context=96)
    tokens = model.generate(ids_of(LLAMA, 20), max_tokens=30, sampling=Sampling.greedy())
    next(tokens)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(alight.FileChangedError, match="cut.gguf"):
        list(tokens)
    with pytest.raises(alight.FileChangedError, match="cut.gguf"):
        model.logits(ids_of(LLAMA, 4))


def test_generation(folder):
    model = loaded(folder, LLAMA, tp=3, weights="native", context=96)
    prompt = ids_of(LLAMA, 20)
    greedy = functools.partial(model.generate, sampling=Sampling.greedy())
    wanted = list(greedy(prompt, max_tokens=30))
    assert len(wanted) == 30
    # The greatest logit, over and over.
    follow = prompt + wanted
    assert model.logits(follow)[19:-1].argmax(axis=1).tolist() == wanted
    for steps in (1, 3, 64):
        assert list(greedy(prompt, max_tokens=30, steps_per_launch=steps)) == wanted
    assert list(greedy(prompt, max_tokens=1)) == wanted[:1]
    # Up to an end, wherever it falls in a launch.
    for at in (0, 1, 7, 8, 9, 20):
        end = wanted[at]
        assert list(greedy(prompt, max_tokens=30, stop=[end, 10**6])) == wanted[: wanted.index(end)]
    # As long as there is room, and one more.
    long = list(greedy(prompt, max_tokens=1000))
    assert len(long) == 96 - 20 + 1 and long[:30] == wanted
    # What goes on where another one has been.
    other = list(greedy([*prompt[:10], 5, 6], max_tokens=5))
    assert list(greedy(prompt, max_tokens=30)) == wanted
    assert list(greedy(prompt + wanted[:10], max_tokens=20)) == wanted[10:]
    # The last token that was wanted has not been computed with.
    assert list(greedy(prompt + wanted, max_tokens=10)) == long[30:40]
    model._free.clear()
    assert list(greedy(prompt, max_tokens=30)) == wanted
    assert model._free[0][1] == prompt + wanted[:-1]
    assert list(greedy([*prompt, *wanted, 7], max_tokens=1)) == [model.logits([*prompt, *wanted, 7])[-1].argmax()]
    # Side by side, and left alone in the middle.
    one, two = greedy(prompt, max_tokens=30), greedy([*prompt[:10], 5, 6], max_tokens=5)
    mixed = [(a, b) for a, b in zip(one, two)]
    assert ([a for a, _ in mixed], [b for _, b in mixed]) == (wanted[: len(mixed)], other)
    one.close()
    assert list(greedy(prompt, max_tokens=30)) == wanted


def test_a_launch_ends_at_an_end(folder):
    """Nothing is computed after it, and what was launched before that is known computes nothing at all."""
    model = loaded(folder, LLAMA, tp=3, weights="native", context=96)
    prompt = ids_of(LLAMA, 16)
    wanted = list(model.generate(prompt, max_tokens=9, sampling=Sampling.greedy()))
    end = next(number for number in range(2, 8) if wanted[number] not in wanted[:number])
    for stop, most in ((wanted[end], 100), (-1, end + 1)):
        programs, params = model._programs, model._params
        request = Request(_sample.arguments(Sampling.greedy()), np.full(8, stop, np.int32), np.int32([most]))
        h, cache = programs.prefill(params, programs.empty(), np.array([prompt], np.int32), np.int32([0]), np.int32([15]))
        first, state = programs.first(1, params, h, np.int32([16]), np.zeros((1, 1), np.float32), request)
        out, cache, state = programs.decode(1, params, cache, state, np.zeros((8, 1), np.float32), request)
        assert [int(first[0, 0]), *out[:, 0].tolist()] == wanted[: end + 1] + [-1] * (8 - end)
        assert (bool(state.done[0]), int(state.pos[0]), int(state.drawn[0])) == (True, 16 + end, end + 1)
        out, cache, state = programs.decode(1, params, cache, state, np.zeros((8, 1), np.float32), request)
        assert out[:, 0].tolist() == [-1] * 8 and int(state.pos[0]) == 16 + end


def test_two_launches_are_in_flight_at_most(folder, monkeypatch):
    model, launched, received = loaded(folder, LLAMA, tp=3, weights="native", context=96), 0, 0
    decode = model._programs.decode

    def counted(*args):
        nonlocal launched
        launched += 1
        # The first token is a launch too, and has been waited for if any other has.
        assert launched <= 2 + max(0, received - 1) // 4
        return decode(*args)

    monkeypatch.setattr(model._programs, "decode", counted)
    for _ in model.generate(ids_of(LLAMA, 20), max_tokens=41, sampling=Sampling.greedy(), steps_per_launch=4):
        received += 1
    assert (received, launched) == (41, 10)


@pytest.mark.parametrize("weights", ["f32", "native"])
def test_what_is_beyond_the_vocabulary_is_never_chosen(weights, folder):
    model = loaded(folder, GEMMA2, tp=8, weights=weights, context=96)
    found, _ = model._programs.logits(model._params, model._programs.empty(), np.zeros((1, 64), np.int32), np.int32([0]))
    assert found.shape == (64, 8 * 92) and 8 * 92 > GEMMA2.vocab
    assert np.isneginf(found[:, GEMMA2.vocab :]).all() and np.isfinite(found[:, : GEMMA2.vocab]).all()


def test_draws(folder):
    prompt = ids_of(LLAMA, 20)
    drawn = [
        list(loaded(folder, LLAMA, tp=ranks, weights="native", context=96).generate(
            prompt, max_tokens=20, sampling=Sampling(seed=seed)
        ))
        for ranks, seed in [(1, 1), (3, 1), (1, 2)]
    ]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_mesh_with_other_axes(folder):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("tp", "dp"))
    prompt = ids_of(LLAMA, 20)
    wanted = loaded(folder, LLAMA, weights="f32", context=96).logits(prompt)
    for weights in ("f32", "native"):
        model = load_model(written(folder, LLAMA), mesh=mesh, weights=weights, context=96)
        assert model.tp == 2
        assert apart(wanted, model.logits(prompt)) < TOLERANCE


def test_the_mesh_that_is_set(folder):
    """One with the axis is used, unless the caller says how many devices."""
    path, prompt = written(folder, LLAMA), ids_of(LLAMA, 20)
    wanted = loaded(folder, LLAMA, weights="f32", context=96).logits(prompt)
    devices = np.array(jax.devices()[2:6]).reshape(2, 2)
    with jax.set_mesh(Mesh(devices, ("tp", "dp"))):
        model = load_model(path, weights="f32", context=96)
        assert model.mesh.devices.tolist() == devices.tolist() and model.tp == 2
        assert apart(wanted, model.logits(prompt)) < TOLERANCE
        assert load_model(path, weights="f32", context=96, tp=3).tp == 3
    with jax.set_mesh(Mesh(devices, ("x", "y"))):
        assert load_model(path, weights="f32", context=96).tp == 1


def test_the_default_device_comes_first(folder):
    path, devices = written(folder, LLAMA), jax.devices()
    with jax.default_device(devices[3]):
        model = load_model(path, context=96)
        assert model.mesh.devices.tolist() == [devices[3]]
        assert load_model(path, context=96, tp=2).mesh.devices.tolist() == [devices[3], devices[0]]
    with jax.default_device("cpu"):
        assert load_model(path, context=96).mesh.devices.tolist() == [devices[0]]
    assert load_model(path, context=96).mesh.devices.tolist() == [devices[0]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_copied(ranks, folder, compiled_quickly):
    """A launch needs little memory of its own: neither the file nor the cache is copied in it."""
    tiny = dataclasses.replace(LLAMA, name="large", embd=512, ff=1024, head_dim=64, heads=8)
    path = written(folder, tiny)
    model = load_model(path, tp=ranks, context=2000)
    programs, cache = model._programs, model._programs.empty()
    request = Request(_sample.arguments(Sampling()), np.full(8, -1, np.int32), np.int32([9]))
    state = State(*[np.int32([0])] * 3, np.bool_([False]))
    decode = programs.compiled("decode", 64).lower(model._params, cache, state, np.zeros((8, 1), np.float32), request)
    prefill = programs.compiled("prefill").lower(model._params, cache, np.zeros((1, 16), np.int32), np.int32([0]), np.int32([0]))
    held = sum(part.nbytes for part in cache) // ranks
    assert held > 1_000_000 and path.stat().st_size > 1 << 24
    for lowered in (decode, prefill):
        memory = lowered.compile().memory_analysis()
        assert memory.temp_size_in_bytes < 1 << 19
        assert memory.alias_size_in_bytes >= held
    # The file is one array, its map, on every device.
    shards = model._params["weights"]["file"].addressable_shards
    assert len({shard.data.unsafe_buffer_pointer() for shard in shards}) == 1


def test_what_cannot_work(folder, tmp_path):
    path = written(folder, LLAMA)
    model = loaded(folder, LLAMA, weights="f32", context=96)

    def fails(words, error=ValueError, path=path, **options):
        with pytest.raises(error, match=words):
            load_model(path, **options)

    fails("tp: 9, but there are 8 cpu devices; jax.config.update", tp=9)
    fails("tp: 0; expected 1 to 64", tp=0)
    fails("'native', 'bf16', 'f32', found 'f16'", weights="f16")
    fails("context: 4096; expected 1 to 2048, for which the model was trained", context=4096)
    fails("context: 0", context=0)
    fails("chunks: expected lengths of 1 or more", chunks=(0, 16))
    fails("chunks", chunks=())
    fails("chunks: the shortest is 1000000000, expected 96 at most, which is the context", chunks=(10**9,), context=96)
    fails("chunks: expected a whole number, found 1.5", TypeError, chunks=(1.5,))
    fails("chunks: expected several lengths", TypeError, chunks=8)
    fails("context: expected a whole number, found 1.5", TypeError, context=1.5)
    fails("limit: expected a number of seconds, 0 or more, found -1", limit=-1)
    fails("limit: expected a number of seconds, 0 or more, found nan", limit=float("nan"))
    fails("limit: expected a number of seconds, found 'x'", TypeError, limit="x")
    fails("memory: expected 0 or more, found -1", memory=-1)
    fails("tp: expected a whole number, found 2.0", TypeError, tp=2.0)
    fails("tp: expected a whole number, found '2'", TypeError, tp="2")
    fails("model of the hub: alight.pull.'hf.co/a/b:Q4_0'. fetches it", alight.OptionError, path="hf.co/a/b:Q4_0")
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    fails("axes 'x'; expected one that is called 'tp'", mesh=mesh)
    fails("tp: 3, but the mesh has 2", mesh=Mesh(np.array(jax.devices()[:2]), ("tp",)), tp=3)
    fails("expected a jax.sharding.Mesh", TypeError, mesh=jax.devices())
    other = tiny_models.write(dataclasses.replace(LLAMA, arch="llama"), tmp_path / "other.gguf")
    other.write_bytes(other.read_bytes().replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama", b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba"))
    fails("mamba", alight.FormatError, path=other)
    # Tensors of another network.
    other = tiny_models.write(dataclasses.replace(NETWORKS[4], arch="qwen3", pattern=None, window=None), tmp_path / "stray.gguf")
    other.write_bytes(other.read_bytes().replace(b"blk.0.attn_q_norm", b"blk.0.attn_q_mumm"))
    fails("attn_q_norm|attn_q_mumm", alight.FormatError, path=other)
    with pytest.raises(ValueError, match="2 files, expected one for weights='native'; `alight convert first.gguf"):
        _native.check(SimpleNamespace(files=["first.gguf", "second.gguf"]), None)
    for ids, words in (([], "no tokens"), ([401], "token 401 is not in the vocabulary of 401"), ([-1], "token -1"), ([5] * 97, "97 tokens do not fit")):
        for call in (model.logits, functools.partial(model.generate, max_tokens=1)):
            with pytest.raises(ValueError, match=words):
                call(ids)
    with pytest.raises(alight.ContextFullError, match="load_model.*context="):
        model.generate([5] * 97, max_tokens=1)
    for ids, words in [("12", "Tokenizer.*encode"), (b"12", "found bytes"), ([1.9], "whole numbers, found 1.9"), (["a"], "Tokenizer.*encode"), (5, "found 5")]:
        for call in (model.logits, functools.partial(model.generate, max_tokens=1)):
            with pytest.raises(TypeError, match=words):
                call(ids)
    for sampling, words in [(Sampling.greedy, "Sampling.greedy without parentheses"), ("greedy", "Sampling.greedy.., found 'greedy'")]:
        for call in (functools.partial(model.generate, [1], max_tokens=1), functools.partial(model.continuous, sequences=1), model.lower):
            with pytest.raises(TypeError, match=words):
                call(**{"program": "decode"} if call == model.lower else {}, sampling=sampling)
    for options, words in [({"tokens": 0}, "tokens: expected 1 or more, found 0"), ({"batch": 0}, "batch"), ({"pages": -1}, "pages")]:
        with pytest.raises(ValueError, match=words):
            model.lower("decode", **options)
    with pytest.raises(ValueError, match="max_tokens: expected 1 or more, found 0"):
        model.generate([1], max_tokens=0)
    with pytest.raises(TypeError, match="max_tokens: expected a whole number, found 1.5"):
        model.generate([1], max_tokens=1.5)
    assert repr(model) == "<alight.jax.models.Model of llama, tp 1 on cpu, context 96>"
    with pytest.raises(ValueError, match="steps_per_launch"):
        model.generate([1], max_tokens=1, steps_per_launch=0)


@pytest.mark.parametrize("capacity", [48, 64, 336, 2064])
def test_chunks_cover_a_prompt_and_fit(capacity):
    """Whatever has been computed before, and whatever there is to compute, up to the context."""
    model = object.__new__(_model.Model)
    model.chunks, slack = _model.CHUNKS, _model.CHUNKS[0] - 1
    model._programs = SimpleNamespace(net=SimpleNamespace(capacity=capacity))
    for held in (0, 1, 15, 30):
        for count in range(held + 1, capacity - slack + 1):
            chunks = list(model._chunks(count, held))
            at = held
            for start, length, chunk in chunks:
                assert start == at and 0 < length <= chunk and chunk in _model.CHUNKS and start + chunk <= capacity
                at += length
            assert at == count
            assert all(length == chunk for _, length, chunk in chunks[:-1])
            assert sum(chunk for *_, chunk in chunks) < max(2 * (count - held), count - held + 8)
