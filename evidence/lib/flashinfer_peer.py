"""FlashInfer's all-reduce, residual and RMSNorm in one kernel, to stand beside our collective: a process for each GPU, as its users run it.

What is timed is `flashinfer.comm.allreduce_fusion` with the pattern `kARResidualRMSNorm`, the name of today for `trtllm_allreduce_fusion`, on a
workspace of TensorRT-LLM's kind: a CUDA graph of `CALLS` calls, replayed. It has no post-norm, which Gemma 2's collective has. A sum of known
numbers is looked at first.

    python -m evidence.lib.flashinfer_peer '{"rank": 0, "ranks": 8, "port": 29500, "rows": [1, 8], "hidden": 4608, "turns": 9}'

is what each process runs.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evidence.lib import common, process

CALLS = 100
"""Of a graph."""
LIMIT = 900
"""Seconds: kernels are compiled where they are used for the first time."""


def measured(python: str | Path, ranks: int, rows: list[int], hidden: int, turns: int) -> dict[int, list[float]] | None:
    """Seconds of a call, by rows, in each turn that of the slowest rank. Says why it is left out where it cannot be had."""
    port = process.free_port()
    jobs = [{"rank": rank, "ranks": ranks, "port": port, "rows": rows, "hidden": hidden, "turns": turns} for rank in range(ranks)]
    workers = []
    with tempfile.TemporaryDirectory() as folder:
        said = [(Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")) for rank in range(ranks)]
        try:
            for job, (out, err) in zip(jobs, said):
                command = [str(python), "-m", __name__, json.dumps(job)]
                with out.open("w") as stdout, err.open("w") as stderr:
                    workers.append(subprocess.Popen(command, cwd=common.ROOT, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr))
            failed = _first_failure(workers)
        finally:
            # Those that wait for one that has failed.
            for worker in workers:
                worker.kill()
                worker.wait()
        if failed is not None:
            lines = said[failed][1].read_text().strip().splitlines()
            common.say("FlashInfer is left out: " + (lines[-1] if lines else f"rank {failed} gave no reason within {LIMIT} s"))
            return None
        told = [process.results(out.read_text())[0] for out, _ in said]
    return {count: [max(turn) for turn in zip(*(one[str(count)] for one in told))] for count in rows}


def _first_failure(workers: list[subprocess.Popen]) -> int | None:
    """A rank that has ended with an error, or not in time; `None` once all have ended well."""
    end = time.monotonic() + LIMIT
    while True:
        statuses = [worker.poll() for worker in workers]
        failed = [rank for rank, status in enumerate(statuses) if status]
        if failed or None not in statuses:
            return failed[0] if failed else None
        if time.monotonic() > end:
            return statuses.index(None)
        time.sleep(0.05)


def rank(job: dict) -> None:
    """One of the processes."""
    import flashinfer.comm as comm
    import torch
    import torch.distributed as dist

    ranks, hidden, device = job["ranks"], job["hidden"], f"cuda:{job['rank']}"
    if (found := torch.cuda.device_count()) < ranks:
        raise SystemExit(f"torch sees {found} GPUs, expected {ranks}")
    torch.cuda.set_device(job["rank"])
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{job['port']}", rank=job["rank"], world_size=ranks)
    workspace = comm.create_allreduce_fusion_workspace(
        backend="trtllm", world_size=ranks, rank=job["rank"], max_token_num=max(job["rows"]), hidden_dim=hidden, dtype=torch.bfloat16
    )
    told = {}
    for rows in job["rows"]:
        x = torch.full((rows, hidden), job["rank"] + 1.0, dtype=torch.bfloat16, device=device)
        residual, weight = torch.ones_like(x), torch.ones(hidden, dtype=torch.bfloat16, device=device)
        new, normed = torch.empty_like(x), torch.empty_like(x)

        def call():
            comm.allreduce_fusion(
                input=x, workspace=workspace, pattern=comm.AllReduceFusionPattern.kARResidualRMSNorm, launch_with_pdl=True, residual_in=residual,
                residual_out=new, norm_out=normed, rms_gamma=weight, rms_eps=1e-6,
            )  # fmt: skip

        call()
        torch.cuda.synchronize()
        # 1 + 1 + 2 + … + ranks, which bf16 has exactly.
        expected = 1 + ranks * (ranks + 1) / 2
        if not bool((new == expected).all()):
            raise SystemExit(f"its sum of {rows} rows is wrong: {float(new[0, 0])}, expected {expected}")
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
        seconds = []
        # The first replay is not counted.
        for _ in range(job["turns"] + 1):
            dist.barrier()
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3 / CALLS)
        told[rows] = seconds[1:]
    process.tell_result(told)
    dist.barrier()
    workspace.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    rank(json.loads(sys.argv[1]))
