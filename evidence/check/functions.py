"""Nothing that an answer depends on is computed by functions of the C library.

The C library's `exp`, `sin`, `pow` and others differ between systems, and glibc chooses among several by the CPU; `powi` may be computed in any
order. So the crates below take `libm`'s, or those of `crates/kernels/src/lanes`. Square roots and roundings are exact everywhere. Tests are left out,
and so are the places below. Reads the repository alone.
"""

import re
import sys

from evidence.check import circles
from evidence.lib import common

CRATES = ("chat", "formats", "kernels", "model", "text")
NAMES = "exp|exp2|exp_m1|ln|ln_1p|log2|log10|powf|powi|sin|cos|sin_cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|asinh|acosh|atanh|cbrt|hypot"
CALL = re.compile(rf"(?:\.|\bf(?:32|64)::)({NAMES})\b\s*(?=[(,)])")
# Files whose results no answer depends on, with the reason.
LEFT = {
    "model/src/engine/proposer.rs": "which drafts are worth a try: an answer has the same tokens without them",
    "model/src/engine/speculate.rs": "the expected gain of a draft, next to measured times",
}
# The same for single functions of a file.
LEFT_CALLS = {("model/src/parts/routing.rs", "log2"): "how sure a choice of experts is, for what is read in advance"}


def add_arguments(parser) -> None:
    """None."""


def run(args) -> int:
    """Prints each such call; the exit status."""
    wrong, unused = 0, set(LEFT) | {file for file, _ in LEFT_CALLS}
    for crate in CRATES:
        for path in sorted((common.ROOT / "crates" / crate / "src").rglob("*.rs")):
            name = path.relative_to(common.ROOT / "crates").as_posix()
            if "tests" in path.stem or "tests" in path.parts:
                continue
            for found in CALL.finditer(circles.without_tests(path.read_text())):
                if name in LEFT or (name, found[1]) in LEFT_CALLS:
                    unused.discard(name)
                    continue
                print(f"crates/{name}: `{found[1]}` is the C library's, whose bits differ between systems: take `libm`'s", file=sys.stderr)
                wrong += 1
    for name in sorted(unused):
        print(f"crates/{name} has none of these calls any more: remove it from {__name__}", file=sys.stderr)
    return 1 if wrong or unused else 0
