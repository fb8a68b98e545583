"""Compares our tokenizers with llama.cpp's on the vocabularies that its source tree carries.

For every `ggml-vocab-*.gguf` of a kind that we have, and for every name of a pre-tokeniser that we
know (written into a copy of a byte-level vocabulary), it compares: ids of all texts in
tests/data/tokenizer_strings.json and in the vocabulary's own .inp file, as plain text, with
specials recognised, and with beginning and end of sequence; the special ids; the set of tokens
that end an answer; and the bytes of every token.

Without arguments, llama.cpp is the package `xllamacpp`, and every name is written into a made-up vocabulary whose tokens are
bytes and pairs of bytes, merged in any order: wherever a text is cut otherwise, another pair is merged. Its texts add what stands
at the edges of the classes of characters. Then the unigram vocabularies of tests/data/tokenizers, with and without the merging
of spaces: where the two differ, it is that llama.cpp has no bytes for what is unknown, and another idea of texts that are white space
alone. With llama.cpp's models/ folder and a libllama.so of the same version, also the
vocabularies in that folder, and everything but ids.

    python -m evidence agree pretokenizers                        every name, by the package
    python -m evidence agree pretokenizers --only kimi            the names that contain this
    python -m evidence agree pretokenizers MODELS LIBLLAMA        the vocabularies of llama.cpp's source tree
"""

import ctypes
import json
import os
import random
import re
import struct
import subprocess
from pathlib import Path

from evidence.agree.tokens import STRINGS, first_difference, our_binary, our_ids
from evidence.lib import llama, tiny_models, vocabularies
from evidence.lib.common import ROOT
from evidence.lib.sources import spm

WORDS = b"[UNK_BYTE_0x".hex()
# Names whose vocabularies spell bytes in another way than byte-level BPE.
RAW = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
OURS = ROOT / "crates/text/src/tokenizer/pre/mod.rs"


class ModelParams(ctypes.Structure):
    """`llama_model_params` of include/llama.h, as far as it matters: only `vocab_only` is set."""
    _fields_ = [("devices", ctypes.c_void_p), ("buft_overrides", ctypes.c_void_p), ("n_gpu_layers", ctypes.c_int32),
                ("split_mode", ctypes.c_int), ("load_mode", ctypes.c_int), ("lazy_mode", ctypes.c_int),
                ("main_gpu", ctypes.c_int32), ("tensor_split", ctypes.c_void_p), ("progress", ctypes.c_void_p),
                ("progress_data", ctypes.c_void_p), ("kv_overrides", ctypes.c_void_p), ("vocab_only", ctypes.c_bool),
                ("check_tensors", ctypes.c_bool), ("use_extra_bufts", ctypes.c_bool), ("no_host", ctypes.c_bool),
                ("no_alloc", ctypes.c_bool), ("load_mtp", ctypes.c_bool)]


class Vocabulary:
    """The few functions of libllama that tokenize."""

    def __init__(self, path: Path):
        self.lib = lib = llama.library(path)
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_model_load_from_file.restype = ctypes.c_void_p
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        lib.llama_model_free.argtypes = [ctypes.c_void_p]
        lib.llama_model_get_vocab.restype = ctypes.c_void_p
        lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        for name in ("n_tokens", "bos", "eos", "get_add_bos", "get_add_eos"):
            getattr(lib, "llama_vocab_" + name).argtypes = [ctypes.c_void_p]
        lib.llama_vocab_get_add_bos.restype = lib.llama_vocab_get_add_eos.restype = ctypes.c_bool
        lib.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        lib.llama_vocab_is_eog.restype = ctypes.c_bool
        lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p,
                                       ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
        lib.llama_token_to_piece.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32,
                                             ctypes.c_int32, ctypes.c_bool]

    def answer(self, path: Path, questions: list) -> tuple[list, dict] | None:
        params = self.lib.llama_model_default_params()
        params.vocab_only = True
        model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            return None
        vocab = self.lib.llama_model_get_vocab(model)
        ids = []
        for text, add, special in questions:
            raw = text.encode()
            room = len(raw) + 8
            out = (ctypes.c_int32 * room)()
            count = self.lib.llama_tokenize(vocab, raw, len(raw), out, room, add, special)
            if count < 0:
                room = -count
                out = (ctypes.c_int32 * room)()
                count = self.lib.llama_tokenize(vocab, raw, len(raw), out, room, add, special)
            ids.append(list(out[:count]))
        n = self.lib.llama_vocab_n_tokens(vocab)

        def known(value):
            return None if value < 0 else value

        def piece(i, special):
            size = 4096
            buffer = ctypes.create_string_buffer(size)
            count = self.lib.llama_token_to_piece(vocab, i, buffer, size, 0, special)
            return buffer.raw[:max(count, 0)].hex()

        about = {
            "bos": known(self.lib.llama_vocab_bos(vocab)),
            "eos": known(self.lib.llama_vocab_eos(vocab)),
            "ends": [i for i in range(n) if self.lib.llama_vocab_is_eog(vocab, i)],
            "adds_bos": self.lib.llama_vocab_get_add_bos(vocab),
            "adds_eos": self.lib.llama_vocab_get_add_eos(vocab),
            "pieces": [piece(i, False) for i in range(n)],
            "pieces_special": [piece(i, True) for i in range(n)],
        }
        self.lib.llama_model_free(model)
        return ids, about


