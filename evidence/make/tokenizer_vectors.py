"""Writes tests/data/tokenizers/: small tokenizers made by the libraries that models are made with, in the files in
which models ship them, and the ids that the same libraries give tests/data/tokenizer_strings.json.

    sentencepiece.model, .ids.json    BPE with bytes, trained and asked by the package `sentencepiece`
    rewritten.json, .ids.json         the same as Hugging Face's library rewrites it; asked by `tokenizers`
    bytes.json, .ids.json             BPE over bytes, cut as by Qwen; trained and asked by `tokenizers`
    ranks.model, .ids.json            the tokens of bytes.json as a file of ranks, asked by `tiktoken`
    unigram.model, .ids.json          unigram, normalised as T5's, with an unknown token; trained and asked by `sentencepiece`
    unigram.tokenizers.ids.json       the same vocabulary and map, asked by `tokenizers`, a space before each text
    wordpiece.json, .ids.json         WordPiece, normalised as BERT's; trained and asked by `tokenizers`
    wordpiece_cased.json, .ids.json   the same with capitals and accents
    unigram_bytes.model, .ids.json    unigram with bytes for what is unknown; neither normalised nor are spaces merged

`--check` trains nothing and compares the ids only. Needs sentencepiece, tokenizers, tiktoken, protobuf.
crates/text/tests/tokenizer_originals.rs is what reads them.
"""

import base64
import json
import sys

from evidence.lib.common import ROOT
from evidence.lib.vocabularies import byte_alphabet

OUT = ROOT / "tests/data/tokenizers"
STRINGS = ROOT / "tests/data/tokenizer_strings.json"

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")


def train_sentencepiece(texts: list) -> None:
    import sentencepiece

    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    (OUT / "sentencepiece.model").unlink(missing_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 2), model_prefix=str(OUT / "sentencepiece"), model_type="bpe", vocab_size=900,
        byte_fallback=True, character_coverage=0.98, user_defined_symbols=["[REF]", "<think>"],
        control_symbols=["<ctl>"], normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
    (OUT / "sentencepiece.vocab").unlink()
    rewrite()


def rewrite() -> None:
    """As `SentencePieceExtractor` and `LlamaConverter` of the library `transformers` do: every way to make a token of
    two, by the score of the token and then the ids of the two."""
    from sentencepiece import sentencepiece_model_pb2 as pb2
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    proto = pb2.ModelProto.FromString((OUT / "sentencepiece.model").read_bytes())
    ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    merges = []
    for text, i in ids.items():
        ways = [(text[:cut], text[cut:]) for cut in range(1, len(text)) if text[:cut] in ids and text[cut:] in ids]
        ways.sort(key=lambda way: (ids[way[0]], ids[way[1]]))
        merges += [(proto.pieces[i].score, way) for way in ways]
    merges.sort(key=lambda merge: merge[0], reverse=True)
    tokenizer = Tokenizer(models.BPE(ids, [way for _, way in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.add_tokens([AddedToken(p.piece, normalized=False, special=p.type != 4) for p in proto.pieces if p.type in (2, 3, 4)])
    (OUT / "rewritten.json").write_text(compact(tokenizer))


def train_unigram(texts: list) -> None:
    import sentencepiece

    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    more = {
        "unigram": dict(vocab_size=700, normalization_rule_name="nmt_nfkc", pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
        "unigram_bytes": dict(vocab_size=900, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                              allow_whitespace_only_pieces=True),
    }
    for name, options in more.items():
        (OUT / f"{name}.model").unlink(missing_ok=True)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines * 2), model_prefix=str(OUT / name), model_type="unigram", character_coverage=0.98,
            hard_vocab_limit=False, num_threads=1, minloglevel=2, **options)
        (OUT / f"{name}.vocab").unlink()


def unigram_as_tokenizers():
    """As `SpmConverter` of the library `transformers` does."""
    from sentencepiece import sentencepiece_model_pb2 as pb2
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    proto = pb2.ModelProto.FromString((OUT / "unigram.model").read_bytes())
    vocab = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=proto.trainer_spec.unk_id))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Strip(left=True, right=True),
        normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    return tokenizer


def compact(tokenizer) -> str:
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


def train_bytes(texts: list) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts * 2, trainer)
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    (OUT / "bytes.json").write_text(compact(tokenizer))
    alphabet = {character: byte for byte, character in enumerate(byte_alphabet())}
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    tokens = sorted((bytes(alphabet[c] for c in text) for text in vocab), key=lambda t: (len(t) > 1, vocab[spell(t)]))
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (OUT / "ranks.model").write_text("".join(lines))


def train_wordpiece(texts: list) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for name, lowercase in (("wordpiece", True), ("wordpiece_cased", False)):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, limit_alphabet=300, show_progress=False)
        tokenizer.train_from_iterator(texts * 2, trainer)
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        (OUT / f"{name}.json").write_text(compact(tokenizer))


def spell(token: bytes) -> str:
    alphabet = byte_alphabet()
    return "".join(alphabet[byte] for byte in token)


def encoders() -> dict:
    import sentencepiece
    import tiktoken
    from tokenizers import Tokenizer

    models = {name: sentencepiece.SentencePieceProcessor(model_file=str(OUT / f"{name}.model"))
              for name in ("sentencepiece", "unigram", "unigram_bytes")}
    unigram = unigram_as_tokenizers()
    files = {name: Tokenizer.from_file(str(OUT / f"{name}.json")) for name in ("rewritten", "bytes", "wordpiece", "wordpiece_cased")}
    ranks = dict(line.split() for line in (OUT / "ranks.model").read_text().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in ranks.items()}
    encoding = tiktoken.Encoding("ranks", pat_str=QWEN, mergeable_ranks=ranks, special_tokens={})
    return {
        **{name: model.EncodeAsIds for name, model in models.items()},
        "unigram.tokenizers": lambda text: unigram.encode(text, add_special_tokens=False).ids,
        **{name: lambda text, file=file: file.encode(text, add_special_tokens=False).ids for name, file in files.items()},
        "ranks": encoding.encode_ordinary,
    }


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; fails if the ids are others")
    parser.add_argument("--only", default="", help="the tokenizers whose names begin so")


def run(args) -> int:
    texts = json.loads(STRINGS.read_text())
    OUT.mkdir(exist_ok=True)
    if not args.check:
        for name, train in (("sentencepiece", train_sentencepiece), ("bytes", train_bytes), ("unigram", train_unigram),
                            ("wordpiece", train_wordpiece)):
            if name.startswith(args.only):
                train(texts)
    bad = 0
    all_encoders = {name: encode for name, encode in encoders().items() if name.startswith(args.only)}
    for name, encode in all_encoders.items():
        lines = [json.dumps(encode(text), separators=(",", ":")) for text in texts]
        document = "[\n" + ",\n".join(lines) + "\n]\n"
        path = OUT / f"{name}.ids.json"
        if not args.check:
            path.write_text(document)
        elif path.read_text() != document:
            print(f"{path} is not what the library says", file=sys.stderr)
            bad += 1
    print(f"{OUT}: {len(texts)} texts, {len(all_encoders)} tokenizers" + (f", {bad} differ" if args.check else ""))
    return 1 if bad else 0
