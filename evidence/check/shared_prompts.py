"""A folder of prompts that several processes share, which are killed at any moment, while files in it vanish and are torn: never a wrong answer.

    PYTHON -m evidence check shared-prompts [--kills 300] [--folder DIR]

Two writers answer prompts from one folder (`alight run --cache=DIR`) and are killed with SIGKILL at random moments of their lives. A third process cuts,
changes and removes files in between, as a server of files may show them to another host. Each answer that a process completes has to be the one that is
computed without a folder. --folder tries another filesystem, such as one of the network, where a new file has a hidden name until it is renamed. What has to be
seen, too: answers that did come from files, and another answer than the one expected.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from evidence.lib import common, tiny_models
from evidence.lib.checks import Checks

PROMPTS = 6
WORDS = 120
"""Of a beginning that several prompts share, and of the end that each has for itself."""


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="a folder on the filesystem to be tried (default: one for temporary files)")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: a small one with random weights)")


class Host:
    """One process after another that answers from the folder."""

    def __init__(self, program: Path, model: Path, folder: Path, prompts: list[Path], seed: int):
        self.command = [program, "run", model, "--cache=" + str(folder), "--raw", "-n", "6", "--temp", "0", "--json", "-t", "1", "-c", "4096"]
        self.prompts, self.drawn = prompts, random.Random(seed)
        self.kills = self.whole = self.reused = 0
        self.wrong: list[str] = []
        self.longest = 0.3

    def one(self, expected: list, kill: bool) -> None:
        at = self.drawn.randrange(len(self.prompts))
        began = time.monotonic()
        process = subprocess.Popen([*self.command, "-f", self.prompts[at]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        if kill:
            # At any moment, and often at the end, where the prompt is written.
            time.sleep(self.longest * self.drawn.choice([self.drawn.random(), 0.7 + 0.3 * self.drawn.random()]))
            process.send_signal(signal.SIGKILL)
        out, said = process.communicate()
        if process.returncode == -signal.SIGKILL:
            self.kills += 1
            return
        self.longest = 0.8 * self.longest + 0.2 * (time.monotonic() - began)
        if process.returncode != 0:
            self.wrong.append(f"exit status {process.returncode}: {said.decode(errors='replace')[-300:]}")
            return
        answer = json.loads(out)
        self.whole += 1
        self.reused += answer["reused_tokens"] > 0
        if answer["tokens"] != expected[at]:
            self.wrong.append(f"prompt {at}, {answer['reused_tokens']} tokens reused: {answer['tokens']}, expected {expected[at]}")


def harm(folder: Path, drawn: random.Random) -> str | None:
    """Does to a file what a network's filesystem may show: it vanishes, or whoever opens it from now on finds it cut, or with other bytes. Who has it mapped
    keeps what it has: nothing of ours changes a file in place, and whoever does could choose answers."""
    files = sorted(folder.glob("*.prompt"))
    if not files:
        return None
    path, what = drawn.choice(files), drawn.choice(["vanished", "cut", "changed"])
    other = path.with_suffix(".other")
    try:
        if what == "vanished":
            path.unlink()
            return what
        content = bytearray(path.read_bytes())
        if what == "cut":
            del content[drawn.randrange(len(content)) :]
        else:
            content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        other.write_bytes(content)
        other.rename(path)
    except (OSError, ValueError):
        other.unlink(missing_ok=True)
        return None
    return what


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    program, checks, drawn = common.alight(args.alight), Checks(), random.Random(3)
    with tempfile.TemporaryDirectory(dir=args.folder) as shared, tempfile.TemporaryDirectory() as own:
        shared, own = Path(shared) / "prompts", Path(own)
        model = args.model or tiny_models.write(tiny_models.Tiny("shared", "llama"), own / "shared.gguf")
        prompts = []
        for at in range(PROMPTS):
            path = own / f"{at}.txt"
            path.write_text(tiny_models.text(WORDS, at % 2) + " " + tiny_models.text(WORDS, 10 + at))
            prompts.append(path)
        alone = Host(program, model, own / "none", prompts, 0)
        expected = []
        for path in prompts:
            command = [word for word in alone.command if not str(word).startswith("--cache")]
            done = subprocess.run([*command, "-f", path], capture_output=True, stdin=subprocess.DEVNULL, check=True)
            expected.append(json.loads(done.stdout)["tokens"])
        checks.add(len({tuple(tokens) for tokens in expected}) > 1, f"{PROMPTS} prompts of {2 * WORDS} words have different answers")
        hosts = [Host(program, model, shared, prompts, seed) for seed in (1, 2)]
        began, done, harmed = time.monotonic(), threading.Event(), {"vanished": 0, "cut": 0, "changed": 0}

        def work(host: Host) -> None:
            while host.kills < args.kills // len(hosts) and len(host.wrong) < 5:
                host.one(expected, kill=host.drawn.random() < 0.7)

        def break_files() -> None:
            while not done.wait(0.3):
                if what := harm(shared, drawn):
                    harmed[what] += 1

        threads = [threading.Thread(target=work, args=(host,)) for host in hosts]
        breaker = threading.Thread(target=break_files)
        for thread in [*threads, breaker]:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        breaker.join()
        kills, whole, reused = (sum(getattr(host, name) for host in hosts) for name in ("kills", "whole", "reused"))
        wrong = [line for host in hosts for line in host.wrong]
        checks.wrong(f"two processes on one folder, killed {kills} times, files {', '.join(f'{what} {n} times' for what, n in harmed.items())}: all of {whole} answers "
                     f"are right, {reused} of them from files ({time.monotonic() - began:.0f} s)", wrong)
        checks.add(reused > whole // 10, "answers did come from files")
        left = [path.name for path in shared.iterdir() if not path.name.endswith(".prompt")]
        checks.add(len(left) <= kills, f"{len(left)} files of killed processes are left, which the next write after an hour removes")
        for host in hosts:
            host.kills, host.whole = 0, 0
        for path in shared.glob("*.prompt"):
            path.unlink()
        for at in range(PROMPTS):
            hosts[0].prompts = [prompts[at]]
            hosts[0].one([expected[at]], kill=False)
        hosts[1].reused = 0
        for at in range(PROMPTS):
            hosts[1].prompts = [prompts[at]]
            hosts[1].one([expected[at]], kill=False)
        checks.add(hosts[1].reused == PROMPTS and not hosts[1].wrong, "what one has written, the other maps")
        hosts[1].one([[0]], kill=False)
        checks.add(len(hosts[1].wrong) == 1, "another answer is noticed")
    return checks.status()
