"""What XLA makes of our programs on GPUs, without one: its compiler for CUDA needs no driver.

Compiles the decode and the prefill programs of a model of Gemma 2 27B's shape (6 of its 46 layers, no weights), and a chain of
collectives, for GPUs that are only described, with our handlers registered. What comes out is XLA's own list of what it will run
(thunks), its allocation of memory and its HLO. Shown and required:

- the devices meet once in a launch, by a collective of XLA's: so XLA lets them wait for each other before a kernel of ours waits;
- all collectives of a decode step are in one CUDA graph, with everything else of the step, and all steps of a launch are one graph;
- nothing of a weight's size is copied, and temporary memory is bounded, also what of it does not grow with the rows;
- how many kernels a layer takes;
- the same of a running batch of 8 sequences over a cache of pages, which is written in place;
- the same of decoding with the blocks of a Q4_K and a Q4_0 file, and with a mixture's experts of Q4_K (6 of the 48 layers of Qwen3-30B-A3B's shape):
  our products with them are in the same graph, and no matrix is made floats;
- prompts in chunks of the lengths that GPUs have (`GPU_CHUNKS`): one graph where an operand is small enough for our collective, and
  where it is larger `lax.psum`, with graphs between NCCL's sums;
- what benchmarks set beside ours: with collectives let into graphs, XLA takes all of `lax.psum`'s into one.

A control comes first, for each machine: layers as a loop over stacked weights, as CPU devices have them, have to be found wrong. With --loop nothing
else is compiled. The packages (1.3 GB) are installed into .venv-aot, once; where they cannot be had, this is said, and nothing is checked.
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
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from evidence.bench import jax_decode
from evidence.gpu import layers
from evidence.lib import common, sparse
from evidence.lib.lazy import lazily

jax = lazily("jax")
jnp = lazily("jax.numpy")
models = lazily("alight.jax.models")
_cells = lazily("alight.jax.bench._cells")
_cuda = lazily("alight.jax._cuda")
_load = lazily("alight.jax.models._load")
_model = lazily("alight.jax.models._model")
_programs = lazily("alight.jax.models._programs")

VENV = common.ROOT / ".venv-aot"
REQUIREMENTS = common.ROOT / "evidence/requirements-aot.txt"
MODEL_LAYERS, CHAIN, STEPS = 6, 8, 8
SEQUENCES, PAGES = 8, 256
"""Of a running batch."""
KIB, MIB = 1 << 10, 1 << 20

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
    Target("8 × H100, CUDA 12.8", H100, 8, "12.8"),
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
    if not root.inner:
        raise ValueError("XLA's list of thunks has no line of the form that is known here")
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
    """Those that are not in graphs."""
    others_in_graphs: int
    every_graph: int
    """Graphs, whatever is in them."""
    kernels: float
    """Kernels in a layer."""
    copies: float
    """Copies of a layer, between arrays of the GPU."""
    temporary: int
    """Bytes."""
    fixed: int | None
    """Bytes of these that are no activations: they do not grow with the rows. Of a single row nothing can be told."""
    large: tuple[str, ...]
    """What is written that is as large as a weight and is none."""
    seconds: float

    def row(self) -> str:
        where = f"{self.in_graphs} of {self.calls} in {self.graphs}" if self.in_graphs else f"0 of {self.calls}"
        per = {0: "launch", 1: "token", 2: "layer and token"}[self.loops] if self.in_graphs else "–"
        others = f"{self.others}, {self.others_in_graphs} in graphs" if self.others_in_graphs else f"{self.others}"
        fixed = "–" if self.fixed is None else f"{self.fixed / 1e3:.1f}"
        return (f"{where} | {per} | {self.every_graph} | {others} | {self.kernels:.1f} | {self.copies:.2g} | {self.temporary / 1e6:.2f} | "
                f"{fixed} | {self.seconds:.1f}")  # fmt: skip


def look(compiled, folder: Path, count: int, seconds: float, smallest: int, outer: int, rows: int) -> Made:
    """`count`: layers; `smallest`: bytes of the smallest matrix; `outer`: loops around the layers; `rows`: of an activation."""
    # Written if anything of it went into graphs.
    listed = next(folder.glob("*thunk_sequence_after_thunk_passes.txt"), None) or next(folder.glob("*thunk_sequence.txt"), None)
    assigned = next(folder.glob("*buffer-assignment.txt"), None)
    if listed is None or assigned is None:
        raise ValueError(f"XLA has not written what it is asked for: {sorted(path.name for path in folder.iterdir())}")
    text = compiled.as_text()
    calls = text.count('custom_call_target="alight_')
    tree = thunks(listed.read_text())
    in_graphs = graphs = loops = others = in_loops = others_in_graphs = every_graph = 0
    kernels = copies = 0.0
    for one, above in tree.walk():
        # A loop over the layers has each of its thunks once.
        inside = above.count("kWhile")
        weight = 1 if inside <= outer else count
        if one.kind in COLLECTIVES:
            others += 1
            others_in_graphs += "kCommandBuffer" in above
            in_loops += inside > 0 and "kCommandBuffer" not in above
        elif one.kind == "kCommandBuffer":
            held = sum(inner.kind == "kCustomCall" for inner, _ in one.walk())
            every_graph += 1
            graphs += held > 0
            in_graphs += held
            loops = max(loops, inside) if held else loops
        if one.kind in ("kCopy", "kDeviceToDeviceCopy", "kMemcpy"):
            copies += weight * (inside > 0 or outer == 0)
        elif one.kind not in NOT_RUN:
            kernels += weight * (inside > 0 or outer == 0)
    temporary = compiled.memory_analysis().temp_size_in_bytes
    fixed = without_rows(assigned.read_text(), rows) if rows > 1 else None
    return Made(calls, in_graphs, graphs, loops, others, in_loops, others_in_graphs, every_graph, kernels / count, copies / count, temporary,
                fixed, large(text, smallest), seconds)  # fmt: skip


def without_rows(text: str, rows: int) -> int:
    """Bytes of XLA's temporary memory that ever hold something of which no dimension is the number of rows, or that of the rows of two heads, which
    attention has side by side."""
    taken, inside = [], False
    for line in text.splitlines():
        if line.startswith("allocation "):
            inside = "preallocated-temp" in line
        elif inside and (found := re.match(r" *value: .*\(size=(\d+),offset=(\d+)\): \(?\w+\[([\d,]*)\]", line)):
            size, start = int(found[1]), int(found[2])
            if not {rows, 2 * rows} & {int(length) for length in filter(None, found[3].split(","))}:
                taken.append((start, start + size))
    if "preallocated-temp" not in text or not re.search(r"value: .*\(size=\d+,offset=\d+\): ", text):
        raise ValueError("XLA's list of what is in memory has no line of the form that is known here")
    total = reached = 0
    for start, stop in sorted(taken):
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


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


def compiled(lowered, count: int, smallest: int, outer: int, rows: int, options: dict[str, str] | None = None) -> Made:
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        # Autotuning runs kernels.
        made = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_gpu_autotune_level": 0} | (options or {}))
        return look(made, Path(folder), count, time.monotonic() - start, smallest, outer, rows)


# --- the programs -----------------------------------------------------------------------------


def problems(name: str, made: Made, target: Target, calls: int, temporary: int, copies: int = 1) -> list[str]:
    """What is not as it has to be of a program with our collective. `temporary`: the most bytes; `copies`: how many there may be of numbers."""
    wrong = []
    if made.calls != calls:
        wrong.append(f"{made.calls} calls of ours, expected {calls}")
    if made.in_graphs != made.calls or made.graphs != 1 or made.loops != 0:
        wrong.append(f"{made.in_graphs} of {made.calls} calls of ours in {made.graphs} graphs, a graph for each turn of {made.loops} loops")
    # The one for which devices wait before the first kernel.
    if (made.others, made.others_in_loops) != (1, 0):
        wrong.append(f"{made.others} collectives of XLA's, {made.others_in_loops} of them for each token, expected 1 and none")
    wrong += [f"{one} is as large as a weight" for one in made.large if "decode" in name]
    return _named(name, target, wrong + _of_both(made, temporary, copies))


def problems_of_psum(name: str, made: Made, target: Target, sums: int, graphs: int, in_graphs: int, temporary: int) -> list[str]:
    """The same of one without. `graphs`: how many there are; `in_graphs`: how many of XLA's sums they hold."""
    wrong = []
    found = (made.calls, made.others, made.others_in_loops, made.every_graph, made.others_in_graphs)
    if found != (expected := (0, sums, 0, graphs, in_graphs)):
        wrong.append(f"calls of ours, collectives of XLA's, those for each token, graphs, collectives in these: {found}, expected {expected}")
    return _named(name, target, wrong + _of_both(made, temporary, 2))


