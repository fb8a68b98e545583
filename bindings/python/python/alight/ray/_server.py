"""`alight serve` as a process of a replica, at a Unix socket that nobody else opens."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import AlightError, OptionError
from ._command import arguments, program

WATCHED = 'exec 3<&0; "$@" </dev/null 3<&- & server=$!; { read -r line <&3; kill -TERM $server; } & watch=$!; wait $server; status=$?; kill $watch; exit $status'
"""A shell that runs a server until standard input is closed, which the end of this process does, whatever ends it."""

START_SECONDS = 600.0
"""How long a server may take until it answers: a model of the hub may have to be fetched first."""


class _Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class NativeServer:
    """Starts a server and waits until it answers."""

    def __init__(self, models: Sequence[str], options: Mapping[str, Any]) -> None:
        for name in ("host", "port"):
            if name in options:
                raise OptionError(f"option '{name}' of `alight serve` is where it listens, and a replica's listens for Ray Serve alone: leave it out")
        # Short: the path of a socket has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="alight-", dir="/tmp"))
        self.socket = self._folder / "serve.sock"
        command = [str(program()), "serve", f"--host={self.socket}", *arguments(options), "--", *models]
        self.process = subprocess.Popen(["/bin/sh", "-c", WATCHED, "sh", *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + START_SECONDS
        while (problem := self.problem()) is not None:
            if self.process.poll() is not None:
                words = self.process.stderr.read().strip() if self.process.stderr else ""
                self.close()
                raise (OptionError if self.process.returncode == 2 else AlightError)(f"`alight serve` has ended with exit status {self.process.returncode}: {words}")
            if time.monotonic() > until:
                self.close()
                raise AlightError(f"`alight serve` does not answer after {START_SECONDS:.0f} s: {problem}")
            time.sleep(0.01)

    def problem(self) -> str | None:
        """Why the server cannot answer; `None` if it can."""
        connection = _Connection(self.socket, timeout=30.0)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            words = answer.read().decode(errors="replace")
        except OSError as error:
            return f"`alight serve` does not answer: {error}"
        finally:
            connection.close()
        return None if answer.status == 200 else words

    def close(self) -> None:
        """Ends the server, which gives its answers a few seconds."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
