"""Matrices as blocks on GPUs, as far as it can be seen without one: programs are lowered for CUDA with our calls, each rank has its bytes of the
file, and models compute the same with them as with floats, with a stand-in for the kernels. These are tested in `crates/xla`."""

import dataclasses
import math
import re

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alight._alight import GPU_WEIGHT_TYPES, WEIGHT_TYPES
from alight.jax import _gpu_blocks
from alight.jax._gpu_blocks import Blocks
from alight.jax.models import Sampling, _load, _xla, load_model
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny
from jax.sharding import Mesh

# Q and k of one type and v of another; a layer that differs; types without a kernel; blocks of 32 and 256.
MIXED = Tiny(
    "mixed", "llama", layers=2, embd=256, ff=768, heads=8, kv_heads=4, head_dim=64, kind="Q4_K", tied=False, base=1e4, eps=1e-5,
    biases=("attn_q", "attn_v", "ffn_down"),
    kinds=(("attn_v", "Q6_K"), ("blk.1.ffn_down", "Q6_K"), ("blk.1.attn_q", "Q5_0"), ("token_embd", "Q8_0"), ("blk.0.ffn_up", "MXFP4")),
)  # fmt: skip
SMALL = Tiny("small", "qwen2", layers=2, embd=96, ff=160, heads=6, kv_heads=2, head_dim=16, kind="Q4_0", kinds=(("blk.0.ffn", "Q4_1"),))
MIXTURE = Tiny("mixture", "qwen3moe", layers=2, embd=96, head_dim=32, heads=4, base=1e6, qk_norm=True, experts=7, used=3, expert_ff=64, kind="Q8_0")


def dequantized(data, kind, columns):
    found = gguf.quants.dequantize(np.asarray(data), gguf.GGMLQuantizationType[kind])
    assert found.shape[-1] == columns
    return found


@pytest.fixture
def stand_in(monkeypatch):
    """CPU devices are taken for GPUs that compute with blocks, in float32; which calls there were."""
    calls = []

    def dequantize(matrix, columns, dtype):
        calls.append(("rows", matrix.type))
        shape = jax.ShapeDtypeStruct((matrix.data.shape[0], columns), np.float32)
        return jax.pure_callback(lambda data: dequantized(data, matrix.type, columns), shape, matrix.data).astype(dtype)

    def multiply(matrix, x):
        assert x.shape[0] <= _gpu_blocks.MOST_TOKENS
        calls.append(("product", matrix.type))
        weights = dequantize(matrix, x.shape[1], jnp.float32)
        calls.pop()
        return jnp.matmul(x, weights.T, precision="highest", preferred_element_type=jnp.float32)

    monkeypatch.setattr(_xla, "dequantize", dequantize)
    monkeypatch.setattr(_xla, "multiply", multiply)
    monkeypatch.setattr(_load, "_on_cpu", lambda mesh: False)
    monkeypatch.setattr(_load, "_stream", lambda mesh, kind: jnp.float32)
    monkeypatch.setattr(_load._gpu_blocks, "problem", lambda mesh: None)
    monkeypatch.setitem(_load.FLOATS, "bf16", jnp.float32)
    return calls


@pytest.mark.parametrize(
    ("tiny", "ranks", "unroll"), [(MIXED, 3, True), (MIXED, 1, False), (SMALL, 2, True), (MIXTURE, 2, True)], ids=lambda one: getattr(one, "name", one)
)
def test_a_model_computes_with_blocks_as_with_floats(tiny, ranks, unroll, tmp_path, stand_in):
    path = tiny_models.write(tiny, tmp_path / "model.gguf")
    ids = np.random.default_rng(0).integers(3, tiny.vocab, 29).tolist()
    options = {"context": 64, "tp": ranks, "chunks": (1, 8, 16), "unroll": unroll}
    floats = load_model(path, weights="f32", **options)
    assert not stand_in
    blocks = load_model(path, weights="native", **options)
    assert np.abs(blocks.logits(ids) - floats.logits(ids)).max() < 2e-4
    # A chunk of 16 makes matrices floats, steps of decoding do not.
    assert {what for what, _ in stand_in} == {"rows"}
    chosen = [list(model.generate(ids, max_tokens=9, sampling=Sampling.greedy())) for model in (blocks, floats)]
    assert chosen[0] == chosen[1]
    assert {kind for what, kind in stand_in if what == "product"} <= set(GPU_WEIGHT_TYPES)
    assert ("product", blocks.params["weights"]["output"].type) in stand_in