def with_string(data: bytes, key: str, value: str) -> bytes:
    """A copy of a GGUF header with another string under `key` (no tensors follow these headers)."""
    marker = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", 8)
    at = data.index(marker) + len(marker)
    old = struct.unpack_from("<Q", data, at)[0]
    return data[:at] + struct.pack("<Q", len(value)) + value.encode() + data[at + 8 + old:]


def with_new_string(data: bytes, key: str, value: str) -> bytes:
    """A copy with one more entry: the count of entries is the u64 at byte 16, the first begins at 24."""
    count = struct.unpack_from("<Q", data, 16)[0] + 1
    entry = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IQ", 8, len(value)) + value.encode()
    return data[:16] + struct.pack("<Q", count) + entry + data[24:]


def our_names() -> list:
    """Every name in `Pre::by_name`."""
    body = OURS.read_text().split("fn by_name", 1)[1].split("_ => return None", 1)[0]
    return re.findall(r'"([^"]+)"', body)


def check(vocabulary: Vocabulary, binary: Path, path: Path, label: str, questions: list) -> bool:
    theirs = vocabulary.answer(path, questions)
    described = subprocess.run([binary, "--describe", path], capture_output=True)
    if theirs is None or described.returncode != 0:
        refused = described.stderr.decode().strip().splitlines()
        if "UnknownModel" in str(refused) or "UnknownPreTokenizer" in str(refused):
            print(f"{label}: of a kind that we do not have: {refused[-1]}")
            return True
        print(f"{label}: llama.cpp {'refuses' if theirs is None else 'loads'} it; "
              f"we {'refuse' if described.returncode else 'load'} it {refused[-1:]}")
        return theirs is None and described.returncode != 0
    ids, about = theirs
    mine = json.loads(described.stdout)
    bad = []
    for key, value in about.items():
        if key.startswith("pieces"):
            # llama.cpp describes characters outside the byte alphabet in words; we give them as they are.
            wrong = [i for i, (a, b) in enumerate(zip(mine[key], value, strict=True)) if a != b and WORDS not in b]
            if wrong:
                i = wrong[0]
                bad.append(f"{len(wrong)} {key}, first {i}: {bytes.fromhex(mine[key][i])} and {bytes.fromhex(value[i])}")
        elif mine[key] != value:
            bad.append(f"{key}: {mine[key]} and {value}")
    ours = our_ids(binary, path, questions)
    differ = [(q, first_difference(a, b)) for q, a, b in zip(questions, ours, ids, strict=True) if a != b]
    print(f"{label}: {len(questions) - len(differ)} of {len(questions)} identical; {len(mine['pieces'])} tokens"
          + ("" if not bad else f"; {bad}"))
    for (text, add, special), where in differ[:5]:
        print(f"    {text!r} (add {add}, special {special}) {where}")
    return not differ and not bad


# --- by the package ----------------------------------------------------------------------------

