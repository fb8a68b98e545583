"""The benchmark of decoding at a size that CPU devices finish at once, with what stands beside it on GPUs. No time is looked at."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


SETTINGS = {"no graphs": 3, "XLA's one-shot kernel": 2}
"""Two of them, and how many variants each has."""


def run(folder, *options, vllm=VLLM):
    (folder / "vllm").write_text(vllm)
    (folder / "vllm").chmod(0o755)
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "evidence", "bench", "jax-decode", "--shape", "small", "--turns", "1", "--tokens", "5", "--steps", "4", *options]
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
    """With XLA's flags of each setting, which CPU devices take and do nothing with; and with vLLM."""
    said, _ = run(tmp_path, "--tp", "2", "--gpus", "--layers", "1", "--settings", *SETTINGS)
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in said.splitlines() if line.startswith("| small")]
    assert {row[0] for row in rows} == {"small shape, 1 layers"}
    names = [row[1] for row in rows]
    for setting, count in SETTINGS.items():
        assert sum(name.endswith(f" GPUs, {setting}") for name in names) == count, names
    assert rows[-1][1:3] == ["vLLM, 2 GPUs", "2.00"] and rows[-1][-1] == "10"
    shares = [row[4] for row in rows if row[1].startswith(("fused", "psum"))]
    assert len(shares) == 3 and all(share.endswith(" %") for share in shares)


def test_a_peer_that_fails_is_left_out(tmp_path):
    broken = "#!/bin/sh\necho no GPU >&2\nexit 1\n"
    said, told = run(tmp_path, "--tp", "1", "--gpus", "--settings", "NCCL's symmetric buffers", vllm=broken)
    assert "vLLM is left out: no GPU" in told and "vLLM" not in said
