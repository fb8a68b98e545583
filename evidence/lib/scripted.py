"""A model that writes what it is given: a small GGUF file whose greedy continuation of any prompt is a script, token by token.

    path = scripted.write(folder / "m.gguf", ["<think>\\nHm.\\n</think>\\n\\nYes.", "No."], template=TEMPLATE,
                          specials={"<think>": "user", "</think>": "user", "<|im_start|>": "control", "<|im_end|>": "control"}, end="<|im_end|>")

A script is a text, in which the spellings of `specials` become those tokens, and the rest is cut at random (`steps`, by `longest` and `seed`); or a
list of steps, where `bytes` are one token of ordinary text (any bytes, part of a character too) and a `str` is a special token. After its last step the
model writes `end`, unless that is the last step.

The script with number k is written if the prompt holds `marker(k)` (`@@1@@` for the second one); of several markers the highest counts, and without any
it is script 0. A marker is a token of its own wherever it stands, in a message of the user, in a tool's result or in the arguments of a call. So a
conversation of many turns is scripted by calls that lead to the next: script k calls a tool with `marker(k + 1)` in an argument (`echo @@1@@`).

Where the spelling of a special token is meant as ordinary text, `literal(text)` is written. Steps of ordinary text are tokens of their own, with a text that other tokens may have as well; a text that is encoded never becomes one of them, but
the usual tokens. A special token is one token wherever it occurs, as in real models. The same one twice in a row cannot be written (`steps` writes the second as text), nor
may a script begin with the special token with which the prompt ends. A prompt that is read again after an answer has other tokens for what the model wrote: the cache knows it up to the end of the prompt before.

An answer has some thousand tokens at most. A grammar that forbids the next step makes the model write anything that the grammar allows.

How it works: a token's embedding says which it is. One head of attention finds the last step that was written, another the highest marker. Each row of
the output has the code of the step before it; a step before or after a special token is a unit of the feed-forward part.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from evidence.lib import gguf_files, vocabularies
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

# The code of a step has a one in each half of these; so two of them share at most one of two.
HALF = 120
MAX_STEPS, MAX_SPECIALS, MAX_SCRIPTS = HALF * HALF, 128, 129
# Where in a token's vector they are: its own code as a step, as a special token, as a marker; the last step, and that there is one; the highest marker,
# and that there is one; the next token, as a step and as a special one; one for all tokens, and what makes all vectors as long.
STEP, SPECIAL, MARKER = 0, 2 * HALF, 2 * HALF + MAX_SPECIALS
LAST = MARKER + MAX_SCRIPTS
HIGHEST = LAST + 2 * HALF + 1
NEXT_STEP = HIGHEST + MAX_SCRIPTS + 1
NEXT_SPECIAL = NEXT_STEP + 2 * HALF
ONE = NEXT_SPECIAL + MAX_SPECIALS
REST = ONE + 1
WIDTH = -(-(REST + 1) // 32) * 32
HEAD, BASE = 256, 1e9
# Pairs of a head that turn by about 0.0048, 0.0015 and nothing for each position: the sine of the first falls evenly for some hundred positions, and the cosine of the
# second keeps what is farther below it, for some thousand.
SLOPE, RANGE, STILL = 33, 40, 127
ROOT2 = math.sqrt(2)

Step = bytes | str


def marker(number: int) -> str:
    """What in a prompt asks for this script."""
    return f"@@{number}@@"


LITERAL = "\ue000"


def literal(text: str) -> str:
    """A text in which no spelling of a special token becomes one."""
    return LITERAL.join(text)


def plain(text: str) -> str:
    """What of a text is written."""
    return text.replace(LITERAL, "")


def steps(text: str, specials: Sequence[str], longest: int = 5, seed: int = 0) -> list[Step]:
    """A text as steps: its special tokens, and pieces of 1 to `longest` bytes between them."""
    found, at, random_ = [], 0, random.Random(seed)
    ordered = sorted(specials, key=len, reverse=True)
    while at < len(text):
        special = next((one for one in ordered if text.startswith(one, at)), None)
        if special and found[-1:] != [special]:
            found.append(special)
            at += len(special)
            continue
        # After itself a special token is written as text.
        end = at + len(special) if special else min((where for one in ordered if (where := text.find(one, at)) >= 0), default=len(text))
        rest, at = plain(text[at:end]).encode(), end
        while rest:
            size = random_.randint(1, longest)
            found.append(rest[:size])
            rest = rest[size:]
    return found


class _Units:
    """The units of the feed-forward part: each has a condition, and a token that is next where it holds."""

    def __init__(self, target):
        self.conditions, self.votes, self.target = [], [], target

    def add(self, condition: dict[int, float], next_token, weight: float = 1.0) -> None:
        self.conditions.append(condition)
        self.votes.append({at: weight * one for at, one in self.target(next_token).items()})

    def matrices(self):
        """Gate, up and down."""
        count = -(-len(self.conditions) // 32) * 32
        gate, up, down = np.zeros((count, WIDTH), np.float32), np.zeros((count, WIDTH), np.float32), np.zeros((WIDTH, count), np.float32)
        up[:, ONE] = 1
        for unit, (condition, votes) in enumerate(zip(self.conditions, self.votes)):
            for at, weight in condition.items():
                gate[unit, at] = 40 * weight
            for at, weight in votes.items():
                down[at, unit] = weight / 2
        return gate, up, down


def _code(number: int, first: int) -> dict[int, float]:
    return {first + number % HALF: 1.0, first + HALF + number // HALF: 1.0}


def write(path: Path, scripts: Sequence[str | Sequence[Step]], *, template: str, specials: dict[str, str], end: str, bos: str | None = None,
          pieces: int = 1024, texts: Sequence[str] = (), context: int = 131072, longest: int = 5, seed: int = 0, name: str = "scripted") -> Path:
    """Makes the file. `specials`: the spelling of each special token, and whether it is "control" or "user" (defined); `end` is one of them, and so is
    `bos`, the template's `bos_token`. `pieces`: how many tokens of ordinary text prompts are cut into; `texts`: of what
    they are learned, without which they are made up. `longest`, `seed`: how scripts that are texts
    are cut."""
    taken = [steps(one, list(specials), longest, seed + number) if isinstance(one, str) else list(one) for number, one in enumerate(scripts)]
    kinds = {"control": gguf.TokenType.CONTROL, "user": gguf.TokenType.USER_DEFINED}
    marks = list(specials)
    # A marker is found in any text.
    markers = [marker(number) for number in range(1, len(taken))]
    written = [one for script in taken for one in script if isinstance(one, bytes)]
    for what, found, limit in (("scripts", len(taken), MAX_SCRIPTS), ("special tokens", len(marks), MAX_SPECIALS), ("steps of text", len(written), MAX_STEPS)):
        if found > limit:
            raise ValueError(f"{found} {what}, at most {limit}")
    random_ = np.random.default_rng(0)
    if texts:
        ordinary, merges = vocabularies.learned_vocabulary(pieces, texts)
    else:
        ordinary, _, merges = vocabularies.bpe_vocabulary(pieces + 16, random_)
        ordinary = ordinary[:-16]
    alphabet = vocabularies.byte_alphabet()
    tokens = ordinary + marks + markers + ["".join(alphabet[byte] for byte in one) for one in written]
    first_mark = len(ordinary)
    first_marker, first_step = first_mark + len(marks), first_mark + len(marks) + len(markers)
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types[first_mark:first_step] = [kinds[specials[one]] for one in marks] + [gguf.TokenType.USER_DEFINED] * len(markers)

    w = gguf.GGUFWriter(path, "llama")
    w.add_name(name)
    w.add_block_count(1)
    w.add_context_length(context)
    w.add_embedding_length(WIDTH)
    w.add_head_count(2)
    w.add_head_count_kv(2)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_rope_dimension_count(HEAD)
    w.add_rope_freq_base(BASE)
    w.add_layer_norm_rms_eps(1e-9)
    w.add_float32("llama.attention.scale", 1.0)
    w.add_vocab_size(len(tokens))
    vocabularies.add_tokenizer(w, "gpt2", "qwen2", tokens, types, merges=merges, bos=first_mark + marks.index(bos or end), eos=first_mark + marks.index(end),
                               add_bos=False)
    w.add_chat_template(template)

    units, before = _transitions(taken, marks, end)
    gate, up, down = units.matrices()
    w.add_feed_forward_length(len(gate))
    for name_, weights in _tensors(len(tokens), first_mark, first_marker, first_step, before):
        w.add_tensor(name_, weights)
    for part, weights in (("gate", gate), ("up", up), ("down", down)):
        w.add_tensor(f"blk.0.ffn_{part}.weight", weights.astype(np.float16))
    gguf_files.finish(w)
    return path


def _transitions(scripts: list[list[Step]], marks: list[str], end: str) -> tuple[_Units, list[int | None]]:
    """The units, and of each step of text the one before it, if that is one of text too."""

    def target(token) -> dict[int, float]:
        return {NEXT_SPECIAL + marks.index(token): 2.0} if isinstance(token, str) else _code(token, NEXT_STEP)

    units, before, count = _Units(target), [], 0
    for number, script in enumerate(scripts):
        # Without a step yet: the last marker says which script it is.
        if number:
            begun = {HIGHEST + number: 1.0, LAST + 2 * HALF: -4.0, ONE: -0.5}
        else:
            begun = {LAST + 2 * HALF: -4.0, HIGHEST + MAX_SCRIPTS: -4.0, ONE: 0.5}
        last, here, chain = None, None, []
        for token in script if script[-1:] == [end] else [*script, end]:
            step = token if isinstance(token, str) else count
            if last is None and here is None:
                units.add(begun, step)
            elif here is None and not isinstance(step, str):
                before.append(last)
            elif here is None:
                units.add({**_code(last, STEP), ONE: -1.5}, step)
            elif last is None:
                units.add({**begun, SPECIAL + marks.index(here): 2 * ROOT2, ONE: begun[ONE] - 4.0}, step, 3.0)
            else:
                units.add({**_code(last, LAST), SPECIAL + marks.index(here): ROOT2, ONE: -3.5}, step)
            if isinstance(step, str):
                if step in chain:
                    raise ValueError(f"script {number}: {step} is there twice without a text between")
                here, chain = step, [*chain, step]
            else:
                if here is not None or last is None:
                    before.append(None)
                last, here, chain, count = count, None, [], count + 1
    return units, before


def _tensors(count: int, first_mark: int, first_marker: int, first_step: int, before: list[int | None]):
    """All but the feed-forward part. Every embedding has the length of the root of 3: of its code 2, of `ONE` 1."""
    embedding, output = np.zeros((count, WIDTH), np.float32), np.zeros((count, WIDTH), np.float32)
    embedding[:, ONE] = 1
    embedding[:first_mark, REST] = ROOT2
    for token in range(first_mark, first_marker):
        embedding[token, SPECIAL + token - first_mark] = ROOT2
        output[token, NEXT_SPECIAL + token - first_mark] = 1
    for token in range(first_marker, first_step):
        embedding[token, MARKER + token - first_marker + 1] = ROOT2
    for step, previous in enumerate(before):
        for at in _code(step, STEP):
            embedding[first_step + step, at] = 1
            output[first_step + step, at - STEP + NEXT_STEP] = 1
        for at in _code(previous, STEP) if previous is not None else ():
            output[first_step + step, at] = 1
    query, key, value, back = (np.zeros((2 * HEAD, WIDTH), np.float32) for _ in range(4))
    query[2 * SLOPE + 1, ONE], query[2 * RANGE, ONE] = 3000, 4000
    for pair in (SLOPE, RANGE):
        key[2 * pair, STEP:SPECIAL] = 0.5
    query[HEAD + 2 * STILL, ONE] = 1
    for number in range(MAX_SCRIPTS):
        key[HEAD + 2 * STILL, MARKER + number] = 20 * number / ROOT2
        value[HEAD + number, MARKER + number] = 1 / ROOT2
    value[HEAD + MAX_SCRIPTS, MARKER:LAST] = 1 / ROOT2
    for at in range(2 * HALF):
        value[at, STEP + at] = 1
    value[2 * HALF, STEP:SPECIAL] = 0.5
    for at in range(2 * HALF + 1):
        back[at, LAST + at] = 1
    for at in range(MAX_SCRIPTS + 1):
        back[HEAD + at, HIGHEST + at] = 1
    half = np.float16
    yield "token_embd.weight", embedding.astype(half)
    yield "blk.0.attn_norm.weight", np.full(WIDTH, math.sqrt(3 / WIDTH), np.float32)
    yield "blk.0.attn_q.weight", query.astype(half)
    yield "blk.0.attn_k.weight", key.astype(half)
    yield "blk.0.attn_v.weight", value.astype(half)
    yield "blk.0.attn_output.weight", np.ascontiguousarray(back.T).astype(half)
    yield "blk.0.ffn_norm.weight", np.full(WIDTH, math.sqrt(8 / WIDTH), np.float32)
    yield "output_norm.weight", np.ones(WIDTH, np.float32)
    yield "output.weight", (output * 8).astype(half)
