"""Writes what llama.cpp's samplers keep of made-up logits, and with which probabilities, for the unit tests of crates/model (`engine/sampler.rs`).

Each case has options, by their names in requests, the tokens accepted before, and steps: logits by a number (`logits` here and `logits_of` there
make the same of it), how many tokens the chain of samplers keeps of them, the probabilities of the likeliest of these and of those that the accepted tokens
are taken from, and, with Mirostat, the token that llama.cpp drew and learned from. Nothing else depends on a draw: XTC's probability is 1. The vocabulary is in the file; the
tokens of texts that break sequences are found in it by both.

llama.cpp is the library in the package `xllamacpp`, through ctypes. The output is committed; run this only to regenerate it (same seed, same
bytes), or with --check.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path

from evidence.agree.pretokenizers import ModelParams
from evidence.lib import llama, vocabularies
from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

WHERE = ROOT / "crates/model/tests/data/samplers.json"
# Of what is kept, how many of the likeliest tokens are recorded; the tokens of `PIECES` always are.
LIKELIEST = 16
# Tokens beside the bytes.
FIRST_PIECE = 3 + 256
PIECES = ["a", "b", "c", "d", " ", ":", "\n", "ab", "bc", "xa", "a:", ": b", "cd\n", "abc", "…", "dd"]
BREAKERS = [None, [], ["abc"], ["ab", "abcd", ":"], ["…", "d\na"]]
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DEFAULTS = {
    "min_keep": 0, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repeat_last_n": 64, "dry_multiplier": 0.0,
    "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64, "xtc_probability": 0.0, "xtc_threshold": 0.1, "top_n_sigma": -1.0,
    "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
}
ON = {"penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1}, "dry": {"dry_multiplier": 0.8},
      "top_n_sigma": {"top_n_sigma": 1.5}, "xtc": {"xtc_probability": 1.0}, "top_k": {"top_k": 20}, "top_p": {"top_p": 0.9}, "min_p": {"min_p": 0.05}}


class TokenData(ctypes.Structure):
    """`llama_token_data` of include/llama.h."""
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenDataArray(ctypes.Structure):
    """`llama_token_data_array`."""
    _fields_ = [("data", ctypes.POINTER(TokenData)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool)]


def tokens() -> tuple[list[str], list[int]]:
    """The vocabulary, and what kind each token is."""
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES], [2, 3, 3, *[6] * 256, *[1] * len(PIECES)]


def vocabulary_file(path: Path) -> None:
    texts, types = tokens()
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list([text.replace(" ", "▁") for text in texts])
    w.add_token_scores([-float(i) for i in range(len(texts))])
    w.add_token_types(types)
    w.add_bool("tokenizer.ggml.add_space_prefix", False)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def logits(number: int, count: int):
    """Distinct numbers from -8 to 8, most of which are near 0: the same in f32 everywhere."""
    ranks = (np.arange(count, dtype=np.int64) * 7919 + number * 104729) % 1021
    return ((ranks / 128.0 - 4.0) ** 3 / 8.0).astype(np.float32)


class Library:
    """llama.cpp's samplers, and a vocabulary."""

    def __init__(self, vocabulary: Path):
        import xllamacpp

        path = next(Path(xllamacpp.__file__).parent.glob("*.so"), None) or sys.exit("xllamacpp has no library")
        self.lib = lib = llama.library(path)
        pointer, number, whole, size = ctypes.c_void_p, ctypes.c_float, ctypes.c_int32, ctypes.c_size_t
        lib.llama_model_default_params.restype = ModelParams
        for name, result, arguments in [
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, ModelParams]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_sampler_init_penalties", pointer, [whole, whole, number, number, number]),
            ("llama_sampler_init_dry", pointer, [pointer, number, number, whole, whole, pointer, size]),
            ("llama_sampler_init_top_n_sigma", pointer, [number]),
            ("llama_sampler_init_top_k", pointer, [whole]),
            ("llama_sampler_init_top_p", pointer, [number, size]),
            ("llama_sampler_init_min_p", pointer, [number, size]),
            ("llama_sampler_init_xtc", pointer, [number, number, size, ctypes.c_uint32]),
            ("llama_sampler_init_temp", pointer, [number]),
            ("llama_sampler_init_mirostat", pointer, [whole, ctypes.c_uint32, number, number, whole]),
            ("llama_sampler_init_mirostat_v2", pointer, [ctypes.c_uint32, number, number]),
            ("llama_sampler_accept", None, [pointer, whole]),
            ("llama_sampler_apply", None, [pointer, ctypes.POINTER(TokenDataArray)]),
        ]:
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        params = lib.llama_model_default_params()
        params.vocab_only = True
        model = lib.llama_model_load_from_file(str(vocabulary).encode(), params) or sys.exit("llama.cpp does not load the vocabulary")
        self.vocab = lib.llama_model_get_vocab(model)
        self.count = len(tokens()[0])

    def chain(self, o: dict, breakers: list[str]) -> list:
        """The samplers in the order of llama.cpp's chain (common/sampling.cpp), up to the draw."""
        lib, keep = self.lib, o["min_keep"]
        temperature = lib.llama_sampler_init_temp(o["temperature"])
        if o["mirostat"] == 1:
            return [temperature, lib.llama_sampler_init_mirostat(self.count, 7, o["mirostat_tau"], o["mirostat_eta"], 100)]
        if o["mirostat"] == 2:
            return [temperature, lib.llama_sampler_init_mirostat_v2(7, o["mirostat_tau"], o["mirostat_eta"])]
        texts = (ctypes.c_char_p * len(breakers))(*(text.encode() for text in breakers))
        return [
            lib.llama_sampler_init_penalties(self.count, o["repeat_last_n"], o["repeat_penalty"], o["frequency_penalty"], o["presence_penalty"]),
            lib.llama_sampler_init_dry(self.vocab, o["dry_multiplier"], o["dry_base"], o["dry_allowed_length"], o["dry_penalty_last_n"],
                                       texts, len(breakers)),
            lib.llama_sampler_init_top_n_sigma(o["top_n_sigma"]),
            lib.llama_sampler_init_top_k(o["top_k"]),
            lib.llama_sampler_init_top_p(o["top_p"], keep),
            lib.llama_sampler_init_min_p(o["min_p"], keep),
            lib.llama_sampler_init_xtc(o["xtc_probability"], o["xtc_threshold"], keep, 7),
            temperature,
        ]

    def step(self, chain: list, number: int, mirostat: bool) -> dict:
        data = (TokenData * self.count)(*((i, float(x), 0.0) for i, x in enumerate(logits(number, self.count))))
        array = TokenDataArray(ctypes.cast(data, ctypes.POINTER(TokenData)), self.count, -1, False)
        for sampler in chain:
            self.lib.llama_sampler_apply(sampler, ctypes.byref(array))
        left = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
        weights = np.exp(np.array([logit for _, logit in left], np.float64) - max(logit for _, logit in left))
        pairs = zip((weights / weights.sum()).tolist(), (token for token, _ in left))
        # What was ruled out has a logit of −∞, or one so small that it makes no difference.
        ranked = sorted((pair for pair in pairs if pair[0] > 1e-300), key=lambda pair: (-pair[0], pair[1]))
        recorded = [[token, float(f"{p:.6g}")] for rank, (p, token) in enumerate(ranked) if rank < LIKELIEST or token >= FIRST_PIECE]
        found = {"logits": number, "kept": len(ranked), "probabilities": recorded}
        return found | ({"drawn": array.data[array.selected].id} if mirostat else {})

    def case(self, options: dict, history: list[int], breakers: list[str] | None, numbers: list[int]) -> dict:
        o = DEFAULTS | PLAIN | options
        chain = self.chain(o, ["\n", ":", '"', "*"] if breakers is None else breakers)
        for sampler in chain:
            for token in history:
                self.lib.llama_sampler_accept(sampler, token)
        steps = [self.step(chain, number, o["mirostat"] > 0) for number in numbers]
        return {"options": PLAIN | options, "breakers": breakers, "accepted": history, "steps": steps}


