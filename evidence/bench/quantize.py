"""How fast floats become blocks, on one thread, beside llama.cpp's ggml_quantize_chunk: a native build's
(`make bench-peer`, or LLAMA_CPP_BIN), else that of the xllamacpp wheel, which was compiled for any CPU.

Million weights per second, medians of rounds in turns, evenly distributed weights; errors are compared by the tests of
crates/kernels. Needs cargo (it builds crates/kernels/examples/quantize_speed.rs).
"""

from __future__ import annotations

import ctypes
import subprocess
import time

from evidence.lib import common
from evidence.lib.lazy import lazily
from evidence.make.quantize_vectors import llama_cpp

gguf = lazily("gguf")
np = lazily("numpy")

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def theirs(chunk, name, x) -> float:
    kind = gguf.GGMLQuantizationType[name]
    length, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.zeros(x.size // length * size, np.uint8)
    began = time.perf_counter()
    chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
    return x.size / 1e6 / (time.perf_counter() - began)


def ours() -> dict:
    text = subprocess.run(["cargo", "run", "-q", "--release", "--locked", "-p", "alight-kernels", "--example", "quantize_speed"],
                          cwd=common.ROOT, check=True, capture_output=True, text=True).stdout
    return {name: float(rate) for name, rate in (line.split(": ") for line in text.splitlines())}


def add_arguments(parser) -> None:
    parser.add_argument("--rounds", type=int, default=7)


def run(args):
    if common.has_llama("libggml-base.so"):
        library = common.llama_tool("libggml-base.so")
        chunk = ctypes.CDLL(str(library)).ggml_quantize_chunk
    else:
        library, chunk = "xllamacpp", llama_cpp()
    common.say(f"llama.cpp: {library}")
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    x = ((np.random.default_rng(0).random((1024, 1024), dtype=np.float32) - 0.5) * 0.1).astype(np.float32)
    ours()
    a, b = {name: [] for name in TYPES}, {name: [] for name in TYPES}
    for _ in range(args.rounds):
        now = ours()
        for name in TYPES:
            a[name].append(now[name])
            b[name].append(theirs(chunk, name, x))
    rows = [["type", "alight", "llama.cpp", "ratio, round by round"]]
    for name in TYPES:
        ratio = common.summary([p / q for p, q in zip(a[name], b[name])])
        rows.append([name, common.spread(common.summary(a[name]), 0), common.spread(common.summary(b[name]), 0),
                     common.spread(ratio, 2)])
    common.table(rows)
