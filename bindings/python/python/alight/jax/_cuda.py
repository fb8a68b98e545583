"""The collective among GPUs: whether it can be used, decided before a program is traced, and how its calls went."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from .. import _alight

RANKS = 16
"""The most GPUs of a group that the kernel knows."""
LONGEST = {2: 20480, 4: 10240}
"""The most elements of a row that the kernel takes, by bytes of an element."""
LARGEST = 2 << 20
"""The most bytes of an operand with any number of ranks: each GPU keeps two from every rank for each call of a program."""
LINK = 450e9
"""Bytes per second that a GPU sends by NVLink 4 (H100), of all its links together. NVLink 3 has 300e9, NVLink 5 900e9."""
HEAD_START = 16e-6
"""Seconds by which a push of 32 KB among 8 H100s is faster than NCCL's all-reduce: 6.7 µs (vLLM's kernel) beside 23 µs, as published. Nobody has
measured our kernel so."""
PROBE = 20.0
"""Seconds that a GPU waits for another in the trial."""


def check_collectives() -> None:
    """Raises `RuntimeError` if a call of `allreduce_norm` among GPUs has failed.

    Where XLA replays a CUDA graph nobody is there to raise an error: the results are NaN then, further calls of the program
    too, and this says why. It waits for nothing: call it when results are there. On CPUs there is nothing to tell.
    """
    errors = _alight.cuda_errors()
    if errors:
        raise RuntimeError("alight_allreduce_norm: " + "; ".join(errors))


def largest(ranks: int) -> int:
    """The most bytes of an operand for which the kernel is used among so many GPUs. Computed, and not measured: a GPU sends (ranks − 1) operands in
    the kernel, and 2 · (ranks − 1) / ranks of one in `lax.psum`. What is sent in addition, (ranks − 1) · (ranks − 2) / ranks, takes as long as the
    kernel's head start there. Two GPUs send the same by both."""
    more = (ranks - 1) * (ranks - 2) / ranks
    return LARGEST if more <= 0 else min(LARGEST, int(HEAD_START * LINK / more))


def problem(groups: np.ndarray[Any, Any], hidden: int, itemsize: int, assumed: bool = False, rows: int = 1) -> str | None:
    """Why the handler cannot be used among the GPUs of each of `groups` (`[…, ranks]`), if it cannot. `assumed`: they are not
    here, are CUDA's, and would pass the trial."""
    ranks = groups.shape[-1]
    version = groups.flat[0].client.platform_version.lower()
    if "cuda" not in version and not assumed:
        return f"the GPUs are not CUDA's: {version.splitlines()[0]}"
    if ranks > RANKS:
        return f"{ranks} GPUs along the axis, and the kernel knows at most {RANKS}"
    if hidden > LONGEST[itemsize]:
        return f"rows of {hidden} elements, and the kernel takes at most {LONGEST[itemsize]} of {itemsize} bytes"
    if (size := rows * hidden * itemsize) > (most := largest(ranks)):
        return f"operands of {size} bytes, and among {ranks} GPUs the kernel is for up to {most}"
    for group in groups.reshape(-1, ranks) if not assumed else ():
        if (reason := probe(tuple(number(device) for device in group))) is not None:
            return reason
    return None


def verdicts(groups: np.ndarray[Any, Any]) -> tuple[str | None, ...]:
    """What the trial says among the GPUs of each of `groups`, which compiled programs depend on: one that was compiled where it failed
    has no custom call, and one with the call does not work there. Nothing of other devices."""
    first = groups.flat[0]
    if first.platform != "gpu" or groups.shape[-1] > RANKS or "cuda" not in first.client.platform_version.lower():
        return ()
    # One GPU alone has nothing to sum: its programs have no call.
    if groups.shape[-1] == 1 or len({device.process_index for device in groups.flat}) > 1:
        return ()
    return tuple(probe(tuple(number(device) for device in group)) for group in groups.reshape(-1, groups.shape[-1]))


def number(device: Any) -> int:
    """A GPU's number in this process, which is also CUDA's."""
    local = device.local_hardware_id
    return int(device.id if local is None else local)


@functools.cache
def probe(ordinals: tuple[int, ...]) -> str | None:
    """Tries the collective among these GPUs, once in a process."""
    return _alight.cuda_probe(list(ordinals), folders(), PROBE)


def folders() -> list[str]:
    """Where NVIDIA's wheels, which `jax[cuda13]` and `jax[cuda12]` bring, keep the run-time compiler."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    found = [place for root in places for place in (Path(root) / "cu13/lib", Path(root) / "cuda_nvrtc/lib")]
    return [str(place) for place in found if place.is_dir()]
