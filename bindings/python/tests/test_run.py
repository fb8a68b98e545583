"""`alight run --engine jax`, and `python -m alight.jax`, which becomes it."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import alight
from alight.jax import _engine
from conftest import in_process, port_of_a_coordinator, with_signals
from test_model import FILES, MODELS, write_model

GREEDY = ["--temp", "0", "--raw"]
# Eight devices are forced for the other tests; here the command sets their number.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS", "ALIGHT_PYTHON")}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model, and a folder for the cache of all runs here."""
    folder = tmp_path_factory.mktemp("run")
    return write_model(folder / "tiny.gguf"), ENVIRONMENT | {"XDG_CACHE_HOME": str(folder)}


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """The same with a context of many tokens: an answer that does not fit into a pipe cannot end before it is read."""
    folder = tmp_path_factory.mktemp("long")
    return write_model(folder / "long.gguf", context_length=1 << 16), ENVIRONMENT | {"XDG_CACHE_HOME": str(folder)}


def run(model, *args, program=(sys.executable, "-m", "alight.jax"), **more):
    path, environment = model
    command = [*program, path, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, **more)


def test_the_answer_is_all_that_goes_to_stdout(tiny):
    told = run(tiny, "the", "-n", "12", *GREEDY, "--json")
    assert told.returncode == 0 and told.stderr == "", told.stderr
    line = json.loads(told.stdout)
    tokenizer = alight.Tokenizer(tiny[0])
    assert line["prompt_tokens"] == len(tokenizer.prompt("the")) and line["finish"] in ("length", "stop")
    decoder = tokenizer.stream()
    assert line["text"] == "".join(map(decoder.push, line["tokens"])) + decoder.finish()
    for key in ("open_ms", "jax_ms", "model_ms", "prompt_ms", "first_token_ms", "total_ms"):
        assert line["timings"][key] >= 0
    plain = run(tiny, "-", "-n", "12", *GREEDY, "--tp", "2", "--stats", input="the\n")
    assert plain.returncode == 0 and plain.stdout == line["text"] + "\n", plain.stderr
    for part in ("prompt ", "first token ", "tokens/s", "ended by", "tp 2, native weights"):
        assert part in plain.stderr


def test_python_becomes_the_command(tiny, command):
    python = run(tiny, "the", "-n", "9", *GREEDY, "--ignore-eos", "--tp", "2")
    floats = run(tiny, "the", "-n", "9", *GREEDY, "--ignore-eos", "--weights", "f32")
    assert floats.stdout == python.stdout, floats.stderr
    rust = run(tiny, "the", "-n", "9", *GREEDY, "--ignore-eos", "--tp=2", "--engine", "jax", program=(command, "run"))
    assert (rust.returncode, rust.stdout, rust.stderr) == (0, python.stdout, ""), rust.stderr


