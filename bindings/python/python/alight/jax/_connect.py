"""Memory that the processes of a host share, for collectives across them, of CPU devices and of GPUs (`_arenas`).

The processes agree on a name by a collective of JAX's, one makes the memory, the others open it, and the name goes. It is
handed to the library once, not to programs: these are the same in every run, so compiled ones can be kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _alight
from . import _arenas, _cuda

log = logging.getLogger("alight.jax")

NOT_CALLED = "its devices are in several processes, which are not connected: call alight.jax.connect() in all of them"

_hosts: list[int] = []
"""For each process the first one on its host, once they are connected."""
_problem: str | None = NOT_CALLED
_gpus: str | None = NOT_CALLED
"""Why the collective does not work among the GPUs of each process, alike in all of them."""
_gpus_across: str = NOT_CALLED
"""Why this process shares no memory of its GPUs with others, if it does not."""
_groups: list[int] = []
"""For each process a number that those have in common whose GPUs share memory."""


def connect(mesh: Mesh | None = None) -> bool:
    """Connects processes, so that `allreduce_norm` works across them: on CPU devices by memory that those of a host share, and on CUDA's GPUs by
    memory of theirs that the others open, on one host or, where NVLink connects hosts and the GPUs offer that, on several.

    To be called by all processes, once, after `jax.distributed.initialize` and before programs are traced. Does nothing
    if there is one process, or if all devices of `mesh` are in one. Returns whether this process is connected to another; why it
    is not is logged ("alight.jax"), and then `allreduce_norm` is `lax.psum` and a norm.
    """
    global _problem, _gpus, _gpus_across
    if jax.process_count() == 1 or (mesh is not None and not mesh.is_multi_process):
        return False
    if _problem != NOT_CALLED:
        return _connected()
    _gpus = _tried()
    me = jax.process_index()
    told = _gather(np.frombuffer(_host() + secrets.token_bytes(16), np.uint8))
    hosts = [bytes(one[:16]) for one in told]
    firsts = [hosts.index(host) for host in hosts]
    name = f"/alight-{bytes(told[firsts[me], 16:]).hex()}"
    alone = firsts.count(firsts[me]) == 1
    error = ""
    try:
        # In step, and all the way to the end, whatever goes wrong here or elsewhere.
        for turn in (True, False):
            if turn == (me == firsts[me]) and not alone and not error:
                try:
                    _alight.share_memory(name, me, turn)
                except OSError as found:
                    error = f"{name} in shared memory: {found}"
            failed = _gather(np.array([bool(error)]))[:, 0]
            error = error or ("another process could not" if failed.any() else "")
    finally:
        _alight.unlink_memory(name)
    if error:
        _problem = f"its devices are in several processes, which share no memory ({error})"
    elif len(set(firsts)) == len(firsts):
        _problem = "its devices are in several processes, each on a host of its own"
    else:
        _problem = None
        _hosts[:] = firsts
    if jax.local_devices()[0].platform == "gpu":
        # What has failed among the GPUs of one process fails among those of several.
        labels, why = ([], _gpus) if _gpus is not None else _arenas.share(firsts, _gather)
        _groups[:] = labels
        _gpus_across = f"its GPUs are in several processes, which share no memory of them ({why or 'they are not of one host'})"
    if not _connected():
        log.warning("allreduce_norm will be lax.psum and a norm: %s", gpus_across([me]) if _groups or _gpus else _problem)
    return _connected()


def _connected() -> bool:
    if jax.local_devices()[0].platform == "gpu":
        return gpus_across([jax.process_index()]) is None
    return _problem is None


def problem(processes: list[int]) -> str | None:
    """Why these processes, of one group of devices, cannot work together, if they cannot. Alike in all processes."""
    if _problem is not None:
        return _problem
    if len({_hosts[process] for process in processes}) > 1:
        return "its devices are in processes on several hosts"
    return None


def state() -> tuple[Any, ...]:
    """What programs depend on."""
    return (_problem is None, _gpus, *_hosts, "gpus", *_groups)


def gpus_across(processes: list[int]) -> str | None:
    """Why the GPUs of these processes, of one group, cannot work together, if they cannot. Alike in all processes, but for the words."""
    numbers = {_groups[process] if _groups else _arenas.NOBODY for process in processes}
    if _arenas.NOBODY in numbers:
        return _gpus_across
    return None if len(numbers) == 1 else "its GPUs are in several processes, some of which share no memory of theirs"


def gpus() -> str | None:
    """Why the collective cannot be used among GPUs of a process, in a run of several processes, if it cannot."""
    return _gpus


def _tried() -> str | None:
    """The trial among the GPUs of this process; what fails in one fails in all, since they run the same program."""
    ours = tuple(_cuda.number(device) for device in jax.local_devices() if device.platform == "gpu")
    reason = _cuda.probe(ours) if 0 < len(ours) <= _cuda.RANKS else None
    failed = np.flatnonzero(_gather(np.array([reason is not None]))[:, 0])
    return reason if reason is not None or not len(failed) else f"the trial among the GPUs of process {failed[0]} has failed"


def _host() -> bytes:
    """What processes have in common that see the same shared memory."""
    shared = os.stat("/dev/shm") if os.path.isdir("/dev/shm") else None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = secrets.token_hex()
    what = (boot, os.geteuid(), _alight.__version__, shared and (shared.st_dev, shared.st_ino))
    return hashlib.sha256(repr(what).encode()).digest()[:16]


def _gather(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The arrays of all processes."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(x))  # type: ignore[no-untyped-call, unused-ignore]
