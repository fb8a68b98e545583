"""`python -m alight.jax.bench collective`, which `alight bench collective` becomes."""

import json
import os
import subprocess
import sys
import xml.dom.minidom

import pytest
from alight._alight import check_new_file, write_new_file
from alight.jax.bench._say import printable

# The command says how many devices there are.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
SMALL = ["--rows", "1", "3", "--hidden", "64", "--turns", "3", "--platform", "cpu"]


def bench(*args, program=(sys.executable, "-m", "alight.jax.bench")):
    return subprocess.run([*program, "collective", *args], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


def test_every_cell_is_measured_and_drawn(tmp_path, command):
    told = bench("--devices", "2", *SMALL, "--json", "--svg", tmp_path / "c.svg", program=(command, "bench"))
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert [(c["devices"], c["rows"], c["hidden"]) for c in report["cells"]] == [(2, 1, 64), (2, 3, 64)]
    for cell in report["cells"]:
        assert cell["fused_us"] > 0 and cell["unfused_us"] > 0 and cell["ratio"] > 0 and cell["error"] < 0.02
    assert report["platform"] == "cpu" and report["cells"][0]["beside"] == "XLA"
    # What is said goes to stderr, so that stdout is JSON.
    assert "no GPU figures" in told.stderr and len(told.stdout.splitlines()) == 1
    picture = xml.dom.minidom.parse(str(tmp_path / "c.svg"))
    bars = picture.getElementsByTagName("rect")
    assert len(bars) == 4
    assert all(float(bar.getAttribute("x")) + float(bar.getAttribute("width")) <= 640.1 for bar in bars)
    said = " ".join(t.firstChild.data for t in picture.getElementsByTagName("text"))
    assert "no GPU figures" in said and "2 devices, width 64; psum by XLA" in said


def test_the_table_and_several_processes():
    told = bench("--processes", "2", *SMALL)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert "CPU devices of 2 processes" in lines[0] and "no GPU figures" in lines[0]
    assert lines[2].startswith("devices rows hidden") and [line.split()[:3] for line in lines[3:]] == [["2", "1", "64"], ["2", "3", "64"]]
    assert all(line.endswith("Gloo") for line in lines[3:])


def test_a_picture_replaces_nothing_unasked(tmp_path):
    there, pipe, link = tmp_path / "there.svg", tmp_path / "pipe.svg", tmp_path / "link.svg"
    there.write_text("mine")
    os.mkfifo(pipe)
    link.symlink_to(there)
    for path, words in ((there, "--force"), (pipe, "expected a regular file"), (link, "--force")):
        told = bench("--devices", "2", *SMALL, "--svg", path)
        assert told.returncode == 1 and words in told.stderr and told.stdout == "", told.stderr
    assert there.read_text() == "mine"
    # What appears while it is measured is not replaced either.
    late = tmp_path / "late.svg"
    check_new_file(late, force=False)
    late.write_text("theirs")
    with pytest.raises(OSError, match="late.svg: exists already; --force"):
        write_new_file(late, b"ours", force=False)
    assert late.read_text() == "theirs"
    write_new_file(there, b"new", force=True)
    assert there.read_text() == "new" and there.stat().st_mode & 0o7111 == 0 and sorted(p.name for p in tmp_path.iterdir()) == ["late.svg", "link.svg", "pipe.svg", "there.svg"]


def test_what_cannot_be_measured_is_said():
    for args, status, said in [
        (["--platform", "gpu"], 1, "0 GPUs"),
        (["--devices", "1"], 2, "from 2 to 64"),
        (["--devices", "3", "--processes", "2"], 2, "multiples of the 2 processes"),
    ]:
        told = bench(*args)
        assert told.returncode == status and said in told.stderr and "Traceback" not in told.stderr, told.stderr


def test_a_name_with_a_newline_makes_no_second_line(tmp_path):
    there = tmp_path / "a\nb\x1b[31m\tc.svg"
    there.write_text("mine")
    told = bench("--devices", "2", *SMALL, "--svg", there)
    assert told.returncode == 1 and told.stdout == "" and len(told.stderr.splitlines()) == 1, told.stderr
    assert "a\\nb\\u{1b}[31m\\tc.svg" in told.stderr and told.stderr.rstrip("\n").isprintable(), told.stderr


def test_what_is_said_drives_no_terminal():
    assert printable("a\u202e\x9b\r\n\u2066") == "a\\u{202e}\\u{9b}\n\\u{2066}"