# The first and the last of classes that the expressions name, and what stands beside them.
EDGES = [0x30, 0x41, 0x5A, 0x61, 0x7A, 0xB2, 0xB5, 0xC0, 0x1BA, 0x294, 0x301, 0x378, 0x482, 0x660, 0xE40, 0xE7F, 0xE80, 0xEFF,
         0x1000, 0x109F, 0x1100, 0x11FF, 0x1780, 0x17FF, 0x1D6A, 0x1F5F, 0x1F7D, 0x2014, 0x2018, 0x201F, 0x2026, 0x2116, 0x2183,
         0x2F00, 0x2FDF, 0x3000, 0x3001, 0x303F, 0x3040, 0x30FF, 0x3105, 0x312F, 0x3131, 0x318E, 0x3400, 0x4DBF, 0x4E00, 0x8C48,
         0x9FA5, 0x9FFF, 0xA9E0, 0xAA60, 0xAC00, 0xD7A3, 0xD7AF, 0xF900, 0xFAFF, 0xFE30, 0xFE4F, 0xFF01, 0xFF0F, 0xFF1A, 0xFF5E,
         0xFF65, 0xFF9F, 0x10400, 0x1E943, 0x20000, 0x2A6DF, 0x2EBEF, 0x2FA1F]


def edge_texts() -> list:
    numbers = ["1" * n + tail for n in range(1, 9) for tail in ("", "a", " 22 333", "²3456")]
    characters = [chr(c + d) for c in EDGES for d in (-1, 0, 1)]
    around = [f"a{c}b {c}{c} 7{c}1234{c}\n{c}A'S{c} {c}.  {c}" for c in characters]
    return [f"x{number} {number}, {number}" for number in numbers] + around + ["/ /\n// \n/ a/b", "  a  b \t c\r\n\r\n  d  ", "a b  c d é f"]


def pair_vocabulary(texts: list) -> tuple[list, list, list]:
    """Tokens, types and merges: 256 bytes, and all pairs of bytes in `texts` in any order."""
    alphabet = vocabularies.byte_alphabet()
    raw = [text.encode() for text in texts]
    pairs = sorted({(a, b) for text in raw for a, b in zip(text, text[1:])})
    random.Random(1).shuffle(pairs)
    merges = [f"{alphabet[a]} {alphabet[b]}" for a, b in pairs]
    control = ["<|bos|>", "<|eos|>"]
    tokens = alphabet + [merge.replace(" ", "") for merge in merges] + control
    return tokens, [1] * (len(tokens) - 2) + [3] * 2, merges


def write_named(path: Path, name: str, tokens: list, types: list, merges: list) -> None:
    """A tiny model with this vocabulary under the name of this pre-tokenizer."""
    ids = {"bos": len(tokens) - 2, "eos": len(tokens) - 1}
    tiny = tiny_models.Tiny("named", "llama", layers=1, embd=32, ff=32, heads=2, kv_heads=2, vocab=len(tokens))
    tiny_models.write(tiny, path, lambda w, _: vocabularies.add_tokenizer(w, "gpt2", name, tokens, types, merges=merges, **ids))


def by_package(args, binary: Path, texts: list, work: Path) -> bool:
    texts = [text for text in texts + edge_texts() if "\0" not in text]
    words = pair_vocabulary(texts)
    questions = [(text, False, False) for text in texts]
    good = True
    for name in our_names():
        if args.only not in name or name in RAW:
            continue
        path = work / "named.gguf"
        write_named(path, name, *words)
        theirs, ours = llama.token_ids(path, questions, work), our_ids(binary, path, questions)
        differ = [(q[0], first_difference(a, b)) for q, a, b in zip(questions, ours, theirs, strict=True) if a != b]
        print(f"pre {name}: {len(questions) - len(differ)} of {len(questions)} identical", flush=True)
        for text, where in differ[:5]:
            print(f"    {text!r} {where}")
        good &= not differ
        path.unlink()
    for name in ("unigram", "unigram_bytes"):
        if args.only in name:
            good &= unigram(name, binary, texts, work)
    return good


