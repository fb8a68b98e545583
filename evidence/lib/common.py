"""What the evidence scripts share: where things are, how a peer is found, how numbers are shown."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What cargo builds into.
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()

# Short names used on the command lines of the scripts, and the files they mean.
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "3b": "random-3b-q4_0.gguf",
    "7b": "random-7b-q4_0.gguf",
}


def say(text: str) -> None:
    """A line for the person who waits; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def models_folder() -> Path:
    """Where the model files are: $ALIGHT_MODELS or models/."""
    return Path(os.environ.get("ALIGHT_MODELS", ROOT / "models"))


def add_arguments(parser, threads: int = 2) -> None:
    """Options that every script has."""
    parser.add_argument("--models", type=Path, default=models_folder(),
                        help="folder of the model files (default: $ALIGHT_MODELS or models/)")
    parser.add_argument("--alight", type=Path, default=None, help="the binary (default: target/release/alight)")
    parser.add_argument("-t", "--threads", type=int, default=threads)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of a table")


def add_only_argument(parser, what: str) -> None:
    parser.add_argument("--only", nargs="+", metavar="PART", help=f"only {what} whose name has one of these in it")


def is_asked(args, name: str) -> bool:
    """Whether `--only` leaves it in."""
    return not args.only or any(part in name for part in args.only)


def add_folder_argument(parser) -> None:
    parser.add_argument("--in", dest="folder", type=Path, metavar="FOLDER", help="where the files are made (default: the build folder)")


def temporary_folder(args, name: str) -> tempfile.TemporaryDirectory:
    """A folder for large files, which goes when the block ends."""
    place = args.folder or TARGET
    place.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=f"{name}-", dir=place)


def model_path(name: str, folder: Path) -> Path:
    path = folder / MODELS.get(name, name)
    if not path.is_file():
        maker = "python -m evidence fetch models" if name in ("smollm2", "gemma3") else "python -m evidence make random-model"
        raise SystemExit(f"{path} is missing: {maker} makes it")
    return path


def alight(given: Path | None = None) -> Path:
    path = given or TARGET / "release/alight"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: cargo build --release makes it")
    return path.resolve()


def example(name: str) -> Path:
    """An example of one of our crates, built. Of the whole workspace, as `make build` does, so that the crates below are shared."""
    subprocess.run(["cargo", "build", "--quiet", "--release", "--locked", "--workspace", "--example", name], cwd=ROOT, check=True)
    return TARGET / "release/examples" / name


def answers(program, objects, *arguments) -> list:
    """What a program that takes lines of JSON prints, a line for each object."""
    lines = "".join(json.dumps(one) + "\n" for one in objects)
    done = subprocess.run([program, *arguments], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def packed_file(program: Path, name: str, model: Path, folder: Path, *options: str) -> Path | None:
    """The packed file of a model in `folder`, made by `alight pack` with these options if it is not there; None if that fails."""
    out = folder / f"{name}.packed.gguf"
    if not out.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([str(c) for c in [program, "pack", model, "-o", out, *options]], capture_output=True, text=True)
        if done.returncode != 0:
            say(f"{name}: without a packed file: {done.stderr.strip() or done.returncode}")
            return None
    return out.resolve()


def summary(values: list[float]) -> dict:
    """Median and spread of a handful of measurements, with the values themselves."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
        "values": values,
    }


def spread(s: dict | None, digits: int = 1, unit: str = "") -> str:
    """`median (least–most)`; a dash for what was not measured."""
    if s is None:
        return "-"
    return f"{s['median']:.{digits}f}{unit} ({s['min']:.{digits}f}–{s['max']:.{digits}f})"


def numbers(found: dict) -> dict:
    """What of it are numbers."""
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}


def as_json(args, document) -> bool:
    """Prints the document if JSON is asked for, in which case nothing else goes to standard output."""
    if args.json:
        print(json.dumps(document))
    return args.json


def table(rows: list[list[str]]) -> None:
    """A Markdown table, aligned for a terminal as well."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row):
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"

    print(line(rows[0]))
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for row in rows[1:]:
        print(line(row))


def verdicts(asked: list[tuple[str, bool]], who: str = "") -> None:
    """What was asked, and whether it is so."""
    print()
    for what, so in asked:
        print(f"- {'yes' if so else 'NO'}: {who + ': ' if who else ''}{what}")


def machine_name() -> str:
    """The processor and the kernel."""
    cpu = "unknown CPU"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{cpu}, {os.cpu_count()} cores, {os.uname().sysname} {os.uname().release}"


def machine() -> None:
    """One line on what was measured on: numbers without it mean nothing."""
    load = " ".join(f"{x:.2f}" for x in os.getloadavg())
    print(f"{machine_name()}, load average {load}\n")


def warm(path: Path) -> None:
    """Puts the file into the page cache by reading it."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(4 << 20)
        while file.readinto(buffer):
            pass
