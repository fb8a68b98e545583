"""What `rusage` and `alight cp` are compared with: where the other tools are, and the small C programs in evidence/c."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from evidence.lib import common

HINTS = {
    "GNU time": "Debian: apt install time",
    "bash": "Debian: apt install bash",
    "hyperfine": "Debian: apt install hyperfine, or cargo install hyperfine --locked",
    "perf": "Debian: apt install linux-perf",
    "nocache": "Debian: apt install nocache",
}


def compiler() -> list[str]:
    """A C compiler whose static programs are tiny, because the library is musl."""
    if shutil.which("musl-gcc"):
        return ["musl-gcc"]
    if shutil.which("zig"):
        return ["zig", "cc", "-target", f"{os.uname().machine}-linux-musl"]
    raise SystemExit("missing: a C compiler for musl. Debian: apt install musl-tools; elsewhere: pip install ziglang, "
                     "and `zig` in PATH")


def c_program(name: str) -> Path:
    """`evidence/c/NAME.c`, compiled unless that has been done since it was changed."""
    source, out = common.ROOT / f"evidence/c/{name}.c", common.TARGET / f"peers/{name}"
    if not out.is_file() or out.stat().st_mtime < source.stat().st_mtime:
        out.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-O2", "-static", "-s", "-w"]
        if name == "child":
            flags += ["-nostdlib", "-Wl,-N", "-Wl,--build-id=none"]
        subprocess.run([*compiler(), *flags, "-o", out, source], check=True)
    return out


def rusage(static: bool, given: Path | None = None) -> Path | None:
    """The newest build of the command `rusage` of that kind."""
    if given:
        found = [given]
    elif static:
        found = [*common.TARGET.glob("*-linux-musl/small/rusage")]
    else:
        found = [common.TARGET / "release/rusage"]
    found = [path.resolve() for path in found if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        how = "make rusage" if static else "cargo build --release -p rusage"
        common.say(f"left out: rusage, {'static' if static else 'default build'}: {how} makes it, or name the file")
        return None
    return max(found, key=lambda path: path.stat().st_mtime)


def tool(name: str, program: str, given: Path | None = None) -> str | None:
    path = str(given) if given else shutil.which(program)
    if path is None:
        common.say(f"left out: {name}. {HINTS[name]}")
    return path


def version(name: str, path) -> str:
    option = {"C wrapper": None, "child alone": None}.get(name, "--version")
    if option is None:
        return ""
    done = subprocess.run([path, option], capture_output=True, text=True)
    number = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return number.group() if number else "?"


# Seconds.
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


class Wrapper:
    """A tool that runs a command and tells what it took."""

    def __init__(self, name, prefix, wall=None, seconds=1.0, rss=None, kib=1, step=""):
        self.name, self.prefix = name, [str(part) for part in prefix]
        self.wall, self.seconds, self.rss, self.kib, self.step = wall, seconds, rss, kib, step

    def command(self, child) -> list[str]:
        return [*self.prefix, *(str(part) for part in child)]

    def wall_us(self, said: str) -> float | None:
        """Microseconds of wall time, as the tool says it; in the unit that follows, where the pattern has it."""
        found = self.wall and re.search(self.wall, said)
        if not found:
            return None
        unit = UNITS[found.group(2)] if found.re.groups > 1 else self.seconds
        return float(found.group(1).replace(",", "")) * unit * 1e6

    def rss_kib(self, said: str) -> float | None:
        found = self.rss and re.search(self.rss, said)
        return float(found.group(1).replace(",", "")) / self.kib if found else None


def wrappers(args) -> list[Wrapper]:
    """Those that are on this machine. `wall` and `rss` say how each one's report is read."""
    out = [Wrapper("C wrapper", [c_program("wrapper")], r"took (\d+)ns", 1e-9, r"ballooned to (\d+)kb", 1, "1 ns")]
    ours = {"wall": r"took ([\d,.]+) (s|ms|µs) wall", "rss": r"ballooned to (?:at most )?([\d,]+)kb", "step": "1 µs; from 0.1 s on 1 ms"}
    for static in (True, False):
        path = rusage(static, args.rusage_static if static else args.rusage)
        if path:
            out.append(Wrapper("rusage, static" if static else "rusage, default build", [path], **ours))
    if path := tool("GNU time", "time"):
        out.append(Wrapper("GNU time -v", [path, "-v"], r"m:ss\): 0:([\d.]+)", 1, r"Maximum resident .*: (\d+)", 1, "10 ms"))
    if path := tool("bash", "bash"):
        out.append(Wrapper("bash time", [path, "-c", 'TIMEFORMAT="real %3R"; time "$@"', "bash"], r"real ([\d.]+)", 1, step="1 ms"))
    if path := tool("hyperfine", "hyperfine", args.hyperfine):
        out.append(Hyperfine(path))
    if path := tool("perf", "perf"):
        out.append(Wrapper("perf stat", [path, "stat"], r"([\d.]+) seconds time elapsed", 1, step="1 ns"))
    return out


class Hyperfine(Wrapper):
    """Takes the command as one word, and tells numbers with all digits only as JSON."""

    def __init__(self, path):
        super().__init__("hyperfine -N -r 1", [path, "-N", "-r", "1", "--style", "none", "--export-json", "/dev/stderr"],
                         r'"times": \[\s*([\d.eE+-]+)', 1, r'"memory_usage_byte": \[\s*(\d+)', 1024, "1 ns")

    def command(self, child) -> list[str]:
        return [*self.prefix, shlex.join(str(part) for part in child)]


def add_arguments(parser) -> None:
    parser.add_argument("--rusage-static", type=Path, metavar="FILE", help="the static build (default: what make rusage makes)")
    parser.add_argument("--rusage", type=Path, metavar="FILE", help="the default build (default: target/release/rusage)")
    parser.add_argument("--hyperfine", type=Path, metavar="FILE", help="another hyperfine than the one in PATH")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")
