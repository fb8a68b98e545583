"""What XLA makes of our programs on GPUs, without one: its compiler for CUDA needs no driver.

Compiles the decode and the prefill program of a model of Gemma 2 27B's shape (6 of its 46 layers, no weights), and a chain of
collectives, for GPUs that are only described, with our handlers registered. What comes out is XLA's own list of what it will run
(thunks), its allocation of memory and its HLO. Shown and required:

- the devices meet once in a launch, by a collective of XLA's: so XLA lets them wait for each other before a kernel of ours waits;
- all collectives of a decode step are in one CUDA graph, with everything else of the step (where the driver lets custom calls in);
- all steps of a launch of decoding are one graph;
- nothing of a weight's size is copied, and temporary memory is bounded;
- how many kernels a layer takes;
- the same of a running batch of 8 sequences over a cache of pages, which is written in place;
- the same of decoding with the blocks of a Q4_K and a Q4_0 file: our products with them are in the same graph, and no matrix is made floats.

With --loop the layers are a loop over stacked weights, as on CPU devices: what that would be on GPUs. The packages (1.3 GB) are
installed into .venv-aot, once; where they cannot be had, this is said, and nothing is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from evidence.gpu import layers
from evidence.lib import common, sparse
from evidence.lib.lazy import lazily

jax = lazily("jax")
jnp = lazily("jax.numpy")
models = lazily("alight.jax.models")

VENV = common.ROOT / ".venv-aot"
REQUIREMENTS = common.ROOT / "evidence/requirements-aot.txt"
MODEL_LAYERS, CHAIN, STEPS, CHUNK = 6, 8, 8, 128
SEQUENCES, PAGES = 8, 256
"""Of a running batch."""
MIB = 1 << 20

# --- GPUs -------------------------------------------------------------------------------------

# As their drivers describe them.
EVERY = {"threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 49152, "threads_per_core_limit": 2048,
         "block_dim_limit_x": 2147483647, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535, "registers_per_core_limit": 65536,
         "registers_per_block_limit": 65536}  # fmt: skip
A100 = {"name": "NVIDIA A100-SXM4-80GB", "capability": 8, "core_count": 108, "fpus_per_core": 64, "memory_bandwidth": 2039040000000,
        "l2_cache_size": 41943040, "clock_rate_ghz": 1.41, "device_memory_size": 85100068864, "shared_memory_per_core": 167936,
        "shared_memory_per_block_optin": 166912}  # fmt: skip
H100 = {"name": "NVIDIA H100 80GB HBM3", "capability": 9, "core_count": 132, "fpus_per_core": 128, "memory_bandwidth": 3352320000000,
        "l2_cache_size": 52428800, "clock_rate_ghz": 1.98, "device_memory_size": 84942979072, "shared_memory_per_core": 233472,
        "shared_memory_per_block_optin": 232448}  # fmt: skip
B200 = {"name": "NVIDIA B200", "capability": 10, "core_count": 148, "fpus_per_core": 128, "memory_bandwidth": 7672320000000,
        "l2_cache_size": 132644864, "clock_rate_ghz": 1.965, "device_memory_size": 191514411008, "shared_memory_per_core": 233472,
        "shared_memory_per_block_optin": 232448}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A machine."""

    name: str
    gpu: dict
    count: int
    driver: str
    graphs: bool = True
    """Whether XLA puts custom calls into graphs with this driver."""

    def description(self) -> str:
        """The text of XLA's GpuTargetConfigProto."""
        more = {key: value for key, value in self.gpu.items() if key not in ("name", "capability")}
        numbers = " ".join(f"{key}: {value}" for key, value in (EVERY | more).items())
        version = f'"{self.driver}.0"'
        versions = " ".join(f"{key}: {version}" for key in ("driver_version", "runtime_version", "compile_time_toolkit_version"))
        capability = f"cuda_compute_capability {{ major: {self.gpu['capability']} }}"
        return (f'gpu_device_info {{ {numbers} {capability} {versions} }} platform_name: "CUDA" '
                f'dnn_version_info {{ major: 9 minor: 10 patch: 0 }} device_description_str: "{self.gpu["name"]}"')

    def devices(self) -> list:
        from jax.experimental import topologies

        described = topologies.get_topology_desc(platform="cuda", topology=f"1x1x{self.count}", target_config=self.description())
        return list(described.devices)


