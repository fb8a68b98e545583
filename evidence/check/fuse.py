"""Experts in slots out of a filesystem that is another program (FUSE), by the kernel's own client.

A small mixture of experts is served by `evidence/lib/fuse.py` and answers with less memory than its experts take: read through the page
cache, dropped behind, with the bits that the file on the disk gives. Then each read is delayed, and in the end reads fail: the command has to
name the file and to end. As root, with /dev/fuse.

    python -m evidence check fuse
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from evidence.lib import common, process
from evidence.lib.cached import PAGE, cached_pages, make_cold
from evidence.lib.checks import Checks
from evidence.lib.fuse import Fuse
from evidence.lib.gguf_files import sizes_of_experts

# Of the 9 MB, some two fifths of the experts fit beside what a process takes by itself.
MEMORY = "114M"
PROMPT = "bat wars sale bat sun"
TOKENS = 40


def add_arguments(parser) -> None:
    common.add_arguments(parser)


def answer(args, path: Path, *more) -> tuple[int, str, str]:
    command = [common.alight(args.alight), "run", path, "--raw", "--temp", 0, "--ignore-eos", "-n", TOKENS, "-t", args.threads,
               "--explain-load", "--stats", f"--prompt={PROMPT}", *more]
    done = process.run(command, 120)
    return done.returncode, done.stdout, done.stderr


def run(args) -> int:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        raise SystemExit("check fuse needs root and /dev/fuse")
    checks = Checks()

    def expect(good, what: str, said: str = "") -> None:
        checks.add(bool(good), what if good or not said else f"{what}: {said[-300:]}")

    with tempfile.TemporaryDirectory() as folder:
        model, mountpoint = Path(folder) / "mixture.gguf", Path(folder) / "mounted"
        mountpoint.mkdir()
        maker = [sys.executable, "-m", "evidence", "make", "random-model", "tiny-moe", model, "--routing", "qwen3"]
        subprocess.run([str(word) for word in maker], cwd=common.ROOT, check=True, stdout=subprocess.DEVNULL)
        always, experts = sizes_of_experts(model)
        code, wanted, said = answer(args, model)
        expect(code == 0 and wanted, "the file on the disk answers", said)
        with Fuse(model, mountpoint) as fuse:
            fuse.path.read_bytes()
            expect(cached_pages(fuse.path) * PAGE >= model.stat().st_size, "a file that is read plainly stays in the page cache")
            for what, more, delay in (("by default", (), 0.0), ("in slots", ("--memory", MEMORY), 0.0), ("in slots, slowly", ("--memory", MEMORY), 2e-3)):
                make_cold(fuse.path)
                fuse.delay, before = delay, fuse.reads
                code, text, said = answer(args, fuse.path, *more)
                expect((code, text) == (0, wanted), f"{what}: the same answer out of FUSE", said)
                expect(fuse.reads > before, f"{what}: it was read there")
                if not more:
                    continue
                fits = re.search(r"experts +(\d+) of (\d+) fit", said)
                expect(fits and int(fits[1]) < int(fits[2]), f"{what}: some experts fit", said)
                left = cached_pages(fuse.path) * PAGE
                expect(left < always + experts / 8, f"{what}: {left} bytes are left in the page cache, of {always} that are always needed and {experts} of experts")
            before = fuse.reads
            answer(args, fuse.path, "--memory", MEMORY)
            each = fuse.reads - before
            for share in (0.3, 0.6, 0.9):
                fuse.delay, fuse.reads, fuse.fails_after = 0.0, 0, int(share * each)
                make_cold(fuse.path)
                code, text, said = answer(args, fuse.path, "--memory", MEMORY)
                expect(code == 1 and f"{fuse.path}: cannot read" in said, f"reads fail after {fuse.fails_after} of {each}: exit status {code}", said)
                expect(wanted.startswith(text.removesuffix("\n")), f"what came before that is right: {text[-40:]!r}")
    return checks.status()
