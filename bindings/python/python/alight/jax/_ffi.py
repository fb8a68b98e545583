"""The custom calls of the extension, made known to XLA: once, when the first program with one of them is traced."""

from __future__ import annotations

import logging
import threading

import jax

from .. import _alight

log = logging.getLogger("alight.jax")

_lock = threading.Lock()
_done = False


def register() -> None:
    """Registers all custom calls, the first time that it is called; afterwards it does nothing.

    Registering the same ones again, after a reload of this module, is harmless. A name that another library has
    taken before is left to that one.
    """
    global _done
    if _done:
        return
    with _lock:
        if _done:
            return
        # XLA's tables are there when its backend is; what came earlier would be registered with types that
        # have no numbers yet.
        jax.local_devices()
        for name, platform, stages, state in _alight.ffi_targets():
            try:
                if state is not None:
                    jax.ffi.register_ffi_type(state[0], state[1], platform=platform)
                jax.ffi.register_ffi_target(name, stages, platform=platform)
            except jax.errors.JaxRuntimeError as error:
                log.warning("%s is not registered for %s, another library is used: %s", name, platform, error)
        _done = True