TARGETS = (
    Target("8 × H100, CUDA 13.0", H100, 8, "13.0"),
    Target("8 × H100, CUDA 12.8", H100, 8, "12.8", graphs=False),
    Target("2 × A100, CUDA 13.0", A100, 2, "13.0"),
    Target("8 × B200, CUDA 13.0", B200, 8, "13.0"),
)

# --- what was compiled ------------------------------------------------------------------------


@dataclass
class Thunk:
    """A line of XLA's list, with those that are in it."""

    kind: str
    depth: int
    inner: list[Thunk] = field(default_factory=list)

    def walk(self, above: tuple[str, ...] = ()) -> Iterator[tuple[Thunk, tuple[str, ...]]]:
        """Every one, and the kinds of those around it."""
        for one in self.inner:
            yield one, above
            yield from one.walk((*above, one.kind))


def thunks(text: str) -> Thunk:
    """The tree. What is in a thunk is further to the right; a loop's condition is announced by a line, its body too."""
    root = Thunk("program", -1)
    path = [root]
    for line in text.splitlines():
        found = re.match(r"( *)\d+: (k\w+)", line)
        if not found:
            continue
        one = Thunk(found[2], len(found[1]))
        while path[-1].depth >= one.depth:
            path.pop()
        path[-1].inner.append(one)
        path.append(one)
    return root


NOT_RUN = ("kWhile", "kCommandBuffer", "kSequential", "kConditional", "kAsyncStart", "kAsyncDone", "kDynamicSliceFusion", "kPartitionId")
"""Thunks that are no kernel and no copy of their own."""
COLLECTIVES = ("kAllReduce", "kAllGather", "kReduceScatter", "kAllToAll", "kCollectivePermute")


@dataclass(frozen=True)
class Made:
    """What XLA has made of a program."""

    calls: int
    """Calls of ours in the program's text."""
    in_graphs: int
    graphs: int
    """Graphs with calls of ours in them."""
    loops: int
    """The most loops around a call of ours that are not within its graph: each turn of them is a launch of the graph."""
    others: int
    """Collectives of XLA's."""
    others_in_loops: int
    kernels: float
    """Kernels in a layer."""
    copies: float
    """Copies of a layer, between arrays of the GPU."""
    temporary: int
    """Bytes."""
    large: tuple[str, ...]
    """What is written that is as large as a weight and is none."""
    seconds: float

    def row(self) -> str:
        where = f"{self.in_graphs} of {self.calls} in {self.graphs}" if self.in_graphs else f"0 of {self.calls}"
        per = {0: "launch", 1: "token", 2: "layer and token"}[self.loops] if self.in_graphs else "–"
        return (f"{where} | {per} | {self.others} | {self.kernels:.1f} | {self.copies:g} | {self.temporary / 1e6:.2f} | {self.seconds:.1f}")


def look(compiled, folder: Path, count: int, seconds: float, smallest: int, outer: int) -> Made:
    """`count`: layers; `smallest`: bytes of the smallest matrix; `outer`: loops around the layers."""
    # Written if anything of it went into graphs.
    listed = next(folder.glob("*thunk_sequence_after_thunk_passes.txt"), None) or next(folder.glob("*thunk_sequence.txt"))
    text = compiled.as_text()
    calls = text.count('custom_call_target="alight_')
    tree = thunks(listed.read_text())
    in_graphs = graphs = loops = others = in_loops = 0
    kernels = copies = 0.0
    for one, above in tree.walk():
        # A loop over the layers has each of its thunks once.
        inside = above.count("kWhile")
        weight = 1 if inside <= outer else count
        if one.kind in COLLECTIVES:
            others += 1
            in_loops += inside > 0
        elif one.kind == "kCommandBuffer":
            held = sum(inner.kind == "kCustomCall" for inner, _ in one.walk())
            graphs += held > 0
            in_graphs += held
            loops = max(loops, inside) if held else loops
        if one.kind in ("kCopy", "kDeviceToDeviceCopy", "kMemcpy"):
            copies += weight * (inside > 0 or outer == 0)
        elif one.kind not in NOT_RUN:
            kernels += weight * (inside > 0 or outer == 0)
    memory = compiled.memory_analysis()
    return Made(calls, in_graphs, graphs, loops, others, in_loops, kernels / count, copies / count, memory.temp_size_in_bytes, large(text, smallest), seconds)


BYTES = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "s8": 1, "u8": 1, "pred": 1}
HELD = ("parameter", "get-tuple-element", "tuple", "bitcast", "while", "dynamic-update-slice", "call", "conditional")
"""Instructions that write nothing of their own, or in place."""


