"""Alight's kernels on the bytes of the real models, as custom calls on CPU devices."""

import os
from functools import partial
from pathlib import Path

import alight
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alight._alight import WEIGHT_TYPES
from alight.jax import _native as native
from alight.jax._native import Cut, Heads
from conftest import QUANTISED, in_process
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MODELS = Path(os.environ.get("ALIGHT_MODELS") or Path(__file__).resolve().parents[3] / "models")
FILES = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"]
LAYER = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]


@pytest.fixture(scope="module", params=FILES)
def model(request):
    path = MODELS / request.param
    if not path.exists():
        pytest.skip(f"{path} is not there; `make models` fetches it")
    return alight.open(path)


@pytest.fixture(scope="module")
def smollm2():
    path = MODELS / FILES[0]
    if not path.exists():
        pytest.skip(f"{path} is not there; `make models` fetches it")
    return alight.open(path)


def mesh_of(ranks):
    return Mesh(np.array(jax.devices()[:ranks]), ("tp",))


def sharded(body, mesh, inputs, outputs):
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False))


def numbers(tensor, rows=None):
    """Its weights, or those of some rows, as the format defines them."""
    ranges = rows and [(rows[0], rows[1]), (0, tensor.shape[1])]
    block = tensor.read(ranges, dtype="float32")
    return np.ndarray(tuple(block.shape), np.float32, buffer=memoryview(block))


