"""Several sequences at once, of different lengths: each as it is alone; and the pure function that they are computed by."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alight.jax import _meet
from alight.jax.models import KVCache, Sampling, load_model
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny

NETWORKS = [
    Tiny("llama", "llama", layers=2, head_dim=40, heads=4, base=5e5, eps=1e-5, tied=False, factors=True),
    Tiny("gemma2", "gemma2", layers=3, head_dim=40, heads=4, window=12, attn_cap=8.0, logit_cap=9.0, vocab=733, qk_gain=2.0,
         tied=False),
    Tiny("gemma3", "gemma3", layers=3, head_dim=48, heads=4, kv_heads=1, base=1e6, qk_norm=True, window=12, pattern=2, vocab=733),
    Tiny("qwen3", "qwen3", layers=2, head_dim=40, heads=4, base=1e6, qk_norm=True, tied=False),
]  # fmt: skip
LENGTHS = (5, 41, 1, 17, 64, 8, 30, 2)
greedy = {"max_tokens": 12, "sampling": Sampling.greedy()}
PAIRS = [(NETWORKS[0], 2), (NETWORKS[1], 1), (NETWORKS[2], 2), (NETWORKS[3], 1)]
"""Networks, and on how many ranks. What ranks do to rows is the collective's, whatever the network is; what they do to a network is in `test_models.py`."""
of_pairs = pytest.mark.parametrize(("tiny", "ranks"), PAIRS, ids=lambda one: getattr(one, "name", one))


@functools.cache
def loaded(folder, tiny, **options):
    path = folder / f"{tiny.name}.gguf"
    return load_model(path if path.exists() else tiny_models.write(tiny, path), **{"weights": "f32", "context": 96} | options)


@functools.cache
def forward(model):
    """One function for all tests of a model, so that a shape is compiled once."""
    return jax.jit(model.forward)


def prompts_of(tiny, lengths=LENGTHS):
    rng = np.random.default_rng(0)
    return [rng.integers(3, tiny.vocab, length).tolist() for length in lengths]


def bits(x):
    return np.asarray(x, np.float32).tobytes()


@of_pairs
def test_every_sequence_is_as_it_is_alone(tiny, ranks, folder):
    model, prompts = loaded(folder, tiny, tp=ranks), prompts_of(tiny)
    together = model.generate_batch(prompts, **greedy)
    assert len({tuple(answer) for answer in together}) > 4
    for prompt, answer in zip(prompts, together, strict=True):
        assert answer == list(model.generate(prompt, **greedy))


