"""Writes the reference vectors that crates/kernels checks its dequantisation against.

For every weight type that has kernels (the table is theirs: `cargo run -p alight-kernels --example weight_types`): random
blocks, and what the `gguf` package makes of them.
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

import subprocess
import sys
import zlib
from pathlib import Path

from evidence.lib import common
from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

def weight_types():
    """The types that have kernels, without F32: name -> (weights of a block, bytes of a block, [(kind of a scale, at byte)])."""
    told = subprocess.run([common.example("weight_types")], check=True, stdout=subprocess.PIPE, text=True)
    lines = told.stdout.splitlines()
    found = {}
    for line in lines:
        name, _, weights, size, *fields = line.split()
        fields = [(kind, int(at)) for kind, at in (field.split("@") for field in fields)]
        found[name] = (int(weights), int(size), fields if int(weights) > 1 else [("f16", 0)])
    del found["F32"]
    return found


# f16 bit patterns: 0, -0, least and largest subnormal, least normal, largest, their negatives, 1.
F16_SPECIAL = [0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x8001, 0x3C00]
BF16_SPECIAL = [0x0000, 0x8000, 0x0001, 0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x8001, 0x3F80]
# 2^-128 and 2^-127 are subnormal; from 253 on 12 times the scale is infinite.
EXPONENT_SPECIAL = [0, 1, 2, 127, 128, 252]
# 0x7f is 0, and 0xff is not; below 8 they are subnormal.
E4M3_SPECIAL = [0x7F, 0xFF, 0x07, 0x80]


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


def exponents(rng, count):
    """One exponent byte per block: the least (subnormal scales), 1, the largest whose weights are finite, then any between."""
    out = rng.integers(0, EXPONENT_SPECIAL[-1] + 1, count, dtype=np.uint8)
    out[: len(EXPONENT_SPECIAL)] = EXPONENT_SPECIAL
    return out


def q1_0(blocks):
    """w = d where the bit is set, else -d."""
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return d * np.where(bits == 1, np.float32(1), np.float32(-1))


def q2_0(blocks):
    """w = (q - 1)*d, four consecutive weights in a byte from the lowest pair of bits on."""
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    q = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return d * (q.reshape(len(blocks), -1).astype(np.float32) - 1)


# Types that the gguf package does not dequantise: the formula of the specification.
OURS = {"Q1_0": q1_0, "Q2_0": q2_0}


def vectors(name, kind, seed):
    weights, size, fields = kind
    count = 2048 if weights == 1 else 64 if weights <= 64 else 16
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for i, (field, offset) in enumerate(fields):
        if field == "exponent":
            blocks[:, offset] = exponents(rng, count)
            continue
        if field == "e4m3":
            # Every byte is finite; the last block has the special ones.
            blocks[-1, offset] = E4M3_SPECIAL[i]
            continue
        column = scales(rng, count, name == "BF16")
        # The second scale (a minimum) meets each special value beside another first scale.
        column = np.roll(column, 3 * i)
        if field == "f16-nibbles":
            words = blocks[:, offset : offset + 8].view("<u2")
            words[...] = words & 0xFFF | (column[:, None].astype("<u2") >> np.array([0, 4, 8, 12], "<u2")) << 12
            continue
        blocks[:, offset : offset + 2] = column.astype("<u2").view(np.uint8).reshape(count, 2)
    if name in OURS:
        expected = OURS[name](blocks)
    else:
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    expected = expected.astype("<f4").reshape(-1)
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
    types = weight_types()
    for name, kind in types.items():
        blocks, expected = vectors(name, kind, args.seed)
        data = np.uint32(len(blocks)).tobytes() + blocks.tobytes() + expected.tobytes()
        path = args.out / f"{name}.bin"
        if args.check:
            if not path.is_file() or path.read_bytes() != data:
                differ.append(name)
        else:
            path.write_bytes(data)
        total += len(data)
    print(f"{len(types)} types, {total} bytes in {args.out}", file=sys.stderr)
    if differ:
        raise SystemExit(f"differ from the gguf package: {', '.join(differ)}")