def _of_both(made: Made, temporary: int, numbers: int) -> list[str]:
    """`numbers`: how many may be copied in a program."""
    wrong = []
    if made.kernels < 1:
        wrong.append(f"{made.kernels} kernels in a layer: XLA's list is not what is read here")
    if made.copies > numbers / MODEL_LAYERS + 0.001:
        wrong.append(f"{made.copies:g} copies in a layer")
    if made.temporary > temporary:
        wrong.append(f"{made.temporary} bytes of temporary memory, expected at most {temporary}")
    if made.fixed is not None and made.fixed > FIXED:
        wrong.append(f"{made.fixed} bytes of temporary memory that are no activations, expected at most {FIXED}")
    return wrong


def _named(name: str, target: Target, wrong: list[str]) -> list[str]:
    return [f"{name}, {target.name}: {one}" for one in wrong]


FIXED = 16 * KIB
"""The most temporary memory that does not grow with the rows: tables and counters."""


def smallest_of(shape, target: Target) -> int:
    """Bytes of the smallest matrix of a layer as bfloat16, its part on a GPU."""
    return 2 * shape.embd * shape.heads * shape.head_dim // target.count


def most(shape, target: Target, rows: int, ours: bool = True) -> int:
    """The most bytes that activations take, which is all temporary memory. Few rows are multiplied by parts of a matrix, whose four results XLA adds
    afterwards; of the widest, gate and up, these are most of what is there. `lax.psum` has rows of the stream in float32 instead, as they are added."""
    widest, wide = 4 * 2 * shape.ff // target.count, 4 * shape.embd
    return rows * (4 * widest + 2 * wide if ours else widest + 4 * wide)


