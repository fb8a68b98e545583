"""The importance matrices of `alight imatrix` beside what llama.cpp multiplies its matrices with: on the same tokens, for tiny models
of every kind of part, and a real one.

llama.cpp is the library inside the package `xllamacpp`, whose program for that is not in it: its scheduler calls back for every product, and the
squares of the inputs are summed up here as `tools/imatrix/imatrix.cpp` does it. Entries have to be of the same tensors, with the same numbers of
inputs; the root of the mean square of each column may differ as the rounding of keys and values lets it. (Where two experts are nearly as good,
another is chosen now and then: their counts may differ by a few. `attn_kv_b`, which keys and values of latents are made with, is not compared: here
what is behind a batch is multiplied with it again.)

    python -m evidence agree imatrix            tiny models
    python -m evidence agree imatrix --real     SmolLM2, too
"""

from __future__ import annotations

import ctypes
import tempfile
from dataclasses import replace
from pathlib import Path

from evidence.agree import architectures
from evidence.lib import common, process, tiny_models
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

CHUNK, CHUNKS = 64, 3
# Of the root of the mean square of a column, beside the largest of the matrix; and how many inputs of an expert may have gone to another.
TOLERANCE, MOVED = 0.01, 3
# With a real model, whose matrices have few bits: llama.cpp rounds their inputs to 8 bits, too.
ROUNDED = 0.05
# Tiny models, by the name of their architecture, and tensors that one of the two does not multiply as a matrix of its own.
NAMES = ("llama", "qwen2", "qwen3moe", "qwen2moe", "gpt-oss", "granitehybrid", "lfm2", "qwen35", "deepseek2", "phi3", "gptneox")
OTHER = ("ssm_conv1d", "shortconv.conv", "token_embd", "attn_k_b", "attn_v_b")
MUL_MAT, MUL_MAT_ID = 29, 30


class Tensor(ctypes.Structure):
    """`ggml_tensor` of ggml.h."""


Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4), ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32), ("src", ctypes.POINTER(Tensor) * 10), ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p), ("padding", ctypes.c_char * 8)]

Callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(Tensor), ctypes.c_bool, ctypes.c_void_p)


Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class ModelParams(ctypes.Structure):
    """`llama_model_params` of llama.h."""

    _fields_ = [("devices", ctypes.c_void_p), ("overrides", ctypes.c_void_p), ("gpu_layers", ctypes.c_int32), ("split_mode", ctypes.c_int),
                ("load_mode", ctypes.c_int), ("lazy_mode", ctypes.c_int), ("main_gpu", ctypes.c_int32), ("tensor_split", ctypes.c_void_p),
                ("progress", ctypes.c_void_p), ("progress_data", ctypes.c_void_p), ("kv_overrides", ctypes.c_void_p), ("vocab_only", ctypes.c_bool),
                ("check_tensors", ctypes.c_bool), ("use_extra_bufts", ctypes.c_bool), ("no_host", ctypes.c_bool), ("no_alloc", ctypes.c_bool),
                ("load_mtp", ctypes.c_bool)]


