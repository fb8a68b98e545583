"""llama.cpp's files from before GGUF: ggml, ggmf, ggjt 1–3, in 1, 2, 4, 8 parts, with the blocks of their time.

Quantised here by numpy, in the layouts of the table of formats: `quantise` gives the numbers of blocks, and so does
`random_blocks`, of numbers that quantising hardly ever gives; `layout` has their bytes in one era, `current` what GGUF
has for them, `values` what they decode to. Blocks are (d, m, q): scales [rows, blocks], minima likewise or None, quants
[rows, blocks, weights of a block]. A K-quant is never decoded here: its d is None and its q are the bytes of blocks.
"""

from __future__ import annotations

import struct

from evidence.lib.lazy import lazily

from . import meta
from .model import cast

np = lazily("numpy")

MAGIC = {"ggml": 0x67676D6C, "ggmf": 0x67676D66, "ggjt": 0x67676A74}
TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q4_2": 4, "Q4_3": 5, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
        "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
K_BYTES = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
FTYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q4_2": 5, "Q4_3": 6, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10}
WIDE = {"Q4_0", "Q4_1", "Q8_0"}  # whose scales were f32 until the third version
OF_ERA = {"first": ["Q4_0", "Q4_1"], "pairs": ["Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0"],
          "halves": ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"], "current": ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]}


LESS = {"Q4_0": 8, "Q4_2": 8, "Q5_0": 16}  # what is taken from a quant


def width(kind: str) -> int:
    """Weights of a block."""
    return 256 if kind in K_BYTES else 16 if kind in ("Q4_2", "Q4_3") else 32


def number_of(kind: str, era: str):
    return np.float32 if kind in WIDE and era != "current" else np.float16


def random_blocks(rng: np.random.Generator, kind: str, era: str, shape):
    """Blocks for weights [rows, cols], some with scales that are zero, one, subnormal or large."""
    shape, number = (shape[0], shape[1] // width(kind)), number_of(kind, era)
    if kind in K_BYTES:
        return None, None, rng.integers(0, 256, (*shape, K_BYTES[kind]), np.uint8)
    d = rng.choice([-1, 1], shape) * 2.0 ** rng.uniform(-9, -3, shape)
    odd = rng.choice([0.0, 1.0, 2.0**-20, 3.3e-6, 1e-9, 60000.0 / 256], shape)
    m = rng.uniform(-0.5, 0.5, shape).astype(number) if kind in ("Q4_1", "Q4_3", "Q5_1") else None
    low, high = (-127, 127) if kind == "Q8_0" else (0, 31 if kind.startswith("Q5") else 15)
    q = rng.integers(low, high + 1, (*shape, width(kind))).astype(np.int16)
    return np.where(rng.random(shape) < 0.05, odd, d).astype(number), m, q


def values(blocks, kind: str) -> np.ndarray:
    """What blocks decoded to in their own time, as f64 of f32; nothing of K-quants."""
    d, m, q = blocks
    if d is None:
        return np.zeros(0)
    out = (q - LESS.get(kind, 0)) * d.astype(np.float64)[..., None]
    return (out if m is None else out + m.astype(np.float64)[..., None]).astype(np.float32).astype(np.float64).ravel()


def quantise(x: np.ndarray, kind: str, era: str):
    """The blocks of weights [rows, cols]."""
    x, number = x.reshape(x.shape[0], -1, width(kind)).astype(np.float32), number_of(kind, era)
    if kind == "Q8_0":
        d = (np.abs(x).max(-1) / np.float32(127)).astype(number)
        low, high, less, m = -127, 127, 0, None
    elif kind in ("Q4_1", "Q4_3", "Q5_1"):
        high = 31 if kind == "Q5_1" else 15
        m = x.min(-1).astype(number)
        d = ((x.max(-1) - x.min(-1)) / np.float32(high)).astype(number)
        low, less = 0, 0
    else:
        less = 16 if kind == "Q5_0" else 8
        low, high, m = 0, 2 * less - 1, None
        best = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]
        d = (best / np.float32(-less)).astype(number)
    wide = d.astype(np.float32)[..., None]
    from_zero = x - m.astype(np.float32)[..., None] if m is not None else x
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(wide == 0, 0, np.rint(from_zero / wide)) + less
    return d, m, np.clip(q, low, high).astype(np.int16)


def nibbles(q: np.ndarray, halves: bool) -> np.ndarray:
    q = (q & 15).astype(np.uint8)
    n = q.shape[-1] // 2
    return q[..., :n] | q[..., n:] << 4 if halves else q[..., 0::2] | q[..., 1::2] << 4


def raw(x: np.ndarray) -> np.ndarray:
    """Bytes of numbers, on the last axis."""
    return np.ascontiguousarray(x)[..., None].view(np.uint8)


def layout(blocks, kind: str, era: str) -> np.ndarray:
    """Bytes [rows, bytes of a row]."""
    d, m, q = blocks
    if d is None:
        return q.reshape(len(q), -1)
    if kind == "Q8_0":
        parts = [raw(d), q.astype(np.int8).view(np.uint8)]
    else:
        parts = [raw(x) for x in (d, m) if x is not None]
        if kind.startswith("Q5"):
            parts.append(np.packbits((q >> 4).astype(np.uint8), axis=-1, bitorder="little"))
        parts.append(nibbles(q, era in ("halves", "current")))
    if era == "first":  # all minima of a row, then all scales, then all nibbles
        columns = [raw(x).reshape(len(q), -1) for x in (m, d) if x is not None] + [parts[-1].reshape(len(q), -1)]
        return np.concatenate(columns, -1)
    return np.concatenate(parts, -1).reshape(len(q), -1)


def current(blocks, kind: str) -> tuple[str, np.ndarray]:
    """Type and bytes in GGUF: scales in f16, the last layout; Q4_2 and Q4_3, which are gone, as F16."""
    d, m, q = blocks
    if kind in ("Q4_2", "Q4_3"):
        return "F16", values(blocks, kind).astype(np.float16).reshape(len(q), -1)
    narrow = [None if x is None else x.astype(np.float16) for x in (d, m)]
    return kind, layout((*narrow, q), kind, "current")


def vocabulary(vocab) -> list[bytes]:
    """Tokens as the old converter wrote them: bytes raw, spaces as spaces, unknown as it is shown."""
    out = []
    for text, kind in zip(vocab.tokens, vocab.types):
        if kind == 2:
            out.append(" \u2047 ".encode())
        elif kind == 3:
            out.append(b"")
        elif kind == 6:
            out.append(bytes([int(text[3:5], 16)]))
        else:
            out.append(text.replace("\u2581", " ").encode())
    return out


def header(m, ftype: int, magic: str, version: int, tokens, scores) -> bytes:
    out = struct.pack("<I", MAGIC[magic]) + (b"" if magic == "ggml" else struct.pack("<I", version))
    out += struct.pack("<7i", m.n_vocab, m.n_embd, m.n_mult, m.n_head, m.n_layer, m.head_dim, ftype)
    words = [struct.pack("<I", len(text)) + text + (b"" if magic == "ggml" else struct.pack("<f", scores[i]))
             for i, text in enumerate(tokens)]
    return out + b"".join(words)


def entry(file, magic: str, name: str, number: int, shape) -> None:
    """What stands before the data of a tensor."""
    file.write(struct.pack("<3i", len(shape), len(name), number) + struct.pack(f"<{len(shape)}i", *reversed(shape)) + name.encode())
    if magic == "ggjt":
        file.write(bytes(-file.tell() % 32))


def write(path, m, kind: str, magic: str = "ggjt", version: int = 3, parts: int = 1, era: str | None = None, scores=None,
          rope: bool = False, tokens: list[bytes] | None = None, hands_off=None, matrix=None,
          blocks=quantise) -> dict:
    """The file `path` and its parts `path.1` …; returns what GGUF has to have: name → (type, bytes or array).

    `matrix(name)`: the type of one matrix, where they differ. `hands_off(part, name, array)` may spoil a norm.
    `blocks(x, kind, era)`: the blocks of a matrix."""
    era = era or ("pairs" if magic != "ggjt" or version == 1 else "halves" if version == 2 else "current")
    tokens = vocabulary(m.vocab) if tokens is None else tokens
    scores = m.vocab.scores if scores is None else scores
    head = header(m, FTYPE[kind], magic, version, tokens, scores)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [open(f"{path}.{part}" if part else path, "wb", buffering=1 << 20) for part in range(parts)]
    for file in files:
        file.write(head)

    def put(file, name, number, shape, data):
        entry(file, magic, name, number, shape)
        file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)

    if rope:
        for file in files:
            put(file, "rope.freqs", 0, (m.head_dim // 2,), np.ones(m.head_dim // 2, np.float32))
    out = {}
    for name, theirs in meta.names(m.n_layer).items():
        x, split = m.untied().tensors[name], meta.split_of(name, "columns")
        kind_here = "F32" if x.ndim == 1 else matrix(name) if matrix else kind
        if kind_here in ("F32", "F16"):
            whole = cast(x, kind_here)
            out[name] = (kind_here, whole)
            for part, file in enumerate(files):
                mine = meta.piece(whole, split, part, parts)
                if hands_off:
                    mine = hands_off(part, name, mine)
                put(file, theirs, TYPE[kind_here], mine.shape, mine)
            continue
        made = blocks(x, kind_here, era)
        out[name] = current(made, kind_here)
        for part, file in enumerate(files):
            mine = [None if b is None else meta.piece(b, split, part, parts) for b in made]
            rows, n, _ = mine[2].shape
            put(file, theirs, TYPE[kind_here], (rows, n * width(kind_here)), layout(mine, kind_here, era))
    for file in files:
        file.close()
    return out
