"""A long run of `alight embed` that is killed again and again, in each format: every line once, in order, with the bytes of a run that was not.

    PYTHON -m evidence check killed [--lines 100000] [--kills 10] [--model FILE]

Without --model an encoder with random weights is written. Each kill is SIGKILL, when the file has grown to another share of its length: by then one run
has written what the next one continues. A mistake that has to be seen: a line that was changed after it was written.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import tempfile
import time
from pathlib import Path

from evidence.lib import common, vector_clients
from evidence.lib.checks import Checks

FORMATS = ["vectors.npy", "vectors.f32", "vectors.jsonl"]
WORDS = "harbour spring river stone market paper light winter engine garden letter number forest window summer travel music history science water".split()


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--model", type=Path, help="an encoder's GGUF file (default: a small one with random weights)")
    parser.add_argument("--formats", nargs="*", default=FORMATS, choices=FORMATS)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def killed(command: list, out: Path, at: int) -> bool:
    """Runs the command until its file has this length, and kills it; False if it came to its end before."""
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while run.poll() is None:
        if out.exists() and out.stat().st_size >= at:
            run.kill()
            run.wait()
            return True
        time.sleep(0.005)
    return False


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    program, checks, drawn = common.alight(args.alight), Checks(), random.Random(9)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model, _ = (args.model, None) if args.model else vector_clients.models(folder)
        texts = folder / "texts.txt"
        # Texts of 0 to 16 words, each line with its number, so that no two are alike.
        texts.write_text("".join(f"{n} {' '.join(drawn.choices(WORDS, k=drawn.randint(0, 16)))}\n" for n in range(args.lines)))
        for name in args.formats:
            whole, out = folder / f"whole-{name}", folder / name
            command = [program, "embed", model, texts, "--quiet", "-t", str(args.threads)]
            began = time.monotonic()
            subprocess.run([*command, "-o", whole], check=True)
            alone = time.monotonic() - began
            size, kills = whole.stat().st_size, 0
            began = time.monotonic()
            for i in range(args.kills):
                # At any byte, and never where the one before was.
                kills += killed([*command, "-o", out], out, int(size * (i + drawn.random()) / args.kills))
            subprocess.run([*command, "-o", out], check=True)
            took = time.monotonic() - began
            same = digest(whole) == digest(out)
            checks.add(same and kills == args.kills, f"{name}: {args.lines} lines, {size:,} bytes, killed {kills} times: "
                       f"{'the same bytes' if same else 'other bytes'} ({took:.1f} s, at once {alone:.1f} s)")
            with out.open("r+b") as file:
                file.seek(-9, 2)
                byte = file.read(1)
                file.seek(-9, 2)
                file.write(bytes([byte[0] ^ 1]))
            changed = subprocess.run([*command, "-o", out], capture_output=True).returncode
            checks.add(changed != 0 and digest(whole) != digest(out), f"{name}: a vector that was changed since is an error")
    return checks.status()
