"""torch's zip form of `torch.save`, byte for byte as the C++ writer lays it out: stored entries with a data
descriptor, an extra field `FB` of Z's that brings every record to a multiple of 64, ZIP64 end records always. The
pickle is written opcode by opcode, in protocol 2. Neither torch nor pickle is asked."""

from __future__ import annotations

import struct
import zlib

from evidence.lib.lazy import lazily

np = lazily("numpy")


STORAGE = {"float16": "HalfStorage", "uint16": "BFloat16Storage", "float32": "FloatStorage", "float64": "DoubleStorage",
           "int64": "LongStorage"}
ALIGN = 64


class Pickle:
    """The opcodes that torch.save uses for a dict of tensors, with its memo."""

    def __init__(self):
        self.out, self.memo = bytearray(b"\x80\x02"), {}

    def put(self, key=None) -> None:
        n = len(self.memo)
        self.memo[("unnamed", n) if key is None else key] = n
        self.out += b"q" + bytes([n]) if n < 256 else b"r" + struct.pack("<I", n)

    def known(self, key) -> bool:
        if key not in self.memo:
            return False
        n = self.memo[key]
        self.out += b"h" + bytes([n]) if n < 256 else b"j" + struct.pack("<I", n)
        return True

    def word(self, module: str, name: str) -> None:
        if not self.known((module, name)):
            self.out += f"c{module}\n{name}\n".encode()
            self.put((module, name))

    def text(self, text: str) -> None:
        if not self.known(text):
            self.out += b"X" + struct.pack("<I", len(text.encode())) + text.encode()
            self.put(text)

    def number(self, n: int) -> None:
        if n < 256:
            self.out += b"K" + bytes([n])
        elif n < 65536:
            self.out += b"M" + struct.pack("<H", n)
        elif n < 1 << 31:
            self.out += b"J" + struct.pack("<i", n)
        else:
            raw = n.to_bytes(n.bit_length() // 8 + 1, "little")
            self.out += b"\x8a" + bytes([len(raw)]) + raw

    def numbers(self, ns) -> None:
        if len(ns) > 3:
            self.out += b"("
        for n in ns:
            self.number(n)
        self.out += {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(ns), b"t")
        if ns:
            self.put()

    def tensor(self, storage: str, key: str, numel: int, shape, offset: int = 0) -> None:
        strides = [int(np.prod(shape[i + 1:], dtype=np.int64)) for i in range(len(shape))]
        self.word("torch._utils", "_rebuild_tensor_v2")
        self.out += b"(("
        self.text("storage")
        self.word("torch", storage)
        self.text(key)
        self.text("cpu")
        self.number(numel)
        self.out += b"t"
        self.put()
        self.out += b"Q"
        self.number(offset)
        self.numbers(shape)
        self.numbers(strides)
        self.out += b"\x89"
        self.word("collections", "OrderedDict")
        self.out += b")R"
        self.put()
        self.out += b"t"
        self.put()
        self.out += b"R"
        self.put()


def pickled(tensors, ordered: bool) -> bytes:
    """`tensors`: (name, storage class, key, elements of the storage, shape, offset)."""
    p = Pickle()
    if ordered:
        p.word("collections", "OrderedDict")
        p.out += b")R"
    else:
        p.out += b"}"
    p.put()
    p.out += b"("
    for name, *rest in tensors:
        p.text(name)
        p.tensor(*rest)
    p.out += b"u."
    return bytes(p.out)


class Zip:
    """Stored entries, one after the other, into an open file."""

    def __init__(self, file, root: str, modern: bool = True):
        self.file, self.root, self.central, self.at = file, root, [], 0
        self.modern = modern

    def add(self, name: str, chunks, size: int) -> None:
        name = f"{self.root}/{name}".encode()
        crc, start = 0, self.at
        extra = -(start + 30 + len(name) + 4) % ALIGN
        local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, len(name), extra + 4)
        self.file.write(local + name + b"FB" + struct.pack("<H", extra) + b"Z" * extra)
        for chunk in chunks:
            crc = zlib.crc32(chunk, crc)
            self.file.write(chunk)
        assert size < 0xFFFFFFFF, "a record of 4 GiB takes another descriptor"
        self.file.write(struct.pack("<4sIII", b"PK\7\x08", crc, size, size))
        self.at += 30 + len(name) + 4 + extra + size + 16
        far = start >= 0xFFFFFFFF
        more = struct.pack("<HHQ", 1, 8, start) if far else b""
        self.central.append(struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 0, 0, 0x808, 0, 0, 0, crc, size, size, len(name), len(more),
                                        0, 0, 0, 0, 0xFFFFFFFF if far else start) + name + more)

    def small(self, name: str, data: bytes) -> None:
        self.add(name, [data], len(data))

    def close(self) -> None:
        central, n = b"".join(self.central), len(self.central)
        end = self.at + len(central)
        self.file.write(central + struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x31E, 45, 0, 0, n, n, len(central), self.at))
        self.file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        self.file.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, n, n, len(central), min(self.at, 0xFFFFFFFF), 0))


def write(path, tensors: dict, root: str | None = None, ordered: bool = False, modern: bool = True) -> None:
    """`tensors`: name → array, or (numpy type, shape, iterable of chunks) to stream. `modern`: the small entries
    that torch of 2024 and later adds; before that there were data.pkl, data/N and version."""
    rows, records = [], []
    for i, (name, value) in enumerate(tensors.items()):
        if isinstance(value, tuple):
            dtype, shape, chunks = value
        else:
            dtype, shape, chunks = value.dtype, value.shape, [np.ascontiguousarray(value).reshape(-1).view(np.uint8).data]
        numel = int(np.prod(shape, dtype=np.int64))
        rows.append((name, STORAGE[np.dtype(dtype).name], str(i), numel, list(shape), 0))
        records.append((f"data/{i}", chunks, numel * np.dtype(dtype).itemsize))
    with open(path, "wb", buffering=1 << 20) as file:
        z = Zip(file, root or path.stem)
        z.small("data.pkl", pickled(rows, ordered))
        if modern:
            z.small(".format_version", b"1")
            z.small(".storage_alignment", b"64")
            z.small("byteorder", b"little")
        for record in records:
            z.add(*record)
        z.small("version", b"3\n")
        if modern:
            z.small(".data/serialization_id", b"0" * 40)
        z.close()
