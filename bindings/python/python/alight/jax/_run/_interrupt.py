"""Ctrl-C as a flag that the token loop looks at.

Before `catch` the signal ends the process, so that waiting for stdin or for a compiler can be broken off. After it, the
first Ctrl-C sets the flag; one more, before the flag is cleared, ends the process at once with status 130. A thread
hears of it from the system, because Python's own handlers wait until XLA returns. Where Ctrl-C was ignored when the
program was started, it stays so.
"""

from __future__ import annotations

import os
import signal
import socket
import threading

from ._say import INTERRUPTED

_IGNORED = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
_pressed = threading.Event()
_wakes: socket.socket | None = None
"""What the system writes signals to, once there was an answer to be interrupted."""


def default() -> None:
    """Ctrl-C ends the process, as it does any other program's."""
    if _IGNORED:
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ask() -> None:
    """Ctrl-C is a `KeyboardInterrupt`, for who waits for a line."""
    if _IGNORED:
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _pressed.clear()


def catch() -> None:
    """Ctrl-C sets the flag."""
    global _wakes
    if _IGNORED:
        return
    if _wakes is None:
        ours, _wakes = socket.socketpair()
        _wakes.setblocking(False)
        threading.Thread(target=_listen, args=[ours], name="alight-interrupt", daemon=True).start()
    signal.set_wakeup_fd(_wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)


def _listen(signals: socket.socket) -> None:
    while number := signals.recv(1):
        if number[0] == signal.SIGINT:
            if _pressed.is_set():
                os._exit(INTERRUPTED)
            _pressed.set()


def pressed() -> bool:
    return _pressed.is_set()
