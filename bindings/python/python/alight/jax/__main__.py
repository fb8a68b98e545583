"""`python -m alight.jax MODEL [PROMPT]`: the command `alight run --engine jax` of this package, with this Python."""

import os
import sys
import sysconfig
from typing import NoReturn


def main() -> NoReturn:
    schemes = sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")
    commands = [os.path.join(sysconfig.get_path("scripts", scheme), "alight") for scheme in schemes]
    found = next(filter(os.path.isfile, commands), None)
    if found is None:
        sys.exit(f"alight: error: the command of the package is not at '{commands[0]}': install the package again")
    os.environ["ALIGHT_PYTHON"] = sys.executable
    os.execv(found, [found, "run", "--engine", "jax", *sys.argv[1:]])


if __name__ == "__main__":
    main()
