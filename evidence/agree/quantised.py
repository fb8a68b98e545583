"""`alight quantize` beside llama.cpp's own quantiser (`llama_model_quantize` of a native libllama), from the same F32 file.

For every type: which tensors get which type, which are the same to the bit, and how far each of the two files is from the F32
file, as `alight perplexity --kl-base` has it (the exact log-probabilities are llama.cpp's, see `agree accuracy`). Both files are
evaluated by the same engine in the same way, so what differs is the weights alone. (--batch 1 is nearly exact arithmetic and
slow; batches add the same small noise of 8-bit activations to both.)

The only models here are of 4 bits: dequantised, their weights lie on a grid that some types hit exactly. So every weight of a
matrix is multiplied by 1 + 0.1·N(0, 1) (seeded; --blur), which costs the model about what rounding to 4 bits does, and leaves
weights as smooth as originals are. It compares two quantisers; it does not say how good a type is.

Exit status 1 if types differ, a simple type differs in a bit, or ours is further from exact by more than the error of the mean.
"""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

from evidence.agree.accuracy import MODELS, add_text_arguments, distance, make_base
from evidence.lib import common, gguf_files, llama, peers

# Name here, number of the mix in llama.cpp (llama_ftype).
TYPES = {"q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18,
         "iq4_nl": 25, "iq4_xs": 30, "q3_k_l": 13, "q3_k_m": 12, "q3_k_s": 11, "q2_k": 10, "q2_0": 41, "tq2_0": 37, "tq1_0": 36, "q1_0": 40}
# Those whose scales an importance matrix does not change.
UNWEIGHTED = {"F32", "F16", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"}
SIMPLE = {"F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"}


class Params(ctypes.Structure):
    """`llama_model_quantize_params` of include/llama.h."""
    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int), ("output", ctypes.c_int), ("embedding", ctypes.c_int),
                *[(name, ctypes.c_bool) for name in ("requantize", "quantize_output", "only_copy", "pure", "keep_split", "dry_run")],
                *[(name, ctypes.c_void_p) for name in ("imatrix", "kv_overrides", "tt_overrides", "prune_layers")],
                ("max_buf_size", ctypes.c_size_t)]


class Importance(ctypes.Structure):
    """`llama_model_imatrix_data`; a list of them ends with one without a name."""
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


def importance(path: Path) -> ctypes.Array:
    """An importance matrix as the quantiser is given it: the mean of the squares, and 1 for what was never measured."""
    import numpy as np
    from gguf import GGUFReader

    tensors = {t.name: t.data for t in GGUFReader(path).tensors}
    found = []
    for name, sums in tensors.items():
        if name.endswith(".in_sum2"):
            counts = tensors[name.removesuffix(".in_sum2") + ".counts"].reshape(-1, 1)
            sums = np.asarray(sums, np.float32).reshape(counts.shape[0], -1)
            means = np.where(counts > 0, sums / np.maximum(counts, 1), np.float32(1)).astype(np.float32)
            found.append(Importance(name.removesuffix(".in_sum2").encode(), (ctypes.c_float * means.size)(*means.ravel()), means.size))
    return (Importance * (len(found) + 1))(*found, Importance())


def blur(source: Path, target: Path, amount: float) -> None:
    """Copies an F32 file and moves every weight of a matrix a little."""
    import numpy as np
    from gguf import GGUFReader

    part = target.with_suffix(".part")
    shutil.copyfile(source, part)
    rng = np.random.default_rng(20261122)
    for tensor in GGUFReader(part, "r+").tensors:
        if len(tensor.shape) > 1:
            tensor.data[...] *= 1 + np.float32(amount) * rng.standard_normal(tensor.data.shape, dtype=np.float32)
    part.rename(target)


def theirs(library: Path, source: Path, target: Path, ftype: int, threads: int, imatrix: Path | None = None) -> bool:
    """Whether llama.cpp quantises it."""
    lib = llama.library(library)
    lib.llama_model_quantize_default_params.restype = Params
    params = lib.llama_model_quantize_default_params()
    params.nthread, params.ftype = threads, ftype
    given = importance(imatrix) if imatrix else None
    if given:
        params.imatrix = ctypes.cast(given, ctypes.c_void_p)
    return lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0


