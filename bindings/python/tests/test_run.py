"""`python -m alight.jax`, and `alight run --engine jax`, which becomes it."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys

import pytest

import alight
from alight.jax._run import _say
from conftest import in_process, with_signals
from test_model import FILES, MODELS, write_model

GREEDY = ["--temp", "0", "--raw"]
# Eight devices are forced for the other tests; here the command sets their number.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model, and a folder for the cache of all runs here."""
    folder = tmp_path_factory.mktemp("run")
    return write_model(folder / "tiny.gguf"), ENVIRONMENT | {"XDG_CACHE_HOME": str(folder)}


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


def test_the_command_becomes_this_one(tiny, command):
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
        ((folder / "nothing.gguf", "the"), 1, "nothing.gguf': No such file"),
        ((folder / "text", "the"), 1, "neither GGUF nor safetensors"),
        ((tiny[0], "the", "--tp", "65"), 2, "from 1 to 64"),
        ((tiny[0], "the", "--weights", "int3"), 2, "invalid choice"),
        ((tiny[0], "the", "--prompt", "the"), 2, "two prompts"),
        ((tiny[0], "the", "--raw", "--system", "x"), 2, "--system cannot be used with --raw"),
        ((tiny[0], "-f", folder / "no prompt"), 1, "no prompt': No such file"),
        ((tiny[0],), 2, "there is no prompt: standard input is empty"),
        ((tiny[0], "the " * 200, "--raw"), 1, "do not fit into a context of 128"),
    ]:
        told = subprocess.run([sys.executable, "-m", "alight.jax", *arguments], capture_output=True, text=True, env=tiny[1], stdin=subprocess.DEVNULL)
        assert (told.returncode, told.stdout) == (status, ""), told.stderr
        assert told.stderr.startswith("alight: error: ") and said in told.stderr, told.stderr
        assert "Traceback" not in told.stderr


def test_several_processes_answer_as_one(tiny, command):
    ask = ["the", "-n", "12", "--raw", "--temp", "0", "--ignore-eos", "--tp", "4"]
    one = run(tiny, *ask)
    assert one.returncode == 0, one.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = [*ask, "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process"]
    programs = [(sys.executable, "-m", "alight.jax", tiny[0]), (command, "run", tiny[0], "--engine", "jax")]
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
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "jax" else found(name, *more)
from alight.jax._run import main
assert "jax" not in sys.modules
main([sys.argv[1], "the"])
"""


def test_without_jax_it_says_how_to_get_it(tiny):
    told = subprocess.run([sys.executable, "-c", NO_JAX, tiny[0]], capture_output=True, text=True)
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


def test_ctrl_c_ends_the_answer(tiny):
    args = ["the", "--ignore-eos", *GREEDY, "-n", "120"]
    program = with_signals([], sys.executable, "-c", SLOW, tiny[0], *args)
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=tiny[1])
    head = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (130, b"") and (head + rest).endswith(b"\n")
    assert len(rest) < 2000
    # Before there is an answer, it is any other program's Ctrl-C.
    program = with_signals([], sys.executable, "-m", "alight.jax", tiny[0])
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=tiny[1])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1.5)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=300)
    assert process.returncode in (-signal.SIGINT, 130)


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
    # What no token of this model makes.
    assert _say.harmless_json('"\x7f\x9b\u202e\u00e9"') == '"\\u007f\\u009b\\u202e\u00e9"'
    assert _say.printable("a\u202e\x9b\r\n\u2066") == "a\\u{202e}\\u{9b}\n\\u{2066}"


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


def test_ctrl_c_that_was_ignored_stays_ignored(tiny):
    args = ["the", "--ignore-eos", *GREEDY, "-n", "20"]
    program = with_signals([signal.SIGINT], sys.executable, "-c", SLOW, tiny[0], *args)
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=tiny[1])
    process.stdout.read(1)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (0, b"")


def test_a_chat(tiny):
    terminal, theirs = pty.openpty()
    chat = [sys.executable, "-c", OWN_TERMINAL + SLOW, tiny[0], "--temp", "0", "--ignore-eos", "-c", "64", "--stats"]
    process = subprocess.Popen(
        with_signals([], *chat),
        stdin=theirs, stdout=theirs, stderr=theirs, env=tiny[1] | {"TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = ""

    def until(text):
        nonlocal seen
        while text not in seen:
            seen += os.read(terminal, 4096).decode(errors="replace")
        before, _, seen = seen.partition(text)
        return before

    assert "Each line is continued on its own" in until("> ")
    os.write(terminal, b"the\n")
    until("....")
    os.write(terminal, b"\3")
    assert "ended by Ctrl-C" in until("> ")
    os.write(terminal, b"the\n")
    # The second one is not interrupted by what was pressed before.
    assert "ended by the full context" in until("> ")
    os.write(terminal, b"\4")
    assert process.wait(60) == 0
    os.close(terminal)


OWN_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
"""

SLOW = """
import time
from alight.jax._run import _answer, _chat, main
write = _answer.write
def slow(piece):
    write(piece if piece == "\\n" else "." * 100)
    time.sleep(0.1)
_answer.write = _chat.write = slow
main()
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
