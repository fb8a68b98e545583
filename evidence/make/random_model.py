"""Writes a GGUF model of a well-known shape with random weights, for measuring speed and loading.

    python -m evidence make random-model 3b models/random-3b-q4_0.gguf    Llama-3.2-3B's shape, 1.92 GB
    python -m evidence make random-model 7b models/random-7b-q4_0.gguf    Llama-2-7B's shape, 3.83 GB
    python -m evidence make random-model 8b models/random-8b-q4_k_m.gguf    Llama-3.1-8B's shape, 4.9 GB
    python -m evidence make random-model a3b models/random-a3b-q4_k_m.gguf   12 layers of Qwen3-30B-A3B's shape, 4.9 GB
    python -m evidence make random-model gpt-oss models/random-gpt-oss-mxfp4.gguf   12 layers of gpt-oss-20b's, 6.5 GB
    python -m evidence make random-model qwen35 models/random-qwen35-q4_k_m.gguf   a hybrid of Qwen 3.5's kind, 1.3 GB
    python -m evidence make random-model deepseek2 models/random-v2-lite-q4_k_m.gguf   8 layers of DeepSeek-V2-Lite's shape, 2.8 GB
    python -m evidence make random-model a3b models/skewed-a3b.gguf --layers 48 --routing qwen3   routers that choose as Qwen3-30B-A3B's do

The answers of such a model mean nothing; its sizes, its types and the work of every step are real:
the quantised blocks have random bytes under scales that keep activations of order one, and the
vocabulary is as large as the real one, valid for its tokenizer and built from made-up words, so that
ordinary text is cut into pieces by real merges.

Routers of random weights choose all experts equally often, which no trained model does. With `--routing` they choose as routers
of real models were seen to do (`evidence/lib/routing.py` says how); `python -m evidence check routing` measures what comes out.

Deterministic: one seed, one file. Streams: at most one 64 MiB piece is in memory beside the vocabulary.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from evidence.lib import networks, routing, tiny_models, vocabularies
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

PIECE_BYTES = 64 << 20


@dataclass
class Shape:
    name: str
    layers: int
    embd: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    base: float
    tied: bool
    rope_factors: bool
    arch: str = "llama"
    eps: float = 1e-5
    qk_norm: bool = False
    biases: tuple = ()
    # Mixtures of experts: as in tiny_models.
    experts: int = 0
    used: int = 0
    expert_ff: int = 0
    shared_ff: int = 0
    leading: int = 0
    interleave: int = 0
    latent_experts: int = 0
    gating: int | None = None
    normed: bool | None = None
    weights_scale: float | None = None
    groups: tuple | None = None
    window: int = 0
    scaling: tuple | None = None
    log_multiplier: float | None = None
    # Gated delta nets, latent attention and rotations: as in tiny_models.
    delta: tuple = ()
    latent: tuple = ()
    sections: tuple = ()
    rope_dims: int | None = None
    # The types of matrices: "q4_0", "q4_k_m" or "mxfp4".
    mix: str = "q4_0"

    @property
    def bpe(self) -> bool:
        return self.tied or self.arch != "llama"


SHAPES = {
    "3b": Shape("random 3B, Llama-3.2 shape", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000.0, True, True),
    "7b": Shape("random 7B, Llama-2 shape", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 10000.0, False, False),
    "8b": Shape("random 8B, Llama-3.1 shape", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000.0, False, True, mix="q4_k_m"),
    "a3b": Shape("random A3B, Qwen3-30B-A3B shape", 12, 2048, 6144, 32, 4, 128, 151936, 40960, 1e6, False, False, "qwen3moe", 1e-6,
                 qk_norm=True, experts=128, used=8, expert_ff=768, mix="q4_k_m"),
    "gpt-oss": Shape("random gpt-oss-20b shape", 12, 2880, 2880, 64, 8, 64, 201088, 131072, 150000.0, False, False, "gpt-oss",
                     biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", *networks.EXPERTS), experts=32, used=4,
                     expert_ff=2880, window=128, scaling=("yarn", 32.0, 4096), mix="mxfp4"),
    "qwen35": Shape("random hybrid, Qwen-3.5 kind", 24, 2048, 6144, 8, 2, 256, 151936, 262144, 1e7, True, False, "qwen35", 1e-6,
                    qk_norm=True, delta=(16, 16, 128, 4, 4), sections=(11, 11, 10, 0), rope_dims=64, mix="q4_k_m"),
    "deepseek2": Shape("random V2-Lite, DeepSeek-V2-Lite shape", 8, 2048, 10944, 16, 1, 192, 102400, 163840, 10000.0, False, False,
                       "deepseek2", 1e-6, latent=(0, 512, 128, 64, 128, False), experts=64, used=6, expert_ff=1408, shared_ff=2816,
                       leading=1, gating=1, normed=False, weights_scale=1.0, scaling=("yarn", 40.0, 4096), log_multiplier=0.0707,
                       mix="q4_k_m"),
    # Small enough for a test of this script and of whatever reads its files.
    "tiny": Shape("random tiny, Llama-3.2 shape", 2, 256, 512, 4, 2, 64, 2048, 2048, 500000.0, True, True),
    "tiny-moe": Shape("random tiny, Qwen3-30B-A3B kind", 8, 256, 256, 4, 2, 64, 2048, 2048, 1e6, False, False, "qwen3moe", 1e-6,
                      qk_norm=True, experts=32, used=4, expert_ff=64),
    "tiny-spm": Shape("random tiny, Llama-2 shape", 2, 256, 512, 4, 4, 64, 2048, 2048, 10000.0, False, False),
}

# --- weights ----------------------------------------------------------------------------------


# `std` is one number, or one for each block.

def q4_0_blocks(rng, count: int, std: float) -> np.ndarray:
    """Uniform nibbles under scales of either sign: mean 0, standard deviation `std`."""
    blocks = np.frombuffer(rng.bytes(count * 18), np.uint8).reshape(count, 18).copy()
    level = std / math.sqrt(21.5)  # the mean square of -8..7
    scale = (level * rng.uniform(0.8, 1.2, count)).astype(np.float16).view(np.uint16)
    scale |= (blocks[:, 0].astype(np.uint16) & 1) << 15
    blocks[:, :2] = scale.astype("<u2").view(np.uint8).reshape(count, 2)
    return blocks


def q4_k_blocks(rng, count: int, std: float) -> np.ndarray:
    """Uniform nibbles, scales and minima; minima are scaled so that the mean is 0."""
    blocks = np.frombuffer(rng.bytes(count * 144), np.uint8).reshape(count, 144).copy()
    level = std / 258.3  # the root mean square of scale * nibble - 7.5 * minimum
    d = level * rng.uniform(0.8, 1.2, count)
    blocks[:, :2] = d.astype("<f2").view(np.uint8).reshape(count, 2)
    blocks[:, 2:4] = (7.5 * d).astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def centred_q4_k_blocks(rng, count: int, std: float) -> np.ndarray:
    """The same with minima that follow the scales. So each 32 weights have a mean of 0, and products of matrices are as large as those of
    independent weights."""
    blocks = q4_k_blocks(rng, count, std * 258.3 / 168.3)
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17
    return blocks


def q8_0_blocks(rng, count: int, std: float) -> np.ndarray:
    """Uniform bytes."""
    blocks = np.frombuffer(rng.bytes(count * 34), np.uint8).reshape(count, 34).copy()
    d = std / 73.9 * rng.uniform(0.8, 1.2, count)  # the root mean square of -128..127
    blocks[:, :2] = d.astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def q5_0_blocks(rng, count: int, std: float) -> np.ndarray:
    """Uniform codes."""
    blocks = np.frombuffer(rng.bytes(count * 22), np.uint8).reshape(count, 22).copy()
    d = std / 9.25 * rng.uniform(0.8, 1.2, count)  # the root mean square of -16..15
    blocks[:, :2] = d.astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def mxfp4_blocks(rng, count: int, std: float) -> np.ndarray:
    """Uniform codes under exponents around the deviation."""
    blocks = np.frombuffer(rng.bytes(count * 17), np.uint8).reshape(count, 17).copy()
    exponent = 127 + round(math.log2(std / 2.9))  # the root mean square of 0, 0.5, 1, 1.5, 2, 3, 4, 6
    blocks[:, 0] = exponent + rng.integers(-1, 1, count, endpoint=True)
    return blocks


def q6_k_blocks(rng, count: int, std: float) -> np.ndarray:
    """Uniform 6-bit weights, 8-bit group scales of either sign between 32 and 127."""
    blocks = np.frombuffer(rng.bytes(count * 210), np.uint8).reshape(count, 210).copy()
    groups = blocks[:, 192:208]
    magnitude = 32 + (groups.astype(np.uint16) * 96 >> 8)
    signs = np.frombuffer(rng.bytes(count * 16), np.int8).reshape(count, 16)
    blocks[:, 192:208] = np.where(signs < 0, -magnitude.astype(np.int16), magnitude).astype(np.int8).view(np.uint8)
    level = std / (math.sqrt(341.5) * 84.0)  # root mean squares of -32..31 and of the group scales
    scale = (level * rng.uniform(0.8, 1.2, count)).astype(np.float16)
    blocks[:, 208:] = scale.astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def constant_blocks(kind: str, values: np.ndarray) -> np.ndarray:
    """Blocks each of whose weights has the block's value."""
    blocks = np.zeros((len(values), gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]), np.uint8)

    def put(at: int, scale: np.ndarray) -> None:
        blocks[:, at:at + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)

    match kind:
        case "Q4_0":
            put(0, values / -8)
        case "Q5_0":
            put(0, values / -16)
        case "Q8_0":
            put(0, values / 127)
            blocks[:, 2:] = 127
        case "Q4_K":
            # Scales of 0 and minima of 1.
            put(2, -values)
            blocks[:, 8:12], blocks[:, 12:16] = 1, 0x10
        case "Q6_K":
            blocks[:, 192:208] = 1
            put(208, values / -32)
        case _:
            raise ValueError(f"no constant blocks of {kind}")
    return blocks