def kinds(layer):
    """Of matrices: of blocks, or of floats."""
    return {name: one.type if isinstance(one, Blocks) else str(one.dtype) for name, one in layer.items()}


def shards(array, dimension):
    """By rank, along the dimension that is cut."""
    return [np.asarray(one.data) for one in sorted(array.addressable_shards, key=lambda one: one.index[dimension].start or 0)]


def test_each_rank_has_its_bytes_of_the_file(tmp_path, stand_in):
    path = tiny_models.write(MIXED, tmp_path / "model.gguf")
    model = load_model(path, weights="native", tp=2, context=32, unroll=True)
    tensors = {one.name: one for one in gguf.GGUFReader(path).tensors}
    first, second = model.params["matrices"]
    assert kinds(first) == {
        "qk": "Q4_K", "v": "Q6_K", "o": "Q4_K", "gate": "Q4_K", "up": "MXFP4", "down": "Q4_K"
    }  # fmt: skip
    # Types without a kernel are floats ("bf16" stands for float32 here).
    assert kinds(second) == {
        "q": "float32", "k": "Q4_K", "v": "Q6_K", "o": "Q4_K", "gate_up": "Q4_K", "down": "Q6_K"
    }  # fmt: skip
    data = {name: tensors[f"blk.0.{name}.weight"].data for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down", "ffn_up")}
    for rank in range(2):
        def half(name, dimension=0, rank=rank):
            return np.split(data[name], 2, axis=dimension)[rank]

        assert (shards(first["qk"].data, 0)[rank] == np.concatenate([half("attn_q"), half("attn_k")])).all()
        assert (shards(first["v"].data, 0)[rank] == half("attn_v")).all()
        assert (shards(first["o"].data, 0)[rank] == half("attn_output", 1)).all()
        # Of three blocks of 256 columns, the first rank has two; behind the last there are zeros.
        size = data["ffn_down"].shape[1] // 3
        own = data["ffn_down"][:, 2 * size * rank :][:, : 2 * size]
        assert (shards(first["down"].data, 0)[rank] == np.pad(own, ((0, 0), (0, 2 * size - own.shape[1])))).all()
        own = data["ffn_up"][512 * rank :][:512]
        assert (shards(first["up"].data, 0)[rank] == np.pad(own, ((0, 512 - own.shape[0]), (0, 0)))).all()
    embedding = model.params["weights"]["embedding"]
    assert embedding.type == "Q8_0"
    assert (np.concatenate(shards(embedding.data, 0))[: MIXED.vocab] == tensors["token_embd.weight"].data).all()
    # Nothing is read twice, and what all have is small.
    matrices = sum(one.n_bytes for one in tensors.values() if len(one.shape) > 1)
    assert sum(model.read_bytes[rank] for rank in range(2)) == matrices


def test_layers_in_a_loop_are_blocks_where_they_are_alike(tmp_path, stand_in):
    path = tiny_models.write(MIXED, tmp_path / "model.gguf")
    made = load_model(path, weights="native", tp=1, context=32, unroll=False).params["matrices"]
    assert kinds(made) == {
        "q": "float32", "k": "Q4_K", "v": "Q6_K", "o": "Q4_K", "gate": "Q4_K", "up": "float32", "down": "float32"
    }  # fmt: skip


def blocks_like(kind, rows, columns):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return Blocks(jax.ShapeDtypeStruct((rows, columns // block * size), np.uint8), kind)


@pytest.mark.parametrize("kind", GPU_WEIGHT_TYPES)
def test_calls_are_lowered_for_cuda(kind):
    matrix = blocks_like(kind, 48, 512)
    number, size = WEIGHT_TYPES[kind][0], matrix.data.shape[1]
    x = jax.ShapeDtypeStruct((5, 512), jnp.bfloat16)
    text = jax.jit(_gpu_blocks.multiply).trace(matrix, x).lower(lowering_platforms=("cuda",)).as_text()
    [call] = re.findall(r"stablehlo\.custom_call @alight_matvec\(.*", text)
    assert f"block_type = {number} : i64" in call
    assert f"(tensor<48x{size}xui8>, tensor<5x512xbf16>) -> tensor<5x48xf32>" in call
    for dtype, name in ((jnp.bfloat16, "bf16"), (jnp.float32, "f32")):
        lowered = jax.jit(lambda m, dtype=dtype: _gpu_blocks.dequantize(m, 512, dtype)).trace(matrix).lower(lowering_platforms=("cuda",))
        [call] = re.findall(r"stablehlo\.custom_call @alight_dequantize\(.*", lowered.as_text())
        assert f"block_type = {number} : i64" in call
        assert f"(tensor<48x{size}xui8>) -> tensor<48x512x{name}>" in call


def test_up_to_eight_tokens_are_multiplied_with_blocks():
    matrix = blocks_like("Q4_0", 64, 96)
    arithmetic = object.__new__(_xla.Xla)
    arithmetic.stream, arithmetic.dtype, arithmetic.alike = jnp.bfloat16, jnp.dtype(jnp.bfloat16), False

    def calls(tokens):
        x = jax.ShapeDtypeStruct((tokens, 96), jnp.bfloat16)
        text = jax.jit(arithmetic._dot).trace(x, matrix).lower(lowering_platforms=("cuda",)).as_text()
        return re.findall(r"@(alight_\w+)|stablehlo\.(dot_general)", text)

    assert calls(1) == calls(8) == [("alight_matvec", "")]
    assert calls(9) == [("alight_dequantize", ""), ("", "dot_general")]


def test_what_cannot_be_is_said(tmp_path):
    x = jnp.zeros((1, 64), jnp.bfloat16)
    good = Blocks(np.zeros((3, 36), np.uint8), "Q4_0")
    with pytest.raises(ValueError, match="blocks of Q5_0, and there are kernels for Q4_0"):
        _gpu_blocks.multiply(dataclasses.replace(good, type="Q5_0"), x)
    with pytest.raises(TypeError, match=r"expected uint8\[rows, bytes of a row\], found int8\[3, 36\]"):
        _gpu_blocks.multiply(dataclasses.replace(good, data=np.zeros((3, 36), np.int8)), x)
    with pytest.raises(ValueError, match="x: 9 tokens, expected at most 8"):
        _gpu_blocks.multiply(good, jnp.zeros((9, 64), jnp.bfloat16))
    with pytest.raises(TypeError, match="x: expected bfloat16 or float32, found float16"):
        _gpu_blocks.multiply(good, x.astype(jnp.float16))
    mesh = Mesh(np.array(jax.devices()[:2]), ("tp",))
    assert _gpu_blocks.problem(mesh) == "there are no kernels for devices of cpu"


def test_native_weights_on_gpus_that_cannot_have_them(tmp_path, monkeypatch):
    path = tiny_models.write(SMALL, tmp_path / "model.gguf")
    monkeypatch.setattr(_load, "_on_cpu", lambda mesh: False)
    monkeypatch.setattr(_load._gpu_blocks, "problem", lambda mesh: "no driver")
    with pytest.raises(ValueError, match="weights: 'native' does not work on these devices, 'bf16' does: no driver"):
        load_model(path, weights="native", tp=2)


def test_a_kept_program_is_of_its_types():
    """Two types may have as many bytes in a row."""
    trees = [jax.tree.structure(blocks_like(kind, 8, 256)) for kind in ("Q4_0", "Q4_K")]
    assert math.prod(blocks_like("Q4_0", 8, 256).data.shape) == math.prod(blocks_like("Q4_K", 8, 256).data.shape)
    assert str(trees[0]) != str(trees[1])
