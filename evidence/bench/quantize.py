"""How fast floats become blocks, on one thread, beside llama.cpp's ggml_quantize_chunk: a native build's
(`make bench-peer`, or LLAMA_CPP_BIN), else that of the xllamacpp wheel, which was compiled for any CPU.

Million weights per second, medians of rounds in turns, evenly distributed weights; errors are compared by the tests of
crates/kernels. Needs cargo (it builds crates/kernels/examples/quantize_speed.rs).
"""

from __future__ import annotations

import time

from evidence.lib import common, llama, peers, process, rounds
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K",
         "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"]


def theirs(chunk, name, x) -> float:
    began = time.perf_counter()
    chunk(name, x)
    return x.size / 1e6 / (time.perf_counter() - began)


def ours(program) -> dict:
    return {name: float(rate) for name, rate in (line.split(": ") for line in process.output([program]).splitlines())}


def add_arguments(parser) -> None:
    rounds.add_arguments(parser, 7, pause=0)
    peers.add_arguments(parser)


def run(args) -> None:
    native = peers.LLAMA_CPP.has(args, "libggml-base.so")
    library = peers.LLAMA_CPP.tool(args, "libggml-base.so") if native else None
    common.say(f"llama.cpp: {library or 'xllamacpp'}")
    chunk, program = llama.quantizer(library), common.example("quantize_speed")
    x = ((np.random.default_rng(0).random((1024, 1024), dtype=np.float32) - 0.5) * 0.1).astype(np.float32)
    measures = {"alight": lambda: ours(program), "llama.cpp": lambda: {name: theirs(chunk, name, x) for name in TYPES}}
    ours(program)
    found = rounds.interleaved(args, measures, lambda who: measures[who]())
    rows = [["type", "alight", "llama.cpp", "ratio, round by round"]]
    for name in TYPES:
        a, b = ([one[name] for one in found[who]] for who in measures)
        rows.append([name, common.spread(common.summary(a), 0), common.spread(common.summary(b), 0),
                     common.spread(rounds.ratios(a, b), 2)])
    common.table(rows)