def write_unigram(path: Path, pieces: list, spec: dict, merge: bool) -> None:
    """A tiny model with a vocabulary of SentencePiece's."""
    def add(w, _) -> None:
        w.add_tokenizer_model("t5")
        w.add_tokenizer_pre("default")
        w.add_token_list([text for text, _, _ in pieces])
        w.add_token_scores([score for _, score, _ in pieces])
        w.add_token_types([kind for _, _, kind in pieces])
        w.add_add_space_prefix(spec["prefix"])
        w.add_remove_extra_whitespaces(merge)
        w.add_unk_token_id(next(number for number, piece in enumerate(pieces) if piece[2] == 2))
        if spec["charsmap"]:
            w.add_precompiled_charsmap(spec["charsmap"])

    tiny = tiny_models.Tiny("unigram", "llama", layers=1, embd=32, ff=32, heads=2, kv_heads=2, vocab=len(pieces))
    tiny_models.write(tiny, path, add)


def unigram(name: str, binary: Path, texts: list, work: Path) -> bool:
    pieces, spec = spm.read((ROOT / f"tests/data/tokenizers/{name}.model").read_bytes())
    bytes_of = {number for number, (_, _, kind) in enumerate(pieces) if kind == 6}
    nothing = {number for number, (text, _, kind) in enumerate(pieces) if not text.strip("▁") or kind == 3}
    path, good = work / "unigram.gguf", True
    for merge in (False, True):
        write_unigram(path, pieces, spec, merge)
        questions = [(text, add, special) for text in texts for add, special in ((False, False), (True, False), (False, True))]
        theirs, ours = llama.token_ids(path, questions, work), our_ids(binary, path, questions)
        asked = [(q, a, b) for q, a, b in zip(questions, ours, theirs, strict=True) if not bytes_of & set(a) and set(a) - nothing]
        differ = [(q, first_difference(a, b)) for q, a, b in asked if a != b]
        print(f"{name}, spaces {'merged' if merge else 'kept'}: {len(asked) - len(differ)} of {len(asked)} identical, "
              f"{len(questions) - len(asked)} of bytes or of white space alone", flush=True)
        for q, where in differ[:5]:
            print(f"    {q!r} {where}")
        good &= not differ and len(asked) > len(questions) // 4
        path.unlink()
    return good


def add_arguments(parser) -> None:
    parser.add_argument("vocabs", type=Path, nargs="?", help="llama.cpp's models/ folder")
    parser.add_argument("library", type=Path, nargs="?", help="libllama.so of the same version")
    parser.add_argument("--binary", type=Path, help="the built example (default: builds it)")
    parser.add_argument("--only", default="", help="only labels that contain this")


def run(args) -> None:
    binary = args.binary or our_binary()
    texts = json.loads(STRINGS.read_text())
    work = ROOT / "target" / "agree_pretokenizers"
    work.mkdir(parents=True, exist_ok=True)
    if args.vocabs is None:
        if not by_package(args, binary, texts, work):
            raise SystemExit(1)
        return
    vocabulary = Vocabulary(args.library)
    good = True

    def ask(path: Path, label: str, own: list) -> None:
        nonlocal good
        if args.only in label:
            questions = [(t, a, s) for t in texts + own for a, s in ((False, False), (False, True), (True, False))]
            good &= check(vocabulary, binary, path, label, questions)

    for path in sorted(args.vocabs.glob("ggml-vocab-*.gguf")):
        own = path.with_suffix(".gguf.inp")
        own = own.read_text().split("\n__ggml_vocab_test__\n") if own.is_file() else []
        ask(path, path.stem.removeprefix("ggml-vocab-"), own)
    byte_level = (args.vocabs / "ggml-vocab-llama-bpe.gguf").read_bytes()
    raw = with_string((args.vocabs / "ggml-vocab-gemma-4.gguf").read_bytes(), "tokenizer.ggml.model", "gpt2")
    for name in our_names():
        if name in RAW:
            data = with_new_string(raw, "tokenizer.ggml.pre", name)
        else:
            data = with_string(byte_level, "tokenizer.ggml.pre", name)
        path = work / "patched.gguf"
        path.write_bytes(data)
        ask(path, f"pre {name}", [])
        os.unlink(path)
    if not good:
        raise SystemExit(1)
