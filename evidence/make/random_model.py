"""Writes a GGUF model of a well-known shape with random weights, for measuring speed and loading.

    python -m evidence make random-model 3b models/random-3b-q4_0.gguf    Llama-3.2-3B's shape, 1.92 GB
    python -m evidence make random-model 7b models/random-7b-q4_0.gguf    Llama-2-7B's shape, 3.83 GB

The answers of such a model mean nothing; its sizes, its types and the work of every step are real:
the quantised blocks have random bytes under scales that keep activations of order one, and the
vocabulary is as large as the real one, valid for its tokenizer and built from made-up words, so that
ordinary text is cut into pieces by real merges.

Deterministic: one seed, one file. Streams: at most one 64 MiB piece is in memory beside the vocabulary.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from evidence.lib import networks, vocabularies
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


SHAPES = {
    "3b": Shape("random 3B, Llama-3.2 shape", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000.0, True, True),
    "7b": Shape("random 7B, Llama-2 shape", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 10000.0, False, False),
    # Small enough for a test of this script and of whatever reads its files.
    "tiny": Shape("random tiny, Llama-3.2 shape", 2, 256, 512, 4, 2, 64, 2048, 2048, 500000.0, True, True),
    "tiny-spm": Shape("random tiny, Llama-2 shape", 2, 256, 512, 4, 4, 64, 2048, 2048, 10000.0, False, False),
}

# --- weights ----------------------------------------------------------------------------------


def q4_0_blocks(rng, count: int, std: float) -> np.ndarray:
    """Uniform nibbles under scales of either sign: mean 0, standard deviation `std`."""
    blocks = np.frombuffer(rng.bytes(count * 18), np.uint8).reshape(count, 18).copy()
    level = std / math.sqrt(21.5)  # the mean square of -8..7
    scale = (level * rng.uniform(0.8, 1.2, count)).astype(np.float16).view(np.uint16)
    scale |= (blocks[:, 0].astype(np.uint16) & 1) << 15
    blocks[:, :2] = scale.astype("<u2").view(np.uint8).reshape(count, 2)
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


@dataclass
class Tensor:
    name: str
    shape: tuple  # outermost first
    kind: str
    std: float = 0.0
    values: np.ndarray | None = None

    def block(self) -> tuple[int, int]:
        return {"F32": (1, 4), "Q4_0": (32, 18), "Q6_K": (256, 210)}[self.kind]

    def nbytes(self) -> int:
        length, size = self.block()
        return math.prod(self.shape) // length * size

    def write(self, out, rng) -> None:
        if self.values is not None:
            out.write(self.values.astype("<f4").tobytes())
            return
        length, size = self.block()
        left, most = math.prod(self.shape) // length, PIECE_BYTES // size
        make = q4_0_blocks if self.kind == "Q4_0" else q6_k_blocks
        while left:
            count = min(left, most)
            out.write(make(rng, count, self.std).data)
            left -= count


def tensors(shape: Shape, rng) -> list[Tensor]:
    """An output matrix comes first, the rest in the order of the forward pass."""
    residual = 1.0 / math.sqrt(2 * shape.layers)  # the residual stream stays of order one
    out = []
    for name, dims in networks.shapes_of(shape).items():
        part = name.split(".")[-2]
        if len(dims) == 1:
            out.append(Tensor(name, dims, "F32", values=rng.uniform(0.9, 1.1, dims)))
        elif part in ("token_embd", "output"):
            table = Tensor(name, dims, "Q6_K" if shape.tied or part == "output" else "Q4_0", 2.0 / math.sqrt(shape.embd))
            out.insert(0 if part == "output" else len(out), table)
        else:
            out.append(Tensor(name, dims, "Q4_0", (residual if part in ("attn_output", "ffn_down") else 1.0) / math.sqrt(dims[1])))
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
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(2)  # mostly Q4_0
    writer.add_quantization_version(2)
    if shape.tied:
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


def add_arguments(parser) -> None:
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force", action="store_true", help="write even if the file is there")


def run(args) -> int:
    if args.out.exists() and not args.force:
        print(f"{args.out} is there", file=sys.stderr)
        return 0
    shape, start = SHAPES[args.shape], time.monotonic()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    part = args.out.with_name(args.out.name + ".part")
    writer = gguf.GGUFWriter(part, "llama")
    add_metadata(writer, shape, np.random.default_rng([args.seed, 0]))
    plan = tensors(shape, np.random.default_rng([args.seed, 1]))
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