def compare(one: Path, two: Path, simple: set = SIMPLE) -> tuple[list[str], int, int]:
    """What differs in types; how many tensors are the same to the bit, of how many; what of `simple` types is not is an error."""
    from gguf import GGUFReader

    gguf_files.know_newer_types()
    a, b = ({t.name: t for t in GGUFReader(path).tensors} for path in (one, two))
    wrong = [f"{name} is in one only" for name in a.keys() ^ b.keys()]
    same = 0
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        equal = x.data.tobytes() == y.data.tobytes()
        same += equal
        if x.tensor_type != y.tensor_type:
            wrong.append(f"{name}: {x.tensor_type.name}, llama.cpp {y.tensor_type.name}")
        elif not equal and x.tensor_type.name in simple:
            wrong.append(f"{name}: {x.tensor_type.name}, other bits than llama.cpp's")
    return wrong, same, len(a)


def add_arguments(parser) -> None:
    parser.add_argument("--model", action="append", choices=MODELS, help="default: gemma3")
    parser.add_argument("--type", nargs="+", choices=list(TYPES), default=list(TYPES))
    parser.add_argument("--batch", type=int, default=512, help="tokens at once")
    parser.add_argument("--blur", type=float, default=0.1)
    parser.add_argument("--imatrix", type=Path, help="an importance matrix of that model, for both, as llama-imatrix writes it")
    add_text_arguments(parser)


def run(args) -> int:
    args.work.mkdir(parents=True, exist_ok=True)
    library = peers.LLAMA_CPP.tool(args, "libllama.so")
    results, bad = [], False
    for name in args.model or ["gemma3"]:
        plain, blurred = args.work / f"{name}-f32.gguf", f"{name}-blur{args.blur}"
        exact = args.work / f"{blurred}-f32.gguf"
        if not plain.exists():
            gguf_files.dequantise(common.model_path(name, args.models), plain)
        if not exact.exists():
            blur(plain, exact, args.blur)
        base = make_base(args, blurred)
        for ty in args.type:
            with tempfile.TemporaryDirectory(dir=args.work) as folder:
                mine, other = Path(folder) / "ours.gguf", Path(folder) / "theirs.gguf"
                more = ["--imatrix", args.imatrix] if args.imatrix else []
                subprocess.run([common.alight(args.alight), "quantize", exact, "-o", mine, "--type", ty, "-t", str(args.threads), *more],
                               check=True, capture_output=True)
                if not theirs(library, exact, other, TYPES[ty], args.threads, args.imatrix):
                    raise SystemExit(f"llama_model_quantize failed on {exact}")
                wrong, same, tensors = compare(mine, other, UNWEIGHTED if args.imatrix else SIMPLE)
                a, b = (distance(args, path, base, args.batch) for path in (mine, other))
            worse = a["mean_kl"] > b["mean_kl"] + max(a["mean_kl_error"], b["mean_kl_error"])
            for line in wrong[:20]:
                common.say(f"{name}, {ty}: {line}")
            if worse:
                common.say(f"{name}, {ty}: mean KL {a['mean_kl']:.6f}, llama.cpp's {b['mean_kl']:.6f} ± {b['mean_kl_error']:.6f}")
            bad |= bool(wrong) or worse
            results.append({"model": name, "type": ty, "same": same, "tensors": tensors, "ours": a, "theirs": b, "wrong": wrong})
            common.say(f"{name}, {ty}: KL {a['mean_kl']:.5f} (llama.cpp {b['mean_kl']:.5f}), {same} of {tensors} tensors the same")
    if common.as_json(args, results):
        return int(bad)
    rows = [["model", "type", "tensors with the same bits", "mean KL", "llama.cpp's", "ppl / exact", "llama.cpp's", "same top", "llama.cpp's"]]
    for r in results:
        a, b = r["ours"], r["theirs"]
        rows.append([r["model"], r["type"], f"{r['same']} of {r['tensors']}", f"{a['mean_kl']:.5f}", f"{b['mean_kl']:.5f}", f"{a['ppl_ratio']:.4f}",
                     f"{b['ppl_ratio']:.4f}", f"{100 * a['same_top']:.1f} %", f"{100 * b['same_top']:.1f} %"])
    common.table(rows)
    return int(bad)