def histories(rng) -> list[list[int]]:
    """Tokens that repeat themselves, with and without what breaks sequences."""
    few = [FIRST_PIECE + i for i in range(len(PIECES))]
    made = [rng.choice(few[:k], n).tolist() for k, n in [(2, 30), (3, 50), (4, 90), (8, 60), (16, 100), (16, 20)]]
    phrase = rng.choice(few, 9).tolist()
    # "…" and "abcd" also as bytes.
    spelled = [3 + byte for byte in "a…bcd:".encode()]
    return [*made, phrase * 4 + phrase[:5], [few[0]] * 70, phrase + spelled + phrase[:6] + spelled[:4], [], [few[0]]]


def cases(library: Library) -> list[dict]:
    rng = np.random.default_rng(20261130)
    found = []

    def add(options: dict, history: list[int] = [], breakers: list[str] | None = None, steps: int = 1) -> None:
        found.append(library.case(options, history, breakers, rng.integers(0, 1000, steps).tolist()))

    for history in histories(rng):
        for breakers in BREAKERS:
            add({"dry_multiplier": 0.8}, history, breakers)
        for more in ({"dry_base": 1.0}, {"dry_base": 3.0}, {"dry_allowed_length": 0}, {"dry_allowed_length": 1}, {"dry_allowed_length": 5},
                     {"dry_penalty_last_n": 9}, {"dry_penalty_last_n": 1000}, ON["penalties"]):
            add({"dry_multiplier": 0.5} | more, history, [])
    for n in (0.3, 1.0, 1.5, 2.0, 3.0, 10.0):
        add({"top_n_sigma": n})
        add({"top_n_sigma": n, "top_k": 10, "temperature": 0.6})
    for threshold in (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.6):
        add({"xtc_probability": 1.0, "xtc_threshold": threshold})
        add({"xtc_probability": 1.0, "xtc_threshold": threshold, "top_k": 12, "min_keep": 10, "temperature": 1.7})
        add({"xtc_probability": 1.0, "xtc_threshold": threshold, "temperature": 0.0})
    for mirostat in (1, 2):
        for tau, eta in ((5.0, 0.1), (3.0, 0.1), (1.0, 0.5), (0.2, 1.0)):
            for temperature in (0.7, 1.0, 1.5):
                add({"mirostat": mirostat, "mirostat_tau": tau, "mirostat_eta": eta, "temperature": temperature}, steps=6)
    everything = list(ON.values())
    for history in histories(rng):
        for _ in range(4):
            chosen = [one for one in everything if rng.random() < 0.6]
            options = {name: value for one in chosen for name, value in one.items()}
            add(options | {"temperature": float(rng.choice([0.5, 0.8, 1.25]))}, history)
    return found


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead")


def run(args):
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocabulary.gguf"
        vocabulary_file(vocabulary)
        found = cases(Library(vocabulary))
    lines = [json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in found]
    text = f'{{"tokens": {json.dumps(tokens()[0], ensure_ascii=False)}, "cases": [\n' + ",\n".join(lines) + "\n]}\n"
    if not args.check:
        WHERE.parent.mkdir(parents=True, exist_ok=True)
        WHERE.write_text(text)
    elif WHERE.read_text() != text:
        sys.exit(f"{WHERE}: not what this script makes")
    print(f"{len(lines)} cases {'are right' if args.check else 'written'}")
    sys.stdout.flush()
    # The library's threads do not end by themselves.
    os._exit(0)