def test_a_seed_gives_the_same_answer_on_any_number_of_devices(tiny):
    ask = ("the", "-n", "8", "--raw", "--temp", "2", "--ignore-eos", "--json")
    first, same, other = (run(tiny, *ask, "--seed", seed, "--tp", tp) for seed, tp in (("5", "1"), ("5", "2"), ("6", "2")))
    tokens = [json.loads(one.stdout)["tokens"] for one in (first, same, other)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert json.loads(first.stdout)["seed"] == 5


def test_the_context_ends_an_answer(tiny):
    told = run(tiny, "the", *GREEDY, "--ignore-eos", "-c", "32", "--json")
    line = json.loads(told.stdout)
    # The last token needs no room.
    assert line["finish"] == "context" and line["prompt_tokens"] + line["generated_tokens"] == 33
    assert "the context of 32 tokens is full: -c 64 would let it go on (up to 128)" in told.stderr
    assert told.returncode == 0


def test_errors_say_what_to_do(tiny, tmp_path):
    folder = tiny[0].parent
    (folder / "text").write_text("Once upon a time")
    for arguments, status, said in [
        ((folder / "nothing.gguf", "the"), 1, "nothing.gguf' does not exist"),
        ((folder / "text", "the"), 1, "not a GGUF file"),
        ((tiny[0], "the", "--tp", "65"), 2, "from 1 to 64"),
        ((tiny[0], "the", "--weights", "int3"), 2, "possible values: native, bf16, f32"),
        ((tiny[0], "the", "--prompt", "the"), 2, "cannot be used with"),
        ((tiny[0], "the", "--raw", "--system", "x"), 2, "cannot be used with"),
        ((tiny[0], "-f", folder / "no prompt"), 1, "no prompt' does not exist"),
        ((tiny[0],), 2, "there is no prompt: standard input is empty"),
        ((tiny[0], "the " * 150, "--raw"), 1, "the context is full: 0 of 128"),
        ((tiny[0], "the", "--raw", "-c", "200"), 1, "expected 1 to 128, for which the model was trained"),
    ]:
        told = subprocess.run([sys.executable, "-m", "alight.jax", *arguments], capture_output=True, text=True, env=tiny[1], stdin=subprocess.DEVNULL)
        assert (told.returncode, told.stdout) == (status, ""), told.stderr
        assert "error: " in told.stderr and said in told.stderr, told.stderr
        assert "Traceback" not in told.stderr


def test_several_processes_answer_as_one(tiny, command):
    ask = ["the", "-n", "12", "--raw", "--temp", "0", "--ignore-eos", "--tp", "4"]
    one = run(tiny, *ask)
    assert one.returncode == 0, one.stderr
    programs = [(sys.executable, "-m", "alight.jax", tiny[0]), (command, "run", tiny[0], "--engine", "jax")]
    with port_of_a_coordinator() as port:
        together = [*ask, "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process"]
        started = [
            subprocess.Popen([*program, *together, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=tiny[1], text=True)
            for i, program in enumerate(programs)
        ]
        told = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    # The first one speaks, and is not interrupted by what Gloo has to say.
    assert [out for out, _ in told] == [one.stdout, ""]


def test_processes_have_to_be_told_all_about_each_other(tiny):
    for options, said in [
        (["--processes", "2"], "needs --coordinator, --processes and --process"),
        (["--coordinator", "localhost:1", "--processes", "2", "--process", "2"], "expected 0 to 1"),
        (["--coordinator", "localhost:1", "--processes", "2", "--process", "0"], "a multiple of the 2 processes"),
        (["--coordinator", "localhost", "--processes", "2", "--process", "0", "--tp", "2"], "a host and a port"),
        (["--coordinator", "localhost:1", "--processes", "2", "--process", "0", "--tp", "2"], "needs a --seed"),
    ]:
        told = run(tiny, "the", *options)
        assert (told.returncode, told.stdout) == (2, "") and said in told.stderr, told.stderr


NO_JAX = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "jax" else found(name, *more)
"""


def test_without_jax_it_says_how_to_get_it(tiny, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_JAX)
    told = run((tiny[0], tiny[1] | {"PYTHONPATH": str(tmp_path)}), "the")
    assert told.returncode == 1 and "pip install 'jax>=0.10.2,<0.13'" in told.stderr and "Traceback" not in told.stderr
    said = in_process("import sys; sys.modules['jax'] = None\ntry: from alight.jax import load\nexcept ImportError as e: print(e)")
    assert "pip install 'jax>=0.10.2,<0.13'" in said


def test_a_reader_that_leaves_ends_it_quietly(tiny):
    ours, theirs = os.pipe()
    os.close(ours)
    process = subprocess.Popen(
        [sys.executable, "-m", "alight.jax", tiny[0], "the", "-n", "50", "--ignore-eos", *GREEDY],
        stdout=theirs, stderr=subprocess.PIPE, env=tiny[1],
    )  # fmt: skip
    os.close(theirs)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (0, b"")


def answering(model, *ignored):
    """An answer that is being written into a small pipe, of which a byte has been read."""
    path, environment = model
    ask = ["the", "--raw", "--ignore-eos", "--temp", "9", "-n", "9000", "-c", "10000"]
    program = with_signals(ignored, sys.executable, "-m", "alight.jax", path, *ask)
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(program, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    reader = os.fdopen(ours, "rb")
    assert reader.read(1)
    return process, reader


def engine_of(process):
    """The process of Python that computes."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1, children
    return int(children[0])


def wait_for_the_end_of(pid):
    def is_there():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    until = time.monotonic() + 120
    while is_there():
        assert time.monotonic() < until, "the engine does not end"
        time.sleep(0.01)


def test_ctrl_c_ends_the_answer(long):
    process, answer = answering(long)
    engine = engine_of(process)
    # From a terminal, it comes to both.
    for pid in (engine, process.pid):
        os.kill(pid, signal.SIGINT)
    rest = answer.read()
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (130, b"") and rest.endswith(b"\n")
    assert len(rest) < 9000
    wait_for_the_end_of(engine)


def test_ctrl_c_before_there_is_an_answer_is_any_other_programs(tiny):
    program = with_signals([], sys.executable, "-m", "alight.jax", tiny[0])
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=tiny[1])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode in (-signal.SIGINT, 130) and b"Traceback" not in said


SET_UP = """
import os, jax
from alight.jax import _engine
_engine.set_up(tp=2, coordinator=None, processes=1, process=None, no_cache=True)
print(jax.config.jax_platforms, os.environ.get("JAX_PLATFORMS"))
"""


def test_nobody_but_the_user_says_which_devices_jax_sees(long):
    """With the weights that the command takes by itself: a GPU that JAX sees is used."""
    process, _ = answering(long)
    names = [one.partition(b"=")[0] for one in Path(f"/proc/{engine_of(process)}/environ").read_bytes().split(b"\0")]
    process.kill()
    process.communicate(timeout=300)
    assert b"XDG_CACHE_HOME" in names and b"JAX_PLATFORMS" not in names
    told = subprocess.run([sys.executable, "-c", SET_UP], capture_output=True, text=True, timeout=300, env=long[1])
    assert told.stdout.split() == ["None", "None"], told.stderr


def test_a_gpu_that_is_not_used_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(_engine, "GPU", str(tmp_path))
    assert _engine.unused_gpu() is None, "the environment says what JAX sees"
    monkeypatch.delenv("JAX_PLATFORMS")
    assert "jax[cuda13]" in _engine.unused_gpu()
    monkeypatch.setattr(_engine, "GPU", str(tmp_path / "none"))
    assert _engine.unused_gpu() is None


def test_the_engine_ends_with_the_command_whatever_ends_that(long):
    process, answer = answering(long)
    engine = engine_of(process)
    process.kill()
    process.communicate(timeout=300)
    wait_for_the_end_of(engine)
    # And where JAX is being imported.
    started = subprocess.Popen([sys.executable, "-m", "alight.jax", long[0]], stdin=subprocess.PIPE, env=long[1])
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    until = time.monotonic() + 120
    while not (found := children.read_text().split()):
        assert time.monotonic() < until
    started.kill()
    started.wait(300)
    wait_for_the_end_of(int(found[0]))


def test_an_engine_that_dies_is_told_of(long):
    process, answer = answering(long)
    os.kill(engine_of(process), signal.SIGKILL)
    answer.read()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and said.startswith(b"alight: error: ") and b"has ended (signal: 9" in said, said


DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f]")


