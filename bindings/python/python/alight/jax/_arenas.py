"""Memory of GPUs of several processes: an arena on each, which the other processes open by a handle of CUDA's.

All processes of a run take the same steps, whatever goes wrong in one of them, and tell each other what came of each. On one host the
handles are those of CUDA's IPC; if there are several, and all GPUs have them, fabric handles, which work as far as NVLink goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .. import _alight
from . import _cuda

BYTES = 256 << 20
"""Of an arena. A call site, or a channel of them, takes 2 · ranks operands, and keeps them: 1 MiB for 32 rows of a hidden size of 4096 in bf16
on two GPUs."""
HANDLE = 64
NOBODY = -1

Gather = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def share(firsts: list[int], gather: Gather) -> tuple[list[int], str | None]:
    """Makes the arenas of this process and opens those of others. `firsts` has for each process the first one on its host; `gather` gives the
    arrays of all processes, in step. Returns for each process a number that those have in common whose GPUs share memory, or `NOBODY`, alike in
    all of them; and what went wrong in this one."""
    me, count = jax.process_index(), len(firsts)
    ours = [device for device in jax.local_devices() if device.platform == "gpu"]
    ordinals = [_cuda.number(device) for device in ours]
    told = gather(np.array([len(ours), bool(ours) and _alight.cuda_has_fabric(ordinals)], np.int64))
    most = int(told[:, 0].max())
    if most == 0 or told[:, 0].max() > _cuda.RANKS:
        return [NOBODY] * count, None if most == 0 else f"a process has {most} GPUs"
    fabric = len(set(firsts)) > 1 and bool(told[:, 1].all())
    if not fabric and len(set(firsts)) == count:
        return [NOBODY] * count, "each process is on a host of its own"

    # JAX's number of a GPU and its handle; no GPU has the number −1.
    offer, problem = np.zeros((most, 8 + HANDLE), np.uint8), None
    offer[:, :8] = np.full((most, 1), -1, np.int64).view(np.uint8)
    try:
        for at, handle in enumerate(_alight.cuda_offer(ordinals, BYTES, fabric)):
            offer[at] = np.frombuffer(int(ours[at].id).to_bytes(8, "little") + handle, np.uint8)
    except RuntimeError as error:
        problem = str(error)
    offers = [_offers(one, process) for process, one in enumerate(gather(offer))]
    opened = np.zeros(count, bool)
    opened[me] = problem is None
    for other in range(count):
        if other != me and offers[me] and offers[other] and (fabric or firsts[other] == firsts[me]):
            try:
                _alight.cuda_open(me, offers[me] + offers[other])
                opened[other] = True
            except RuntimeError as error:
                problem = problem or str(error)
    seen = gather(opened)
    labels = _together(seen.astype(bool))

    group = _trial_group(labels, offers, me)
    if len(group) > 1:
        devices = [device for process in group for device, _, _ in offers[process]]
        # What could not be opened of processes outside of the group is no failure of the group.
        trial = _alight.cuda_trial(devices, _cuda.folders(), _cuda.PROBE)
        if trial is not None:
            opened[me], problem = False, trial
    failed = ~gather(np.array([bool(opened[me])]))[:, 0].astype(bool)
    labels = [NOBODY if any(failed[other] for other in range(count) if labels[other] == label) else label for label in labels]
    labels = [label if labels.count(label) > 1 else NOBODY for label in labels]

    # Nobody frees what another has open.
    if labels[me] == NOBODY:
        _alight.cuda_close(False)
    gather(np.zeros(1, bool))
    if labels[me] == NOBODY and not any(seen[other, me] and labels[other] != NOBODY for other in range(count)):
        _alight.cuda_close(True)
    if labels[me] == NOBODY and problem is None:
        problem = "another process could not open what its peers offer, or the trial has failed there"
    return labels, problem


def _offers(told: np.ndarray[Any, Any], process: int) -> list[tuple[int, int, bytes]]:
    """What a process has told: a GPU's number, its process and its handle."""
    rows = [(int.from_bytes(bytes(row[:8]), "little", signed=True), process, bytes(row[8:])) for row in told]
    return [row for row in rows if row[0] >= 0]


def _together(seen: np.ndarray[Any, Any]) -> list[int]:
    """For each process the first of those that all see each other: `seen[a, b]` says whether `a` has opened what `b` offers."""
    both = seen & seen.T
    labels: list[int] = []
    for process in range(len(seen)):
        groups = (first for first in sorted(set(labels)) if first != NOBODY)
        members = ((first, [other for other, label in enumerate(labels) if label == first]) for first in groups)
        found = next((first for first, them in members if both[process, them].all()), process)
        labels.append(found if both[process, process] else NOBODY)
    return labels


def _trial_group(labels: list[int], offers: list[list[Any]], me: int) -> list[int]:
    """The processes that this one tries the collective with: those it shares memory with, as many as the kernel knows GPUs."""
    group: list[int] = []
    for process in (process for process, label in enumerate(labels) if label == labels[me] != NOBODY):
        if sum(len(offers[other]) for other in [*group, process]) > _cuda.RANKS:
            if me in group:
                break
            group = []
        group.append(process)
    return group if me in group else []
