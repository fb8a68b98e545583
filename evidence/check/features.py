"""The crates below the Python extension have the features that they have in the workspace as a whole.

maturin builds that one package, and cargo chooses features for what is built: where they differ, everything that depends on
such a crate is built twice by `make test`, which takes minutes and says nothing. Needs cargo; nothing is built.
"""

import subprocess

from evidence.lib import common


def add_arguments(parser) -> None:
    """None."""


def features(*selection: str) -> dict[str, str]:
    """Of each crate that is built for these packages, by name and version."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p}|{f}", *selection]
    out = subprocess.run(command, cwd=common.ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    crates = (line.removesuffix(" (*)").split("|") for line in out.splitlines() if "|" in line)
    return {name.split(" (")[0]: has for name, has in crates}


def run(args) -> int:
    """Prints each crate whose features differ; the exit status."""
    alone, together = features("-p", "alight-python", "-e", "no-dev"), features("--workspace", "-e", "normal,build,dev")
    differ = {name: has for name, has in alone.items() if together.get(name) != has}
    for name, has in differ.items():
        print(f"{name}: features [{has}] below the Python extension, and [{together.get(name, '')}] in the workspace: "
              "name them in Cargo.toml, or in bindings/python/Cargo.toml")
    return 1 if differ else 0