class ContextParams(ctypes.Structure):
    """`llama_context_params` of llama.h."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("ctx", "batch", "ubatch", "seq_max", "rs_seq", "outputs_max", "outputs_max_per_seq")]
    _fields_ += [(name, ctypes.c_int32) for name in ("threads", "threads_batch", "ctx_type", "rope_type", "pooling", "attention", "flash")]
    _fields_ += [(name, ctypes.c_float) for name in ("base", "scale", "ext", "attn", "fast", "slow")]
    _fields_ += [("orig_ctx", ctypes.c_uint32), ("defrag", ctypes.c_float), ("cb_eval", Callback), ("cb_data", ctypes.c_void_p),
                 ("type_k", ctypes.c_int), ("type_v", ctypes.c_int), ("moe_cache", ctypes.c_size_t), ("abort", ctypes.c_void_p),
                 ("abort_data", ctypes.c_void_p)]
    _fields_ += [(name, ctypes.c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")]
    _fields_ += [("samplers", ctypes.c_void_p), ("n_samplers", ctypes.c_size_t), ("other", ctypes.c_void_p)]


class Batch(ctypes.Structure):
    """`llama_batch` of llama.h."""

    _fields_ = [("count", ctypes.c_int32), ("token", ctypes.c_void_p), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
                ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p)]


def library():
    import xllamacpp

    lib = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    for name, result, *arguments in (
            ("llama_model_default_params", ModelParams), ("llama_context_default_params", ContextParams),
            ("llama_model_load_from_file", ctypes.c_void_p, ctypes.c_char_p, ModelParams), ("llama_model_free", None, ctypes.c_void_p),
            ("llama_init_from_model", ctypes.c_void_p, ctypes.c_void_p, ContextParams), ("llama_free", None, ctypes.c_void_p),
            ("llama_log_set", None, Log, ctypes.c_void_p), ("llama_decode", ctypes.c_int32, ctypes.c_void_p, Batch)):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def values(t: Tensor, dtype) -> np.ndarray:
    """What a tensor in memory has, `[ne3, ne2, ne1, ne0]`."""
    size = np.dtype(dtype).itemsize
    end = sum((n - 1) * b for n, b in zip(t.ne, t.nb)) + size
    raw = np.ctypeslib.as_array(ctypes.cast(t.data, ctypes.POINTER(ctypes.c_uint8)), (end,))
    return np.lib.stride_tricks.as_strided(raw.view(dtype) if end % size == 0 else raw[: end // size * size].view(dtype),
                                           tuple(t.ne)[::-1], tuple(t.nb)[::-1])


def theirs(lib, path: Path, tokens: list[int], chunk: int) -> dict:
    """By tensor: sums of squares `[matrices, columns]` and numbers of inputs."""
    found: dict = {}

    def collect(t, ask, _):
        t = t.contents
        if t.op not in (MUL_MAT, MUL_MAT_ID):
            return not ask
        w, x = t.src[0].contents, t.src[1].contents
        name = w.name.decode()
        if ask or not (name.startswith("blk.") or name in ("output.weight", "token_embd.weight")) or x.type != 0:
            return True
        rows, matrices = values(x, np.float32).astype(np.float64), w.ne[2] * w.ne[3]
        sums, counts = found.setdefault(name, (np.zeros((matrices, w.ne[0])), np.zeros(matrices, np.int64)))
        if t.op == MUL_MAT:
            flat = rows.reshape(-1, w.ne[0]) if matrices == 1 else None
            if flat is not None:
                sums[0] += (flat**2).sum(axis=0)
                counts[0] += len(flat)
            return True
        ids = values(t.src[2].contents, np.int32)[0, 0]
        for token, experts in enumerate(ids):
            for place, expert in enumerate(experts):
                sums[expert] += rows[0, token, place % rows.shape[2]] ** 2
                counts[expert] += 1
        return True

    callback, silent = Callback(collect), Log(lambda *_: None)
    lib.llama_log_set(silent, None)
    params = lib.llama_model_default_params()
    params.use_extra_bufts = False
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
    for first in range(0, len(tokens), chunk):
        options = lib.llama_context_default_params()
        options.ctx = options.batch = options.ubatch = options.outputs_max = chunk
        options.threads = options.threads_batch = 1
        options.cb_eval = callback
        context = lib.llama_init_from_model(model, options)
        part = np.array(tokens[first : first + chunk], np.int32)
        positions, one, wanted = np.arange(chunk, dtype=np.int32), np.ones(chunk, np.int32), np.ones(chunk, np.int8)
        zero = np.zeros(1, np.int32)
        sequences = (ctypes.c_void_p * chunk)(*[zero.ctypes.data] * chunk)
        batch = Batch(chunk, part.ctypes.data, None, positions.ctypes.data, one.ctypes.data, ctypes.addressof(sequences), wanted.ctypes.data)
        assert lib.llama_decode(context, batch) == 0
        lib.llama_free(context)
    lib.llama_model_free(model)
    return found


def ours(args, path: Path, text: Path, chunk: int, chunks: int) -> tuple[dict, list[int]]:
    made = path.with_suffix(".imatrix")
    architectures.alight(args, "imatrix", path, text, "-o", made, "--force", "-c", chunk, "--chunks", chunks, "--process-output",
                         "--prompt-precision", 16, "-t", args.threads)
    tensors = {t.name: np.array(t.data, np.float64) for t in gguf.GGUFReader(made).tensors}
    stems = [name.removesuffix(".in_sum2") for name in tensors if name.endswith(".in_sum2")]
    found = {name: (tensors[f"{name}.in_sum2"], tensors[f"{name}.counts"].reshape(-1).astype(np.int64)) for name in stems}
    ids = architectures.alight(args, "tokenize", path, "-f", text, "--ids")
    tokens = [int(word) for word in ids.replace("[", " ").replace("]", " ").replace(",", " ").split()][: chunk * chunks]
    # Each chunk begins as a text does.
    without = architectures.alight(args, "tokenize", path, "-f", text, "--ids", "--no-bos")
    if without != ids:
        tokens[::chunk] = [tokens[0]] * chunks
    return found, tokens


def compare(args, report: Checks, lib, name: str, path: Path, text: Path, chunk: int, tolerance: float = TOLERANCE) -> None:
    found, tokens = ours(args, path, text, chunk, CHUNKS)
    expected = theirs(lib, path, tokens, chunk)
    leave = lambda names: {name for name in names if not any(part in name for part in OTHER)}
    missing = leave(expected) ^ leave(found)
    report.add(not missing, f"{name}: the same tensors: {len(found)} and {len(expected)}, {sorted(missing)[:4]} of one of the two")
    worst, moved = (0.0, ""), 0
    for tensor in leave(expected) & leave(found):
        (sums, counts), (exact, all_) = found[tensor], expected[tensor]
        if "attn_kv_b" in tensor:
            # What is behind a batch is multiplied with it again.
            continue
        moved = max(moved, int(abs(counts - all_).max()))
        if counts.sum() != all_.sum():
            report.add(False, f"{name}: {tensor}: {counts.sum()} inputs, and {all_.sum()}")
        for i in range(len(all_)):
            if counts[i] != all_[i] or not all_[i]:
                continue
            one, other = np.sqrt(sums[i] / counts[i]), np.sqrt(exact[i] / all_[i])
            worst = max(worst, (float(abs(one - other).max() / max(other.max(), 1e-30)), tensor))
    report.add(worst[0] <= tolerance and moved <= MOVED, f"{name}: columns differ by {worst[0]:.5f} at most ({worst[1]}), {moved} inputs of an expert",
               model=name, found=worst[0], moved=moved)


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", help="architectures")
    parser.add_argument("--real", action="store_true", help="SmolLM2, too")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what fails, and the sum")
    common.add_arguments(parser, threads=1)


def run(args) -> int:
    report, lib = Checks(args.quiet), library()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = folder / "text.txt"
        text.write_text(tiny_models.text(400, 1))
        seen = set()
        for m, _ in architectures.CASES:
            if m.arch in (args.names or NAMES) and m.name not in seen:
                seen.add(m.name)
                path = tiny_models.write(replace(m, kind="F32"), folder / "model.gguf")
                try:
                    compare(args, report, lib, m.name, path, text, CHUNK)
                except architectures.Trouble as trouble:
                    report.add(False, f"{m.name}: {trouble}")
        if args.real:
            words = folder / "words.txt"
            words.write_text((common.ROOT / "docs/explanation/architecture.md").read_text())
            model = folder / "smollm2.gguf"
            model.symlink_to(common.model_path("smollm2", args.models))
            compare(args, report, lib, "smollm2", model, words, 256, ROUNDED)
    if not common.as_json(args, report.rows):
        print(f"imatrix: {report.passed} passed, {report.failed} failed")
    return report.status()
