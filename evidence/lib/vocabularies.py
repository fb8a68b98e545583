"""Made-up vocabularies, as large as real ones and valid for their tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from evidence.lib import networks
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")
tokenizers = lazily("tokenizers")


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins that byte-level BPE uses for bytes, indexed by byte (GPT-2's `bytes_to_unicode`)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(other)) for byte in range(256)]


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


def learned_vocabulary(size: int, texts: Sequence[str]):
    """Tokens and merges of a byte-level BPE vocabulary of these texts, cut as Qwen 2 cuts them: English has some four letters in a token of it."""
    words = tokenizers.Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    cut = [tokenizers.pre_tokenizers.Split(words, "isolated"), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(cut)
    base = byte_alphabet()
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=base, show_progress=False))
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    return base + [merge.replace(" ", "") for merge in merges], merges


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


def rwkv_vocabulary(size: int, rng):
    """Tokens and types of RWKV's vocabulary, as its files have them: a token that is none of a text, all bytes, and pieces of words, as Python writes bytes."""
    letters = [chr(c) for c in range(0x20, 0x7F)]
    pieces = grow(size - 257, letters, rng, " ", 14)
    spelled = [bytes([b]) for b in range(256)] + [piece.encode() for piece, _, _ in pieces]
    types = [gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * len(spelled)
    return ["<s>"] + [repr(token)[2:-1] for token in spelled], types


def add_tokenizer(w: gguf.GGUFWriter, model: str, pre: str, tokens, types, *, scores=None, merges=None, bos: int | None, eos: int | None,
                  unk: int | None = None, add_bos: bool = True) -> None:
    """The keys of a tokenizer, which begins with `bos` unless `add_bos` is false."""
    w.add_tokenizer_model(model)
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if scores is not None:
        w.add_token_scores(scores)
    if merges is not None:
        w.add_token_merges(merges)
    if bos is not None:
        w.add_bos_token_id(bos)
    if eos is not None:
        w.add_eos_token_id(eos)
    if unk is not None:
        w.add_unk_token_id(unk)
    w.add_add_bos_token(add_bos)


def add_sizes(w: gguf.GGUFWriter, m) -> None:
    """The keys of a network's sizes that every family has."""
    w.add_name(m.name)
    w.add_block_count(m.layers)
    w.add_context_length(m.context)
    w.add_embedding_length(m.embd)
    layout = getattr(m, "layout", "")
    widths = [width for _, _, width in getattr(m, "per_layer", ())]
    ff = widths[0] if widths else m.ff
    w.add_feed_forward_length(widths if len(set(widths)) > 1 else [m.ff * (kind == "f") for kind in layout] if "f" in layout else ff * (2 if m.arch == "qwen" else 1))
    if per_layer := getattr(m, "per_layer", ()):
        heads, kv_heads, _ = (list(column) for column in zip(*per_layer))
        w.add_head_count(heads)
        w.add_head_count_kv(kv_heads)
    else:
        w.add_head_count(m.heads)
        w.add_head_count_kv([m.kv_heads * (kind == "a") for kind in layout] or m.kv_heads)
    w.add_rope_freq_base(m.base)
    (w.add_layer_norm_eps if m.arch in networks.EPS_OF_LAYER_NORM else w.add_layer_norm_rms_eps)(m.eps)
