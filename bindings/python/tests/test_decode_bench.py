"""The benchmark of decoding at a size that CPU devices finish at once, with what stands beside it on GPUs. No time is looked at."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from alight.jax.models import _programs
from conftest import KEEP, in_process
from evidence.bench import jax_decode
from evidence.gpu import bench_models
from evidence.lib import flashinfer_peer

ROOT = Path(__file__).resolve().parents[3]
VLLM = """#!/bin/sh
# As far as it is asked: a token takes 2 ms, and the first one 10.
while [ $# -gt 0 ]; do
    case "$1" in
    --output-len) tokens=$2 ;;
    --output-json) told=$2 ;;
    --model) test -f "$2/config.json" || exit 1 ;;
    esac
    shift
done
echo "{\\"avg_latency\\": $(awk "BEGIN { print 0.008 + 0.002 * $tokens }")}" > "$told"
"""


SETTINGS = {"no graphs": 3, "psum in graphs": 2}
"""Two of them, and how many variants each has."""


TORCH = """
# As far as it is asked: eight GPUs, on which a replay takes 1 ms by each clock.
import contextlib
import numpy as np
bfloat16 = "bfloat16"
def full(shape, value, **_): return np.full(shape, value, np.float32)
def ones(shape, **_): return np.ones(shape, np.float32)
ones_like, empty_like = np.ones_like, np.zeros_like
class cuda:
    CUDAGraph = type("CUDAGraph", (), {"replay": lambda self: None})
    Event = type("Event", (), {"__init__": lambda self, enable_timing: None, "record": lambda self: None, "elapsed_time": lambda self, end: 1.0})
    graph = staticmethod(contextlib.nullcontext)
    device_count, set_device, synchronize = lambda: 8, lambda number: None, lambda: None
"""
DISTRIBUTED = """
def init_process_group(*_, **__): pass
barrier = destroy_process_group = init_process_group
"""
FLASHINFER = """
class AllReduceFusionPattern:
    kARResidualRMSNorm = 1
class Workspace:
    def __init__(self, world_size, max_token_num, hidden_dim): self.ranks, self.shape = world_size, (max_token_num, hidden_dim)
    def destroy(self): pass
def create_allreduce_fusion_workspace(*, backend, world_size, rank, max_token_num, hidden_dim, dtype):
    assert (backend, dtype) == ("trtllm", "bfloat16") and 0 <= rank < world_size
    return Workspace(world_size, max_token_num, hidden_dim)
def allreduce_fusion(*, input, workspace, pattern, launch_with_pdl, residual_in, residual_out, norm_out, rms_gamma, rms_eps):
    assert pattern == 1 and input.shape[0] <= workspace.shape[0] and input.shape[1] == workspace.shape[1]
    residual_out[...] = residual_in + sum(range(1, workspace.ranks + 1))
"""


def with_flashinfer(folder, text=FLASHINFER):
    """A Python that has stand-ins for FlashInfer and torch."""
    for path, content in {"torch/__init__.py": TORCH, "torch/distributed.py": DISTRIBUTED, "flashinfer/__init__.py": "", "flashinfer/comm.py": text}.items():
        (folder / "modules" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "modules" / path).write_text(content)
    (folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/modules" exec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)
    return str(folder / "python")


# Times are nobody's here.
ENVIRONMENT = KEEP | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def run(folder, *options, vllm=VLLM):
    (folder / "vllm").write_text(vllm)
    (folder / "vllm").chmod(0o755)
    env = os.environ | ENVIRONMENT | {"PATH": f"{folder}:{os.environ['PATH']}"}
    small = ["--shape", "small", "--layers", "1", "--turns", "1", "--tokens", "5", "--steps", "4"]
    command = [sys.executable, "-m", "evidence", "bench", "jax-decode", *small, *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_on_cpu_devices(tmp_path):
    results = json.loads(run(tmp_path, "--tp", "2", "--json")[0])
    assert [(one["tp"], len(one["turns"]), set(one["turns"][0])) for one in results] == [
        (2, 1, {"fused", "psum", "nothing"})
    ]
    assert all(turn[who]["token"] > 0 for one in results for turn in one["turns"] for who in turn)


def test_what_gpus_are_measured_with(tmp_path):
    """With XLA's flags of each setting, which CPU devices take and do nothing with; with vLLM; and with FlashInfer."""
    python = with_flashinfer(tmp_path)
    said, told = run(tmp_path, "--tp", "2", "--gpus", "--flashinfer", python, "--settings", *SETTINGS)
    tables = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in said.splitlines() if line.startswith("| small")]
    rows, calls = ([row for row in tables if len(row) == width] for width in (6, 4))
    assert {row[0] for row in rows} == {"small shape, 1 layers"}
    names = [row[1] for row in rows]
    for setting, count in SETTINGS.items():
        assert sum(name.endswith(f" GPUs, {setting}") for name in names) == count, names
    assert rows[-1][1:3] == ["vLLM, 2 GPUs", "2.00"] and rows[-1][-1] == "10"
    shares = [row[4] for row in rows if row[1].startswith(("fused", "psum"))]
    assert len(shares) == 3 and all(share.endswith(" %") for share in shares)
    # What a graph of 100 calls takes, and a row for each of ours that there is a step without.
    assert [row[2:] for row in calls if row[1] == "FlashInfer by itself, 2 GPUs"] == [["1", "10.0 (10.0–10.0)"], ["8", "10.0 (10.0–10.0)"]]
    assert [row[1] for row in calls[:-2]] == [
        "fused, 2 GPUs, no graphs", "psum, 2 GPUs, no graphs", "psum, 2 GPUs, psum in graphs"
    ]  # fmt: skip
    assert "left out" not in told


