"""What each tool tells of a process whose truth is known: `rusage`, GNU time, bash's time, hyperfine, perf stat.

Every cell of the table is read from a run made here: a program (evidence/c/load.c) does work of a known size, the tool
runs it, and its report is searched for the number. A dash: no such number in what it printed. Files to read are evicted
first (fsync, fadvise, proven by cachestat), on the disk of the build folder. "runs, middle and spread" and what follows
show the option that was used for it; a dash there means that its manual has none.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from evidence.lib import cached, common
from evidence.lib import tools as peer_tools

MIB = 2**20
NONE = "–"


class Ran:
    """One run of a tool to its end."""

    def __init__(self, command, stdin=b"", interrupt_after=None):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=out, stderr=err,
                                       start_new_session=True)
            try:
                process.stdin.write(stdin)
                process.stdin.close()
            except BrokenPipeError:
                pass
            if interrupt_after:
                time.sleep(interrupt_after)
                os.killpg(process.pid, signal.SIGINT)
            process.wait(60)
            self.status = process.returncode
            out.seek(0)
            err.seek(0)
            self.out, self.err = out.read().decode(errors="replace"), err.read().decode(errors="replace")

    def end(self) -> str:
        return f"status {self.status}" if self.status >= 0 else f"signal {-self.status}"


# What is searched for in a report, by tool: a pattern, and how its groups are shown.
GNU_TIME = {
    "wall": (r"m:ss\): (\S+)", "{} (m:s)"), "cpu": (r"User time \(seconds\): (\S+)\s+System time \(seconds\): (\S+)", "{} s, {} s"),
    "peak": (r"Maximum resident set size \(kbytes\): (\d+)", "{} kB"),
    "faults": (r"Major.*: (\d+)\s+Minor.*: (\d+)", "{1} minor, {0} major"),
    "switches": (r"Voluntary context switches: (\d+)\s+Inv.*: (\d+)", "{} voluntary, {} not"),
    "read": (r"File system inputs: (\d+)", "{}, no unit"), "written": (r"File system outputs: (\d+)", "{}, no unit"),
    "signal": (r"(Command terminated by signal \d+)", "“{}”"),
}
OURS = {
    "wall": (r"took (.+?) wall", "{}"), "cpu": (r"needed (.+?) cpu \((\d+)% kernel", "{}, {} % kernel"),
    "peak": (r"ballooned to ((?:at most )?[\d,]+kb)", "{}"), "faults": (r"caused ([\d,]+) page faults? \((\d+)% without the disk", "{}, {} % minor"),
    "switches": (r"([\d,]+) context switch(?:es)? \((\d+)% consensual", "{}, {} % voluntary"),
    "read": (r"performed ([\d,]+ bytes?) of read", "{}"),
    "written": (r"and ([\d,]+ bytes?) of write", "{}"),
    "tree": (r"whole tree peaked at ([\d,]+kb) \(([^,)]+)", "{} ({})"), "signal": (r"(signal \d+|SIG\w+)", "“{}”"),
}
HYPERFINE = {
    "wall": (r'"times": \[\s*([\d.e-]+)', "{} s"), "cpu": (r'"user": ([\d.e-]+),\s*"system": ([\d.e-]+)', "{} s, {} s"),
    "peak": (r'"memory_usage_byte": \[\s*(\d+)', "{} bytes"), "signal": (r"(terminated by signal \d+)", "“{}”"),
}
PERF = {
    "wall": (r"([\d.]+) seconds time elapsed", "{} s"), "cpu": (r"([\d.]+) seconds user\s+([\d.]+) seconds sys", "{} s, {} s"),
    "faults": (r"(\d[\d,]*)\s+page-faults", "{} of both"), "switches": (r"(\d[\d,]*)\s+context-switches", "{} of both"),
    "signal": (r"(\w+: Killed|Killed)", "“{}”"),
}
BASH = {"wall": (r"real\s+(\S+)", "{}"), "cpu": (r"user\s+(\S+)\s+sys\s+(\S+)", "{}, {}"), "signal": (r"(Killed)", "“{}”")}


class Tool:
    def __init__(self, name, path, prefix, fields, **options):
        self.name, self.path, self.prefix, self.fields, self.options = name, path, prefix, fields, options

    def line(self, child, extra=None) -> list[str]:
        extra = self.options.get("once", []) if extra is None else extra
        child = [str(part) for part in child]
        if "hyperfine" in self.name:
            return [self.path, *self.prefix, *extra, shlex.join(child)]
        return [self.path, *self.prefix, *extra, *child]

    def run(self, child, extra=None, **how) -> Ran:
        return self.complete(Ran(self.line(child, extra), **how))

    def complete(self, ran) -> Ran:
        """With what went into a file of its own."""
        if export := self.options.get("export"):
            ran.json = export.read_text() if export.exists() else ""
            ran.err += ran.json
            export.unlink(missing_ok=True)
        else:
            ran.json = ran.err
        return ran

    def says(self, field, ran) -> str:
        pattern, shown = self.fields.get(field, (None, None))
        found = pattern and re.search(pattern, ran.err + ran.out)
        return shown.format(*found.groups()) if found else NONE


def tools(args, folder) -> list[Tool]:
    out = []
    path = peer_tools.rusage(True, args.rusage_static) or peer_tools.rusage(False, args.rusage)
    if path:
        out.append(Tool("rusage", path, [], OURS, tree=["--tree"], runs=["-n", "3", "-w", "0"], json=["--json"], cold="--cold"))
    if path := peer_tools.tool("GNU time", "time"):
        out.append(Tool("GNU time", path, ["-v"], GNU_TIME))
    if path := peer_tools.tool("bash", "bash"):
        out.append(Tool("bash time", path, ["-c", 'time "$@"', "bash"], BASH))
    if path := peer_tools.tool("hyperfine", "hyperfine", args.hyperfine):
        export = folder / "hyperfine.json"
        out.append(Tool("hyperfine", path, ["-N", "--style", "none", "--export-json", export], HYPERFINE,
                        once=["-r", "1"], runs=["-r", "3"], json=[], export=export))
    if path := peer_tools.tool("perf", "perf"):
        out.append(Tool("perf stat", path, ["stat"], PERF, runs=["-r", "3"], json=["-j"]))
    return out


# --- the questions -------------------------------------------------------------------------------

def cold_file(folder, mib) -> Path:
    path = folder / f"{mib}MiB"
    if not path.exists():
        path.write_bytes(os.urandom(mib * MIB))
    if cached.make_cold(path):
        raise SystemExit(f"{path} stays in the page cache")
    return path


def peaks_of_runs(tool, load, folder) -> str:
    """MiB said of each run, of which the first takes 100 MiB and the others 10."""
    if "runs" not in tool.options:
        return "one run only"
    mark = folder / "fewer"
    mark.unlink(missing_ok=True)
    extra = [*tool.options["runs"], *tool.options.get("json", [])]
    ran = tool.run([load, "fewer", mark], extra)
    if tool.name == "rusage":
        said = [run["max_rss_bytes"] for run in json.loads(ran.err.splitlines()[-1])["runs"]]
    else:
        found = re.search(r'"memory_usage_byte": \[([^\]]*)\]', ran.err)
        said = [int(word) for word in found.group(1).split(",")] if found else []
    return ", ".join(f"{bytes / MIB:.0f}" for bytes in said) or NONE


def order(tool, folder) -> str:
    """In which order two commands run, three times each: each writes its letter down."""
    log = folder / "order"
    log.write_text("")
    one, other = (["sh", "-c", f"echo -n {letter} >> {log}"] for letter in "ab")
    if tool.name == "rusage":
        tool.run(one, ["-n", "3", "-w", "0", "--vs", shlex.join(other)])
    elif tool.name == "hyperfine":
        Ran([*tool.line(one, ["-r", "3"]), shlex.join(other)])
    return log.read_text() or NONE


def middle(tool, load) -> str:
    """What it says of three runs together."""
    if "runs" not in tool.options:
        return NONE
    if tool.name == "rusage":
        summary = json.loads(tool.run([load, "sleeps", 5], ["-n", "3", "--json"]).err.splitlines()[-1])["summary"]
        return f"`-n`: {', '.join(next(iter(summary.values())))} of {len(summary)} numbers"
    if tool.name == "hyperfine":
        one = json.loads(tool.run([load, "sleeps", 5], tool.options["runs"]).json)["results"][0]
        return f"`-r`: {', '.join(key for key in ('mean', 'stddev', 'median', 'min', 'max') if key in one)} of wall time"
    found = re.search(r"elapsed\s+(\( \+-.*\))", tool.run([load, "sleeps", 5], tool.options["runs"]).err)
    return f"`-r`: mean {found.group(1)}" if found else NONE


def machine_readable(tool, load) -> str:
    if "json" not in tool.options:
        return NONE
    text = tool.run([load, "sleeps", 1], tool.options["json"] or None).json.strip()
    try:
        json.loads(text)
        return "yes"
    except json.JSONDecodeError:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        return f"{len(lines)} lines of it" if lines else NONE


def cold_by_itself(tool, load, folder) -> str:
    """Bytes read from the disk by a file that was warm, when the tool is asked to make it cold."""
    if "cold" not in tool.options:
        return "`--prepare` of one's own" if tool.name == "hyperfine" else NONE
    path = cold_file(folder, 16)
    common.warm(path)
    ran = tool.run([load, "read", path], [tool.options["cold"], path])
    return f"`{tool.options['cold']}`: {tool.says('read', ran)}"


def ends(tool, folder) -> str:
    plain = folder / "plain"
    plain.write_text("no program")
    plain.chmod(0o644)
    return ", ".join(tool.run(child).end().removeprefix("status ") for child in (["sh", "-c", "exit 7"], [plain], ["/nowhere/x"]))


def killed(tool, load) -> str:
    ran = tool.run([load, "kill"])
    said = tool.says("signal", ran)
    return ran.end() + (f", {said}" if said != NONE else "")


def interrupted(tool, load) -> str:
    ran = tool.run([load, "hang"], interrupt_after=0.3)
    told = tool.says("wall", ran) != NONE
    return f"{'report' if told else 'no report'}, {ran.end()}"


def rows(tool, load, folder) -> dict:
    """By question."""
    busy = tool.run([load, "user", 200])
    system = tool.run([load, "system", 200])
    sleeping = tool.run([load, "sleeps", 50])
    written = folder / "written"
    tree = tool.run([load, "tree", 50], tool.options.get("tree"))
    return {
        "wall: 50 sleeps of 1 ms": tool.says("wall", sleeping),
        "processor: 200 ms computing": tool.says("cpu", busy),
        "processor: 200 ms in system calls": tool.says("cpu", system),
        "peak: touches 100 MiB = 102,400 kB": tool.says("peak", tool.run([load, "memory", 100])),
        "peak: a program of 4 KB": tool.says("peak", tool.run([peer_tools.c_program("child")])),
        "peak of three runs, MiB: 100, 10, 10": peaks_of_runs(tool, load, folder),
        "peak of two children with 50 MiB each": tool.says("tree" if "tree" in tool.options else "peak", tree),
        "faults: touches 100 MiB": tool.says("faults", tool.run([load, "memory", 100])),
        "switches: 50 sleeps": tool.says("switches", sleeping),
        "reads 16,777,216 bytes, cold": tool.says("read", tool.run([load, "read", cold_file(folder, 16)])),
        "writes 16,777,216 bytes, to the disk": tool.says("written", tool.run([load, "write", written, 16])),
        "status 7, not executable, not there": ends(tool, folder),
        "child killed by signal 9": killed(tool, load),
        "Ctrl-C": interrupted(tool, load),
        "standard input reaches the child": "yes" if "hello" in tool.run(["cat"], stdin=b"hello").out else "no",
        "JSON": machine_readable(tool, load),
        "runs, middle and spread": middle(tool, load),
        "two commands, order of runs": order(tool, folder),
        "makes a file cold: reads 16,777,216 bytes": cold_by_itself(tool, load, folder),
    }


def add_arguments(parser) -> None:
    peer_tools.add_arguments(parser)


def run(args) -> int:
    load = peer_tools.c_program("load")
    found = {}
    with tempfile.TemporaryDirectory(prefix="report-rusage-", dir=load.parent) as folder:
        for tool in tools(args, Path(folder)):
            name = f"{tool.name} {peer_tools.version(tool.name, tool.path).replace('?', '')}".strip()
            found[name] = rows(tool, load, Path(folder))
    if common.as_json(args, found):
        return 0
    common.machine()
    questions = next(iter(found.values()))
    common.table([["the truth", *found], *([what, *(cells[what] for cells in found.values())] for what in questions)])
    return 0