IN_PLACE = ("dynamic-update-slice", "dynamic_update_slice", "scatter")
"""Of a fusion's name: it changes an operand. If that cannot be, a copy stands before it, which has a line of its own."""


def large(text: str, smallest: int) -> tuple[str, ...]:
    """Instructions outside fusions that write so many bytes or more. An update of the cache in place is none."""
    found, fused = [], False
    # What a fusion or a reduction computes with is in registers.
    inner = set(re.findall(r" fusion\(.*calls=(%[\w.-]+)", text)) | set(re.findall(r"to_apply=(%[\w.-]+)", text))
    inner |= {name for name in re.findall(r"^(%[\w.-]+) \(", text, re.M) if name.endswith("_computation")}
    for line in text.splitlines():
        if line and not line.startswith(" "):
            fused = line.split(" (")[0] in inner
        match = re.match(r"\s+(?:ROOT )?(%?[\w.-]+) = (\w+)\[([\d,]*)\]\S* ([\w-]+)\(", line)
        if fused or not match or match[4] in HELD or any(name in match[1] for name in IN_PLACE):
            continue
        size = BYTES.get(match[2], 4)
        for length in filter(None, match[3].split(",")):
            size *= int(length)
        if size >= smallest:
            found.append(f"{match[1]} {match[2]}[{match[3]}]")
    return tuple(found)


def compiled(lowered, count: int, smallest: int, outer: int) -> Made:
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        # Autotuning runs kernels.
        made = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_gpu_autotune_level": 0})
        return look(made, Path(folder), count, time.monotonic() - start, smallest, outer)


# --- the programs -----------------------------------------------------------------------------


def problems(name: str, made: Made, target: Target, calls: int, temporary: int) -> list[str]:
    """What is not as it has to be."""
    wrong = []
    if made.calls != calls:
        wrong.append(f"{made.calls} calls of ours, expected {calls}")
    if target.graphs and (made.in_graphs != made.calls or made.graphs != 1 or made.loops != 0):
        wrong.append(f"{made.in_graphs} of {made.calls} calls of ours in {made.graphs} graphs, a graph for each turn of {made.loops} loops")
    # The one for which devices wait before the first kernel.
    if (made.others, made.others_in_loops) != (1, 0):
        wrong.append(f"{made.others} collectives of XLA's, {made.others_in_loops} of them for each token, expected 1 and none")
    # One number in a program may be.
    if made.copies > 1 / MODEL_LAYERS + 0.001:
        wrong.append(f"{made.copies:g} copies in a layer")
    if made.temporary > temporary:
        wrong.append(f"{made.temporary} bytes of temporary memory, expected at most {temporary}")
    # Activations of a prompt are.
    wrong += [f"{one} is as large as a weight" for one in made.large if "decode" in name]
    return [f"{name}, {target.name}: {one}" for one in wrong]