def test_xla_knows_the_flags_of_every_setting():
    """It ends the process that has another."""
    flags = " ".join(flags for flags, _ in jax_decode.SETTINGS.values())
    assert in_process("import jax; print(jax.default_backend())", XLA_FLAGS=flags, JAX_PLATFORMS="cpu") == "cpu"
    with pytest.raises(AssertionError, match="Unknown flag"):
        in_process("import jax; print(jax.default_backend())", XLA_FLAGS=f"{flags} --xla_no_flag=1", JAX_PLATFORMS="cpu")


def test_the_baseline_in_graphs_has_what_models_have_and_collectives():
    """Else it would be set beside less than ours."""
    flags = dict(flag.removeprefix("--").split("=") for flag in jax_decode.COLLECTIVES_TOO.split())
    usual = _programs.GRAPHS["xla_gpu_enable_command_buffer"]
    assert flags == {name: str(value) for name, value in _programs.GRAPHS.items()} | {"xla_gpu_enable_command_buffer": f"{usual},COLLECTIVES"}


WRONG = FLASHINFER.replace("+ 1))", "))")
LEFT_OUT = {
    "absent": (None, "No module named 'flashinfer'"),
    "wrong": (WRONG, "its sum of 1 rows is wrong: 2.0, expected 4.0"),
    "one of its ranks fails": (FLASHINFER + "import sys\nassert '\"rank\": 0' in sys.argv[1], 'no such GPU'\n", "AssertionError: no such GPU"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_flashinfer_is_left_out_by_name_where_it_cannot_be_had(what, tmp_path, capsys):
    text, reason = LEFT_OUT[what]
    python = sys.executable if text is None else with_flashinfer(tmp_path, text)
    assert flashinfer_peer.measured(python, 2, [1, 8], 4608, 3) is None
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "FlashInfer is left out: " in told and reason in told


def test_a_peer_that_fails_is_left_out(tmp_path, monkeypatch, capsys):
    (tmp_path / "vllm").write_text("#!/bin/sh\necho no GPU >&2\nexit 1\n")
    (tmp_path / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asked = argparse.Namespace(prompt=32, tokens=5, turns=1)
    assert jax_decode.vllm(asked, jax_decode.SHAPES["small"], 1) is None
    assert capsys.readouterr().err == "vLLM is left out: no GPU\n"


LLAMA_BENCH = """#!/bin/sh
# As far as it is asked, three turns of each.
[ "$*" = "-m model.gguf -p 512 -n 128 -ngl 99 -r 3 -o json" ] || { echo "not what it is asked: $*" >&2; exit 1; }
echo '[{"backends": "CUDA", "n_prompt": 512, "n_gen": 0, "samples_ts": [50000, 51200, 52000]},'
echo ' {"backends": "CUDA", "n_prompt": 0, "n_gen": 128, "samples_ts": [199, 200, 203]}]'
"""


def other_engines(folder, monkeypatch, llama=LLAMA_BENCH, vllm=VLLM, turns=3):
    """Rows of `bench gpu-models`, with stand-ins; `None`: it is not there."""
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name, text in {"llama-bench": llama, "vllm": vllm}.items():
        if text is not None:
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
    model = folder / "hf"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return bench_models.beside(argparse.Namespace(llama=folder if llama else None, model=Path("model.gguf"), vllm=model, turns=turns))


def test_other_engines_beside_a_model_on_a_gpu(tmp_path, monkeypatch, capsys):
    assert other_engines(tmp_path, monkeypatch) == [
        "| llama.cpp | – | 10.0 | 200.0 (199.0–203.0) | – | – | – | – |", "| vLLM | – | 10.0 | 500.0 | – | – | – | – |"
    ]  # fmt: skip
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("llama", "vllm", "said"), [
    (None, None, ["llama.cpp is left out: --llama names no folder with llama-bench", "vLLM is left out: there is no command vllm"]),
    ("#!/bin/sh\necho no GPU >&2\nexit 1\n", "#!/bin/sh\necho this is no model of mine >&2\nexit 1\n",
     ["llama.cpp is left out: no GPU", "vLLM is left out: this is no model of mine"]),
    (LLAMA_BENCH.replace("CUDA", "CPU"), None,
     ["llama.cpp is left out: llama-bench computes with CPU, expected CUDA", "vLLM is left out: there is no command vllm"]),
], ids=["absent", "failing", "not for CUDA"])  # fmt: skip
def test_engines_are_left_out_by_name_where_they_cannot_be_had(llama, vllm, said, tmp_path, monkeypatch, capsys):
    assert other_engines(tmp_path, monkeypatch, llama, vllm) == []
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == len(said) and all(line.endswith(words) for line, words in zip(told, said, strict=True)), told