def most_of_a_step(shape, target: Target) -> int:
    """The same of decoding one sequence, where the logits count: 0.3 MB of 8 GPUs. A token's experts are a row each of float32, whosever they are."""
    experts = 4 * shape.used * (2 * shape.expert_ff + shape.embd)
    return most(shape, target, 1) + 4 * shape.vocab // target.count + experts


def control(path: Path, target: Target, smallest: int, few: int) -> tuple[Made, list[str]]:
    """Layers as a loop, as GPUs had them before: what has to be found wrong, and is not."""
    name = "decode, a loop over layers"
    lowered = models.load_model(path, mesh=layers.mesh(target.devices()), weights="bf16", unroll=False).lower("decode", STEPS)
    made = compiled(lowered, MODEL_LAYERS, smallest, 1, 1)
    found = "\n".join(problems(name, made, target, 2, few))
    wanted = ("a graph for each turn of 2 loops", "of them for each token", "copies in a layer", "bytes of temporary memory", "is as large as a weight")
    return made, [f"the control, {name}: not found: {words}" for words in wanted if words not in found]


def by_psum(path: Path, over, options: dict | None = None):
    """The lowered decode program with `lax.psum`, as `bench jax-decode` has it."""
    ours, usual = _load.collective, _programs.GRAPHS
    _load.collective, _programs.GRAPHS = jax_decode.variants(False)["psum"], options or usual
    try:
        return models.load_model(path, mesh=over, weights="bf16").lower("decode", STEPS)
    finally:
        _load.collective, _programs.GRAPHS = ours, usual


