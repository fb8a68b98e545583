#!/usr/bin/env python3
"""Times the fused collective beside `lax.psum`, residual and norm: `alight bench collective`, with a Python that has the
package and jax (the wheel of `make python`).

    PYTHON scripts/bench_collective.py [--devices 2 4 8] [--rows 1 8 32] [--hidden 4608] [--processes N] [--json] [--svg FILE]
"""

import sys

from alight.jax.bench._main import main

if __name__ == "__main__":
    main(["collective", *sys.argv[1:]], prog="scripts/bench_collective.py")
