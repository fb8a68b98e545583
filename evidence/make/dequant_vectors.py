"""Writes the reference vectors that crates/kernels checks its dequantisation against.

For every weight type that has kernels: random blocks, and what the `gguf` package makes of them.
The blocks are random bytes; only the scales are chosen, so that they are finite: the first blocks
carry every special scale (zero, minus zero, subnormal, smallest normal, largest), the others
alternate between scales as models have them and any finite 16-bit pattern.
NaN is left out: which payload bits survive a conversion is not defined by the format.

A file `<TYPE>.bin`, little-endian:
    u32            n_blocks
    n_blocks x B   raw blocks (B = bytes per block of the type)
    n_blocks x L   f32, the expected weights (L = weights per block)

The output is committed; run this only to regenerate it (same seed, same bytes).
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

# type -> (number of blocks, byte offsets of the f16 scales in a block)
TYPES = {
    "Q4_0": (64, [0]),
    "Q4_1": (64, [0, 2]),
    "Q5_0": (64, [0]),
    "Q5_1": (64, [0, 2]),
    "Q8_0": (64, [0]),
    "Q4_K": (16, [0, 2]),
    "Q5_K": (16, [0, 2]),
    "Q6_K": (16, [208]),
    "F16": (2048, [0]),
    "BF16": (2048, [0]),
}

# f16 bit patterns: 0, -0, least and largest subnormal, least normal, largest, their negatives, 1.
F16_SPECIAL = [0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x8001, 0x3C00]
BF16_SPECIAL = [0x0000, 0x8000, 0x0001, 0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x8001, 0x3F80]


def finite_patterns(rng, count, bf16):
    """Random 16-bit patterns without infinities and NaN."""
    exponent = 0x7F80 if bf16 else 0x7C00
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint32)
    bad = (bits & exponent) == exponent
    return np.where(bad, bits & ~np.uint32(exponent), bits).astype(np.uint16)


def scales(rng, count, bf16):
    """One scale per block: special ones first, then realistic and arbitrary ones in turn."""
    realistic = np.exp(rng.uniform(np.log(1e-4), np.log(1.0), count)) * rng.choice([-1, 1], count)
    if bf16:
        out = (realistic.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        out = realistic.astype(np.float16).view(np.uint16)
    any_bits = finite_patterns(rng, count, bf16)
    out[1::2] = any_bits[1::2]
    special = BF16_SPECIAL if bf16 else F16_SPECIAL
    out[: len(special)] = special
    return out


def vectors(name, seed):
    count, offsets = TYPES[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    qtype = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for i, offset in enumerate(offsets):
        column = scales(rng, count, name == "BF16")
        # The second scale (a minimum) meets each special value beside another first scale.
        column = np.roll(column, 3 * i)
        blocks[:, offset : offset + 2] = column.astype("<u2").view(np.uint8).reshape(count, 2)
    expected = gguf.quants.dequantize(blocks, qtype).astype("<f4").reshape(-1)
    if not np.isfinite(expected).all():
        # A largest scale times a 6-bit scale times a 4-bit weight stays below the f32 limit.
        raise SystemExit(f"{name}: a weight is not finite")
    return blocks, expected


def add_arguments(parser) -> None:
    parser.add_argument("--out", type=Path, default=ROOT / "crates/kernels/tests/data/dequant")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="compare with what is there, write nothing")


def run(args):
    args.out.mkdir(parents=True, exist_ok=True)
    total, differ = 0, []
    for name in TYPES:
        blocks, expected = vectors(name, args.seed)
        data = np.uint32(len(blocks)).tobytes() + blocks.tobytes() + expected.tobytes()
        path = args.out / f"{name}.bin"
        if args.check:
            if not path.is_file() or path.read_bytes() != data:
                differ.append(name)
        else:
            path.write_bytes(data)
        total += len(data)
    print(f"{len(TYPES)} types, {total} bytes in {args.out}", file=sys.stderr)
    if differ:
        raise SystemExit(f"differ from the gguf package: {', '.join(differ)}")
