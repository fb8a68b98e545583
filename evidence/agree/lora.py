"""LoRA adapters that are applied while a model computes, compared with llama.cpp: random adapters of small random models.

    .venv/bin/python -m evidence agree lora [NAME…]

Of every architecture of `agree architectures`, all matrices get a random adapter. `alight perplexity --lora` has to have the log-probabilities that llama.cpp has
with a file whose weights were merged with it in float64; and where llama.cpp applies all of it (LLAMA), those that llama.cpp has with the adapter
itself. Mistakes that have to be seen: no adapter, another alpha, a layer that is left out.

Nothing is recorded: llama.cpp runs each time, through xllamacpp.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from evidence.agree import architectures as agree
from evidence.lib import common, gguf_files, tiny_models
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

# Whose products llama.cpp adds all adapters to.
LLAMA = ("llama", "qwen2", "qwen3", "gemma3", "qwen3moe")
# Whose adapters are smaller. Alight keeps keys and values as F16, llama.cpp here as F32, and larger weights amplify the difference: with these architectures
# llama.cpp's own answers with the merged weights differ as much (0.03 to 0.04) if its cache is F16. In mimo2 another expert is chosen at one position, with
# some sizes, and everything that sees it differs.
SMALLER = {"hunyuan-moe": 0.1, "nanbeige": 0.1, "mimo2": 0.2, "falcon-h1": 0.1}
RANKS = (1, 3, 8)
ADAPTED = re.compile(
    r"blk\.(\d+)\.(attn_(q|k|v|qkv|output|gate|q_a|q_b|kv_a_mqa|k_b|v_b)|ffn_(gate|up|down)(_exps|_shexp)?|ffn_gate_inp|ssm_(in|out|beta|alpha|ba)|shortconv\.(in|out)_proj)\.weight|output\.weight")


def factors(path: Path, m) -> dict:
    """Random factors of each matrix of a file: (A [.., r, in], B [.., out, r]) by name. What is added to the residual stream has no mean where that of the
    base has none."""
    size, centred = SMALLER.get(m.arch, 0.4), tiny_models.CENTRED.get(m.arch, {})
    random, found = np.random.default_rng(m.seed + 7), {}
    for i, tensor in enumerate(gguf_files.quick_reader(path).tensors):
        if not ADAPTED.fullmatch(tensor.name):
            continue
        shape, rank = [int(n) for n in tensor.shape][::-1], RANKS[i % len(RANKS)]
        a = random.standard_normal((*shape[:-2], rank, shape[-1])) / np.sqrt(shape[-1])
        b = random.standard_normal((*shape[:-1], rank)) * size
        if any(f".{part}." in tensor.name for part in centred):
            b -= b.mean(axis=-2, keepdims=True)
        found[tensor.name] = (a.astype(np.float32), b.astype(np.float32))
    return found


def write(path: Path, arch: str, found: dict, alpha: float) -> Path:
    """An adapter as llama.cpp's converter writes it."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, (a, b) in found.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merge(base: Path, found: dict, alpha: float, path: Path) -> Path:
    """The base's file with other weights, which are F32."""
    data = bytearray(base.read_bytes())
    for tensor in gguf_files.quick_reader(base).tensors:
        if tensor.name not in found:
            continue
        a, b = (factor.astype(np.float64) for factor in found[tensor.name])
        start = int(tensor.data_offset)
        weights = np.frombuffer(data, "<f4", int(tensor.n_elements), start)
        change = alpha / b.shape[-1] * (b @ a)
        data[start : start + weights.nbytes] = (weights.astype(np.float64) + change.reshape(-1)).astype("<f4").tobytes()
    path.write_bytes(data)
    return path


def ours(args, base: Path, adapter: Path | None, text: Path, batch: int):
    """As `agree.ours`, with an adapter."""
    return agree.ours(args, base, text, batch, *(() if adapter is None else ("--lora", adapter)))


def applicable(args, base: Path, found: dict, adapter, text: Path) -> None:
    """Leaves out what Alight refuses by name, until nothing is refused."""
    while True:
        try:
            ours(args, base, adapter(), text, agree.CONTEXT)
            return
        except agree.Trouble as trouble:
            refused = re.search(r'changes tensor "([^"]+)", to which', str(trouble))
            if not refused:
                raise
            del found[refused[1]]


def check(args, report: agree.Report, m, folder: Path, text: Path) -> None:
    base = tiny_models.write(m, folder / "base.gguf")
    found, alpha = factors(base, m), 2.0
    arch = gguf_files.quick_reader(base).fields["general.architecture"].contents()
    applicable(args, base, found, lambda: write(folder / "adapter.gguf", arch, found, alpha), text)
    adapter = write(folder / "adapter.gguf", arch, found, alpha)
    merged = merge(base, found, alpha, folder / "merged.gguf")
    tokens, batch = ours(args, base, adapter, text, agree.CONTEXT)
    _, single = ours(args, base, adapter, text, 1)
    left_out = agree.near_ties(m)

    def within(what: str, exact) -> None:
        report.within(m.name, f"{what}, in a batch", agree.apart(exact, batch, left_out)[0], agree.TOLERANCE)
        report.within(m.name, f"{what}, one by one", agree.apart(exact, single, left_out)[0], agree.TOLERANCE)

    with agree.peer(m, merged, True) as llama:
        exact = agree.theirs(args, llama, batch.shape[1], tokens, batch.shape[1])
    within("merged in llama.cpp", exact)
    if m.arch in LLAMA:
        with agree.peer(m, base, True, adapter) as llama:
            exact = agree.theirs(args, llama, batch.shape[1], tokens, batch.shape[1])
        within("added by llama.cpp", exact)
    first = {name: pair for name, pair in found.items() if not name.startswith("blk.0.")}
    for what, wrong in [
        ("no adapter", None),
        ("another alpha", write(folder / "alpha.gguf", arch, found, 2 * alpha)),
        ("a layer is left out", write(folder / "layer.gguf", arch, first, alpha)),
    ]:
        same, other = ours(args, base, wrong, text, agree.CONTEXT)
        assert same == tokens
        if what == "a layer is left out" and len(first) == len(found):
            continue
        report.within(m.name, f"with a mistake: {what}", agree.apart(exact, other, left_out)[0], agree.CONTROL, above=True)


def add_arguments(parser) -> None:
    agree.add_arguments(parser)


def run(args) -> int:
    start, report = time.monotonic(), agree.Report(args.quiet)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = folder / "text.txt"
        text.write_text(tiny_models.text(200, args.seed))
        # `make test` has every third architecture, and all whose products llama.cpp adds adapters to.
        cases = [case for i, case in enumerate(agree.sample()[0]) if i % 3 == 0 or case[0].arch in LLAMA] if args.sample else agree.CASES
        args.step = 12 if args.sample else args.step
        for m, _ in cases:
            if args.names and m.arch not in args.names:
                continue
            try:
                check(args, report, replace(m, seed=args.seed), folder, text)
            except agree.Trouble as trouble:
                report.add(False, f"{m.name}: {trouble}")
    if not common.as_json(args, report.rows):
        print(f"lora: {report.passed} passed, {report.failed} failed, {time.monotonic() - start:.1f} s")
    return report.status()
