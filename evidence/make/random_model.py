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
    rope_base: float
    tied: bool
    rope_factors: bool


SHAPES = {
    "3b": Shape("random 3B, Llama-3.2 shape", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000.0, True, True),
    "7b": Shape("random 7B, Llama-2 shape", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 10000.0, False, False),
    # Small enough for a test of this script and of whatever reads its files.
    "tiny": Shape("random tiny, Llama-3.2 shape", 2, 256, 512, 4, 2, 64, 2048, 2048, 500000.0, True, True),
    "tiny-spm": Shape("random tiny, Llama-2 shape", 2, 256, 512, 4, 4, 64, 2048, 2048, 10000.0, False, False),
}

# --- vocabularies -----------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins that byte-level BPE uses for bytes, indexed by byte."""
    shown = set(range(ord("!"), ord("~") + 1)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    out, extra = [], 0
    for byte in range(256):
        if byte in shown:
            out.append(chr(byte))
        else:
            out.append(chr(256 + extra))
            extra += 1
    return out


def made_up_words(rng: np.random.Generator, space: str):
    """An endless stream of words: syllables of letters with English-like frequencies, one in eight
    capitalised, most with a space before them, and some numbers and punctuation."""
    onset = ["t", "s", "w", "b", "th", "c", "m", "p", "h", "d", "f", "l", "r", "st", "g", "n", "pr", "tr", "sh", "ch",
             "k", "v", "cl", "gr", "pl", "br", "fr", "sp", "j", "y", "qu", "z", ""]
    vowel = ["e", "a", "o", "i", "u", "ea", "ou", "io", "ee", "ai", "oo", "y", "ie", "au"]
    coda = ["", "", "", "n", "r", "s", "t", "l", "d", "ng", "m", "nd", "st", "ck", "p", "ll", "rs", "nt", "x", "w"]

    def pick(items, count):
        # Zipf-like: earlier items are likelier.
        weight = 1.0 / np.arange(2, len(items) + 2)
        return rng.choice(len(items), count, p=weight / weight.sum())

    while True:
        count = 4096
        syllables = rng.integers(1, 4, count)
        total = int(syllables.sum())
        a, b, c = pick(onset, total), pick(vowel, total), pick(coda, total)
        case, before = rng.random(count), rng.random(count)
        at = 0
        for i in range(count):
            word = "".join(onset[a[j]] + vowel[b[j]] + coda[c[j]] for j in range(at, at + syllables[i]))
            at += syllables[i]
            if case[i] < 0.02:
                word = str(rng.integers(0, 1000))
            elif case[i] < 0.03:
                word = word.upper()
            elif case[i] < 0.15:
                word = word.capitalize()
            yield (space if before[i] < 0.8 else "") + word


def grow(count: int, base: list[str], rng, space: str, longest: int):
    """`count` new pieces in the order a BPE trainer might have made them: each is the
    concatenation of two pieces that exist before it. Returns (piece, left, right) triples."""
    known = set(base)
    out = []
    # Common two-byte characters first: Cyrillic and Greek as their UTF-8 bytes, where the alphabet is bytes.
    if len(base) == 256:
        for lead in (0xD0, 0xD1, 0xCE, 0xCF, 0xC3, 0xD7, 0xD8, 0xD9):
            for tail in range(0x80, 0xC0):
                left, right = base[lead], base[tail]
                if len(out) < count // 4:
                    known.add(left + right)
                    out.append((left + right, left, right))
    for drawn in made_up_words(rng, space):
        # A word's ending, the word alone, the word with its space: real vocabularies have all of them, and so
        # several ways to cut the longer ones.
        bare = drawn.removeprefix(space)
        for word in [bare[2:], bare, drawn] if len(bare) > 3 else [bare, drawn]:
            # Grow the word from its left end, taking the longest known piece each time.
            left, at = word[0], 1
            while at < len(word) and len(out) < count:
                if len(left) >= longest:
                    left, at = word[at], at + 1
                    continue
                size = 1
                for size in range(min(4, len(word) - at), 0, -1):
                    if size == 1 or word[at : at + size] in known:
                        break
                right = word[at : at + size]
                if left + right not in known:
                    known.add(left + right)
                    out.append((left + right, left, right))
                    # The tail alone too: pieces from the middle of words are common.
                    tail = right if len(right) > 1 else word[max(1, at - 1) : at + 1]
                    if len(tail) == 2 and tail not in known and len(out) < count:
                        known.add(tail)
                        out.append((tail, tail[0], tail[1]))
                left, at = left + right, at + size
        if len(out) >= count:
            return out


def bpe_vocabulary(size: int, rng):
    """Tokens, types and merges of a byte-level BPE vocabulary with 256 specials at its end (fewer when tiny).
    Each piece has a merge for every way to cut it into two earlier pieces, as in a
    vocabulary converted from tiktoken."""
    specials = 256 if size > 10000 else 16
    base = byte_alphabet()
    pieces = grow(size - specials - 256, base, rng, base[ord(" ")], 14)
    tokens = base + [piece for piece, _, _ in pieces]
    rank = {token: i for i, token in enumerate(tokens)}
    merges = []
    for i, (piece, left, right) in enumerate(pieces):
        merges.append(f"{left} {right}")
        for cut in range(1, len(piece)):
            a, b = piece[:cut], piece[cut:]
            if a != left and max(rank.get(a, size), rank.get(b, size)) < 256 + i:
                merges.append(f"{a} {b}")
    named = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 6: "<|start_header_id|>", 7: "<|end_header_id|>",
             9: "<|eot_id|>"}
    tokens += [named.get(i, f"<|reserved_special_token_{i}|>") for i in range(specials)]
    types = [gguf.TokenType.NORMAL] * (size - specials) + [gguf.TokenType.CONTROL] * specials
    return tokens, types, merges