def measure(arguments) -> None:
    shape = replace(sparse.GEMMA_2_27B, layers=MODEL_LAYERS)
    wrong: list[str] = []
    print("| program | machine | calls in graphs | a graph for each | XLA's collectives | kernels a layer | copies a layer | temporary MB | s |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)

    def show(name: str, target: Target, made: Made) -> None:
        print(f"| {name} | {target.name} | {made.row()} |", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path = sparse.write(shape, Path(folder) / "model.gguf")
        for target in TARGETS[: arguments.machines]:
            over = layers.mesh(target.devices())
            model = models.load_model(path, mesh=over, weights="bf16", unroll=False if arguments.loop else None)
            # The smallest matrix of a layer, its part on a GPU: a quarter leaves room for how it is laid out.
            smallest = 2 * shape.embd * shape.heads * shape.head_dim // target.count
            # Activations of a chunk, and what attention's programs found; nothing grows with the cache.
            few, more = 2 * MIB, 32 * MIB
            programs = [
                ("decode", model.lower("decode", STEPS), 2 * MODEL_LAYERS + 2, few),
                ("prefill", model.lower("prefill", CHUNK), 2 * MODEL_LAYERS + 1, more),
            ]
            if not arguments.loop:
                running = model.lower("decode", STEPS, batch=SEQUENCES, pages=PAGES)
                programs.append((f"decode, {SEQUENCES} sequences on pages", running, 2 * MODEL_LAYERS + 2, 2 * few))
            for name, lowered, calls, most in programs:
                made = compiled(lowered, MODEL_LAYERS, smallest, int(name.startswith("decode")))
                show(name, target, made)
                if not arguments.loop:
                    wrong += problems(name, made, target, calls, most)
            # The embedding's row, four products of a layer, and the logits.
            products = 4 * MODEL_LAYERS + 2
            for kind, bytes_of_32 in () if arguments.loop else (("Q4_K", 18), ("Q4_0", 18)):
                quantised = sparse.write(shape, Path(folder) / f"{kind}.gguf", kind)
                lowered = models.load_model(quantised, mesh=over, weights="native").lower("decode", STEPS)
                name = f"decode, {kind} as it is"
                made = compiled(lowered, MODEL_LAYERS, smallest * bytes_of_32 // 64, 1)
                show(name, target, made)
                wrong += problems(name, made, target, 2 * MODEL_LAYERS + 2 + products, few)
            given = layers.arguments(over, CHAIN, 8, 4608, jnp.bfloat16, True, seed=None)
            made = compiled(layers.program(layers.fused, over, CHAIN).lower(*given), CHAIN, smallest, 0)
            show("collectives alone", target, made)
            wrong += problems("collectives alone", made, target, CHAIN, MIB)
    print("\n".join(wrong) or f"{MODEL_LAYERS} layers of {shape.name}: as it has to be")
    if wrong:
        sys.exit(1)


# --- the environment --------------------------------------------------------------------------


def installed() -> bool:
    """Makes .venv-aot what the requirements say. False if that cannot be."""
    stamp, wanted = VENV / "stamp", REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return True
    common.say(f"installing XLA's compiler for CUDA into {VENV}")
    python = str(VENV / "bin/python")
    for command in (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)],
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary",
         ":all:", "-r", str(REQUIREMENTS)],
    ):  # fmt: skip
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode:
            print("not checked: what compiles for GPUs cannot be installed here: " + (done.stderr.strip().splitlines() or ["pip fails"])[-1])
            return False
    stamp.write_text(wanted)
    return True


def extension() -> Path:
    """The newest extension module that was built here."""
    found = [common.TARGET / "debug/lib_alight.so", common.ROOT / ".gpu/_alight.abi3.so"]
    found += (common.ROOT / "bindings/python/.venv").glob("lib/python*/site-packages/alight/_alight.abi3.so")
    there = [path for path in found if path.is_file()]
    if not there:
        sys.exit("the extension module of the Python package is not there: make aot-gpu builds it, and make test-python")
    return max(there, key=lambda path: path.stat().st_mtime)


def add_arguments(parser) -> None:
    parser.add_argument("--loop", action="store_true", help="the layers of models as a loop over stacked weights; requires nothing of them")
    parser.add_argument("--machines", type=int, default=len(TARGETS), help="only the first so many")
    parser.add_argument("--stamp", type=Path, help="do nothing if this file says that the same has passed before")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)


def run(arguments) -> None:
    if arguments.measure:
        return measure(arguments)
    package, module = common.ROOT / "bindings/python/python/alight", extension()
    sources = [*sorted(package.rglob("*.py")), *sorted((common.ROOT / "evidence/gpu").glob("*.py")), Path(sparse.__file__), Path(__file__), REQUIREMENTS]
    sources += sorted((common.ROOT / "crates/xla/src").rglob("*.rs"))
    given = [arguments.loop, arguments.machines]
    digest = hashlib.sha256(json.dumps(given).encode() + b"".join(path.read_bytes() for path in sources)).hexdigest()
    if arguments.stamp and arguments.stamp.exists() and arguments.stamp.read_text() == digest:
        return print("programs for GPUs: compiled before, unchanged")
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        return print("not checked: XLA's compiler for CUDA is installed for Linux on x86_64 alone")
    if not installed():
        return None
    with tempfile.TemporaryDirectory() as folder:
        joined(package, module, Path(folder) / "alight")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        # The plug-in would look for a driver; the default devices are CPU's.
        env |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{folder}:{common.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [VENV / "bin/python", "-m", "evidence", "check", "aot-gpu", "--measure", "--machines", str(arguments.machines)]
        done = subprocess.run([*map(str, command), *(["--loop"] if arguments.loop else [])], cwd=common.ROOT, env=env, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("\n".join(line for line in done.stderr.splitlines() if "cudart_stub" not in line and "InitializeLog" not in line) or 1)
    if arguments.stamp:
        arguments.stamp.write_text(digest)


def joined(package: Path, module: Path, folder: Path) -> None:
    """The package with that extension module."""
    folder.mkdir()
    for path in package.iterdir():
        if path.name != "__pycache__" and path.suffix != ".so":
            (folder / path.name).symlink_to(path)
    (folder / "_alight.abi3.so").symlink_to(module)
