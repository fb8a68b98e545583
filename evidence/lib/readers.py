"""What our parsers read of a file, beside what another reader does: the frame of `check gguf`, `safetensors` and `torch`."""

import json
import subprocess
from pathlib import Path

from evidence.lib import common


def add_arguments(parser, default: str) -> None:
    """The files to compare, and whether to record what the other reader reads."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=f"default: {default}")
    parser.add_argument("--write", action="store_true", help="record what the other reader reads, for a test without Python")


def files(args, pattern: str) -> list[Path]:
    """The files that are given, else those of the models' folder."""
    return [path.resolve() for path in args.files] or sorted(common.models_folder().glob(pattern))


def ours(example: str, path: Path) -> list[dict]:
    """The lines of JSON that an example of crates/formats prints of a file."""
    out = subprocess.run([common.example(example), path], cwd=common.ROOT, check=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) for line in out.splitlines()]


def compare(path: Path, mine: list, other: list, who: str) -> None:
    """Ends the program at the first difference."""
    for a, b in zip(mine, other):
        if a != b:
            raise SystemExit(f"{path.name}: we read {str(a)[:600]}\n{who} reads {str(b)[:600]}")
    if len(mine) != len(other):
        raise SystemExit(f"{path.name}: we read {len(mine)} things, {who} {len(other)}")


def record(name: str, written: dict[str, list]) -> None:
    """Writes what the other reader read, by file, where the tests of crates/formats look for it."""
    rows = ",\n".join(f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, things)) + "\n]" for name, things in written.items())
    (common.ROOT / "crates/formats/tests/data" / name).write_text("{\n" + rows + "\n}\n")