def spm_vocabulary(size: int, rng):
    """Pieces, scores and types of a SentencePiece BPE vocabulary laid out as Llama-2's: <unk>, <s>, </s>, 256 byte
    pieces, merged pieces with falling scores, single characters last."""
    characters = ["\u2581"] + [chr(c) for c in range(0x21, 0x7F)] + [chr(c) for c in range(0xA1, 0x180) if c != 0xAD]
    characters += [chr(c) for c in range(0x391, 0x3CA)] + [chr(c) for c in range(0x410, 0x450)]
    pieces = grow(size - 259 - len(characters), characters, rng, "\u2581", 14)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    scores = [0.0] * 259
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    for token in [piece for piece, _, _ in pieces] + characters:
        scores.append(-float(len(tokens) - 259))
        tokens.append(token)
        types.append(gguf.TokenType.NORMAL)
    return tokens, scores, types


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


def rope_factors(shape: Shape) -> np.ndarray:
    """Llama 3's frequency factors: long wavelengths are stretched by 32, short ones kept, linear between."""
    factor, low, high, original = 32.0, 1.0, 4.0, 8192.0
    frequency = shape.rope_base ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    turns = original * frequency / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return 1.0 / ((1 - smooth) / factor + smooth)


def tensors(shape: Shape, rng) -> list[Tensor]:
    n, q, kv = shape.embd, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def near_one(name):
        return Tensor(name, (n,), "F32", values=rng.uniform(0.9, 1.1, n))

    def linear(name, rows, cols, gain=1.0):
        return Tensor(name, (rows, cols), "Q4_0", gain / math.sqrt(cols))

    residual = 1.0 / math.sqrt(2 * shape.layers)  # the residual stream stays of order one
    out = []
    if not shape.tied:
        out.append(Tensor("output.weight", (shape.vocab, n), "Q6_K", 2.0 / math.sqrt(n)))
    out.append(Tensor("token_embd.weight", (shape.vocab, n), "Q6_K" if shape.tied else "Q4_0", 2.0 / math.sqrt(n)))
    if shape.rope_factors:
        out.append(Tensor("rope_freqs.weight", (shape.head_dim // 2,), "F32", values=rope_factors(shape)))
    for i in range(shape.layers):
        p = f"blk.{i}."
        out += [
            near_one(p + "attn_norm.weight"),
            linear(p + "attn_q.weight", q, n),
            linear(p + "attn_k.weight", kv, n),
            linear(p + "attn_v.weight", kv, n),
            linear(p + "attn_output.weight", n, q, residual),
            near_one(p + "ffn_norm.weight"),
            linear(p + "ffn_gate.weight", shape.ff, n),
            linear(p + "ffn_up.weight", shape.ff, n),
            linear(p + "ffn_down.weight", n, shape.ff, residual),
        ]
    out.append(near_one("output_norm.weight"))
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
    writer.add_name(shape.name)
    writer.add_description("random weights: for measuring, not for reading")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embd)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(2)  # mostly Q4_0
    writer.add_quantization_version(2)
    if shape.tied:
        tokens, types, merges = bpe_vocabulary(shape.vocab, rng)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        first = types.index(gguf.TokenType.CONTROL)
        writer.add_bos_token_id(first)
        writer.add_eos_token_id(first + 9)
        writer.add_add_bos_token(True)
        writer.add_chat_template(CHAT_BPE)
    else:
        tokens, scores, types = spm_vocabulary(shape.vocab, rng)
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
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
