"""Files to load, made here, and eight devices on the CPU to load them onto."""

import contextlib
import gc
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

# Before JAX is imported, which reads it once.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import alight
import gguf
import jax
import ml_dtypes
import numpy as np
import pytest
from alight._alight import WEIGHT_TYPES
from alight.jax import _cache

# What compilers have made for these tests is kept for the next time, in the virtual environment; JAX's own cache does it for XLA. Processes that
# tests start keep it only if they are given KEEP: in others, it would stand in for the cache of this package, which is tested there.
COMPILED = Path(sys.prefix) / "compiled" / hashlib.sha256(_cache.processor().encode()).hexdigest()[:16]
KEEP = {}
if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
    KEEP = {"JAX_COMPILATION_CACHE_DIR": str(COMPILED), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    jax.config.update("jax_compilation_cache_dir", str(COMPILED))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

def mypy(name, folder, *arguments):
    """Runs mypy in a folder. What it has found out about other packages is kept under a name, since no two may write to one place."""
    kept = COMPILED.parent / f"mypy-{name}" if KEEP else "/dev/null"
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={kept}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


MAX_MAPS = 20_000
"""Of 65,530 that Linux lets a process have. A program that XLA has compiled keeps several for as long as JAX caches it, and XLA ends the process when
it gets no more."""


TOGETHER = {"test_continuous.py": "test_batch.py"}
"""Files of tests that use the models of another one."""
LONGEST = ("test_models.py", "test_batch.py", "test_continuous.py", "test_gpu_blocks.py")
"""They come first, so that no worker is left alone with one of them."""


# What `make test` runs, by the beginning of names; `make test-all` runs all. Of each kind of mistake that the tests see, one that is quick to look for.
SMOKE = (
    # What is installed, and what its pages and examples say.
    "test_package.py::test_the_command_comes", "test_package.py::test_jax_and_ray_are", "test_docs.py::test_every",
    "test_docs.py::test_an_example_runs[examples/python/stream.py]",
    # What is in files, and what is wrong with one; models of the hub; tokens.
    "test_open.py::", "test_read.py::test_parts", "test_read.py::test_ranges", "test_read.py::test_floats_are_the_reference[rows-Q4_K]",
    "test_read.py::test_floats_are_the_reference[tiles-Q4_K]", "test_hub.py::test_a_name", "test_hub.py::test_what_is_not", "test_model.py::",
    "test_tools.py::",
    # Answers of the native engine: the command's, in pieces, from several threads, and errors by their types.
    "test_generate.py::test_what_a_model_is", "test_generate.py::test_an_answer_is_that_of_the_command", "test_generate.py::test_chat",
    "test_generate.py::test_answers_are_held", "test_generate.py::test_what_no_answer",
    "test_generate.py::test_errors", "test_generate.py::test_help", "test_generate.py::test_a_file_that_is_cut_short",
    "test_generate.py::test_several_threads", "test_generate.py::test_streams_that_are_left", "test_generate.py::test_ctrl_c_ends_an_answer[stream]",
    "test_compute.py::test_the_next_token", "test_compute.py::test_errors", "test_compute.py::test_numbers_outlive",
    # Rows of jobs, without Ray.
    "test_rows.py::", "test_replica.py::",
    # Arrays in place.
    "test_numpy.py::test_plain", "test_numpy.py::test_blocks_are_floats[Q4_K]", "test_numpy.py::test_what_numpy", "test_numpy.py::test_dlpack",
    "test_numpy.py::test_jax_takes_tensors", "test_load.py::test_arrays", "test_load.py::test_what", "test_load.py::test_shards_over_devices[rows",
    "test_load.py::test_each_device", "test_load.py::test_a_file_cut_short", "test_upload.py::test_the_same_arrays", "test_memory.py::test_opening",
    # The interface of XLA; the collective beside an oracle and beside psum, on one process's devices and on GPUs.
    "test_ffi.py::", "test_collective.py::test_numbers_are_the_oracles", "test_collective.py::test_groups_of_a_mesh", "test_collective.py::test_without",
    "test_collective.py::test_what_cannot_work", "test_meet.py::test_what_cannot_work", "test_meet.py::test_programs_of_checks", "test_cuda.py::",
    # Kernels on the bytes of a file, attention and sampling, each beside float64.
    "test_native.py::test_embed", "test_native.py::test_rows_of_every_rank[SmolLM2", "test_experts.py::test_what_float64_says[2-3]",
    "test_experts.py::test_a_store_changes_no_bit[True-3]", "test_gpu_blocks.py::test_calls_are_lowered", "test_attention.py::test_what_is_seen",
    "test_attention.py::test_pages", "test_sample.py::test_any_number", "test_sample.py::test_draws_are_as_likely_as_the_stages_say[0]", "test_cut.py::",
    # A small model in JAX beside the native engine, on several devices, with others in a batch; what is refused; programs that are kept; the command.
    "test_models.py::test_what_the_native_engine_says[llama]", "test_models.py::test_any_number_of_ranks[tiny0", "test_models.py::test_a_launch_ends",
    "test_models.py::test_a_file_that_is_cut_short", "test_models.py::test_what_cannot_work", "test_models.py::test_a_number_beside",
    "test_models.py::test_every_architecture", "test_batch.py::test_every_sequence_is_as_it_is_alone[llama", "test_batch.py::test_what_cannot_work",
    "test_huggingface.py::test_every_device", "test_huggingface.py::test_what_is_not", "test_cache.py::test_a_program", "test_cache.py::test_a_broken",
    "test_run.py::test_the_answer_is_all", "test_run.py::test_processes_have",
)  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """Marks what is in `SMOKE`, each of which has to be there."""
    names = {item: f"{item.path.name}::{item.name}" for item in items}
    for item, name in names.items():
        if name.startswith(SMOKE):
            item.add_marker(pytest.mark.smoke)
    lost = [one for one in SMOKE if not any(name.startswith(one) for name in names.values())]
    # Who asks for some tests has not lost the others.
    if lost and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        raise pytest.UsageError(f"SMOKE in conftest.py names tests that there are not: {', '.join(lost)}")
    order = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With several workers (`-n 2`) a file of tests is of one of them: its tests share models, and what is compiled for these."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            name = nodeid.partition("::")[0].rpartition("/")[2]
            return TOGETHER.get(name, name)

    config.option.loadscopereorder = False
    return Files(config, log)


@contextlib.contextmanager
def port_of_a_coordinator():
    """A port of this host that nobody else is given meanwhile: it is bound here too, as the coordinator's server lets others do."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(autouse=True)
def _few_maps():
    """Compiled programs of former tests go before there are too many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAX_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def compiled_quickly():
    """XLA optimises little, which takes a third less: for programs of which it is asked what they are made of and how they are called, and no bits."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


ROOT = Path(__file__).resolve().parents[3]
MODELS = Path(os.environ.get("ALIGHT_MODELS") or ROOT / "models")
# The model that answers.
PATH = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"

# Types with kernels that the gguf package can dequantise too.
QUANTISED = [name for name, (_, block, _) in WEIGHT_TYPES.items() if block > 1 and name in {t.name for t in gguf.quants._type_traits}]
ROWS, COLS = 64, 512

SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16", "uint32": "U32", "int32": "I32",
    "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip


def blocks(kind, rows=ROWS, cols=COLS, seed=0):
    """Bytes of random blocks, [rows, row bytes]; their scales are small normal numbers."""
    kind = gguf.GGMLQuantizationType[kind]
    per, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed + kind)
    made = rng.integers(0, 256, (rows, cols // per, size), dtype=np.uint8)
    # Random bits would be infinities and NaN now and then.
    for field, at in WEIGHT_TYPES[kind.name][2]:
        if field == "exponent":
            made[:, :, at] = rng.integers(118, 124, (rows, cols // per), dtype=np.uint8)
            continue
        if field == "e4m3":
            made[:, :, at] = rng.integers(0, 16, (rows, cols // per), dtype=np.uint8)
            continue
        value = rng.uniform(-0.01, 0.01, (rows, cols // per)).astype(np.float16)
        if field == "f16-nibbles":
            for i in range(4):
                byte = made[:, :, at + 2 * i + 1]
                byte[...] = byte & 15 | (value.view(np.uint16) >> 4 * i << 4).astype(np.uint8)
            continue
        made[:, :, at : at + 2] = value.view(np.uint8).reshape(rows, cols // per, 2)
    return made.reshape(rows, -1)


def write_gguf(path, tensors, alignment=4096, **more):
    """`tensors`: name → array, or (name of a type, bytes [rows, row bytes])."""
    writer = gguf.GGUFWriter(path, "llama", **more)
    writer.add_custom_alignment(alignment)
    writer.add_string("text", "grün")
    writer.add_array("words", ["a", "b", ""])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("halves", [0.5, -1.5])
    writer.add_bool("yes", True)
    writer.add_uint64("large", 2**63)
    for name, what in tensors.items():
        if isinstance(what, tuple):
            writer.add_tensor(name, what[1], raw_dtype=gguf.GGMLQuantizationType[what[0]])
        elif what.dtype == ml_dtypes.bfloat16:
            writer.add_tensor(name, what.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, what)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_safetensors(path, tensors, padding=0):
    """The data begins at a multiple of 64 bytes, and `padding` more."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        entry = {"dtype": SAFETENSORS[array.dtype.name], "shape": list(array.shape)}
        header[name] = entry | {"data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64 + padding)
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """For models that several files of tests share."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def every_type(tmp_path_factory):
    """A GGUF file with a matrix of each type that can be converted: its path, and what is in it."""
    rng = np.random.default_rng(1)
    plain = rng.standard_normal((ROWS, COLS)).astype(np.float32)
    tensors = {kind: (kind, blocks(kind)) for kind in QUANTISED}
    tensors |= {"F32": plain, "F16": plain.astype(np.float16), "BF16": plain.astype(ml_dtypes.bfloat16)}
    tensors["norm"] = plain[0]
    tensors["experts"] = ("Q8_0", np.stack([blocks("Q8_0", seed=i) for i in range(4)]))
    return write_gguf(tmp_path_factory.mktemp("every") / "every.gguf", tensors), tensors


@pytest.fixture(scope="session")
def command():
    """The command that came with the package."""
    return Path(sys.executable).parent / "alight"


@pytest.fixture(scope="session")
def packed(every_type, command):
    """The same file, packed."""
    path = every_type[0].with_name("packed.gguf")
    subprocess.run([command, "pack", every_type[0], "-o", path], check=True, capture_output=True)
    return path


def in_process(code, *args, **environment):
    """Runs code in a Python of its own, and returns what it prints."""
    run = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=300, env=os.environ | environment)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def with_signals(ignored, *program):
    """A command that starts a program with these signals ignored, the default for all others, and none blocked, whatever
    the tests were started with: `nohup` and a shell's `&` ignore some, other programs block some, and that is inherited."""
    numbers = ",".join(str(int(number)) for number in ignored)
    return [sys.executable, "-c", SIGNALS, numbers, *map(str, program)]


SIGNALS = """
import os, signal, sys
ignored = sys.argv[1].split(",")
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN if str(int(number)) in ignored else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture(scope="module")
def model():
    """What answers, in this process."""
    if not PATH.exists():
        pytest.skip(f"{PATH} is not there; `make models` fetches it")
    with alight.Model(PATH, threads=2) as model:
        yield model
