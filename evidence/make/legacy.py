"""Writes small models as llama.cpp wrote them before GGUF, and what has to come out of them.

Every magic, version and era of blocks, models in one, two and four parts, the files of GPT4All, and grouped heads, by
evidence/lib/sources/legacy.py, which is written from the description of the formats alone; to be read by a test of
crates/formats. Weights are random quants with random scales, so that what a block decodes to is known without
quantising anything.

In the folder that is the argument:
    expected.json   the sets: files, header, vocabulary before and after, tensors
    NAME.bin[.1…]   the files of a set
    NAME.blocks     the bytes of every tensor as GGUF has it, contiguous
    NAME.values     what every tensor decoded to in its own time, as f64
"""

from __future__ import annotations

import itertools
import json
import zlib
from pathlib import Path

from evidence.lib.lazy import lazily
from evidence.lib.sources import legacy, meta
from evidence.lib.sources import model as mod

np = lazily("numpy")

ERAS = {"rows": "first"}


def vocabulary(count: int):
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


def write(folder: Path, name: str, magic: str, version: int | None, era: str, kinds: list[str], parts=1, n_embd=32, n_head=2, n_mult=16,
          n_layer=1, n_vocab=40, n_kv=None, n_ff=None, gpt4all=False, rope=False) -> dict:
    """One set. `kinds`: types that matrices take in turn."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    formula = mod.n_ff_of(n_embd, n_mult)
    m = mod.Model(name=name, arch="llama", n_vocab=n_vocab, n_embd=n_embd, n_ff=n_ff or formula, n_head=n_head, n_kv=n_kv or n_head,
                  head_dim=n_embd // n_head, n_layer=n_layer, eps=1e-5, rope_base=10000.0, context=2048, vocab=None, tensors={},
                  n_mult=n_mult)
    for tensor, shape in mod.llama_shapes(m).items():
        m.tensors[tensor] = rng.normal(0, 0.1, shape).astype(np.float32)
    before, after = vocabulary(n_vocab)
    if gpt4all:
        before, after = before[:-1], after[:-1] + [("<pad>", 3)]
    scores = [float(np.float32(-i / 7)) if magic != "ggml" else 0.0 for i in range(len(before))]
    turns = itertools.cycle(kinds)
    kind_of = {tensor: next(turns) for tensor in meta.names(n_layer) if m.tensors[tensor].ndim == 2}
    decoded = []

    def random_blocks(x, kind, era):
        made = legacy.random_blocks(rng, kind, era, x.shape)
        decoded.append(legacy.values(made, kind))
        return made

    wanted = legacy.write(folder / f"{name}.bin", m, kinds[0], magic, version or 0, parts, ERAS.get(era, era), scores, rope, before,
                          matrix=kind_of.get, blocks=random_blocks)
    quantised = dict(zip([tensor for tensor in wanted if kind_of.get(tensor, "F32") not in ("F32", "F16")], decoded, strict=True))
    tensors, blocks, values = [], bytearray(), bytearray()
    for tensor, x in m.tensors.items():  # in the order of use, which is not that of the file
        kind, (current, data) = kind_of.get(tensor, "F32"), wanted[tensor]
        split = {"whole": "replicated"}.get(split := meta.split_of(tensor, "columns"), split)
        now, then = data.tobytes(), quantised[tensor] if tensor in quantised else data.ravel().astype(np.float64)
        tensors.append(dict(
            name=meta.names(n_layer)[tensor], gguf=tensor, split=split, type=legacy.TYPE[kind],
            current=legacy.TYPE[current], ne=list(reversed(x.shape)), blocks=[len(blocks), len(now)], values=[len(values) // 8, len(then)]))
        blocks += now
        values += then.tobytes()
    (folder / f"{name}.blocks").write_bytes(blocks)
    (folder / f"{name}.values").write_bytes(values)
    hparams = dict(n_vocab=n_vocab, n_embd=n_embd, n_mult=n_mult, n_head=n_head, n_layer=n_layer, n_rot=m.head_dim,
                   ftype=legacy.FTYPE[kinds[0]])
    return dict(
        name=name, files=[f"{name}.bin" + (f".{i}" if i else "") for i in range(parts)], magic=magic, version=version, era=era,
        hparams=hparams, n_ff=m.n_ff, formula_n_ff=formula, n_head_kv=m.n_kv, gpt4all=gpt4all, scored=magic != "ggml", rope=rope,
        vocabulary=[t.hex() for t in before], gguf=[list(t) for t in after], scores=scores + [0.0] * gpt4all, tensors=tensors)


def add_arguments(parser) -> None:
    parser.add_argument("folder", type=Path)


def run(args) -> None:
    folder = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    old, five = ["Q4_0", "Q4_1", "F16"], ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16"]
    every = ["Q4_2", "Q4_3", *five]
    two = dict(parts=2, n_embd=64, n_mult=64)
    four = dict(parts=4, n_embd=128, n_head=4, n_mult=64)
    sets = [
        write(folder, "rows", "ggml", None, "rows", old, n_layer=2),
        write(folder, "rows-2", "ggml", None, "rows", ["Q4_1", "Q4_0"], **two),
        write(folder, "ggml", "ggml", None, "pairs", old, n_vocab=268),
        write(folder, "ggml-f16-2", "ggml", None, "pairs", ["F16"], rope=True, **two),
        write(folder, "ggml-gpt4all", "ggml", None, "pairs", ["Q4_0"], gpt4all=True),
        write(folder, "ggmf", "ggmf", 1, "pairs", every, n_layer=2, n_vocab=269),
        write(folder, "ggmf-gpt4all", "ggmf", 1, "pairs", ["Q4_1"], gpt4all=True),
        write(folder, "ggmf-2", "ggmf", 1, "pairs", ["Q4_0", "F32", "Q4_1"], **two),
        write(folder, "ggmf-4", "ggmf", 1, "pairs", ["Q4_0"], **four),
        write(folder, "ggjt-1", "ggjt", 1, "pairs", every, n_layer=2),
        write(folder, "ggjt-1-2", "ggjt", 1, "pairs", every, **two),
        write(folder, "ggjt-2", "ggjt", 2, "halves", five, n_layer=2),
        write(folder, "ggjt-2-2", "ggjt", 2, "halves", five, **two),
        write(folder, "ggjt-3", "ggjt", 3, "current", five, n_layer=2),
        write(folder, "ggjt-3-grouped", "ggjt", 3, "current", ["Q8_0", "F16"], n_embd=64, n_head=8, n_kv=2, n_ff=224),
        write(folder, "ggjt-3-k", "ggjt", 3, "current", list(legacy.K_BYTES), n_embd=256, n_mult=768, rope=True),
        write(folder, "ggjt-3-4", "ggjt", 3, "current", five, **four),
    ]
    (folder / "expected.json").write_text(json.dumps(sets))
