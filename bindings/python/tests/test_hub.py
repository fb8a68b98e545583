"""Models of the hub by their names. The hub is that of `evidence check hub`; what happens when it lies is tested in `crates/hub`."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import alight
import pytest
from evidence.check.hub import COMMIT, REPO, Hub
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny

NAME = f"hf.co/{REPO}:Q8_0"
LARGE = 24 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with two models that run, and with one that is nothing but large."""
    path = tiny_models.write(Tiny("llama", "llama", layers=2), tmp_path_factory.mktemp("model") / "m.gguf")
    content = path.read_bytes()
    return Hub({"m-Q8_0.gguf": content, "m-Q4_K_M.gguf": content + b"\0", "m-F16.gguf": os.urandom(LARGE), "README.md": b"about it"})


@pytest.fixture
def cache(hub, tmp_path, monkeypatch):
    """An empty cache."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "hub"
    for name, value in {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": folder, "HF_HOME": tmp_path / "home", "NO_PROXY": "*"}.items():
        monkeypatch.setenv(name, str(value))
    hub.taken()
    return folder


def of(cache, name):
    return cache / "models--org--model-GGUF/snapshots" / COMMIT / name


def test_a_name_is_a_model(hub, cache):
    with alight.Model(NAME, threads=1, context=64) as model:
        assert model.path == of(cache, "m-Q8_0.gguf")
        assert hub.taken() == len(hub.files["m-Q8_0.gguf"])
        answer = model.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True)
    # From now on nothing is asked, and a path has the same answer.
    for path in (NAME, f"https://huggingface.co/{REPO}:q8_0", of(cache, "m-Q8_0.gguf")):
        with alight.Model(path, threads=1, context=64, offline=True) as again:
            assert again.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True).tokens == answer.tokens
    assert hub.taken() == 0


def test_pull_returns_the_path_and_tells_how_far_it_is(hub, cache):
    told = []
    path = alight.pull(REPO, progress=lambda received, total: told.append((received, total)))
    size = len(hub.files["m-Q4_K_M.gguf"])
    assert path == of(cache, "m-Q4_K_M.gguf") and path.stat().st_size == size == hub.taken()
    assert told == sorted(set(told)) and told[-1] == (size, size)
    assert alight.pull(REPO, offline=True) == path == alight.pull(REPO) and hub.taken() == 0
    assert alight.open(path).format == "gguf"


def test_a_model_is_kept_packed_and_has_the_same_answer(hub, cache, command, tmp_path):
    with alight.Model(NAME, threads=1, context=64) as model:
        answer = model.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True)
    hub.taken()
    path = alight.pull(f"{REPO}:Q8_0", pack=True)
    assert path == of(cache, "m-Q8_0.packed.gguf") and not of(cache, "m-Q8_0.gguf").exists()
    assert alight.pull(f"{REPO}:Q8_0") == path == alight.pull(f"{REPO}:Q8_0", pack=True, offline=True)
    with alight.Model(NAME, threads=1, context=64, offline=True) as packed:
        assert packed.path == path and packed.name == model.name
        assert packed.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True).tokens == answer.tokens
    subprocess.run([command, "unpack", path, "-o", tmp_path / "out.gguf"], check=True, capture_output=True)
    assert (tmp_path / "out.gguf").read_bytes() == hub.files["m-Q8_0.gguf"] and hub.taken() == 0
    # A file that is no model stays as it is.
    with pytest.raises(alight.FormatError, match="m-F16.gguf"):
        alight.pull(f"{REPO}:F16", pack=True)
    assert of(cache, "m-F16.gguf").read_bytes() == hub.files["m-F16.gguf"]


def test_what_is_not_to_be_had_is_one_sentence(hub, cache, monkeypatch):
    with pytest.raises(alight.HubError, match=r"org/model-GGUF:Q8_0 is not in the cache .* nothing is fetched offline"):
        alight.Model(NAME, offline=True)
    with pytest.raises(alight.HubError, match="has no model 'Q3_K'; it has"):
        alight.Model(f"hf.co/{REPO}:Q3_K")
    with pytest.raises(alight.HubError, match="no such model") as told:
        alight.pull("org/nothing")
    assert isinstance(told.value, OSError) and isinstance(told.value, alight.AlightError)
    with pytest.raises(alight.OptionError, match="is not the name of a model"):
        alight.pull("nothing")
    with pytest.raises(FileNotFoundError):
        alight.Model(f"{REPO}/m.gguf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(alight.HubError, match="nothing is fetched offline"):
        alight.Model(NAME)
    assert hub.taken() == 0


def test_what_is_there_answers_when_the_hub_cannot_be_reached(hub, cache, monkeypatch):
    alight.pull(f"{REPO}:Q8_0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    # Without a quantization, Q4_K_M would be asked for first.
    with pytest.warns(RuntimeWarning, match="org/model-GGUF:Q8_0 is in the cache"), alight.Model(f"hf.co/{REPO}", context=64) as model:
        assert model.path == of(cache, "m-Q8_0.gguf")


def test_what_progress_raises_ends_it_and_nothing_is_lost(hub, cache):
    def leave(received, total):
        if received:
            raise LookupError(received)

    hub.pause = 0.01
    with pytest.raises(LookupError) as told:
        alight.pull(f"{REPO}:F16", progress=leave)
    hub.pause = 0.0
    hub.taken()
    assert 0 < told.value.args[0] < LARGE
    path = alight.pull(f"{REPO}:F16")
    assert path.read_bytes() == hub.files["m-F16.gguf"] and 0 < hub.taken() < LARGE


def test_ctrl_c_ends_it_and_other_threads_run_meanwhile(hub, cache):
    code = f"""
import threading, time, alight
ticks = []
def tick():
    while True:
        ticks.append(time.sleep(0.001))
threading.Thread(target=tick, daemon=True).start()
try:
    alight.Model("hf.co/{REPO}:F16")
except KeyboardInterrupt:
    print("interrupted", len(ticks) > 20, flush=True)
"""
    hub.pause = 0.05
    restore = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    child = subprocess.Popen([sys.executable, "-c", restore + code], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(cache.rglob("*.incomplete")) and time.monotonic() < deadline:
        time.sleep(0.02)
    threading.Timer(0.3, child.send_signal, [signal.SIGINT]).start()
    out, _ = child.communicate(timeout=60)
    hub.pause = 0.0
    assert out == "interrupted True\n" and child.returncode == 0
    assert not list(Path(cache).rglob("m-F16.gguf"))
