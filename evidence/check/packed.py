"""Checks `alight pack` by another hand: unpacks its tiles with numpy, from the description in
docs/reference/packed-layout.md, and compares with the canonical tensors that the `gguf` package reads from the source; and
shows that other readers (the `gguf` package, llama.cpp) refuse a packed file instead of computing garbage.

Besides the models it takes a file of every type with random bits. Ends with status 1 at the first difference.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from evidence.lib import common, gguf_files, peers
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

BASE = 0x416C0000
PLANES = 0x416D0000
# Per type: bytes of a block, and the fields of a unit: (kind, where in the block, element size, elements).
LAYOUT = {
    "Q4_0": (18, [("e", 0, 2, 1), ("e", 2, 4, 4)]),
    "Q4_1": (20, [("e", 0, 2, 2), ("e", 4, 4, 4)]),
    "Q5_0": (22, [("e", 0, 2, 1), ("m32", 2, 4, 1), ("e", 6, 4, 4)]),
    "Q5_1": (24, [("e", 0, 2, 2), ("m32", 4, 4, 1), ("e", 8, 4, 4)]),
    "Q8_0": (34, [("e", 0, 2, 1), ("x", 2, 4, 8)]),
    "Q4_K": (144, [("e", 0, 2, 2), ("e", 4, 1, 12), ("e", 16, 4, 32)]),
    "Q5_K": (176, [("e", 0, 2, 2), ("e", 4, 1, 12), ("m256", 16, 32, 1), ("e", 48, 4, 32)]),
    "Q6_K": (210, [("e", 208, 2, 1), ("e", 192, 1, 16), ("e", 128, 4, 16), ("e", 0, 4, 32)]),
    "Q2_K": (84, [("e", 80, 2, 2), ("e", 0, 1, 16), ("e", 16, 4, 16)]),
    "Q3_K": (110, [("e", 108, 2, 1), ("e", 96, 1, 12), ("e", 0, 4, 8), ("e", 32, 4, 16)]),
    "MXFP4": (17, [("e", 0, 1, 1), ("e", 1, 4, 4)]),
    "IQ4_NL": (18, [("e", 0, 2, 1), ("e", 2, 4, 4)]),
    "IQ4_XS": (136, [("e", 0, 2, 1), ("e", 2, 2, 1), ("e", 4, 1, 4), ("e", 8, 4, 32)]),
    "NVFP4": (36, [("e", 0, 1, 4), ("e", 4, 4, 8)]),
    "TQ1_0": (54, [("e", 52, 2, 1), ("e", 0, 4, 12), ("e", 48, 4, 1)]),
    "TQ2_0": (66, [("e", 64, 2, 1), ("e", 0, 4, 16)]),
    "Q1_0": (18, [("e", 0, 2, 1), ("e", 2, 4, 4)]),
    "Q2_0": (18, [("e", 0, 2, 1), ("e", 2, 4, 4)]),
    "F16": (2, [("e", 0, 2, 1)]),
    "BF16": (2, [("e", 0, 2, 1)]),
}
# Bytes of a block of the types that have kernels and no packed form: their code books are looked up row by row.
ROWS = {"IQ2_XXS": 66, "IQ2_XS": 74, "IQ2_S": 82, "IQ3_XXS": 98, "IQ3_S": 110, "IQ1_S": 50, "IQ1_M": 56}


def unpack(kind, row_bytes: int, tiles: np.ndarray) -> np.ndarray:
    """Bytes in tiles into bytes in rows."""
    block, fields = LAYOUT[kind.name]
    units = tiles.reshape(-1, row_bytes // block, 16 * block)
    n, m = units.shape[:2]
    out = np.zeros((n, 16, m, block), np.uint8)
    at = 0
    for what, where, size, count in fields:
        part = units[:, :, at : at + 16 * size * count]
        at += 16 * size * count
        if what in "ex":
            value = part.reshape(n, m, count, 16, size).transpose(0, 3, 1, 2, 4).reshape(n, 16, m, count * size)
            value = value ^ 0x80 if what == "x" else value
        else:
            # [mask, row, bit]
            bits = np.unpackbits(part, axis=2, bitorder="little").reshape(n, m, -1, 16, 4)
            flat = np.zeros((n, 16, m, size * 8), np.uint8)
            for i in range(bits.shape[2]):
                for j in range(4):
                    if what == "m32":
                        bit = 16 * (i % 2) + 4 * (i // 2) + j
                    else:
                        group, four = 2 * (i // 16) + i % 2, i % 16 // 2
                        bit = 8 * (4 * four + j) + group
                    flat[:, :, :, bit] = bits[:, :, i, :, j].transpose(0, 2, 1)
            value = np.packbits(flat, axis=3, bitorder="little")
        out[:, :, :, where : where + size * count] = value
    assert at == 16 * block
    return out.reshape(-1)


def unpack_planes(row_bytes: int, data: np.ndarray) -> np.ndarray:
    """Bytes of Q8_0 in planes into bytes in rows."""
    rows, blocks = len(data) // row_bytes, row_bytes // 34
    together = max((4 << 20) // row_bytes // 32 * 32, 32)
    out = []
    for first in range(0, rows, together):
        count = min(together, rows - first)
        group = data[first * row_bytes :][: count * row_bytes]
        # The high bits are Q4_0 in tiles.
        high = unpack(gguf.GGMLQuantizationType.Q4_0, blocks * 18, group[: count * blocks * 18]).reshape(count, blocks, 18)
        low = group[count * blocks * 18 :].reshape(count, blocks, 16)
        codes = np.concatenate([(high[..., 2:] & 15) << 4 | low & 15, high[..., 2:] & 0xF0 | low >> 4], axis=2)
        out.append(np.concatenate([high[..., :2], codes ^ 0x80], axis=2).reshape(-1))
    return np.concatenate(out)


def tolerant(path: Path) -> gguf.GGUFReader:
    """A reader that takes packed types; its `packed` has the names of their tensors."""

    class Tolerant(gguf.GGUFReader):
        """The package's reader would refuse packed types: it is shown canonical ones, and we keep the truth."""

        def _build_tensors(self, start_offs, fields):
            self.packed, self.planes = set(), set()
            for field in fields:
                kind = field.parts[4]
                if int(kind[0]) & 0xFFFF0000 in (BASE, PLANES):
                    names = self.packed if int(kind[0]) & 0xFFFF0000 == BASE else self.planes
                    names.add(bytes(field.parts[1]).decode())
                    field.parts[4] = kind & 0xFFFF
            super()._build_tensors(start_offs, fields)
            # By tensor: bytes from one expert to the next, where they lie side by side with those of others.
            self.strides = {}
            runs = self.fields.get("alight.layout.experts")
            numbers = [] if runs is None else [int(runs.parts[i][0]) for i in runs.data]
            for first, count in zip(numbers[::2], numbers[1::2], strict=True):
                run = self.tensors[first : first + count]
                experts = int(run[0].shape[2])
                begin = end = run[0].data_offset
                assert begin % 4096 == 0 and experts > 1, run[0].name
                for t in run:
                    start = begin + (end - begin + 127) // 128 * 128
                    assert len(t.shape) == 3 and t.shape[2] == experts and t.data_offset == start, t.name
                    end = start + t.n_bytes // experts
                for t in run:
                    self.strides[t.name] = (end - begin + 4095) // 4096 * 4096

    return Tolerant(path)