def test_an_answer_drives_no_terminal_and_a_pipe_gets_every_byte(tiny):
    args = ["the", "-n", "100", "--raw", "--temp", "9", "--seed", "1", "--ignore-eos"]
    command = [sys.executable, "-m", "alight.jax", tiny[0], *args]
    # Not as text, in which newlines of all kinds would be the same.
    piped = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, env=tiny[1]).stdout.decode()
    assert DRIVES.search(piped), "bytes of all kinds are tokens of this model"
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=tiny[1])
    os.close(theirs)
    shown = b""
    while piece := reading(terminal):
        shown += piece
    assert process.wait(300) == 0
    text = shown.decode().replace("\r\n", "\n")
    assert not DRIVES.search(text) and "\\u{" in text, text
    line = run(tiny, *args, "--json").stdout
    assert not DRIVES.search(line) and json.loads(line)["text"] + "\n" == piped


def reading(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_a_prompt_without_end_is_refused(tiny):
    for args in (["-f", "/dev/zero"], ["-f", "-"], ["-"]):
        with open("/dev/zero", "rb") as zeros:
            told = run(tiny, *args, stdin=zeros)
        assert told.returncode == 1 and "longer than 64 MiB" in told.stderr, told.stderr


def test_ctrl_c_that_was_ignored_stays_ignored(long):
    process, answer = answering(long, signal.SIGINT)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    answer.read()
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (0, b"")


def test_a_chat(long):
    terminal, theirs = pty.openpty()
    chat = [sys.executable, "-c", OWN_TERMINAL, long[0], "--temp", "9", "--ignore-eos", "-n", "9000", "-c", "10000", "--stats"]
    process = subprocess.Popen(
        with_signals([], *chat),
        stdin=theirs, stdout=theirs, stderr=theirs, env=long[1] | {"TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = ""

    def until(text):
        nonlocal seen
        # Without what moves the cursor.
        while text not in (shown := ESCAPES.sub("", seen)):
            assert select.select([terminal], [], [], 120)[0], f"{text!r} is not in {shown!r}"
            seen += os.read(terminal, 4096).decode(errors="replace")
        before, _, seen = shown.partition(text)
        return before

    def computed():
        return int(re.search(r"prompt +(\d+) tokens in", until("ended by"))[1])

    assert "Each line is continued on its own" in until("> ")
    os.write(terminal, b"the the\r")
    # More than the terminal holds unread is still to come.
    until("the the\n")
    seen += os.read(terminal, 16).decode(errors="replace")
    os.write(terminal, b"\3")
    first = computed()
    assert until("> ").startswith(" Ctrl-C")
    os.write(terminal, b"the the the\r")
    # The second one is not interrupted by what was pressed before, and what both begin with is not computed again.
    second = computed()
    assert until("> ").startswith(" -n") and second < first, (first, second)
    os.write(terminal, b"\4")
    assert process.wait(60) == 0
    os.close(terminal)


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "alight.jax", *sys.argv[1:]])
"""


@pytest.mark.parametrize("name", FILES)
def test_both_engines_give_the_same_answer(name, command, tiny):
    path = MODELS / FILES[name]
    if not path.is_file():
        pytest.skip(f"{path} is not there; `make models` fetches it")
    # What comes next is clear to both models: each token is ahead of the second best by 0.6 and more, where two devices instead
    # of one, and another processor's order of sums, move a logit by up to 0.3.
    ask = ["1, 2, 3, 4, 5, 6,", "--temp", "0", "-n", "12"]
    native = subprocess.run([command, "run", path, *ask], capture_output=True, text=True)
    jax = run((path, tiny[1]), *ask, "--tp", "2", "--engine", "jax", program=(command, "run"))
    assert (jax.returncode, jax.stdout, jax.stderr) == (0, native.stdout, native.stderr)
