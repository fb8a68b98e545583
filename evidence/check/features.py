"""What is built for the wheel, and by `make run`, has the features that it has in the workspace as a whole.

maturin builds one package, and cargo chooses features for what is built: where they differ, everything that depends on
such a crate is built twice by `make test`, which takes minutes and says nothing. `make run` leaves out features of the command: only what has
them, or is named below, may differ. Needs cargo; nothing is built.
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


# What has the features of the command, which can be left out.
LEFT_OUT = ("alight ", "alight-chat ", "alight-hub ", "alight-python ", "alight-server ", "ureq ")


def run(args) -> int:
    """Prints each crate whose features differ; the exit status."""
    together = features("--workspace", "-e", "normal,build,dev")
    selections = {
        "below the Python extension": (features("-p", "alight-python", "-e", "no-dev"), ()),
        "without features of the command": (features("--workspace", "--no-default-features", "-e", "normal,build,dev"), LEFT_OUT),
    }
    wrong = 0
    for where, (found, allowed) in selections.items():
        for name, has in found.items():
            if together.get(name) != has and not f"{name} ".startswith(allowed or ("\0",)):
                print(f"{name}: features [{has}] {where}, and [{together.get(name, '')}] in the workspace: "
                      "name them in Cargo.toml, or in bindings/python/Cargo.toml")
                wrong += 1
    return 1 if wrong else 0
