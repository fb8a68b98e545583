"""Other engines on GPUs, to stand beside models in JAX: llama.cpp's and vLLM's own benchmarks. What cannot be had is named and left out."""

import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from evidence.lib import common


def _left_out(name: str, why: str) -> None:
    common.say(f"{name} is left out: {why}")


def _last_line(done: subprocess.CompletedProcess) -> str:
    return (done.stderr.strip().splitlines() or ["it fails"])[-1]


def vllm(model: Path | str, tp: int, prompt: int, tokens: int, turns: int, *more: str) -> dict | None:
    """Seconds to the first token and of each that follows, by the difference between many tokens and one: means of `turns`."""
    command = shutil.which("vllm")
    if command is None:
        return _left_out("vLLM", "there is no command vllm")
    means = []
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told.json")
        for count in (1, tokens):
            done = subprocess.run(
                [command, "bench", "latency", "--model", str(model), "--skip-tokenizer-init", *more, "--tensor-parallel-size", str(tp), "--batch-size", "1",
                 "--input-len", str(prompt), "--output-len", str(count), "--num-iters", str(turns), "--output-json", str(told)],
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                return _left_out("vLLM", _last_line(done))
            means.append(json.loads(told.read_text())["avg_latency"])
    return {"first": means[0], "token": (means[1] - means[0]) / (tokens - 1)}


def llama_bench(folder: Path | None, model: Path, prompt: int, tokens: int, turns: int) -> dict | None:
    """Of a llama.cpp that was built for CUDA, with all layers on the GPU: seconds to compute a prompt, and tokens per second of each turn."""
    if folder is None or not (program := folder / "llama-bench").is_file():
        return _left_out("llama.cpp", "--llama names no folder with llama-bench" if folder is None else f"{program} is not there")
    command = [program.resolve(), "-m", model, "-p", prompt, "-n", tokens, "-ngl", 99, "-r", turns, "-o", "json"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        return _left_out("llama.cpp", _last_line(done))
    results = json.loads(done.stdout)
    # One that was built for the CPU takes the same options.
    if backends := {one["backends"] for one in results if "CUDA" not in one["backends"]}:
        return _left_out("llama.cpp", f"llama-bench computes with {', '.join(backends)}, expected CUDA")
    of_prompt, of_tokens = ([one for one in results if one[key] > 0][0]["samples_ts"] for key in ("n_prompt", "n_gen"))
    return {"first": prompt / statistics.median(of_prompt), "rates": of_tokens}
