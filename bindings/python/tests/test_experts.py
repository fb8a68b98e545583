"""`alight_experts`: a mixture's experts on the bytes of a file, against float64."""

import dataclasses
import subprocess
from functools import partial

import alight
import jax
import numpy as np
import pytest
from alight._alight import ExpertStore
from alight.jax import _native as native
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

COUNT, USED, WIDTH, EMBEDDING = 7, 3, 96, 64
TINY = Tiny("qwen3moe", "qwen3moe", layers=1, embd=EMBEDDING, heads=4, qk_norm=True, experts=COUNT, used=USED, expert_ff=WIDTH)
NAMES = [f"blk.0.ffn_{name}_exps.{what}" for what in ("weight", "bias") for name in ("gate", "up", "down")]
# gpt-oss's: biases, and the clamped SiLU.
BIASED = dataclasses.replace(TINY, arch="gpt-oss", qk_norm=False, biases=("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), seed=3)
XLA_ERRORS = (jax.errors.JaxRuntimeError, ValueError)


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    made = {kind: dataclasses.replace(TINY, kind=kind) for kind in ("F32", "Q8_0")} | {"biased": BIASED}
    return {kind: alight.open(tiny_models.write(tiny, folder / f"{kind}.gguf")) for kind, tiny in made.items()}


def floats(tensor):
    block = tensor.read(dtype="float32")
    return np.ndarray(tuple(block.shape), np.float32, buffer=memoryview(block)).astype(np.float64)


def inputs(tokens, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, EMBEDDING)).astype(np.float32)
    chosen = np.stack([rng.permutation(COUNT)[:USED] for _ in range(tokens)]).astype(np.int32)
    return x, chosen, rng.uniform(0.1, 1, (tokens, USED)).astype(np.float32)


def computed(catalog, ranks, x, chosen, shares, places=None, **more):
    """Each rank's part `[ranks, T, C]`."""
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("tp",))
    each = -(-COUNT // ranks)
    spans = tuple((min(r * each, COUNT), max(0, min(each, COUNT - r * each))) for r in range(ranks))
    body = partial(native.experts, spans=spans, count=COUNT, width=WIDTH, mesh=mesh, **more)
    call = jax.jit(
        jax.shard_map(lambda *a: body(*a)[None], mesh=mesh, in_specs=(P(),) * 5, out_specs=P("tp"), check_vma=False)
    )
    places = native.places(map(catalog.tensors.get, NAMES)) if places is None else places
    places = places if len(places) == 7 else native.in_store(places, None, 0)
    return np.asarray(call(native.file_array(catalog, mesh), places, x, chosen, shares))


def exact(catalog, x, chosen, shares, clamped=False):
    (gate, up, down), biases = (floats(catalog[name]) for name in NAMES[:3]), NAMES[3:]
    biases = [floats(catalog[name]) if name in catalog.tensors else np.zeros((COUNT, 1)) for name in biases]
    out = np.zeros(x.shape)
    for t, row in enumerate(x.astype(np.float64)):
        for expert, share in zip(chosen[t], shares[t].astype(np.float64), strict=True):
            g, u = gate[expert] @ row + biases[0][expert], up[expert] @ row + biases[1][expert]
            if clamped:
                g, u = np.minimum(g, 7), np.clip(u, -7, 7) + 1
            active = g / (1 + np.exp(-(1.702 if clamped else 1.0) * g))
            out[t] += share * (down[expert] @ (active * u) + biases[2][expert])
    return out


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_what_float64_says(catalogs, ranks, tokens):
    given = inputs(tokens)
    found = computed(catalogs["F32"], ranks, *given)
    wanted = exact(catalogs["F32"], *given)
    assert np.abs(found.sum(axis=0) - wanted).max() < 1e-5 * np.abs(wanted).max()
    if ranks == 8:
        assert (found[-1] == 0).all()  # It has no experts.
    found = computed(catalogs["Q8_0"], ranks, *given)
    wanted = exact(catalogs["Q8_0"], *given)
    # Activations are rounded to 16 bits, or to 8.
    assert np.abs(found.sum(axis=0) - wanted).max() < (1e-3 if tokens == 1 else 0.03) * np.abs(wanted).max()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("tokens", [1, 33])
def test_biases_and_clamps(catalogs, ranks, tokens):
    x, *choice = inputs(tokens)
    x *= 8  # Beyond the clamps.
    found = computed(catalogs["biased"], ranks, x, *choice, gate="clamped_silu").sum(axis=0)
    wanted = exact(catalogs["biased"], x, *choice, clamped=True)
    most = np.abs(wanted).max()
    assert np.abs(found - wanted).max() < 1e-5 * most
    # What may not pass for it.
    assert np.abs(found - exact(catalogs["biased"], x, *choice)).max() > 0.1 * most
    places = native.places(map(catalogs["biased"].tensors.get, NAMES))
    for bias in (3, 4, 5):
        without = np.where(np.arange(6)[:, None] == bias, np.uint32(0), places)
        wrong = computed(catalogs["biased"], ranks, x, *choice, without, gate="clamped_silu").sum(axis=0)
        assert np.abs(found - wrong).max() > 0.01 * most


def test_tokens_beside_one_and_threads_change_no_bit(catalogs):
    x, chosen, shares = inputs(33)
    whole = computed(catalogs["Q8_0"], 1, x, chosen, shares)[0]
    assert (computed(catalogs["Q8_0"], 1, x, chosen, shares, threads=4)[0] == whole).all()
    for part in (slice(0, 2), slice(5, 20)):
        assert (computed(catalogs["Q8_0"], 1, x[part], chosen[part], shares[part])[0] == whole[part]).all()


def test_what_a_program_may_not_say(catalogs):
    x, chosen, shares = inputs(2)
    for expert in (-1, COUNT, 2**31 - 1):
        bad = chosen.copy()
        bad[1, 2] = expert
        with pytest.raises(XLA_ERRORS, match=f"alight_experts: expert {expert}, expected one of 0..{COUNT}"):
            computed(catalogs["F32"], 1, x, bad, shares)
    good = native.places(map(catalogs["biased"].tensors.get, NAMES))
    for index, value, text in ((1, 2**32 - 1, "where the file has"), (2, 4, "type 4 of GGUF has no kernels"), (3, 2, "layout 2, expected 0")):
        bad = good.copy()
        bad[2, index] = value
        with pytest.raises(XLA_ERRORS, match=rf"alight_experts: the down of expert \d: .*{text}"):
            computed(catalogs["biased"], 1, x, chosen, shares, bad)
    for index, value, text in ((1, 2**32 - 1, "where the file has"), (2, 8, "Rows of Q8_0, expected rows of F32")):
        bad = good.copy()
        bad[3, index] = value
        with pytest.raises(XLA_ERRORS, match=f"alight_experts: the biases of gates: .*{text}"):
            computed(catalogs["biased"], 1, x, chosen, shares, bad)
    with pytest.raises(ValueError, match="gate: expected one of 'silu', 'clamped_silu', found 'gelu'"):
        computed(catalogs["F32"], 1, x, chosen, shares, gate="gelu")
    with pytest.raises(ValueError, match="chosen: expected"):
        computed(catalogs["F32"], 1, x, chosen[:1], shares)


# An expert of Q8_0 has three matrices of 96 rows of 68 bytes. Slots of this many bytes hold at least 7 experts in whole blocks of 4 KiB.
SLOTS = 7 * 3 * 3 * 4096


def stored(catalog, ranks, memory=SLOTS):
    each = -(-COUNT // ranks)
    own = [(min(r * each, COUNT), max(0, min(each, COUNT - r * each)), True) for r in range(ranks)]
    return ExpertStore([tuple(catalog[name] for name in NAMES[:3])], own, memory)


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("packed", [False, True])
def test_a_store_changes_no_bit(catalogs, tmp_path, command, ranks, packed):
    catalog = catalogs["Q8_0"]
    if packed:
        subprocess.run([command, "pack", catalog.files[0], "-o", tmp_path / "packed.gguf"], check=True, capture_output=True)
        catalog = alight.open(tmp_path / "packed.gguf")
        assert all(catalog[name].stride for name in NAMES[:3])
    places = native.places(map(catalog.tensors.get, NAMES))
    store = stored(catalog, ranks)
    for tokens in (1, 2, 33):
        given = inputs(tokens, tokens)
        expected = computed(catalog, ranks, *given, places)
        found = computed(catalog, ranks, *given, native.in_store(places, store, 0))
        assert (found == expected).all()
    experts, room, wanted, hits, read, reads = store.counts
    assert experts == COUNT and 0 < room <= COUNT and wanted >= hits and read > 0
    # There is a slot for every expert, so each is read once: by one read if it is packed, else by three.
    assert reads == COUNT * (1 if packed else 3)


def test_a_store_that_is_gone_is_an_error(catalogs):
    catalog = catalogs["F32"]
    places = native.places(map(catalog.tensors.get, NAMES))
    store = stored(catalog, 1, 1 << 24)
    kept = native.in_store(places, store, 0)
    other = native.in_store(places, store, 1)
    computed(catalog, 1, *inputs(2), kept)
    with pytest.raises(XLA_ERRORS, match="alight_experts: places: the last is .* expected the number of a store"):
        computed(catalog, 1, *inputs(2), other)
    del store
    with pytest.raises(XLA_ERRORS, match="alight_experts: places: the last is .* that is still there"):
        computed(catalog, 1, *inputs(2), kept)
    with pytest.raises(alight.NotEnoughMemoryError, match="of slots are too few"):
        stored(catalog, 1, 4096)
