"""Ctrl-C as a flag that the token loop looks at.

Before `catch` the signal ends the process, so that waiting for stdin or for a compiler can be broken off. After it, the
first Ctrl-C sets the flag; one more, before the flag is cleared, ends the process at once with status 130. A thread
hears of it from the system, because Python's own handlers wait until XLA returns.
"""

from __future__ import annotations

import os
import signal
import socket
import threading

from ._say import INTERRUPTED

_pressed = threading.Event()


def default() -> None:
    """Ctrl-C ends the process, as it does any other program's."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def catch() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)

    def listen() -> None:
        while number := ours.recv(1):
            if number[0] == signal.SIGINT:
                if _pressed.is_set():
                    os._exit(INTERRUPTED)
                _pressed.set()
        theirs.close()

    threading.Thread(target=listen, name="alight-interrupt", daemon=True).start()


def pressed() -> bool:
    return _pressed.is_set()


def clear() -> None:
    _pressed.clear()