def options_of(flags: str) -> dict[str, str]:
    """XLA's flags as options of one program."""
    return dict(flag.removeprefix("--").split("=", 1) for flag in flags.split())


def measure(arguments) -> None:
    shape = replace(sparse.GEMMA_2_27B, layers=MODEL_LAYERS)
    wrong: list[str] = []
    print("| program | machine | calls in graphs | a graph for each | graphs | XLA's collectives | kernels a layer | copies a layer | "
          "temporary MB | no activations, kB | s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)

    def show(name: str, target: Target, made: Made) -> None:
        print(f"| {name} | {target.name} | {made.row()} |", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path = sparse.write(shape, Path(folder) / "model.gguf")
        for target in TARGETS[: arguments.machines]:
            over = layers.mesh(target.devices())
            smallest, few = smallest_of(shape, target), most_of_a_step(shape, target)
            made, missed = control(path, target, smallest, few)
            show("decode, a loop over layers", target, made)
            wrong += missed
            if arguments.loop:
                continue
            model = models.load_model(path, mesh=over, weights="bf16")
            made = compiled(model.lower("decode", STEPS), MODEL_LAYERS, smallest, 1, 1)
            show("decode", target, made)
            wrong += problems("decode", made, target, 2 * MODEL_LAYERS + 2, few)
            name = f"decode, {SEQUENCES} sequences on pages"
            made = compiled(model.lower("decode", STEPS, batch=SEQUENCES, pages=PAGES), MODEL_LAYERS, smallest, 1, SEQUENCES)
            show(name, target, made)
            wrong += problems(name, made, target, 2 * MODEL_LAYERS + 2, most(shape, target, SEQUENCES))
            for rows in _model.GPU_CHUNKS[1:]:
                name, ours = f"prefill, {rows} tokens", 2 * shape.embd * rows <= _cuda.largest(target.count)
                made = compiled(model.lower("prefill", rows), MODEL_LAYERS, smallest, 0, rows)
                show(name, target, made)
                limit = most(shape, target, rows, ours)
                if ours:
                    wrong += problems(name, made, target, 2 * MODEL_LAYERS + 1, limit)
                else:
                    wrong += problems_of_psum(name, made, target, 2 * MODEL_LAYERS + 2, 2 * MODEL_LAYERS, 0, limit)
            # The embedding's row, four products of a layer, and the logits. Of experts there are as many: gate and up, and down, of all pairs.
            products = 4 * MODEL_LAYERS + 2
            mixture = replace(sparse.QWEN3_30B_A3B, layers=MODEL_LAYERS)
            for of, kind in ((shape, "Q4_K"), (shape, "Q4_0"), (mixture, "Q4_K")):
                name = f"decode, {'experts of ' if of.experts else ''}{kind} as {'they are' if of.experts else 'it is'}"
                quantised = sparse.write(of, Path(folder) / "blocks.gguf", kind)
                lowered = models.load_model(quantised, mesh=over, weights="native").lower("decode", STEPS)
                # Of both types 32 weights are 18 bytes.
                made = compiled(lowered, MODEL_LAYERS, smallest_of(of, target) * 18 // 64, 1, 1)
                show(name, target, made)
                # To sort a router's scores XLA copies their numbers, 128 of them.
                copies = 1 + (MODEL_LAYERS if of.experts else 0)
                wrong += problems(name, made, target, 2 * MODEL_LAYERS + 2 + products, most_of_a_step(of, target), copies)
            for name, options in (("decode by psum", None), ("decode by psum, in graphs", options_of(jax_decode.COLLECTIVES_TOO))):
                made = compiled(by_psum(path, over, options), MODEL_LAYERS, smallest, 1, 1)
                show(name, target, made)
                if options is not None:
                    wrong += problems_of_psum(name, made, target, 2 * MODEL_LAYERS + 3, 1, 2 * MODEL_LAYERS + 3, few)
            given = layers.arguments(over, CHAIN, 8, 4608, jnp.bfloat16, True, seed=None)
            made = compiled(layers.program(layers.fused, over, CHAIN).lower(*given), CHAIN, smallest, 0, 8)
            show("collectives alone", target, made)
            wrong += problems("collectives alone", made, target, CHAIN, MIB // 4)
            name, options = "the same by psum, in graphs", options_of(_cells.GPU_OPTIONS["NCCL, in CUDA graphs"])
            made = compiled(layers.program(layers.unfused, over, CHAIN).lower(*given), CHAIN, smallest, 0, 8, options)
            show(name, target, made)
            wrong += problems_of_psum(name, made, target, CHAIN, 1, CHAIN, MIB)
    print("\n".join(wrong) or f"{MODEL_LAYERS} layers of {shape.name}: as it has to be")
    if wrong:
        sys.exit(1)


def selftest() -> list[str]:
    """Lists of XLA's in another form than today's have to be errors, and no programs in which nothing is wrong."""
    found = []
    empty = types.SimpleNamespace(as_text=lambda: "", memory_analysis=lambda: types.SimpleNamespace(temp_size_in_bytes=0))
    thunk, memory = "000: kCommandBuffer x\n    001: kCustomCall x\n", "allocation 1: size 8, preallocated-temp:\n value: <1 x @0> (size=8,offset=0): f32[2]{0}\n"
    with tempfile.TemporaryDirectory() as name:
        listed, assigned = Path(name, "m.thunk_sequence.txt"), Path(name, "m.buffer-assignment.txt")
        for what, thunk_text, memory_text in (
            ("nothing", None, None), ("no thunks", None, memory), ("no memory", thunk, None), ("an empty list of thunks", "", memory),
            ("thunks of another form", thunk.replace(": k", " - "), memory), ("memory of another form", thunk, memory.replace("offset", "at")),
            ("an empty list of memory", thunk, ""),
        ):  # fmt: skip
            for path, text in ((listed, thunk_text), (assigned, memory_text)):
                path.unlink(missing_ok=True)
                if text is not None:
                    path.write_text(text)
            try:
                look(empty, Path(name), 1, 0, 1, 0, 8)
                found.append(f"{what} in what XLA has written is no error")
            except ValueError:
                pass
        listed.write_text(thunk)
        assigned.write_text(memory)
        made = look(empty, Path(name), 1, 0, 1, 0, 8)
        if (made.in_graphs, made.every_graph, made.fixed) != (1, 1, 8):
            found.append(f"a call in a graph and 8 bytes are read as {made}")
        if not problems("nothing", made, TARGETS[0], 1, 0):
            found.append("a program of one call and nothing else is as it has to be")
    return found


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
    parser.add_argument("--loop", action="store_true", help="only the controls: layers as a loop over stacked weights")
    parser.add_argument("--machines", type=int, default=len(TARGETS), help="only the first so many")
    parser.add_argument("--stamp", type=Path, help="do nothing if this file says that the same has passed before")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)


def run(arguments) -> None:
    if arguments.measure:
        return measure(arguments)
    package, module = common.ROOT / "bindings/python/python/alight", extension()
    sources = [*sorted(package.rglob("*.py")), *sorted((common.ROOT / "evidence/gpu").glob("*.py")), Path(jax_decode.__file__), Path(sparse.__file__), Path(__file__), REQUIREMENTS]
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
