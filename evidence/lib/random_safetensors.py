"""Large safetensors files with random weights, for what measures how they are loaded."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from evidence.lib.lazy import lazily

np = lazily("numpy")


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], exponent: int) -> None:
    """Tensors of bf16, each with the upper seven bits of its exponent (`exponent`, a pattern of 16 bits): signs and all other bits are random. The
    file is on the disk when this returns."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    rng = np.random.default_rng(1)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            bits = np.frombuffer(rng.bytes(2 * math.prod(shape)), np.uint16) & 0x80FF | exponent
            out.write(bits.tobytes())
        out.flush()
        os.fsync(out.fileno())
