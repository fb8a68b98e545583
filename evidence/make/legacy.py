"""Writes small models as llama.cpp wrote them before GGUF, and what has to come out of them.

Every magic, version and era of blocks, models in one, two and four parts, the files of GPT4All, and
grouped heads. Written from the description of the formats alone, to be read by a test of crates/formats;
needs nothing but Python. Weights are random quants with random scales, so that what a block decodes to is
known without quantising anything.

In the folder that is the argument:
    expected.json   the sets: files, header, vocabulary before and after, tensors
    NAME.bin[.1…]   the files of a set
    NAME.blocks     the bytes of every tensor as GGUF has it, one after the other
    NAME.values     what every tensor decoded to in its own time, as f64
"""

import json
import random
import struct
from pathlib import Path

F32, F16, Q4_0, Q4_1, Q4_2, Q4_3, Q5_0, Q5_1, Q8_0 = range(9)
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = range(10, 15)
K_BYTES = {Q2_K: 84, Q3_K: 110, Q4_K: 144, Q5_K: 176, Q6_K: 210}
MAGICS = {"ggml": 0x67676D6C, "ggmf": 0x67676D66, "ggjt": 0x67676A74}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


# --- a block: its numbers, its bytes then, its bytes now, its values -----------------------------


class Block:
    """A block of weights, still without a layout."""

    def __init__(self, rng, kind, wide):
        """`wide`: scales are f32 in the file, so have more bits than f16."""
        self.kind = kind
        self.size = {Q4_2: 16, Q4_3: 16}.get(kind, 32)
        number = f32 if wide and kind in (Q4_0, Q4_1, Q8_0) else f16
        self.d = number(rng.choice([-1, 1]) * 2 ** rng.uniform(-9, -3))
        if rng.random() < 0.05:
            self.d = number(rng.choice([0.0, 1.0, 2.0**-20, 3.3e-6, 1e-9, 60000.0 / 256]))
        self.m = number(rng.uniform(-0.5, 0.5)) if kind in (Q4_1, Q4_3, Q5_1) else None
        top = {Q5_0: 31, Q5_1: 31}.get(kind, 15)
        low, top = (-127, 127) if kind == Q8_0 else (0, top)
        self.q = [rng.randint(low, top) for _ in range(self.size)]

    def values(self):
        less = {Q4_0: 8, Q4_2: 8, Q5_0: 16}.get(self.kind, 0)
        values = [(q - less) * self.d for q in self.q]
        return [f32(v) if self.m is None else f32(v + self.m) for v in values]

    def nibbles(self, halves):
        q = [x & 15 for x in self.q]
        n = self.size // 2
        if halves:
            return bytes(q[j] | q[j + n] << 4 for j in range(n))
        return bytes(q[2 * j] | q[2 * j + 1] << 4 for j in range(n))

    def fifth(self):
        if self.kind not in (Q5_0, Q5_1):
            return b""
        return struct.pack("<I", sum((x >> 4) << i for i, x in enumerate(self.q)))

    def numbers(self, letter):
        return b"".join(struct.pack("<" + letter, x) for x in (self.d, self.m) if x is not None)

    def bytes_of(self, era):
        if self.kind == Q8_0:
            head = struct.pack("<e" if era == "current" else "<f", self.d)
            return head + struct.pack("<32b", *self.q)
        always_f16 = self.kind in (Q4_2, Q4_3, Q5_0, Q5_1)
        letter = "e" if era == "current" or always_f16 else "f"
        return self.numbers(letter) + self.fifth() + self.nibbles(era in ("halves", "current"))

    def current(self):
        """Its bytes in GGUF; Q4_2 and Q4_3 become values."""
        if self.kind in (Q4_2, Q4_3):
            return struct.pack("<16e", *self.values())
        return self.bytes_of("current")


class Number:
    """A block of one: F32 or F16."""

    size = 1

    def __init__(self, rng, kind):
        self.kind = kind
        self.x = (f32 if kind == F32 else f16)(rng.gauss(0, 0.1))

    def values(self):
        return [self.x]

    def bytes_of(self, _era):
        return struct.pack("<f" if self.kind == F32 else "<e", self.x)

    def current(self):
        return self.bytes_of(None)


class Opaque:
    """A K-quant: bytes that are copied. Nobody asks for its values."""

    size = 256

    def __init__(self, rng, kind):
        self.raw = rng.randbytes(K_BYTES[kind])

    def values(self):
        return []

    def bytes_of(self, _era):
        return self.raw

    def current(self):
        return self.raw


