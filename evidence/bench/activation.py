"""From nothing to the first token: a socket that listens, and `alight serve`, which the first packet starts.

    PYTHON -m evidence bench activation [--model NAME ...] [--runs 5] [--peer llama-server]

Whoever waits at the socket does what systemd does (LISTEN_FDS, LISTEN_PID). The clock starts when the client connects, and ends at its first token. A peer
has no socket of its own to be given: it is started at the same moment, and the client tries again until it answers. The file is in the page cache, unless
--cold, which asks the kernel to drop it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import threading
import time
from pathlib import Path

from evidence.lib import common
from evidence.lib.process import free_port

START = 'export LISTEN_PID=$$; exec "$@" 3<&0 </dev/null'
"""What sets the id of the process before it becomes the server: a descriptor that is given is number 3."""


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--model", nargs="+", default=["smollm2"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="a llama-server to be started beside")
    parser.add_argument("--cold", action="store_true", help="the file is dropped from the page cache before each run")


def ask(port: int, patient: bool) -> float:
    """Milliseconds from the first attempt to connect until the first token."""
    body = json.dumps({"prompt": "Once upon a time", "n_predict": 4, "stream": True, "temperature": 0}).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    began = time.perf_counter()
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
                client.sendall(head.encode() + body)
                got = b""
                while b"\ndata: " not in got:
                    piece = client.recv(65536)
                    if not piece or got.startswith(b"HTTP/1.1 503"):
                        raise ConnectionError(f"no token: {got[:200]!r}")
                    got += piece
                return (time.perf_counter() - began) * 1e3
        except ConnectionError:
            if not patient or time.perf_counter() > began + 120:
                raise
            time.sleep(0.002)


def activated(command: list) -> float:
    """A run under a socket that somebody else has made."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        found = []
        client = threading.Thread(target=lambda: found.append(ask(listening.getsockname()[1], False)))
        client.start()
        select.select([listening], [], [], 30)
        process = subprocess.Popen(["/bin/sh", "-c", START, "sh", *command], stdin=listening, stderr=subprocess.DEVNULL, env=os.environ | {"LISTEN_FDS": "1"})
        client.join()
        process.terminate()
        process.wait()
    return found[0]


def started(command: list, port: int) -> float:
    """A run of a program that makes its own socket."""
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return ask(port, True)
    finally:
        process.terminate()
        process.wait()


def prepare(path: Path, cold: bool) -> None:
    if not cold:
        common.warm(path)
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(args) -> int:
    program, rows = common.alight(args.alight), [["model", "alight, ms", *(["llama-server, ms"] if args.peer else [])]]
    for name in args.model:
        path = common.model_path(name, common.models_folder())
        times, others = [], []
        for _ in range(args.runs):
            prepare(path, args.cold)
            times.append(activated([str(program), "serve", str(path), "--no-cache", "--threads", str(args.threads)]))
            if args.peer:
                prepare(path, args.cold)
                others.append(started([str(args.peer), "-m", str(path), "-t", str(args.threads), "-c", "4096"], free_port()))
        rows.append([name, common.spread(common.summary(times)), *([common.spread(common.summary(others))] if args.peer else [])])
    common.table(rows)
    return 0
