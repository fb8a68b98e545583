"""Writes the reference vectors that crates/kernels checks its quantisation against.

Weights of several distributions, and what others make of them: for the types with one scale per 32
weights the `gguf` package, whose blocks are to be met bit for bit; for those with scales of scales
llama.cpp (`ggml_quantize_chunk` in the xllamacpp wheel), whose error is not to be exceeded.

`input.bin`: f32, little-endian, a multiple of 256. `<TYPE>.bin`: the blocks. `importance.bin`: f32, 256 weights of importance,
those of every 256 weights; `<TYPE>.weighted.bin`: the blocks that llama.cpp makes with these.

The output is committed; run this only to regenerate it (same seed, same bytes), or with --check.
"""

from __future__ import annotations

import sys

from evidence.lib import llama
from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

SIMPLE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "MXFP4", "TQ1_0", "TQ2_0"]
# As exact, but not in the package.
THEIRS = ["Q1_0", "Q2_0"]
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
# For which an importance matrix makes a difference.
WEIGHTED = SEARCHED + ["Q4_0", "Q4_1", "Q5_0", "Q5_1"]
WHERE = ROOT / "crates/kernels/tests/data/quantize"


def weights():
    """Blocks of 256: as models have them, and as they hardly ever do."""
    rng = np.random.default_rng(20261122)
    normal = rng.normal(0, 0.02, (8, 256))
    laplace = rng.laplace(0, 0.01, (8, 256))
    heavy = rng.standard_t(3, (6, 256)) * 0.01
    shifted = rng.normal(0.05, 0.02, (4, 256))
    uneven = rng.normal(0, 1, (4, 256)) * np.exp(rng.normal(0, 1.5, (4, 8, 1))).repeat(32, 2).reshape(4, 256)
    odd = np.zeros((5, 256))
    odd[1] = 0.125
    odd[2] = -np.linspace(0, 1, 256)
    odd[3, 100] = -3.0
    odd[4] = rng.normal(0, 1e-7, 256)
    return np.concatenate([normal, laplace, heavy, shifted, uneven, odd]).astype(np.float32)


def importance():
    """As they are measured: of some inputs a hundred times that of others."""
    return np.exp(np.random.default_rng(20261123).normal(0, 1.5, 256)).astype(np.float32)


def blocks(name, x):
    if name in SIMPLE:
        return gguf.quants.quantize(x, gguf.GGMLQuantizationType[name]).tobytes()
    return llama.quantizer()(name, x).tobytes()


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead")


def run(args):
    x = weights()
    files = {"input": x.tobytes()} | {name: blocks(name, x) for name in SIMPLE + THEIRS + SEARCHED}
    given = importance()
    files |= {"importance": given.tobytes()}
    files |= {f"{name}.weighted": llama.quantizer()(name, x, given).tobytes() for name in WEIGHTED}
    wrong = []
    for name, data in files.items():
        path = WHERE / f"{name}.bin"
        if not args.check:
            WHERE.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        elif path.read_bytes() != data:
            wrong.append(path.name)
    if wrong:
        sys.exit(f"{WHERE}: {', '.join(wrong)}: not what this script makes")
    print(f"{len(files)} files {'are right' if args.check else 'written'}")