def block(rng, kind, wide):
    if kind in (F32, F16):
        return Number(rng, kind)
    return Opaque(rng, kind) if kind in K_BYTES else Block(rng, kind, wide)


def row_bytes(blocks, era):
    if era == "rows" and blocks[0].kind in (Q4_0, Q4_1):
        minima = b"".join(struct.pack("<f", b.m) for b in blocks if b.m is not None)
        scales = b"".join(struct.pack("<f", b.d) for b in blocks)
        return minima + scales + b"".join(b.nibbles(False) for b in blocks)
    return b"".join(b.bytes_of(era) for b in blocks)


# --- a model -------------------------------------------------------------------------------------


def shapes(p, n_ff, n_kv):
    """Name, name in GGUF, split, (rows, columns) in the order in which they are used."""
    e, v, kv = p["n_embd"], p["n_vocab"], n_kv * (p["n_embd"] // p["n_head"])
    yield "tok_embeddings.weight", "token_embd.weight", "columns", (v, e)
    for n in range(p["n_layer"]):
        for name, gguf, split, shape in [
            ("attention_norm", "attn_norm", "replicated", (e,)),
            ("attention.wq", "attn_q", "rows", (e, e)),
            ("attention.wk", "attn_k", "rows", (kv, e)),
            ("attention.wv", "attn_v", "rows", (kv, e)),
            ("attention.wo", "attn_output", "columns", (e, e)),
            ("ffn_norm", "ffn_norm", "replicated", (e,)),
            ("feed_forward.w1", "ffn_gate", "rows", (n_ff, e)),
            ("feed_forward.w3", "ffn_up", "rows", (n_ff, e)),
            ("feed_forward.w2", "ffn_down", "columns", (e, n_ff)),
        ]:
            yield f"layers.{n}.{name}.weight", f"blk.{n}.{gguf}.weight", split, shape
    yield "norm.weight", "output_norm.weight", "replicated", (e,)
    yield "output.weight", "output.weight", "rows", (v, e)


def vocabulary(count):
    """Tokens as the files have them, and (text, type) as GGUF has them."""
    before = [" \u2047 ".encode(), b"", b""]
    after = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    for b in range(256):
        before.append(bytes([b]))
        after.append((f"<0x{b:02X}>", 6))
    for text in ["  ", " t", "er", "a b", "é", "", "z", "\u2581"]:
        before.append(text.encode())
        after.append((text.replace(" ", "\u2581"), 1 if text else 3))
    while len(before) < count:
        before.append(f" w{len(before)}".encode())
        after.append((f"\u2581w{len(after)}", 1))
    return before[:count], after[:count]


def write(folder, name, magic, version, era, kinds, parts=1, n_embd=32, n_head=2, n_mult=16, n_layer=1,
          n_vocab=40, n_kv=None, n_ff=None, gpt4all=False, rope=False):
    """One set. `kinds`: types that matrices take in turn."""
    rng = random.Random(name)
    formula = (2 * (4 * n_embd) // 3 + n_mult - 1) // n_mult * n_mult
    p = dict(n_vocab=n_vocab, n_embd=n_embd, n_mult=n_mult, n_head=n_head, n_layer=n_layer,
             n_rot=n_embd // n_head, ftype=kinds[0] if kinds[0] < 7 else 7)
    n_kv, n_ff = n_kv or n_head, n_ff or formula
    before, after = vocabulary(n_vocab)
    if gpt4all:
        before, after = before[:-1], after[:-1] + [("<pad>", 3)]
    scored = magic != "ggml"
    scores = [f32(-i / 7) if scored else 0.0 for i in range(len(before))]

    head = struct.pack("<I", MAGICS[magic])
    head += struct.pack("<I", version) if version else b""
    head += struct.pack("<7i", *p.values())
    for text, score in zip(before, scores):
        head += struct.pack("<I", len(text)) + text + (struct.pack("<f", score) if scored else b"")
    files = [bytearray(head) for _ in range(parts)]

    def put(file, tensor, kind, ne, data):
        file += struct.pack("<3i", len(ne), len(tensor), kind)
        file += struct.pack(f"<{len(ne)}i", *ne) + tensor.encode()
        if magic == "ggjt":
            file += bytes(-len(file) % 32)
        file += data

    tensors, blocks_out, values_out = [], bytearray(), bytearray()
    wide = era != "current"
    turn = 0
    if rope:
        for file in files:
            put(file, "rope.freqs", F32, (4,), struct.pack("<4f", 1, 2, 3, 4))
    for tensor, gguf, split, shape in shapes(p, n_ff, n_kv):
        kind = F32
        if len(shape) == 2:
            kind, turn = kinds[turn % len(kinds)], turn + 1
        n_rows, n_cols = (1, *shape) if len(shape) == 1 else shape
        width = block(rng, kind, wide).size
        rows = [[block(rng, kind, wide) for _ in range(n_cols // width)] for _ in range(n_rows)]
        for part, file in enumerate(files):
            mine = rows
            if split == "rows":
                n = n_rows // parts
                mine = rows[part * n : (part + 1) * n]
            elif split == "columns":
                n = n_cols // parts // width
                mine = [row[part * n : (part + 1) * n] for row in rows]
            ne = (len(mine[0]) * width, len(mine))[: len(shape)]
            put(file, tensor, kind, ne, b"".join(row_bytes(row, era) for row in mine))
        now = b"".join(b.current() for row in rows for b in row)
        values = [x for row in rows for b in row for x in b.values()]
        tensors.append(dict(
            name=tensor, gguf=gguf, split=split, type=kind,
            current=F16 if kind in (Q4_2, Q4_3) else kind, ne=list(reversed(shape)),
            blocks=[len(blocks_out), len(now)], values=[len(values_out) // 8, len(values)]))
        blocks_out += now
        values_out += struct.pack(f"<{len(values)}d", *values)

    names = [f"{name}.bin" + (f".{i}" if i else "") for i in range(parts)]
    for file_name, file in zip(names, files):
        (folder / file_name).write_bytes(file)
    (folder / f"{name}.blocks").write_bytes(blocks_out)
    (folder / f"{name}.values").write_bytes(values_out)
    return dict(
        name=name, files=names, magic=magic, version=version, era=era, hparams=p, n_ff=n_ff,
        formula_n_ff=formula, n_head_kv=n_kv, gpt4all=gpt4all, scored=scored, rope=rope,
        vocabulary=[t.hex() for t in before], gguf=[list(t) for t in after],
        scores=scores + [0.0] * gpt4all, tensors=tensors)


def add_arguments(parser) -> None:
    parser.add_argument("folder", type=Path)


def run(args) -> None:
    folder = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    old = [Q4_0, Q4_1, F16]
    five = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16]
    every = [Q4_2, Q4_3, *five]
    two = dict(parts=2, n_embd=64, n_mult=64)
    four = dict(parts=4, n_embd=128, n_head=4, n_mult=64)
    sets = [
        write(folder, "rows", "ggml", None, "rows", old, n_layer=2),
        write(folder, "rows-2", "ggml", None, "rows", [Q4_1, Q4_0], **two),
        write(folder, "ggml", "ggml", None, "pairs", old, n_vocab=268),
        write(folder, "ggml-f16-2", "ggml", None, "pairs", [F16], rope=True, **two),
        write(folder, "ggml-gpt4all", "ggml", None, "pairs", [Q4_0], gpt4all=True),
        write(folder, "ggmf", "ggmf", 1, "pairs", every, n_layer=2, n_vocab=269),
        write(folder, "ggmf-gpt4all", "ggmf", 1, "pairs", [Q4_1], gpt4all=True),
        write(folder, "ggmf-2", "ggmf", 1, "pairs", [Q4_0, F32, Q4_1], **two),
        write(folder, "ggmf-4", "ggmf", 1, "pairs", [Q4_0], **four),
        write(folder, "ggjt-1", "ggjt", 1, "pairs", every, n_layer=2),
        write(folder, "ggjt-1-2", "ggjt", 1, "pairs", every, **two),
        write(folder, "ggjt-2", "ggjt", 2, "halves", five, n_layer=2),
        write(folder, "ggjt-2-2", "ggjt", 2, "halves", five, **two),
        write(folder, "ggjt-3", "ggjt", 3, "current", five, n_layer=2),
        write(folder, "ggjt-3-grouped", "ggjt", 3, "current", [Q8_0, F16], n_embd=64, n_head=8, n_kv=2, n_ff=224),
        write(folder, "ggjt-3-k", "ggjt", 3, "current", list(K_BYTES), n_embd=256, n_mult=768, rope=True),
        write(folder, "ggjt-3-4", "ggjt", 3, "current", five, **four),
    ]
    (folder / "expected.json").write_text(json.dumps(sets))
