"""The native server of a replica of Ray Serve, without Ray."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import alight
import pytest
from alight.ray import serve_app
from alight.ray._server import NativeServer
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny


@pytest.fixture(scope="module")
def path(folder):
    return tiny_models.write(Tiny("replica", "llama"), folder / "replica.gguf")


def ends(socket):
    """Whether the socket of a server goes within some seconds: the server removes it at its end."""
    for _ in range(200):
        if not Path(socket).exists():
            return True
        time.sleep(0.05)
    return False


def test_a_server_answers_until_it_is_closed(path):
    server = NativeServer([str(path)], {"threads": 1, "parallel": 2})
    assert server.problem() is None and server.process.poll() is None
    server.close()
    assert server.process.poll() is not None and not server.socket.exists()
    assert "does not answer" in server.problem()


def test_a_server_ends_with_its_replica(path):
    """Whatever ends the replica."""
    code = "import sys, os; from alight.ray._server import NativeServer; s = NativeServer([sys.argv[1]], {'threads': 1}); print(s.socket, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL and ends(killed.stdout.strip())


def test_what_cannot_start_says_why(path):
    for models, options, error, words in (
        (["/no/model.gguf"], {}, alight.AlightError, "does not exist"),
        ([str(path)], {"cache_type": "q9"}, alight.OptionError, "possible values: f16, q8_0, q4r"),
        ([str(path)], {"port": 80}, alight.OptionError, "a replica's listens for Ray Serve alone"),
    ):
        with pytest.raises(error, match=words):
            NativeServer(models, options)
    with pytest.raises(alight.OptionError, match="there is no model"):
        serve_app()