@dataclass
class Tensor:
    name: str
    shape: tuple  # outermost first
    kind: str
    # One number, or one for each row of a matrix.
    std: float | np.ndarray = 0.0
    values: np.ndarray | None = None
    # Columns from one up to another whose weights are no random ones but all the same, in a row or in all of them.
    pinned: tuple | list = ()
    # Whether the weights of each part of a block have a mean of 0.
    centred: bool = False

    def block(self) -> tuple[int, int]:
        return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[self.kind]]

    def nbytes(self) -> int:
        length, size = self.block()
        return math.prod(self.shape) // length * size

    def write(self, out, rng) -> None:
        if self.values is not None:
            out.write(self.values.astype("<f4").tobytes())
            return
        length, size = self.block()
        left, most, of_row = math.prod(self.shape) // length, PIECE_BYTES // size, self.shape[-1] // length
        first = 0
        q4_k = centred_q4_k_blocks if self.centred else q4_k_blocks
        make = {"Q4_0": q4_0_blocks, "Q5_0": q5_0_blocks, "Q4_K": q4_k, "Q6_K": q6_k_blocks, "Q8_0": q8_0_blocks, "MXFP4": mxfp4_blocks}[self.kind]
        while left:
            count = min(left, most)
            row, column = np.divmod(np.arange(first, first + count), of_row)
            blocks = make(rng, count, self.std if np.isscalar(self.std) else self.std[row % len(self.std)])
            for start, end, values in self.pinned:
                here = (start <= column * length) & (column * length < end)
                blocks[here] = constant_blocks(self.kind, np.broadcast_to(values, self.shape[-2])[row[here] % self.shape[-2]])
            out.write(blocks.data)
            first, left = first + count, left - count