def spans(whole, ranks, grain=1):
    """The first ranks have as much as each other, the last ones what is left over, or nothing."""
    each = -(-whole // (grain * ranks)) * grain
    return tuple((min(r * each, whole), max(0, min(each, whole - r * each))) for r in range(ranks))


def activations(shape, seed):
    """As networks have them: mostly small, a few large."""
    x = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    x[:, 7::61] *= 40
    return x


def bound(w, x):
    """What rounding the activations may do to each product at most: half a unit of the integers, whose scale is that of the
    largest of 256 values (16 bits) for one token, of 32 (8 bits) for several; and f32 sums, some ulps of the magnitudes."""
    group, limit = (256, 32512) if len(x) == 1 else (32, 127)
    pad = -x.shape[1] % group
    w, x = (np.abs(np.pad(a.astype(np.float64), ((0, 0), (0, pad)))) for a in (w, x))
    most = x.reshape(len(x), -1, group).max(-1)
    return (most / limit / 2) @ w.reshape(len(w), -1, group).sum(-1).T * 1.0001 + x @ w.T * 2e-6 * 16


def check(y, w, x):
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    off, most = np.abs(y - exact), bound(w, x)
    assert (off <= most).all(), f"off by {(off / most).max()} of what rounding allows"
    # Far less on average: errors of many columns do not add up.
    assert off.mean() <= 0.2 * most.mean()


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_rows_of_every_rank(model, ranks):
    """A layer's q, k and v, and others of its own types: uneven parts, ranks with nothing, one to many tokens. The same bits
    for any number of ranks."""
    mesh = mesh_of(ranks)
    file = native.file_array(model, mesh)
    for layer, names in ((0, LAYER[:3]), (5, LAYER[4:6]), (1, ["ffn_down"])):
        tensors = [model.tensors[f"blk.{layer}.{name}.weight"] for name in names]
        cuts = [Cut(t.shape, rows=spans(t.shape[0], ranks, 96)) for t in tensors]
        for tokens in (1, 2, 33):
            x = activations((tokens, tensors[0].shape[1]), tokens)
            body = partial(native.matmul, cuts=cuts, mesh=mesh)
            call = sharded(lambda f, p, x, body=body: body(f, p, x), mesh, (P(), P(), P()), P(None, "tp"))
            found = call(file, native.places(tensors), x)
            for tensor, cut, y in zip(tensors, cuts, found, strict=True):
                y = np.asarray(y).reshape(tokens, ranks, -1)
                parts = [y[:, r, :count] for r, (_, count) in enumerate(cut.rows)]
                assert all((y[:, r, count:] == 0).all() for r, (_, count) in enumerate(cut.rows))
                whole = np.concatenate(parts, axis=1)
                check(whole, numbers(tensor), x)
                key = (tensor.file, tensor.name, tokens)
                assert (SEEN.setdefault(key, whole).view(np.uint32) == whole.view(np.uint32)).all()


SEEN: dict = {}


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_columns_of_every_rank(model, ranks):
    """What the ranks multiply adds up to the whole; there are ranks with nothing where blocks are long."""
    mesh = mesh_of(ranks)
    file = native.file_array(model, mesh)
    idle = 0
    for layer, name in ((0, "ffn_down"), (1, "ffn_down"), (4, "attn_output")):
        tensor = model.tensors[f"blk.{layer}.{name}.weight"]
        columns = spans(tensor.shape[1], ranks, WEIGHT_TYPES[tensor.type][1])
        idle += sum(count == 0 for _, count in columns)
        slots = max(count for _, count in columns)
        weights = numbers(tensor)
        for tokens in (1, 7):
            x = activations((tokens, tensor.shape[1]), tokens)
            # What is in the padding of x must not matter.
            parts = np.full((tokens, ranks, slots), np.nan, np.float32)
            for rank, (start, count) in enumerate(columns):
                parts[:, rank, :count] = x[:, start : start + count]

            def body(f, p, x, cut=Cut(tensor.shape, columns=columns)):
                return native.matmul(f, p, x, [cut], mesh=mesh)[0][None]

            call = sharded(body, mesh, (P(), P(), P(None, "tp")), P("tp"))
            found = np.asarray(call(file, native.places([tensor]), parts.reshape(tokens, -1)))
            for rank, (start, count) in enumerate(columns):
                if count == 0:
                    assert (found[rank] == 0).all()
                else:
                    check(found[rank], weights[:, start : start + count], x[:, start : start + count])
    assert idle or ranks < 8


def test_both_layouts(every_type, packed):
    """Every type, in rows and in tiles: rows that begin within a tile, and columns."""
    mesh = mesh_of(2)
    for path in (every_type[0], packed):
        catalog = alight.open(path)
        file = native.file_array(catalog, mesh)
        for kind in ["F32", "F16", "BF16", *QUANTISED]:
            tensor = catalog.tensors[kind]
            rows, columns = ((3, 40), (43, 20)), ((0, 256), (256, 256))
            weights = numbers(tensor)
            for tokens in (1, 14):
                x = activations((tokens, 512), 3)

                def body(f, p, x, cut=Cut(tensor.shape, rows=rows, columns=columns, slots=41)):
                    return native.matmul(f, p, x, [cut], mesh=mesh)[0][None]

                call = sharded(body, mesh, (P(), P(), P(None, "tp")), P("tp"))
                found = np.asarray(call(file, native.places([tensor]), x))
                for y, (row, height), (column, width) in zip(found, rows, columns, strict=True):
                    part = np.s_[row : row + height, column : column + width]
                    check(y[:, :height], weights[part], x[:, column : column + width])
                    assert (y[:, height:] == 0).all()


def test_threads_change_no_bit(smollm2):
    """The output matrix, which is large enough to be shared, and attention to many positions."""
    mesh = mesh_of(1)
    file = native.file_array(smollm2, mesh)
    tensor = smollm2.tensors["token_embd.weight"]
    heads = Heads(q_heads=9, kv_heads=3, k_dim=64, v_dim=64, capacity=2048, scale=0.125)
    for tokens in (1, 40):
        x = activations((tokens, 576), tokens)
        kv = activations((tokens, 192), 1)
        caches = [jnp.asarray(activations(shape, 2), jnp.float16) for shape in heads.cache(1)]
        seen = None
        for threads in (1, 2, 7, 0, 7):
            body = partial(native.matmul, cuts=[Cut(tensor.shape)], mesh=mesh, threads=threads)
            call = sharded(lambda f, p, x, body=body: body(f, p, x), mesh, (P(), P(), P()), P())
            found = [np.asarray(call(file, native.places([tensor]), x)[0])]
            attend = partial(native.attend, heads=heads, mesh=mesh, threads=threads)
            call = sharded(lambda *a, attend=attend: attend(*a), mesh, (P(),) * 8, P())
            found += map(np.asarray, call(x, kv, kv, *caches, *(np.int32(n) for n in (0, 1400, 0))))
            seen = seen or found
            assert all((a.view(np.uint16) == b.view(np.uint16)).all() for a, b in zip(found, seen, strict=True))


def test_embed_is_exact(model):
    mesh = mesh_of(2)
    tensor = model.tensors["token_embd.weight"]
    ids = np.array([0, 5, tensor.shape[0] - 1, 5, 1234], np.int32)
    weights = np.concatenate([numbers(tensor, (token, token + 1)) for token in ids])
    for scale in (1.0, 576**0.5):
        body = partial(native.embed, shape=tensor.shape, scale=scale)
        call = sharded(lambda f, p, t, body=body: body(f, p, t), mesh, (P(), P(), P()), P())
        found = np.asarray(call(native.file_array(model, mesh), native.places([tensor])[0], ids))
        assert (found == weights * np.float32(scale)).all()


def oracle(heads, q, keys, values, pos, window):
    """In float64, over rounded keys and values `[positions, kv_heads, dim]`."""
    group = heads.q_heads // heads.kv_heads
    q = q.reshape(len(q), heads.q_heads, heads.k_dim).astype(np.float64)
    out = np.zeros((len(q), heads.q_heads, heads.v_dim))
    for t in range(len(q)):
        p = pos + t
        seen = range(max(0, p + 1 - window) if window else 0, p + 1)
        for h in range(heads.q_heads):
            scores = keys[seen, h // group].astype(np.float64) @ q[t, h] * heads.scale
            if heads.softcap:
                scores = heads.softcap * np.tanh(scores / heads.softcap)
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ values[seen, h // group].astype(np.float64) / weights.sum()
    return out.reshape(len(q), -1)


ATTENTION = [
    Heads(q_heads=9, kv_heads=3, k_dim=64, v_dim=64, capacity=512, scale=0.125),
    Heads(q_heads=4, kv_heads=1, k_dim=256, v_dim=256, capacity=512, scale=1 / 16),
    Heads(q_heads=8, kv_heads=4, k_dim=128, v_dim=128, capacity=512, scale=0.1, softcap=5.0),
    Heads(q_heads=2, kv_heads=2, k_dim=24, v_dim=80, capacity=512, scale=0.3),
]


@pytest.mark.parametrize("heads", ATTENTION, ids=str)
@pytest.mark.parametrize("window", [0, 100])
def test_attention_is_that_of_float64(heads, window):
    """Tokens in batches of one to many, in the second of three layers; the others stay as they are.

    Keys and values are rounded to float16 as they are stored, so the same ones are compared with; what is left is f32: sums
    of 256 products and a softmax, some 1e-6 of the largest value, and more where scores are large."""
    mesh, rng = mesh_of(1), np.random.default_rng(3)
    attend = partial(native.attend, heads=heads, mesh=mesh)
    call = sharded(lambda *a: attend(*a), mesh, (P(),) * 8, P())
    caches = [jnp.full(shape, 7, jnp.float16) for shape in heads.cache(3)]
    keys = np.zeros((0, heads.kv_heads, heads.k_dim), np.float16)
    values = np.zeros((0, heads.kv_heads, heads.v_dim), np.float16)
    for tokens in (3, 1, 60, 4, 1, 130, 5, 2, 1, 200, 1):
        pos = len(keys)
        q, k, v = (
            rng.standard_normal((tokens, n * dim)).astype(np.float32)
            for n, dim in ((heads.q_heads, heads.k_dim), (heads.kv_heads, heads.k_dim), (heads.kv_heads, heads.v_dim))
        )
        if tokens == 5:
            v[2, 3] = 1e6  # the largest float16 is stored
        keys = np.concatenate([keys, k.reshape(tokens, heads.kv_heads, -1).astype(np.float16)])
        with np.errstate(over="ignore"):
            new = np.clip(v, -65504, 65504).astype(np.float16)
        values = np.concatenate([values, new.reshape(tokens, heads.kv_heads, -1)])
        out, *caches = call(q, k, v, *caches, *(np.int32(n) for n in (1, pos, window)))
        exact = oracle(heads, q, keys, values, pos, window)
        most = np.abs(values.astype(np.float64)).max()
        assert np.abs(out - exact).max() <= 1e-5 * most, (tokens, pos)
    for cache in map(np.asarray, caches):
        assert (cache[[0, 2]] == 7).all() and not (cache[1] == 7).all()


HEADS = Heads(q_heads=2, kv_heads=1, k_dim=64, v_dim=64, capacity=4096, scale=0.125)
LAYERS, STEPS = 3, 5


def decode(mesh, tensor, file, places, caches):
    """Steps of layers of a product and attention, the file and the places as a model has them."""

    def layer(carry, slice):
        x, k_cache, v_cache, pos = carry
        number, place = slice
        (y,) = native.matmul(file, place[None], x, [Cut(tensor.shape, rows=((0, 128),) * mesh.size)], mesh=mesh)
        out, k_cache, v_cache = native.attend(
            y, y[:, :64], y[:, 64:], k_cache, v_cache, number, pos, np.int32(0), HEADS, mesh=mesh
        )
        return (jnp.tile(out, 8)[:, :576], k_cache, v_cache, pos), None

    def step(carry):
        x, k_cache, v_cache, pos = carry
        numbers = jnp.arange(LAYERS, dtype=np.int32)
        (x, k_cache, v_cache, _), _ = lax.scan(layer, (x, k_cache, v_cache, pos), (numbers, places))
        return x, k_cache, v_cache, pos + 1

    carry = (jnp.ones((1, 576), np.float32), *caches, jnp.int32(0))
    return lax.while_loop(lambda carry: carry[3] < STEPS, step, carry)[:3]


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_copied_in_loops(smollm2, ranks):
    """The file is the map, and the caches are written where they are: by their addresses, and by what XLA sets aside."""
    mesh = mesh_of(ranks)
    file = native.file_array(smollm2, mesh)
    addresses = {shard.data.unsafe_buffer_pointer() for shard in file.addressable_shards}
    assert addresses == {smollm2._whole(0).address}
    tensor = smollm2.tensors["blk.0.attn_q.weight"]
    places = native.places([smollm2.tensors[f"blk.{n}.attn_q.weight"] for n in range(LAYERS)])
    shapes = [(layers, ranks * length) for layers, length in HEADS.cache(LAYERS)]
    # Made by XLA: memory of NumPy's, which it shows where the address allows, it cannot be given to write to.
    cut = NamedSharding(mesh, P(None, "tp"))
    caches = [jnp.zeros(shape, np.float16, device=cut) for shape in shapes]

    def body(file, places, k_cache, v_cache):
        x, *caches = decode(mesh, tensor, file, places, (k_cache, v_cache))
        return x[None], *caches

    cut = P(None, "tp")
    call = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=(P(), P(), cut, cut), out_specs=(P("tp"), cut, cut), check_vma=False),
        donate_argnums=(2, 3),
    )
    compiled = call.lower(file, places, *caches).compile()
    analysis = compiled.memory_analysis()
    size = sum(cache.nbytes for cache in caches) // ranks
    assert analysis.alias_size_in_bytes == size
    assert analysis.temp_size_in_bytes < 100_000
    before = [[s.data.unsafe_buffer_pointer() for s in cache.addressable_shards] for cache in caches]
    x, *after = compiled(file, places, *caches)
    assert [[s.data.unsafe_buffer_pointer() for s in cache.addressable_shards] for cache in after] == before
    x = np.asarray(x)
    assert np.isfinite(x).all() and (x == x[:1]).all()
    # As many keys as there were steps, in every layer.
    line = np.asarray(after[0]).reshape(LAYERS, ranks, -1, 64, 16)
    assert ((line != 0).any(axis=(1, 3)).sum(axis=(1, 2)) == STEPS).all()


def test_a_file_is_not_read_into_memory(smollm2):
    """Anonymous memory of a process that multiplies with a file stays small."""
    code = """
import sys, numpy as np, jax, alight
jax.config.update("jax_num_cpu_devices", 2)
from jax.sharding import Mesh, PartitionSpec as P
from alight._alight import WEIGHT_TYPES
from alight.jax import _native as native
def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"): return int(line.split()[1]) * 1024
catalog = alight.open(sys.argv[1])
mesh = Mesh(np.array(jax.devices()), ("tp",))
t = catalog.tensors["token_embd.weight"]
def body(f, p, x):
    return native.matmul(f, p, x, [native.Cut(t.shape)], mesh=mesh)[0]
call = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
before = anonymous()
file = native.file_array(catalog, mesh)
assert anonymous() - before < 1 << 20
x = np.ones((1, t.shape[1]), np.float32)
call(file, native.places([t]), x).block_until_ready()
before = anonymous()
for _ in range(5):
    call(file, native.places([t]), x).block_until_ready()
print(anonymous() - before)
"""
    assert int(in_process(code, smollm2.files[0])) < 8 << 20


XLA_ERRORS = (jax.errors.JaxRuntimeError, ValueError)
"""What an error of a handler is, depending on whether the program had ended when the call returned."""


def test_places_that_cannot_be(smollm2):
    """Data of a program, so errors come when it runs: nothing outside of the file is read."""
    mesh = mesh_of(1)
    file = native.file_array(smollm2, mesh)
    tensor = smollm2.tensors["blk.0.attn_q.weight"]
    body = partial(native.matmul, cuts=[Cut(tensor.shape)], mesh=mesh)
    call = sharded(lambda f, p, x: body(f, p, x), mesh, (P(), P(), P()), P())
    x = np.ones((1, 576), np.float32)
    good = native.places([tensor])
    for index, value, text in (
        (0, file.shape[0] - 100, f"at byte {file.shape[0] - 100}, where the file has {file.shape[0]} bytes"),
        (1, 7, "where the file has"),
        (2, 4, "type 4 of GGUF has no kernels, expected one of 0 \\(F32\\)"),
        (2, 14, "576 columns of Q6_K, expected whole blocks of 256"),
        (3, 2, "layout 2, expected 0"),
    ):
        bad = good.copy()
        bad[0, index] = value
        with pytest.raises(XLA_ERRORS, match=f"alight_matmul: matrix 0 of 1: .*{text}"):
            jax.block_until_ready(call(file, bad, x))
    embed = partial(native.embed, shape=tensor.shape)
    call = sharded(lambda f, p, t: embed(f, p, t), mesh, (P(), P(), P()), P())
    for token in (-1, 576, 2**31 - 1):
        with pytest.raises(XLA_ERRORS, match=f"alight_embed: token {token}, expected one of 0..576"):
            jax.block_until_ready(call(file, good[0], np.array([0, token], np.int32)))
    attend = partial(native.attend, heads=HEADS, mesh=mesh)
    call = sharded(lambda *a: attend(*a), mesh, (P(),) * 8, P())
    rows = [np.ones((2, n), np.float32) for n in (128, 64, 64)]
    caches = [np.zeros(shape, np.float16) for shape in HEADS.cache(2)]
    for layer, pos, window, text in (
        (2, 0, 0, "layer 2 of 2"),
        (-1, 0, 0, "'layer' has -1"),
        (0, 4095, 0, "2 tokens from position 4095 on, where the cache holds 4096"),
        (0, -1, 0, "'pos' has -1"),
        (0, 0, -5, "'window' has -5"),
    ):
        with pytest.raises(XLA_ERRORS, match=text):
            jax.block_until_ready(call(*rows, *caches, np.int32(layer), np.int32(pos), np.int32(window)))


def test_what_cannot_work_is_an_error_of_the_trace(smollm2):
    mesh = mesh_of(2)
    file = jax.ShapeDtypeStruct((1000,), np.uint8)
    places = jax.ShapeDtypeStruct((1, 4), np.uint32)
    x = jax.ShapeDtypeStruct((1, 64), np.float32)

    def matmul(cuts, file=file, places=places, x=x, mesh=mesh, around=mesh, **more):
        body = partial(native.matmul, cuts=cuts, mesh=mesh, **more)
        call = jax.shard_map(lambda f, p, x: body(f, p, x), mesh=around, in_specs=P(), out_specs=P(), check_vma=False)
        jax.eval_shape(call, file, places, x)

    cut = Cut((32, 64))
    matmul([cut])
    for error, text, arguments in (
        (ValueError, "expected one for each matrix", {"cuts": []}),
        (ValueError, r"places: expected \[2, 4\], found \[1, 4\]", {"cuts": [cut, cut]}),
        (TypeError, "x: expected float32, found bfloat16", {"cuts": [cut], "x": jax.ShapeDtypeStruct((1, 64), jnp.bfloat16)}),
        (TypeError, "file: expected uint8", {"cuts": [cut], "file": x}),
        (ValueError, "rows of 3 ranks, and axis 'tp' has 2", {"cuts": [Cut((32, 64), rows=((0, 1),) * 3)]}),
        (ValueError, "rank 1 has 20 rows from 16 on, and the matrix has 32", {"cuts": [Cut((32, 64), rows=((0, 16), (16, 20)))]}),
        (ValueError, "15 slots, and a rank has 16 rows", {"cuts": [Cut((32, 64), rows=((0, 16), (16, 16)), slots=15)]}),
        (ValueError, "its columns", {"cuts": [cut, Cut((32, 128))], "places": jax.ShapeDtypeStruct((2, 4), np.uint32)}),
        (ValueError, "at least the 96 columns", {"cuts": [Cut((32, 96))]}),
        (ValueError, "threads: expected 0 or more, found -1", {"cuts": [cut], "threads": -1}),
        (ValueError, "'dp' is not an axis", {"cuts": [cut], "axis": "dp"}),
        (ValueError, "2 devices, and 4 in the shard_map", {"cuts": [cut], "around": mesh_of(4)}),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            matmul(**arguments)
    with pytest.raises(ValueError, match="no kernels for its type"):
        native.places([type("T", (), {"name": "w", "type": "Q8_1"})()])


def test_a_mesh_with_other_axes(smollm2):
    """Each group along `tp` is cut for itself."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("a", "tp", "b"))
    file = native.file_array(smollm2, mesh)
    tensor = smollm2.tensors["blk.0.attn_q.weight"]
    x = activations((4, 576), 1)

    def body(f, p, x):
        return native.matmul(f, p, x, [Cut(tensor.shape, rows=spans(576, 2))], mesh=mesh)[0]

    y = sharded(body, mesh, (P(), P(), P(("a", "b"))), P(("a", "b"), "tp"))(file, native.places([tensor]), x)
    exact = x.astype(np.float64) @ numbers(tensor).astype(np.float64).T
    assert (np.abs(y - exact) <= np.stack([bound(numbers(tensor), row[None])[0] for row in x])).all()
