"""SentencePiece's `tokenizer.model`: a protobuf message, written and read field by field."""

import struct


def varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def number(tag: int, n: int) -> bytes:
    return varint(tag << 3) + varint(n)


def blob(tag: int, data: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(data)) + data


def real(tag: int, x: float) -> bytes:
    return varint(tag << 3 | 5) + struct.pack("<f", x)


def model(vocab, model_type: int = 2) -> bytes:
    """ModelProto {1: pieces, 2: TrainerSpec, 3: NormalizerSpec}. `model_type` 1: unigram, 2: BPE. Types of pieces have
    the numbers that GGUF took over; NORMAL, the default, is left out as the library does."""
    out = bytearray()
    for i, (text, score, kind) in enumerate(zip(vocab.tokens, vocab.scores, vocab.types)):
        # The library asks for one unknown piece, whatever a converter makes of it.
        kind = 2 if i == vocab.special.get("unk") else kind
        piece = blob(1, text.encode()) + real(2, score) + (number(3, kind) if kind != 1 else b"")
        out += blob(1, piece)
    ids = {key: vocab.special.get(key, -1) for key in ("unk", "bos", "eos", "pad")}
    bytes_too = 6 in vocab.types
    trainer = number(3, model_type) + number(4, len(vocab.tokens)) + number(35, bytes_too)
    trainer += number(40, ids["unk"]) + number(41, ids["bos"]) + number(42, ids["eos"]) + number(43, ids["pad"])
    trainer += b"".join(blob(tag, vocab.tokens[ids[key]].encode())
                        for tag, key in ((45, "unk"), (46, "bos"), (47, "eos"), (48, "pad")) if ids[key] >= 0)
    out += blob(2, trainer)
    out += blob(3, blob(1, b"identity") + number(3, vocab.add_space_prefix) + number(4, 0) + number(5, 1))
    return bytes(out)


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message, in order: numbers, or bytes."""
    at, out = 0, []

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag, wire = divmod(number(), 8)
        if wire == 0:
            out.append((tag, number()))
            continue
        size = {1: 8, 5: 4}[wire] if wire != 2 else number()
        out.append((tag, data[at : at + size]))
        at += size
    return out


def read(data: bytes) -> tuple[list[tuple[str, float, int]], dict]:
    """Text, score and type of each piece, and what a file says of its normalisation."""
    pieces, spec = [], {}
    for tag, value in fields(data):
        if tag == 1:
            piece = dict(fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, 1)))
        elif tag == 3:
            spec = dict(fields(value))
    return pieces, {"charsmap": spec.get(2, b""), "prefix": bool(spec.get(3, 1)), "merge": bool(spec.get(4, 1))}