def kind_of(shape: Shape, part: str, layer: int, columns: int = 256) -> str:
    """The type of a layer's matrix."""
    kind = usual_kind_of(shape, part, layer)
    # llama.cpp's types where blocks of 256 do not divide a row.
    return kind if columns % 256 == 0 else {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}.get(kind, kind)


def usual_kind_of(shape: Shape, part: str, layer: int) -> str:
    if shape.mix == "mxfp4":
        return "MXFP4" if part in networks.EXPERTS else "Q8_0"
    if shape.mix == "q4_0":
        return "Q4_0"
    # llama.cpp's rule for the layers with more bits.
    eighth = shape.layers // 8
    more = layer < eighth or layer >= 7 * shape.layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if more and part in ("attn_v", "ffn_down", "ffn_down_exps") else "Q4_K"


def tensors(shape: Shape, rng) -> list[Tensor]:
    """An output matrix comes first, the rest in the order of the forward pass."""
    residual = 1.0 / math.sqrt(2 * shape.layers)  # the residual stream stays of order one
    out = []
    more = {key: getattr(shape, key) for key in ("qk_norm", "biases", "experts", "expert_ff", "shared_ff", "leading", "delta", "latent")}
    for name, dims in networks.shapes_of(shape, **more).items():
        part, what = name.split(".")[-2:]
        if what == "ssm_a":
            out.append(Tensor(name, dims, "F32", values=-rng.uniform(0.1, 2.0, dims)))
        elif what == "bias" or part in ("ffn_gate_inp", "attn_sinks", "ssm_conv1d"):
            out.append(Tensor(name, dims, "F32", values=rng.standard_normal(dims) / math.sqrt(dims[-1])))
        elif len(dims) == 1:
            out.append(Tensor(name, dims, "F32", values=rng.uniform(0.9, 1.1, dims)))
        elif part in ("token_embd", "output"):
            kind = "Q6_K" if shape.tied or part == "output" else kind_of(shape, part, shape.layers // 2)
            table = Tensor(name, dims, "Q8_0" if shape.mix == "mxfp4" else kind, 2.0 / math.sqrt(shape.embd))
            out.insert(0 if part == "output" else len(out), table)
        else:
            kind = kind_of(shape, part, int(name.split(".")[1]), dims[-1])
            gain = residual if part in ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp") else 1.0
            out.append(Tensor(name, dims, kind, gain / math.sqrt(dims[-1])))
        if part == "token_embd" and shape.rope_factors:
            factors = networks.rope_factors(shape.base, shape.head_dim, 32.0, 8192)
            out.append(Tensor("rope_freqs.weight", factors.shape, "F32", values=factors))
    return out


# --- the file ---------------------------------------------------------------------------------

CHAT_BPE = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CHAT_SPM = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} "
    "[/INST]{% else %} {{ message['content'] }} {{ eos_token }}{% endif %}{% endfor %}"
)


