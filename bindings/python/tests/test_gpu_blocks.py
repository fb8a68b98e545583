"""Matrices as blocks on GPUs, as far as it can be seen without one: programs are lowered for CUDA with our calls, each rank has its bytes of the
file, and models compute the same with them as with floats, with a stand-in for the kernels. These are tested in `crates/xla`."""

import dataclasses
import math
import re
import types

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
# Gate and up of two types, in one layer; a layer with a type that has no kernel; biases, and the clamped SiLU.
MIXED_EXPERTS = dataclasses.replace(MIXTURE, name="mixed experts", embd=256, expert_ff=256, kinds=(("blk.0.ffn_up_exps", "Q4_K"), ("blk.1.ffn_down_exps", "Q6_K")))
HALF_FLOATS = dataclasses.replace(MIXTURE, name="half floats", kinds=(("blk.1.ffn_down_exps", "Q5_0"),))
GPT_OSS = Tiny(
    "gpt-oss", "gpt-oss", layers=2, embd=96, head_dim=32, heads=4, base=1.5e5, tied=False, window=12, experts=7, used=3, expert_ff=64,
    biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    kind="Q8_0", kinds=(("_exps", "MXFP4"),),
)  # fmt: skip


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
        shape = jax.ShapeDtypeStruct((*matrix.data.shape[:-1], columns), np.float32)
        return jax.pure_callback(lambda data: dequantized(data, matrix.type, columns), shape, matrix.data).astype(dtype)

    def multiply(matrix, x):
        assert x.shape[0] <= _gpu_blocks.MAX_TOKENS
        calls.append(("product", matrix.type))
        weights = dequantize(matrix, x.shape[1], jnp.float32)
        calls.pop()
        return jnp.matmul(x, weights.T, precision="highest", preferred_element_type=jnp.float32)

    def multiply_chosen(stack, numbers, x):
        calls.append(("pairs", stack.type))
        slots, rows, _ = stack.data.shape
        assert stack.data.ndim == 3 and numbers.dtype == jnp.int32 and numbers.shape[0] % x.shape[0] == 0

        def found(data, numbers, x):
            weights = dequantized(data.reshape(slots * rows, -1), stack.type, x.shape[1]).reshape(slots, rows, -1)
            x = np.repeat(x, len(numbers) // len(x), axis=0)
            out = np.zeros((len(numbers), rows), np.float32)
            for pair, number in enumerate(numbers):
                if 0 <= number < slots:
                    out[pair] = weights[number] @ x[pair]
            return out

        return jax.pure_callback(found, jax.ShapeDtypeStruct((len(numbers), rows), np.float32), stack.data, numbers, x.astype(jnp.float32))

    monkeypatch.setattr(_xla, "dequantize", dequantize)
    monkeypatch.setattr(_xla, "multiply_chosen", multiply_chosen)
    monkeypatch.setattr(_xla, "multiply", multiply)
    monkeypatch.setattr(_load, "_on_cpu", lambda mesh: False)
    monkeypatch.setattr(_load, "_stream", lambda mesh, kind: jnp.float32)
    monkeypatch.setattr(_load._gpu_blocks, "problem", lambda mesh: None)
    monkeypatch.setitem(_load.FLOATS, "bf16", jnp.float32)
    return calls


@pytest.mark.parametrize(
    ("tiny", "ranks", "unroll"),
    [
        (MIXED, 3, True), (MIXED, 1, False), (SMALL, 2, True), (MIXTURE, 1, False), (MIXTURE, 2, True), (MIXED_EXPERTS, 2, True),
        (HALF_FLOATS, 2, True), (GPT_OSS, 2, True),
    ],
    ids=lambda one: getattr(one, "name", one),
)  # fmt: skip
def test_a_model_computes_with_blocks_as_with_floats(tiny, ranks, unroll, tmp_path, stand_in, compiled_quickly):
    path = tiny_models.write(tiny, tmp_path / "model.gguf")
    ids = np.random.default_rng(0).integers(3, tiny.vocab, 25).tolist()
    options = {"context": 64, "tp": ranks, "chunks": (1, 8, 16), "unroll": unroll}
    floats = load_model(path, weights="f32", **options)
    assert not stand_in
    blocks = load_model(path, weights="native", **options)
    assert np.abs(blocks.logits(ids) - floats.logits(ids)).max() < 2e-4
    # A chunk of 16 makes matrices floats, steps of decoding do not.
    assert {what for what, _ in stand_in} == {"rows"}
    chosen = list(blocks.generate(ids, max_tokens=7, sampling=Sampling.greedy()))
    assert chosen == floats.logits(ids + chosen)[len(ids) - 1 : -1].argmax(axis=1).tolist()
    assert {kind for what, kind in stand_in if what == "product"} <= set(GPU_WEIGHT_TYPES)
    assert ("product", blocks.params["weights"]["output"].type) in stand_in
    # Experts that are blocks in all of a layer's matrices are multiplied as such.
    layers = blocks.params["matrices"]
    layers = [kinds(layer) for layer in (layers if isinstance(layers, tuple) else [layers])] if tiny.experts else []
    stacks = [[layer[name] for name in ("gate", "up", "gate_up", "down") if name in layer] for layer in layers]
    expected = {("pairs", kind) for stack in stacks if set(stack) <= set(GPU_WEIGHT_TYPES) for kind in stack}
    assert {call for call in stand_in if call[0] == "pairs"} == expected and bool(expected) == bool(tiny.experts)


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


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_each_rank_has_its_experts_as_they_are_in_the_file(ranks, tmp_path, stand_in):
    path = tiny_models.write(MIXED_EXPERTS, tmp_path / "model.gguf")
    model = load_model(path, weights="native", tp=ranks, context=32, unroll=True)
    tensors = {one.name: one for one in gguf.GGUFReader(path).tensors}
    first, second = ({name: one for name, one in layer.items() if name not in ("qkv", "o")} for layer in model.params["matrices"])
    assert kinds(first) == {"gate": "Q8_0", "up": "Q4_K", "down": "Q8_0", "router": "float32"}
    assert kinds(second) == {"gate_up": "Q8_0", "down": "Q6_K", "router": "float32"}
    slots = -(-MIXED_EXPERTS.experts // ranks)
    for number, layer in enumerate((first, second)):
        for name, stack in layer.items():
            if name == "router":
                continue
            # All of a matrix's bytes are side by side, after those of the other, for each expert.
            whole = np.concatenate([tensors[f"blk.{number}.ffn_{part}_exps.weight"].data for part in name.split("_")], axis=1)
            whole = np.pad(whole, ((0, slots * ranks - len(whole)), (0, 0), (0, 0)))
            for rank, found in enumerate(shards(stack.data, 0)):
                assert (found == whole[rank * slots :][:slots]).all()
    # Nothing is read twice, but for heads of keys and values that ranks share.
    matrices = sum(one.n_bytes for one in tensors.values() if len(one.shape) > 1 and "ffn_gate_inp" not in one.name)
    if ranks <= MIXED_EXPERTS.kv_heads:
        assert sum(model.read_bytes[rank] for rank in range(ranks)) == matrices


def blocks_like(kind, *shape):
    *rows, columns = shape
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return Blocks(jax.ShapeDtypeStruct((*rows, columns // block * size), np.uint8), kind)


@pytest.mark.parametrize("kind", GPU_WEIGHT_TYPES)
def test_calls_are_lowered_for_cuda(kind):
    matrix = blocks_like(kind, 48, 512)
    number, size = WEIGHT_TYPES[kind][0], matrix.data.shape[1]
    x = jax.ShapeDtypeStruct((5, 512), jnp.bfloat16)
    text = jax.jit(_gpu_blocks.multiply).trace(matrix, x).lower(lowering_platforms=("cuda",)).as_text()
    [call] = re.findall(r"stablehlo\.custom_call @alight_matvec\(.*", text)
    assert f"block_type = {number} : i64" in call
    assert f"(tensor<48x{size}xui8>, tensor<5x512xbf16>) -> tensor<5x48xf32>" in call
    stack, numbers = blocks_like(kind, 7, 48, 512), jax.ShapeDtypeStruct((15,), jnp.int32)
    text = jax.jit(_gpu_blocks.multiply_chosen).trace(stack, numbers, x).lower(lowering_platforms=("cuda",)).as_text()
    [call] = re.findall(r"stablehlo\.custom_call @alight_matvec_chosen\(.*", text)
    assert f"block_type = {number} : i64" in call
    assert f"(tensor<7x48x{size}xui8>, tensor<5x512xbf16>, tensor<15xi32>) -> tensor<15x48xf32>" in call
    text = jax.jit(lambda stack: _gpu_blocks.dequantize(stack, 512, jnp.bfloat16)).trace(stack).lower(lowering_platforms=("cuda",)).as_text()
    [call] = re.findall(r"stablehlo\.custom_call @alight_dequantize\(.*", text)
    assert f"(tensor<336x{size}xui8>) -> tensor<336x512xbf16>" in call
    assert "-> tensor<7x48x512xbf16>" in text
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


def test_few_pairs_are_multiplied_with_the_blocks_of_experts():
    """In the program there is no branch, and nothing but our calls reads an expert."""
    layer = {"gate_up": blocks_like("Q4_K", 8, 64, 256), "down": blocks_like("Q8_0", 8, 256, 32)}
    arithmetic = object.__new__(_xla.Xla)
    arithmetic.stream, arithmetic.dtype, arithmetic.alike, arithmetic.axis = jnp.bfloat16, jnp.dtype(jnp.bfloat16), False, "tp"
    arithmetic.slots = {"gate": 32, "up": 32}
    arithmetic.cut = types.SimpleNamespace(expert_slots=8)
    arithmetic.config = types.SimpleNamespace(experts=types.SimpleNamespace(count=16, feed_forward=32), gate="silu")
    mesh = jax.sharding.AbstractMesh((2,), ("tp",))
    specs = ({name: Blocks(jax.P("tp"), one.type) for name, one in layer.items()}, jax.P(), jax.P(), jax.P())

    def calls(tokens, used=4, layer=layer):
        def body(layer, x, chosen, shares):
            return arithmetic.experts({}, layer, x, chosen, shares)[None]

        whole = {name: dataclasses.replace(one, data=jax.ShapeDtypeStruct((16, *one.data.shape[1:]), np.uint8)) for name, one in layer.items()}
        given = (whole, *(jax.ShapeDtypeStruct(*one) for one in (((tokens, 256), jnp.bfloat16), ((tokens, used), jnp.int32), ((tokens, used), jnp.float32))))
        program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=jax.P("tp"), check_vma=False))
        text = program.trace(*given).lower(lowering_platforms=("cuda",)).as_text()
        return re.findall(r'@(alight_\w+)|"(chlo\.ragged_dot)"|(stablehlo\.case|stablehlo\.if|stablehlo\.while|optimization_barrier)', text)

    # Twice as many pairs as experts, of all ranks.
    assert calls(1) == calls(8) == [("alight_matvec_chosen", "", "")] * 2
    # One matrix after the other, the second when there are rows for it. (Sorting and counting may have loops of their own.)
    several = ["".join(found) for found in calls(9) if found[2] != "stablehlo.while"]
    assert several == ["optimization_barrier", "alight_dequantize", "chlo.ragged_dot"] * 2


def test_what_cannot_be_is_said(tmp_path):
    x = jnp.zeros((1, 64), jnp.bfloat16)
    good = Blocks(np.zeros((3, 36), np.uint8), "Q4_0")
    with pytest.raises(ValueError, match="blocks of Q5_0, and there are kernels for Q4_0"):
        _gpu_blocks.multiply(dataclasses.replace(good, type="Q5_0"), x)
    with pytest.raises(TypeError, match=r"expected uint8\[rows, bytes of a row\], found int8\[3, 36\]"):
        _gpu_blocks.multiply(dataclasses.replace(good, data=np.zeros((3, 36), np.int8)), x)
    with pytest.raises(ValueError, match="x: 9 tokens, expected at most 8"):
        _gpu_blocks.multiply(good, jnp.zeros((9, 64), jnp.bfloat16))
    with pytest.raises(TypeError, match=r"x: expected bfloat16 or float32 \[rows, columns\], found float16\[1, 64\]"):
        _gpu_blocks.multiply(good, x.astype(jnp.float16))
    stack, numbers = Blocks(np.zeros((4, 3, 36), np.uint8), "Q4_0"), jnp.zeros(5, jnp.int32)
    with pytest.raises(TypeError, match=r"expected uint8\[slots, rows, bytes of a row\], found uint8\[3, 36\]"):
        _gpu_blocks.multiply_chosen(good, numbers, x)
    with pytest.raises(TypeError, match=r"expected uint8\[rows, bytes of a row\], found uint8\[4, 3, 36\]"):
        _gpu_blocks.multiply(stack, x)
    with pytest.raises(ValueError, match="numbers: 5 pairs for 2 rows of x, expected as many for each"):
        _gpu_blocks.multiply_chosen(stack, numbers, jnp.zeros((2, 64), jnp.bfloat16))
    with pytest.raises(TypeError, match=r"numbers: expected int32, one for each pair, found float32\[5\]"):
        _gpu_blocks.multiply_chosen(stack, numbers.astype(jnp.float32), x)
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