@of_pairs
def test_logits_have_the_bits_that_they_have_alone(tiny, ranks, folder):
    """Of prompts of different lengths in one chunk, and of a step that follows: to the last bit. Alone, prompts of one network are in chunks of every
    multiple of 8, those of the others in chunks of 8 or 64: how XLA multiplies depends on the number of rows, and not on the network."""
    model, prompts = loaded(folder, tiny, tp=ranks), prompts_of(tiny)
    step = forward(model)
    counts = np.array(LENGTHS, np.int32)
    tokens = np.zeros((len(prompts), 64), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    first, cache = step(model.params, tokens, model.empty_cache(len(prompts)), counts)
    assert first.shape == (len(prompts), 64, tiny.vocab) and cache.lengths.tolist() == list(LENGTHS)
    following = np.array([[7 + number] for number in range(len(prompts))], np.int32)
    then, _ = step(model.params, following, cache)
    for number, prompt in enumerate(prompts):
        chunk = -(-len(prompt) // 8) * 8 if tiny is NETWORKS[0] or len(prompt) <= 8 else 64
        one, held = step(model.params, tokens[number : number + 1, :chunk], model.empty_cache(), counts[number : number + 1])
        # On the host: JAX would compile a program for each place and length.
        assert bits(np.asarray(one)[0, : len(prompt)]) == bits(np.asarray(first)[number, : len(prompt)])
        assert bits(step(model.params, following[number : number + 1], held)[0]) == bits(np.asarray(then)[number])


def test_forward_is_what_logits_says(folder):
    model = loaded(folder, NETWORKS[2], tp=2)
    [prompt] = prompts_of(NETWORKS[2], [64])
    found, _ = forward(model)(model.params, np.array([prompt]), model.empty_cache())
    assert bits(found[0]) == bits(model.logits(prompt))


def test_a_loop_of_ones_own(folder):
    """A scan over tokens, donated, with layers changed by their names: what people want the function for."""
    model = loaded(folder, NETWORKS[0], tp=2)
    prompts = prompts_of(NETWORKS[0], [9, 9])

    @functools.partial(jax.jit, donate_argnums=1)
    def answer(params, cache, tokens):
        logits, cache = model.forward(params, tokens, cache)

        def step(carry, _):
            token, cache = carry
            logits, cache = model.forward(params, token[:, None], cache)
            return (logits[:, -1].argmax(axis=-1), cache), token

        _, out = jax.lax.scan(step, (logits[:, -1].argmax(axis=-1), cache), length=6)
        return out.T

    wanted = [list(model.generate(prompt, max_tokens=6, sampling=Sampling.greedy())) for prompt in prompts]
    found = answer(model.params, model.empty_cache(2), np.array(prompts))
    assert found.tolist() == wanted
    changed = jax.tree.map(lambda x: x, model.params)
    changed["weights"]["output"] = -changed["weights"]["output"]
    assert answer(changed, model.empty_cache(2), np.array(prompts)).tolist() != wanted


def of_one_row(model, kind):
    """The text of a program that `lower` does not make."""
    programs, tokens, pos = model._programs, np.array([[3, 4, 5, 6]]), np.zeros(1, np.int32)
    if kind == "forward":
        return jax.jit(model.forward).lower(model.params, tokens, model.empty_cache()).as_text()
    if kind == "logits":
        return programs._jitted("logits").lower(model.params, programs.empty(), tokens, pos).as_text()
    rows = jnp.zeros((1, model.config.embedding), programs.net.arithmetic.stream)
    request = model._request([[3]], 1, Sampling.greedy(), ())
    return programs._jitted("first", 1).lower(model.params, rows, pos, np.zeros((1, 1), np.float32), request).as_text()


@pytest.mark.parametrize(("program", "options"), [
    ("prefill", {}), ("prefill", {"batch": 3, "pages": 9}), ("decode", {}), ("decode", {"batch": 3, "pages": 9}),
    ("first", None), ("logits", None), ("forward", None),
])  # fmt: skip
def test_devices_meet_once_before_the_first_collective_of_ours(program, options, folder, monkeypatch):
    """On GPUs. XLA lets devices wait for each other before the first kernel only if it knows of a collective, and one in each step would cut
    its CUDA graph."""
    monkeypatch.setattr(_meet, "needed", lambda mesh: True)
    model = loaded(folder, NETWORKS[1], tp=2, unroll=True)
    text = of_one_row(model, program) if options is None else model.lower(program, 4, **options).as_text()
    assert text.count("stablehlo.all_reduce") + text.count("stablehlo.all_gather") == 1
    assert "stablehlo.maximum" in text[text.index("stablehlo.all_reduce") :][:400]
    assert text.index("stablehlo.all_reduce") < text.index("@alight_allreduce_norm")
    # Two in a layer, the embedding's sum, and the sampler's gathering.
    layers = 0 if program == "first" else 2 * NETWORKS[1].layers + 1
    assert text.count("@alight_allreduce_norm(") == layers + (program in ("decode", "first"))


def test_derivatives_of_a_loss(folder):
    """Of weights, through all layers and the collective, by finite differences."""
    model = loaded(folder, dataclasses.replace(NETWORKS[0], name="one", layers=1), tp=2, context=32, unroll=True)
    tokens, cache = np.array(prompts_of(NETWORKS[0], [6, 6])), model.empty_cache(2)

    @jax.jit
    def loss(changed):
        params = dict(model.params)
        for (kind, *where), matrix in changed.items():
            params[kind] = jax.tree.map(lambda x: x, params[kind])
            holder = params[kind][where[0]] if len(where) == 2 else params[kind]
            holder[where[-1]] = matrix
        logits, _ = model.forward(params, tokens, cache)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1).mean()

    given = {("weights", "output"): model.params["weights"]["output"], ("matrices", 0, "qkv"): model.params["matrices"][0]["qkv"]}
    slopes = jax.jit(jax.grad(loss))(given)
    for name, matrix in given.items():
        steep = float(jnp.linalg.norm(slopes[name]))
        # Large enough that the rounding of keys and values to float16 does not count.
        step = slopes[name] * (0.03 / steep**2)
        gained = float(loss(given | {name: matrix + step}) - loss(given | {name: matrix - step}))
        assert abs(gained - 0.06) < 0.004, (name, gained)


def test_taking_back_and_a_full_context(folder):
    """Shorter lengths take tokens back; a sequence that is full says one token more, as `generate` does."""
    model = loaded(folder, NETWORKS[1], tp=1)
    step, [prompt] = forward(model), prompts_of(NETWORKS[1], [20])

    def said(tokens, cache):
        filled = np.zeros((1, 8 if len(tokens) < 8 else 64), np.int32)
        filled[0, : len(tokens)] = tokens
        found, cache = step(model.params, filled, cache, np.array([len(tokens)], np.int32))
        return np.asarray(found)[0, : len(tokens)], cache

    wanted, cache = said(prompt, model.empty_cache())
    _, longer = said([5, 6, 7], cache)
    back = KVCache(longer.keys, longer.values, cache.lengths - 3)
    again, _ = said(prompt[17:], back)
    assert np.abs(again - wanted[17:]).max() < 1e-4
    # As many prompts as in other tests, so that they have programs.
    prompts = prompts_of(NETWORKS[1], [96, 92, *[3] * (len(LENGTHS) - 2)])
    options = {"max_tokens": 30, "sampling": Sampling.greedy()}
    found = model.generate_batch(prompts, **options)
    assert [len(answer) for answer in found] == [1, 5, *[30] * (len(LENGTHS) - 2)]
    assert found == [list(model.generate(prompt, **options)) for prompt in prompts]


def test_a_full_context_beside_one_that_goes_on(folder):
    """A sequence that has ended keeps the position after its last token. The cache holds that position with every choice of `chunks`."""
    model = loaded(folder, NETWORKS[0], weights="native", chunks=(1,), context=16)
    prompts = prompts_of(NETWORKS[0], [16, 3])
    assert [len(answer) for answer in model.generate_batch(prompts, **greedy | {"max_tokens": 30})] == [1, 14]
    batch, lengths = model.continuous(sequences=2, sampling=Sampling.greedy()), [0, 0]
    for prompt in prompts:
        batch.add(prompt, max_tokens=30)
    while batch:
        for number, tokens, _ in batch.step():
            lengths[number] += len(tokens)
    assert lengths == [1, 14]


def test_whatever_the_caller_has_set(folder, compiled_quickly):
    """Numbers of 64 bits by default, and arrays of different ranks that may not be added."""
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        model = loaded(folder, dataclasses.replace(NETWORKS[1], name="settings", layers=1), tp=2)
        prompts, tokens = prompts_of(NETWORKS[1], [9, 3]), jnp.asarray(prompts_of(NETWORKS[1], [6, 6]), jnp.int32)
        batch, found = model.continuous(sequences=2, sampling=Sampling.greedy()), [[], []]
        for prompt in prompts:
            batch.add(prompt, max_tokens=4)
        while batch:
            for number, more, _ in batch.step():
                found[number] += more
        assert found == model.generate_batch(prompts, max_tokens=4, sampling=Sampling(temperature=0.01, top_k=1))
        cache, norm = model.empty_cache(2), model.params["vectors"]["first_norm"]

        def loss(norm):
            params = {**model.params, "vectors": {**model.params["vectors"], "first_norm": norm}}
            return jnp.square(model.forward(params, tokens, cache)[0]).mean()

        slopes = jax.grad(jax.jit(loss))(norm)
        assert slopes.dtype == np.float32 and np.isfinite(slopes).all() and np.abs(slopes).max() > 0


@pytest.mark.parametrize("weights", ["f32", "bf16", "native"])
def test_what_the_caller_forbids_in_programs_of_its_own(weights, folder, compiled_quickly):
    """Types that are mixed, and arrays that go to devices unasked. What differs with the weights is in every program: with one kind all are tried."""
    with jax.numpy_dtype_promotion("strict"), jax.transfer_guard("disallow"):
        model = loaded(folder, dataclasses.replace(NETWORKS[1], name="forbidden", layers=1), tp=2, weights=weights)
        prompts = prompts_of(NETWORKS[1], [9, 40])
        assert len(list(model.generate(prompts[0], max_tokens=4))) == 4
        if weights != "f32":
            return
        # More than one chunk, of which the second is of one prompt alone.
        assert [len(one) for one in model.generate_batch(prompts, max_tokens=4)] == [4, 4]
        assert model.logits(prompts[0]).shape == (9, 733)
        batch, count = model.continuous(sequences=2), 0
        batch.add(prompts[0], max_tokens=4)
        while batch:
            count += sum(len(more) for _, more, _ in batch.step())
        assert count == 4
        cache = model.empty_cache()
        # In a program of the caller's, it is the caller who says where the tokens are.
        with jax.transfer_guard("allow"):
            assert jax.jit(model.forward)(model.params, np.array([prompts[0]]), cache)[0].shape == (1, 9, 733)


def test_a_mesh_whose_axes_are_explicit(folder):
    """As those of `jax.make_mesh` are. The ranks have no equal parts of this vocabulary."""
    tiny = dataclasses.replace(NETWORKS[0], name="odd", layers=1, vocab=401)
    models = [loaded(folder, tiny, **how) for how in ({"mesh": jax.make_mesh((2,), ("tp",))}, {"tp": 2})]
    assert jax.sharding.AxisType.Explicit in models[0].mesh.axis_types
    tokens = np.array(prompts_of(tiny, [5]))
    [found, wanted] = [jax.jit(model.forward)(model.params, tokens, model.empty_cache())[0] for model in models]
    assert found.shape == (1, 5, 401) and bits(found) == bits(wanted)
    # Operation by operation, too. XLA joins other operations there than in one program, and on some CPUs (Zen 4) the last bits differ by that.
    eager = models[0].forward(models[0].params, tokens, models[0].empty_cache())[0]
    np.testing.assert_allclose(eager, wanted, rtol=0, atol=1e-5)


def test_ends_and_draws(folder):
    model, prompts = loaded(folder, NETWORKS[0], tp=2), prompts_of(NETWORKS[0])
    plain = model.generate_batch(prompts, max_tokens=20, sampling=Sampling.greedy())
    end = plain[1][3]
    stopped = model.generate_batch(prompts, max_tokens=20, sampling=Sampling.greedy(), stop=[end])
    assert stopped == [answer[: answer.index(end)] if end in answer else answer for answer in plain]
    drawn = model.generate_batch(prompts, max_tokens=20, sampling=Sampling(seed=5))
    for number, prompt in enumerate(prompts):
        assert drawn[number] == list(model.generate(prompt, max_tokens=20, sampling=Sampling(seed=5 + number)))


@pytest.mark.parametrize("weights", ["native", "bf16"])
def test_other_weights(weights, folder):
    """Where a choice is not close. Products with several rows have activations of 8 bits with native weights."""
    model, exact = loaded(folder, NETWORKS[3], tp=1, weights=weights), loaded(folder, NETWORKS[3], tp=1)
    prompts = prompts_of(NETWORKS[3])
    counts, tokens = np.array(LENGTHS, np.int32), np.zeros((len(prompts), 64), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    found = [forward(one)(one.params, tokens, one.empty_cache(len(prompts)), counts)[0] for one in (model, exact)]
    for number, count in enumerate(counts):
        assert np.abs(np.subtract(*found)[number, :count]).max() < 0.3
    assert [len(answer) for answer in model.generate_batch(prompts, **greedy)] == [12] * len(prompts)


def test_what_cannot_work(folder):
    model = loaded(folder, NETWORKS[0])
    with pytest.raises(ValueError, match=r"tokens: expected integers \[2, T\], as the cache has sequences, found int32\[3, 4\]"):
        model.forward(model.params, np.zeros((3, 4), np.int32), model.empty_cache(2))
    with pytest.raises(ValueError, match=r"tokens: expected one or more of each sequence, found int32\[2, 0\]"):
        model.forward(model.params, np.zeros((2, 0), np.int32), model.empty_cache(2))
    with pytest.raises(TypeError, match=r"tokens: expected an array of integers \[2, T\], found list"):
        model.forward(model.params, [[1], [2]], model.empty_cache(2))
    with pytest.raises(TypeError, match="whole numbers, found the text '1'; .*encode"):
        model.generate_batch([["1"]], max_tokens=1)
    with pytest.raises(ValueError, match=r"found float32\[2, 4\]"):
        model.forward(model.params, np.zeros((2, 4), np.float32), model.empty_cache(2))
    with pytest.raises(ValueError, match=r"counts: expected \[2\], found \[3\]"):
        model.forward(model.params, np.zeros((2, 4), np.int32), model.empty_cache(2), np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="batch: expected 1 or more, found 0"):
        model.empty_cache(0)
    with pytest.raises(ValueError, match="prompts: expected 1 or more, found 0"):
        model.generate_batch([], max_tokens=1)
    with pytest.raises(ValueError, match="no tokens"):
        model.generate_batch([[5], []], max_tokens=1)
