"""A source shaped as LLaMA 65B in its 8 parts, with fewer layers: rows and tensors have their full sizes.

Weights are random f16 numbers below 2, pieces of one buffer from ever other places in it: no two pages are alike, there
are no holes, nothing is infinite. Written as fast as the disk takes it, and not left in the page cache.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile

from evidence.lib.lazy import lazily

from . import legacy, meta, spm, torchzip
from . import model as mod

np = lazily("numpy")

PARTS, BUFFER, CHUNK = 8, 64 << 20, 16 << 20


def vocab(count: int) -> mod.Vocab:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"\u2581w{i}" for i in range(count - len(tokens))]
    types = [2, 3, 3] + [6] * 256 + [1] * (count - 259)
    return mod.Vocab("spm", tokens, types, [-float(i) for i in range(count)], special={"unk": 0, "bos": 1, "eos": 2},
                     add_bos=True, add_space_prefix=True)


def shape(gigabytes: float = 0, layers: int = 0, n_embd: int = 8192, n_ff: int = 22016, n_vocab: int = 32000) -> mod.Model:
    """The model without weights; as many layers as come closest to the size."""
    layer, rest = 2 * (4 * n_embd**2 + 3 * n_embd * n_ff), 2 * 2 * n_vocab * n_embd
    layers = layers or max(1, round((gigabytes * 1e9 - rest) / layer))
    return mod.Model(name="big", arch="llama", n_vocab=n_vocab, n_embd=n_embd, n_ff=n_ff, n_head=n_embd // 128, n_kv=n_embd // 128,
                     head_dim=128, n_layer=layers, eps=1e-5, rope_base=10000.0, context=2048, vocab=vocab(n_vocab), tensors={},
                     n_mult=256)


def size_of(m) -> int:
    """Bytes of the weights, all parts together, but for the norms."""
    return sum(2 * shape[0] * shape[1] for shape in mod.llama_shapes(m).values() if len(shape) == 2)


class Numbers:
    """Bytes of as many f16 numbers as are asked for, other ones each time."""

    def __init__(self, seed: int = 65):
        rng = np.random.default_rng(seed)
        self.buffer = (np.frombuffer(rng.bytes(BUFFER), np.uint16) & 0xBFFF).view(np.uint8)
        self.rng = rng

    def chunks(self, size: int):
        while size > 0:
            n = min(size, CHUNK)
            at = 2 * int(self.rng.integers((BUFFER - n) // 2))
            yield self.buffer[at:at + n].data
            size -= n


def shapes(m) -> list[tuple]:
    """Name in GGUF, name in the parts, split, shape of the whole."""
    whole = mod.llama_shapes(m)
    return [(name, theirs, meta.split_of(name, "columns"), whole[name]) for name, theirs in meta.names(m.n_layer).items()]


def of_part(shape, split) -> tuple:
    if split == "whole":
        return shape
    return (shape[0] // PARTS, shape[1]) if split == "rows" else (shape[0], shape[1] // PARTS)


def forget(path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def norm(m, name: str, dtype) -> np.ndarray:
    return (1 + (np.arange(m.n_embd) % 64 + len(name)) / 1024).astype(dtype)


def write(folder, gigabytes: float = 0, form: str = "meta", m=None):
    """Returns what to convert, and the bytes of all its parts."""
    m = m or shape(gigabytes)
    folder.mkdir(parents=True, exist_ok=True)
    numbers, size = Numbers(), 0
    if form == "meta":
        (folder / "params.json").write_text(json.dumps(meta.params(m)))
        (folder / "tokenizer.model").write_bytes(spm.model(m.vocab))
    for part in range(PARTS):
        if form == "meta":
            path, tensors = folder / f"consolidated.{part:02d}.pth", {}
            for name, theirs, split, whole in shapes(m):
                mine = of_part(whole, split)
                tensors[theirs] = (norm(m, name, np.float16) if len(mine) == 1 else
                                   (np.float16, mine, numbers.chunks(2 * mine[0] * mine[1])))
            torchzip.write(path, tensors)
        else:
            path = folder / ("big.bin" + (f".{part}" if part else ""))
            legacy_part(path, m, numbers)
        forget(path)
        size += path.stat().st_size
    return (folder if form == "meta" else folder / "big.bin"), size


def legacy_part(path, m, numbers) -> None:
    with open(path, "wb", buffering=1 << 20) as file:
        file.write(legacy.header(m, 1, "ggjt", 1, legacy.vocabulary(m.vocab), m.vocab.scores))
        for name, theirs, split, whole in shapes(m):
            mine = of_part(whole, split)
            legacy.entry(file, "ggjt", theirs, int(len(mine) == 2), mine)
            if len(mine) == 1:
                file.write(norm(m, name, np.float32).tobytes())
            else:
                for chunk in numbers.chunks(2 * mine[0] * mine[1]):
                    file.write(chunk)


def pieces(m, folder, form: str) -> dict:
    """Name in GGUF → (split, its pieces in the parts as arrays on the files)."""
    out = {name: (split, []) for name, _, split, _ in shapes(m)}
    for part in range(PARTS):
        path = folder / (f"consolidated.{part:02d}.pth" if form == "meta" else "big.bin" + (f".{part}" if part else ""))
        at = len(legacy.header(m, 1, "ggjt", 1, legacy.vocabulary(m.vocab), m.vocab.scores))
        records = zipfile.ZipFile(path) if form == "meta" else None
        with open(path, "rb") as file:
            for i, (name, theirs, split, whole) in enumerate(shapes(m)):
                mine = of_part(whole, split)
                dtype = np.dtype(np.float32 if form == "legacy" and len(mine) == 1 else np.float16)
                if records:
                    header = records.getinfo(f"{path.stem}/data/{i}").header_offset
                    file.seek(header + 26)
                    at = header + 30 + sum(struct.unpack("<HH", file.read(4)))
                else:
                    at += 12 + 4 * len(mine) + len(theirs)
                    at += -at % 32
                out[name][1].append(np.memmap(path, dtype, "r", at, mine))
                at += int(np.prod(mine)) * dtype.itemsize
    return out
