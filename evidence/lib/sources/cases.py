"""Every source that the checks make: its files, the options that go with it, and what has to come out.

A case is made in a folder of its own; `source` there has the same name for every case of a group, because a converter
may name a model after its folder. Cases of a group have to give the same bytes: parts are the only difference.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

from . import expect, hf, legacy, meta, spm
from . import model as mod


@dataclass
class Made:
    source: object  # path of the file or folder
    want: expect.Expected
    options: list = field(default_factory=list)


@dataclass
class Case:
    name: str
    group: str
    make: Callable  # folder → Made
    answers: bool = False  # also held against the reference in llama.cpp and in Alight


def of_hf(get, folder, dtype="BF16", shards=1, **more):
    m = get()
    source = hf.write(folder / m.name, m, dtype, shards, **more)
    keys, may = expect.network(m, dtype)
    more_keys, more_may = expect.vocabulary(m.vocab)
    return Made(source, expect.Expected(expect.tensors_of(hf.expected(m, dtype)), keys | more_keys, may | more_may))


def of_meta(get, folder, dtype="F16", **more):
    m = get()
    source = meta.write(folder / m.name, m, dtype, **more)
    # What no file of Meta's says: how long a text may be.
    keys, may = expect.network(m, dtype, context=expect.ANY)
    more_keys, more_may = expect.vocabulary(m.vocab, config=m.vocab.kind == "bpe")
    arrays = {name: mod.cast(x, dtype) for name, x in m.untied().tensors.items()}
    return Made(source, expect.Expected(expect.tensors_of(arrays), keys | more_keys, may | more_may))


def of_legacy(get, folder, kind, magic="ggjt", version=3, tokenizer=False, options=(), **more):
    m = get()
    source = folder / f"{m.name}.bin"
    tensors = legacy.write(source, m, kind, magic, version, **more)
    matrix = tensors["token_embd.weight"][0]
    keys, may = expect.network(m, matrix, context=expect.ANY, eps=expect.ANY)
    keys[f"{m.arch}.rope.freq_base"] = ("FLOAT32", expect.ANY if m.rope_base != 10000.0 else m.rope_base)
    options = list(options)
    if tokenizer:
        (folder / "other").mkdir()
        if m.vocab.kind == "spm":
            (folder / "other/tokenizer.model").write_bytes(spm.model(m.vocab))
        else:
            hf.tokenizer_files(folder / "other", m)
        options += ["--tokenizer", folder / "other" / ("tokenizer.model" if m.vocab.kind == "spm" else "tokenizer.json")]
        more_keys, more_may = expect.vocabulary(m.vocab, config=False)
        keys, may = keys | more_keys, may | more_may
        if m.vocab.chat_template:  # in the file beside that one
            may["tokenizer.chat_template"] = ("STRING", m.vocab.chat_template)
    else:
        scores = None if magic == "ggml" else m.vocab.scores or more.get("scores")
        keys |= expect.legacy_vocabulary(legacy.vocabulary(m.vocab), scores)
        # Whatever the tokens are, they are read as LLaMA's.
        may |= expect.vocabulary(small().vocab)[1]
    return Made(source, expect.Expected({n: tensors[n] for n in m.untied().tensors}, keys, may), options)


@cache
def small(n_kv=8, tied=False, bpe=False):
    return mod.tiny(seed=n_kv, n_kv=n_kv, tied=tied, vocab=mod.bpe_vocab() if bpe else None)


def quick() -> list[Case]:
    """Small random models: all formats, all eras of blocks, all numbers of parts."""
    out = []

    def add(name, group, maker, get, answers=False, **more):
        out.append(Case(name, group, partial(maker, get, **more), answers))

    plain, grouped, bpe = small, partial(small, 2), partial(small, 2, True, True)
    add("HF, BF16, tokenizer.model", "hf-spm", of_hf, plain, True)
    add("HF, BF16, 3 shards", "hf-spm", of_hf, plain, shards=3)
    add("HF, F16, tokenizer.json, tied, 2 of 8 heads", "hf-bpe", of_hf, bpe, True, dtype="F16")
    add("HF, F16, 3 shards, merges as lists", "hf-bpe", of_hf, bpe, dtype="F16", shards=3, merges_as_lists=True)
    add("HF, F32, data at odd offsets", "hf-f32", of_hf, grouped, dtype="F32", pad=1)
    add("HF, BF16, PyTorch's file", "hf-spm", of_hf, plain, torch=True)
    add("HF, BF16, PyTorch's file in 3 shards", "hf-spm", of_hf, plain, shards=3, torch=True)
    for split, dtype in (("columns", "F16"), ("rows", "BF16")):
        for parts in (1, 2, 4, 8):
            add(f"Meta, {dtype}, embedding by {split}, {parts} parts", f"meta-{split}", of_meta, plain, parts == 2 and split == "rows",
                dtype=dtype, parts=parts, embedding=split, rope=split == "columns", nested=split == "rows", modern=split == "rows")
    for parts in (1, 4, 8):
        add(f"Meta, 2 key/value heads in {parts} parts", "meta-repeat", of_meta, grouped, parts == 8, dtype="BF16", parts=parts,
            embedding="rows", repeat_kv=parts > 2)
    add("Meta, F32 parts", "meta-f32", of_meta, plain, dtype="F32", parts=2)
    for magic, version, era in (("ggml", 0, None), ("ggmf", 1, None), ("ggjt", 1, None), ("ggjt", 2, None), ("ggjt", 3, None),
                                ("ggml", 0, "first")):
        kinds = legacy.OF_ERA["first" if era else "current" if version == 3 else "halves" if version == 2 else "pairs"]
        kinds = kinds if magic == "ggjt" or era else ["Q4_0", "Q4_1"]
        for kind in kinds + ([] if era else ["F16", "F32"]):
            for parts in {"ggjt": (1, 8) if version == 1 else (1, 4)}.get(magic, (1, 2)):
                tag = f"{magic}{version or ''}{' of the first days' if era else ''}"
                add(f"{tag}, {kind}, {parts} parts", f"{tag}-{kind}", of_legacy, plain, kind in ("F16", "Q5_0") and parts == 4,
                    kind=kind, magic=magic, version=version, parts=parts, era=era, rope=kind == "F16",
                    options=["--era", "2023-03-10"] if era else [])
    add("ggml, F16, with tokenizer.model", "ggml-tokenizer", of_legacy, plain, True, kind="F16", magic="ggml", version=0, tokenizer=True)
    add("ggjt3, Q8_0, 2 of 8 heads", "ggjt3-grouped", of_legacy, grouped, True, kind="Q8_0")
    return out


def full(path, name: str) -> list[Case]:
    """A real model, dequantised: SmolLM2 in every format, Gemma 3 from Hugging Face."""
    @cache
    def get():
        m = mod.from_gguf(path)
        m.name = name
        m.n_mult = 256
        return m

    out = [Case(f"{name}, HF, F32", "hf-f32", partial(of_hf, get, dtype="F32"), True),
           Case(f"{name}, HF, F32, 3 shards", "hf-f32", partial(of_hf, get, dtype="F32", shards=3)),
           Case(f"{name}, HF, BF16, 3 shards", "hf-bf16", partial(of_hf, get, dtype="BF16", shards=3), True),
           Case(f"{name}, HF, F16", "hf-f16", partial(of_hf, get, dtype="F16"))]
    if get().arch == "llama":
        scores = [-float(i) for i in range(get().n_vocab)]
        for split in ("columns", "rows"):
            for parts in (1, 2, 4, 8):
                out.append(Case(f"{name}, Meta, F16, embedding by {split}, {parts} parts", "meta",
                                partial(of_meta, get, dtype="F16", parts=parts, embedding=split), parts == 8 and split == "rows"))
        for magic, version, kind, numbers in (("ggml", 0, "F16", (1, 2, 4, 8)), ("ggmf", 1, "F16", (1, 8)), ("ggjt", 3, "F16", (1, 4)),
                                              ("ggjt", 1, "Q4_0", (1, 2)), ("ggjt", 1, "Q4_2", (1, 2)), ("ggjt", 2, "Q5_1", (1, 2)),
                                              ("ggjt", 2, "Q8_0", (1, 2)), ("ggjt", 3, "Q4_1", (1, 2)), ("ggjt", 3, "Q8_0", (1, 2))):
            for parts in numbers:
                out.append(Case(f"{name}, {magic}{version or ''}, {kind}, {parts} parts", f"{magic}{version}-{kind}",
                                partial(of_legacy, get, kind=kind, magic=magic, version=version, parts=parts, scores=scores)))
        # With its own tokenizer it can be asked: these files cannot say how a byte-level one works.
        for magic, version, kind, parts in (("ggml", 0, "F16", 8), ("ggjt", 1, "Q4_0", 2), ("ggjt", 3, "Q8_0", 2)):
            out.append(Case(f"{name}, {magic}{version or ''}, {kind}, {parts} parts, with tokenizer.json", f"{magic}{version}-{kind}-tokenizer",
                            partial(of_legacy, get, kind=kind, magic=magic, version=version, parts=parts, scores=scores, tokenizer=True), True))
    return out