def check(source: Path, packed: Path) -> tuple[int, int]:
    reference = {t.name: t for t in gguf.GGUFReader(source).tensors}
    ours = tolerant(packed)
    assert len(ours.tensors) == len(reference), "number of tensors"
    for t in ours.tensors:
        want = reference[t.name]
        assert (list(t.shape), t.tensor_type) == (list(want.shape), want.tensor_type), t.name
        stride = ours.strides.get(t.name)
        if stride is None:
            assert t.data_offset % 4096 == 0, t.name
            data = np.frombuffer(np.ascontiguousarray(t.data).tobytes(), np.uint8)
        else:
            experts = int(t.shape[2])
            part, whole = t.n_bytes // experts, np.memmap(packed, np.uint8, "r")
            data = np.concatenate([whole[t.data_offset + e * stride :][:part] for e in range(experts)])
        assert not (t.name in ours.packed and t.tensor_type.name in ROWS), t.name
        if t.name in ours.packed:
            assert t.shape[1] % 16 == 0, t.name
            rows = int(np.prod(t.shape[1:]))
            data = unpack(t.tensor_type, t.n_bytes // rows, data)
        if t.name in ours.planes:
            assert t.tensor_type.name == "Q8_0" and len(t.shape) == 2 and t.shape[1] % 16 == 0, t.name
            data = unpack_planes(t.n_bytes // int(t.shape[1]), data)
        assert data.tobytes() == np.ascontiguousarray(want.data).tobytes(), f"{t.name} differs"
    version = 3 if ours.planes else 2 if ours.strides else 1
    assert int(ours.fields["alight.layout.version"].parts[-1][0]) == version, "the version"
    experts = {t.name for t in ours.tensors if t.name.endswith("_exps.weight")}
    assert experts == ours.strides.keys(), "experts that lie side by side"
    told = bytes(ours.fields["alight.source.sha256"].parts[-1]).decode()
    assert told == hashlib.sha256(source.read_bytes()).hexdigest(), "the checksum of the source"
    return len(ours.packed | ours.planes), len(ours.tensors)


def every_type(path: Path) -> None:
    # Each type that has kernels has a file of reference vectors.
    forgotten = {file.stem for file in common.ROOT.glob("crates/kernels/tests/data/dequant/*.bin")} - LAYOUT.keys() - ROWS.keys()
    if forgotten:
        raise SystemExit(f"LAYOUT in {__file__} says nothing of {', '.join(sorted(forgotten))}, which have kernels")
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    for name, block in [*((name, block) for name, (block, _) in LAYOUT.items()), *ROWS.items()]:
        if name not in gguf.GGMLQuantizationType.__members__:
            continue  # a type that is newer than the package
        for cols, rows in ((1, 16), (3, 48), (2, 17)):
            data = random.integers(0, 256, (rows, cols * block), np.uint8)
            writer.add_tensor(f"blk.{rows}.{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[name])
    # Experts: tiles of types whose parts are no multiples of 128 bytes, and rows beside tiles.
    for layer, (gate, up, down) in enumerate((("Q4_0", "Q6_K", "Q8_0"), ("IQ3_S", "Q4_K", "F16"))):
        for part, name, rows in (("down", down, 48), ("gate", gate, 16), ("up", up, 17 if layer else 32)):
            block = {**ROWS, **{name: block for name, (block, _) in LAYOUT.items()}}[name]
            data = random.integers(0, 256, (5, rows, 3 * block), np.uint8)
            writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", data, raw_dtype=gguf.GGMLQuantizationType[name])
    gguf_files.finish(writer)


def refused(packed: Path, llama: Path | None) -> list[str]:
    """Who refuses the file; it is an error if somebody takes it."""
    who = []
    try:
        gguf.GGUFReader(packed)
        raise SystemExit(f"the gguf package reads {packed} as if it were canonical")
    except ValueError as error:
        who.append(f"gguf package ({error})")
    if llama:
        command = [str(llama), "-m", str(packed), "-p", "x", "-n", "1", "-no-cnv"]
    else:
        code = ("import sys, xllamacpp as x; p = x.CommonParams(); p.model.path = sys.argv[1]; "
                "p.n_ctx = 64; x.Server(p)")
        command = [sys.executable, "-c", code, str(packed)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "invalid ggml type" in line]
    if done.returncode == 0 or not said:
        raise SystemExit(f"llama.cpp does not refuse {packed} (status {done.returncode}):\n{done.stderr[-2000:]}")
    who.append(f"llama.cpp ({said[0].split(': ', 1)[-1].strip()})")
    return who


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    peers.add_arguments(parser)
    parser.add_argument("--model", nargs="*", default=["smollm2", "gemma3"])


def run(args) -> None:
    binary = common.alight(args.alight)
    llama = args.llama and peers.LLAMA_CPP.tool(args, "llama-completion")
    with tempfile.TemporaryDirectory() as folder:
        packed, back = Path(folder, "packed.gguf"), Path(folder, "back.gguf")
        sources = [Path(folder, "types.gguf"), *(common.model_path(name, args.models) for name in args.model)]
        every_type(sources[0])
        for source in sources:
            for what, a, b in (("pack", source, packed), ("unpack", packed, back)):
                subprocess.run([binary, what, a, "-o", b, "--force"], check=True, stderr=subprocess.DEVNULL)
            n, of = check(source, packed)
            assert source.read_bytes() == back.read_bytes(), f"{source} did not come back"
            print(f"{source.name}: {n} of {of} tensors packed, every one as the numpy description has it; unpacked bit for bit")
        for who in refused(packed, llama):
            print(f"refused by {who}")
