"""Writes crates/kernels/src/blocks/grids.rs: the code books of IQ1, IQ2 and IQ3, from the Python package `gguf`.

A code book is part of its format: which 4 or 8 magnitudes each index stands for. The package holds them packed; here they
are packed again, 16 bits an entry, and the file says which version of the package they are from and their hash.

The output is committed; run this only to regenerate it, or with --check.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version

from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

WHERE = ROOT / "crates/kernels/src/blocks/grids.rs"
# Bits of a level in an entry of 16: eight levels of 2 bits, or four of 4.
TYPES = {"IQ1_S": 2, "IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 2, "IQ3_XXS": 4, "IQ3_S": 4}
HEADER = """\
//! The code books of IQ1, IQ2 and IQ3: a number of 16 bits for each index, in which the first level has the lowest
//! bits. Eight levels have 2 bits each (IQ1, IQ2), four have 4 (IQ3); what magnitude a level stands for, the
//! type's file says.
//!
//! Written by `python -m evidence make codebooks`, from version {version} of the Python package `gguf`; do not edit.
//! SHA-256 of all numbers below, little-endian: {digest}.
"""


def levels(name):
    """`[entries, weights of an entry]`: the place of each magnitude in the type's list of them."""
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape)
    found = np.searchsorted(np.array(kind.grid_map, np.float32), grid)
    assert (np.array(kind.grid_map, np.float32)[found] == grid).all(), name
    return found


def text():
    books = {}
    for name, bits in TYPES.items():
        found = levels(name)
        assert found.shape[1] * bits == 16 and found.max() < 1 << bits, name
        books[name] = (found << bits * np.arange(found.shape[1])).sum(axis=1).astype("<u2")
    digest = hashlib.sha256(b"".join(book.tobytes() for book in books.values())).hexdigest()
    out = [HEADER.format(version=version("gguf"), digest=digest)]
    for name, book in books.items():
        values = ", ".join(str(value) for value in getattr(gguf.quants, name).grid_map)
        shared = " and IQ1_M" if name == "IQ1_S" else ""
        out.append(f"\n/// {name}{shared}; the levels are {values}.\n#[rustfmt::skip]\npub(super) const {name}: [u16; {len(book)}] = [\n")
        for at in range(0, len(book), 12):
            out.append("    " + " ".join(f"0x{value:04x}," for value in book[at : at + 12]) + "\n")
        out.append("];\n")
    return "".join(out)


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="compare with what is there, write nothing")


def run(args):
    new = text()
    if not args.check:
        WHERE.write_text(new)
    elif WHERE.read_text() != new:
        sys.exit(f"{WHERE}: not what this script makes with version {version('gguf')} of gguf")
    print(f"{len(TYPES)} code books {'are right' if args.check else 'written'}")