def add_metadata(writer: gguf.GGUFWriter, shape: Shape, rng) -> None:
    vocabularies.add_sizes(writer, shape)
    writer.add_description("random weights: for measuring, not for reading")
    if shape.latent:
        tiny_models.add_latent_attention(writer, *shape.latent)
    else:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
        writer.add_rope_dimension_count(shape.rope_dims or shape.head_dim)
    if shape.delta:
        tiny_models.add_delta_net(writer, *shape.delta)
    if shape.sections:
        writer.add_rope_dimension_sections(shape.sections)
    if shape.log_multiplier is not None:
        writer.add_float32(f"{shape.arch}.rope.scaling.yarn_log_multiplier", shape.log_multiplier)
    if shape.experts:
        tiny_models.add_experts(writer, shape)
    if shape.window:
        writer.add_sliding_window(shape.window)
    if shape.scaling:
        tiny_models.add_scaling(writer, shape)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type({"q4_0": 2, "q4_k_m": 15, "mxfp4": 38}[shape.mix])
    writer.add_quantization_version(2)
    if shape.bpe:
        tokens, types, merges = vocabularies.bpe_vocabulary(shape.vocab, rng)
        first = types.index(gguf.TokenType.CONTROL)
        vocabularies.add_tokenizer(writer, "gpt2", "llama-bpe", tokens, types, merges=merges, bos=first, eos=first + 9)
        writer.add_chat_template(CHAT_BPE)
    else:
        tokens, scores, types = vocabularies.spm_vocabulary(shape.vocab, rng)
        vocabularies.add_tokenizer(writer, "llama", "default", tokens, types, scores=scores, bos=1, eos=2, unk=0)
        writer.add_add_eos_token(False)
        writer.add_chat_template(CHAT_SPM)
    assert len(tokens) == len(set(tokens)) == len(types) == shape.vocab


def build_routing(profile: str, shape: Shape, plan: list[Tensor], rng) -> None:
    """Has routers choose as those of a model that was looked at."""
    if shape.arch != "qwen3moe":
        raise SystemExit(f"--routing: of these shapes, a3b and tiny-moe can have it, and not that of {shape.name}")
    anchor = max(tensor.block()[0] for tensor in plan if tensor.name.split(".")[-2] in ("token_embd", *networks.QKV))
    builder = routing.Builder(shape, routing.PROFILES[profile], anchor)
    for tensor in plan:
        tensor.centred = True
        builder.build(tensor, rng)


def add_arguments(parser) -> None:
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, help="cut, or stretched, to so many")
    parser.add_argument("--routing", choices=list(routing.PROFILES), help="whose routers it has (default: all experts are chosen equally often)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force", action="store_true", help="write even if the file is there")


def run(args) -> int:
    if args.out.exists() and not args.force:
        print(f"{args.out} is there", file=sys.stderr)
        return 0
    shape, start = SHAPES[args.shape], time.monotonic()
    shape = replace(shape, layers=args.layers or shape.layers)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    part = args.out.with_name(args.out.name + ".part")
    writer = gguf.GGUFWriter(part, shape.arch)
    add_metadata(writer, shape, np.random.default_rng([args.seed, 0]))
    plan = tensors(shape, np.random.default_rng([args.seed, 1]))
    if args.routing:
        build_routing(args.routing, shape, plan, np.random.default_rng([args.seed, 3]))
    for tensor in plan:
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes(), raw_dtype=gguf.GGMLQuantizationType[tensor.kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    # The tensors' bytes in the order of their descriptions, each on the file's alignment.
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    for i, tensor in enumerate(plan):
        tensor.write(out, np.random.default_rng([args.seed, 2, i]))
        writer.write_padding(out, tensor.nbytes())
    out.flush()
    writer.close()
    part.rename(args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e9:.2f} GB in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0
