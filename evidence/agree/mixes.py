"""Which type `alight quantize` gives to each tensor, beside llama.cpp's quantiser (`llama_model_quantize` of a native libllama),
for every mix and every architecture of `agree architectures`; blocks of simple types have to be the same to the bit.

The models are the tiny ones of that command with more layers: their layers once more and once more, with the same keys, so that
what is done to the first eighth of the layers, to every third and so on is seen. Rows have 256 columns or twice as many, of which
all blocks are whole, and matrices a few rows. A model with 80 layers and one with 8 experts are there besides, which llama.cpp
treats as models of those sizes. Some are quantised once more with an importance matrix. (Whether the numbers are good is asked by `agree quantised`, of real models.)

Exit status 1 at any difference.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from evidence.agree import architectures, quantised
from evidence.lib import common, gguf_files, peers, process, tiny_models
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

TYPES = quantised.TYPES | {"mxfp4_moe": 38, "f16": 1, "bf16": 32, "q2_k_s": 21}
# What llama.cpp makes with an importance matrix alone, and those that such a matrix is tried with.
WEIGHTED_ALONE, WEIGHTED = {"q2_k_s"}, ("llama", "qwen35", "gemma4", "granitehybrid")
LAYERS, COLUMNS, ROWS = 24, 256, 4


def cases(names: list[str]) -> list[tuple[tiny_models.Tiny, int]]:
    """Models and how many layers they get; of each architecture those that differ in tensors."""
    found, seen = [], set()
    for m, _ in architectures.CASES:
        key = (m.arch, m.tied, frozenset(name.split(".")[-2] for name, _ in tiny_models.tensors(m)))
        if key not in seen and (not names or m.arch in names):
            seen.add(key)
            found.append((m, LAYERS))
    plain = [m for m, _ in found if m.arch == "llama" and not m.experts][:1]
    mixture = [m for m, _ in found if m.arch == "llama" and m.experts][:1]
    shared = [replace(m, kv_heads=1) for m in plain]
    eight = [replace(m, experts=8) for m in mixture]
    return found + [(m, 80) for m in plain + shared] + [(m, 32) for m in eight]


def stretch(source: Path, target: Path, layers: int) -> None:
    """The model with at least so many layers, and with other extents."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    count = reader.fields[f"{arch}.block_count"].contents()
    times = -(-layers // count)
    w = gguf.GGUFWriter(target, arch)
    for name, field in reader.fields.items():
        value, types = field.contents(), field.types
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == f"{arch}.block_count":
            value *= times
        if types[0] == gguf.GGUFValueType.ARRAY and name.startswith(f"{arch}.") and ".rope." not in name and len(value) == count:
            value = value * times
        w.add_key_value(name, value, types[0], sub_type=types[1] if len(types) > 1 else None)
    for tensor in reader.tensors:
        data = np.array(tensor.data).reshape([int(n) for n in reversed(tensor.shape)])
        if data.ndim > 1:
            columns = -(-data.shape[-1] // COLUMNS) * COLUMNS
            data = np.resize(data[..., :ROWS, :], (*data.shape[:-2], min(ROWS, data.shape[-2]), columns)).astype(np.float32)
        first, _, rest = tensor.name.partition(".")
        if first != "blk":
            w.add_tensor(tensor.name, data)
            continue
        layer, _, part = rest.partition(".")
        for copy in range(times):
            w.add_tensor(f"blk.{int(layer) + copy * count}.{part}", data)
    gguf_files.finish(w)


def measured(model: Path, target: Path) -> None:
    """An importance matrix of it, at random, as llama-imatrix writes one; of the first expert nothing is known."""
    rng = np.random.default_rng(3)
    w = gguf.GGUFWriter(target, "")
    w.add_type("imatrix")
    w.add_array("imatrix.datasets", ["random"])
    w.add_uint32("imatrix.chunk_count", 7)
    w.add_uint32("imatrix.chunk_size", 512)
    for tensor in gguf.GGUFReader(model).tensors:
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            matrices = int(tensor.shape[2]) if len(tensor.shape) > 2 else 1
            counts = np.arange(matrices, dtype=np.float32).reshape(-1, 1) + (matrices == 1)
            sums = np.exp(rng.normal(0, 1.5, (matrices, int(tensor.shape[0])))).astype(np.float32) * counts
            w.add_tensor(f"{tensor.name}.in_sum2", sums)
            w.add_tensor(f"{tensor.name}.counts", counts)
    gguf_files.finish(w)


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--type", nargs="+", choices=list(TYPES), default=list(TYPES))
    parser.add_argument("-q", "--quiet", action="store_true", help="only what differs, and the sum")
    peers.add_arguments(parser)
    common.add_arguments(parser, threads=1)


def run(args) -> int:
    start, library, report = time.monotonic(), peers.LLAMA_CPP.tool(args, "libllama.so"), Checks(args.quiet)
    files = tensors = 0
    with tempfile.TemporaryDirectory() as place:
        tiny, exact, matrix, mine, other = (Path(place) / f"{name}.gguf" for name in ("tiny", "exact", "imatrix", "ours", "theirs"))
        jobs = [(m, layers, False) for m, layers in cases(args.names)]
        jobs += [(m, layers, True) for m, layers, _ in jobs if m.arch in WEIGHTED]
        for m, layers, weighted in jobs:
            tiny_models.write(replace(m, kind="F32"), tiny)
            stretch(tiny, exact, layers)
            if weighted:
                measured(exact, matrix)
            wrong, given = [], matrix if weighted else None
            for ty in args.type:
                if ty in WEIGHTED_ALONE and not weighted:
                    continue
                more = ["--imatrix", matrix] if weighted else []
                done = process.run([common.alight(args.alight), "quantize", exact, "-o", mine, "--force", "--type", ty, "-t", "1", *more])
                other.unlink(missing_ok=True)
                if done.returncode:
                    wrong.append(f"{ty}: {done.stderr.strip()}")
                elif not quantised.theirs(library, exact, other, TYPES[ty], 1, given):
                    wrong.append(f"{ty}: llama.cpp does not quantise it")
                else:
                    found, _, count = quantised.compare(mine, other, quantised.UNWEIGHTED if weighted else quantised.SIMPLE)
                    wrong += [f"{ty}: {line}" for line in found]
                    files, tensors = files + 1, tensors + count
            report.add(not wrong, f"{m.name}, {layers} layers{', importance matrix' * weighted}: " + ("; ".join(wrong[:12]) if wrong else "the same types"))
    print(f"mixes: {files} files of both, {tensors} tensors; {report.passed} models agree, {report.failed} do not, {time.monotonic() - start:.0f} s")
    return report.status()
