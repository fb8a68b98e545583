"""What is measured, in processes of its own: XLA reads its options once."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from . import _table
from ._say import Failure

PYTHON = [sys.executable, "-P"]
"""Starts a Python that imports nothing from the current folder, which may be anybody's: `-c` and `-m` would."""

LIMIT = 1800.0
"""Seconds that one process may take."""

GPU_OPTIONS = {
    "NCCL": "",
    "NCCL, in CUDA graphs": "--xla_gpu_enable_command_buffer=CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,FUSION,COLLECTIVES",
    "XLA's one-shot kernel": "--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=true",
    "NCCL, symmetric buffers": "--xla_gpu_experimental_enable_nccl_symmetric_buffers=true",
}
"""XLA's own ways, which the collective is compared with on GPUs. As it comes, XLA leaves its collectives out of graphs, where ours is."""


def measure(args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """All cells; each is told about when it is there."""
    gpus = 0 if args.platform == "cpu" else _gpus()
    if args.platform == "gpu" and gpus < 2:
        raise Failure(f"--platform gpu: there are {gpus} GPUs, and a collective needs two")
    on_gpu = gpus >= 2
    if on_gpu and args.processes > 1:
        raise Failure("--processes is for CPU devices: GPUs are measured in one process", 2)
    devices = args.devices or ([gpus] if on_gpu else [args.processes] if args.processes > 1 else [2, 4, 8])
    if on_gpu and max(devices) > gpus:
        raise Failure(f"--devices: {max(devices)} are asked for and there are {gpus} GPUs")
    ways = GPU_OPTIONS if on_gpu else {"Gloo" if args.processes > 1 else "XLA": ""}
    report: dict[str, Any] = {
        "platform": "gpu" if on_gpu else "cpu",
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "processes": args.processes,
        "dtype": "bfloat16",
        "layers": _table.LAYERS,
        "turns": args.turns,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cells": [],
        "failed": [],
    }
    say(_table.heading(report))
    for hidden in args.hidden:
        for count in devices:
            for way, option in ways.items():
                try:
                    cells = _run(args, count, hidden, option, on_gpu)
                except Failure as problem:
                    # An option that this XLA does not have, or that these devices cannot do, is a line of the table.
                    if len(ways) == 1:
                        raise
                    report["failed"].append({"devices": count, "hidden": hidden, "beside": way, "problem": str(problem)})
                    say(f"{count:7} {'':4} {hidden:6}   {way}: {problem}")
                    continue
                for cell in cells:
                    cell["beside"] = way
                    report["cells"].append(cell)
                    say(_table.line(cell))
    return report


def _gpus() -> int:
    """How many there are; asked in another process, so that this one holds none."""
    ask = "import jax; print(len([d for d in jax.devices() if d.platform == 'gpu']))"
    told = subprocess.run([*PYTHON, "-c", ask], capture_output=True, text=True)
    last = (told.stdout.split() or ["0"])[-1]
    return int(last) if told.returncode == 0 and last.isdecimal() else 0


def _run(args: argparse.Namespace, devices: int, hidden: int, option: str, on_gpu: bool) -> list[dict[str, Any]]:
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_allow_excess_precision=false", option]
    environment = os.environ | {"XLA_FLAGS": " ".join(filter(None, flags))}
    if not on_gpu:
        environment["JAX_PLATFORMS"] = "cpu"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked = {"devices": devices, "rows": args.rows, "hidden": hidden, "turns": args.turns, "processes": args.processes}
    started = [
        subprocess.Popen(
            [*PYTHON, "-m", "alight.jax.bench._child", json.dumps(asked | {"process": i, "port": port, "cpu": not on_gpu})],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(args.processes)
    ]
    try:
        told = [process.communicate(timeout=LIMIT) for process in started]
    except subprocess.TimeoutExpired:
        raise Failure(f"{devices} devices: not done after {LIMIT:.0f} s") from None
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
    for process, (_, said) in zip(started, told):
        if process.returncode != 0:
            reason = (said.strip().splitlines() or [f"status {process.returncode}"])[-1]
            raise Failure(f"{devices} devices: failed: {reason}")
    return [json.loads(line) for line in told[0][0].splitlines() if line.startswith("{")]
