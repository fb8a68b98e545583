"""Compiles the CUDA kernels for every architecture that is supported, without a GPU, says what they take of one, and reads the collective's
machine code.

NVRTC is the one of the PyPI package nvidia-cuda-nvrtc, or of --nvrtc; the options are those of the library. Without --all,
every pair of types, every number of vectors and every broken variant of the collective is compiled, and not all their combinations, and the
machine code of one kernel is read for each architecture but sm_90; of the kernels for blocks of weights, products with 1 and 8 tokens, those with matrices in slots
(pairs that are listed for one type), and rows as floats of every type. Fails if a kernel does not compile, spills registers or needs a stack. With --out the cubins are written there; with --stamp nothing is done if the
file says that the same has passed before.

Of the machine code, disassembled by the package nvidia-cuda-nvdisasm, is required what the protocol rests on: a flag is raised after
the block's barrier, by a store of the whole system that has its fence before it; every load of a flag is followed by what makes the first
cache forget; no load is a non-coherent one; the counters are changed by atomics of the GPU. Kernels that lack one of these on purpose are found.
"""

import ctypes
import hashlib
import importlib.util
import itertools
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "crates/xla/cuda/allreduce_norm.cu"
BLOCKS = ROOT / "crates/xla/cuda/matmul.cu"
HEADER = ROOT / "crates/xla/cuda/gpu.h"
COMPILER = ROOT / "crates/xla/src/cuda/nvrtc.rs"
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
TYPES = [("Bf16", "Bf16"), ("Bf16", "F32"), ("F16", "F16"), ("F16", "F32"), ("F32", "F32")]
CONTROLS = ["ALIGHT_NO_WAIT", "ALIGHT_ONE_BUFFER", "ALIGHT_NO_RELEASE", "ALIGHT_EARLY_FLAG"]
BLOCK_TYPES = ["Q4_0", "Q4_1", "Q8_0", "MXFP4", "Q4_K", "Q5_K", "Q6_K"]
PAIRS_OF_BLOCKS = ["Listed", "Counted"]
# Of products, and of those with matrices in slots.
MISTAKES_OF_BLOCKS = {"ALIGHT_TOKENS": ["ALIGHT_NO_WAIT", "ALIGHT_SWAPPED", "ALIGHT_BY_TOKENS"], "ALIGHT_CHOSEN=Counted": ["ALIGHT_ANY_SLOT", "ALIGHT_ONE_X"]}
# 65536 registers of a multiprocessor for the 640 threads of a block, in steps of 8; the kernels for blocks are bounded where they are written.
MAX_REGISTERS = {SOURCE: 96, BLOCKS: 255}


def options_of_the_library() -> list[str]:
    """The options with which the library compiles at run time."""
    body = re.search(r"const OPTIONS: \[&str; \d+\] =\s*\[(.*?)\];", COMPILER.read_text(), re.S)
    return re.findall(r'"([^"]+)"', body[1])


def variants(everything: bool) -> list[tuple[str, list[str]]]:
    """(name, macros) of what is compiled for an architecture."""
    if everything:
        chosen = list(itertools.product(TYPES, (1, 2, 4), (True, False), (True, False)))
    else:
        first = TYPES[0]
        chosen = [(first, 1, True, False), (first, 1, True, True), (first, 2, True, True), (first, 4, True, True)]
        chosen += [(first, 4, False, True)] + [(types, 1, True, True) for types in TYPES[1:]]
    made = []
    for (element, weight), vectors, whole, post in chosen:
        name = f"{element}, weights {weight}, {vectors} vectors{', post-norm' if post else ''}{'' if whole else ', ragged'}"
        macros = {"ELEMENT": element, "WEIGHT": weight, "VECTORS": vectors, "WHOLE": str(whole).lower(), "POST": str(post).lower()}
        made.append((name, [f"-DALIGHT_{key}={value}" for key, value in macros.items()]))
    return made


def variants_of_blocks(everything: bool) -> list[tuple[str, list[str]]]:
    """The same of the kernels for blocks of weights: the usual case, and the one with the most registers."""
    made = []
    for kind in BLOCK_TYPES:
        for tokens, x in itertools.product((1, 2, 4, 8), ("Bf16", "F32")) if everything else ((1, "Bf16"), (8, "F32")):
            macros = [f"-DALIGHT_TYPE={kind}", f"-DALIGHT_X={x}", f"-DALIGHT_TOKENS={tokens}"]
            made.append((f"{kind}, {tokens} tokens of {x}", macros))
        # What lists pairs and what counts them differ by a few instructions.
        some = PAIRS_OF_BLOCKS if everything or kind == BLOCK_TYPES[0] else PAIRS_OF_BLOCKS[1:]
        for pairs, x in itertools.product(some, ("Bf16", "F32") if everything else ("Bf16",)):
            made.append((f"{kind} in slots, {pairs.lower()} pairs, {x}", [f"-DALIGHT_TYPE={kind}", f"-DALIGHT_X={x}", f"-DALIGHT_CHOSEN={pairs}"]))
        for out in ("Bf16", "F32") if everything else ("Bf16",):
            made.append((f"{kind} to {out}", [f"-DALIGHT_TYPE={kind}", f"-DALIGHT_OUT={out}"]))
    return made


def find_nvrtc() -> pathlib.Path:
    """The library that a package of this Python has brought."""
    found = []
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        found += [p for p in pathlib.Path(folder).glob("**/libnvrtc.so.*") if ".alt." not in p.name]
    if not found:
        sys.exit(f"{sys.executable} has no NVRTC: make cuda installs it, or pip install -r evidence/requirements-cuda.txt")
    return sorted(found)[-1]


class Nvrtc:
    """The few functions that are needed."""

    def __init__(self, path: pathlib.Path) -> None:
        # NVRTC looks for this one by its name only: it is found if it has been loaded.
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
        self.library = ctypes.CDLL(str(path))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(self.library.nvrtcGetErrorString(code).decode())

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.library, f"nvrtcGet{what}")(program, data))
        return data.raw

    def compile(self, source: str, options: list[str], path: pathlib.Path = SOURCE, header: str | None = None) -> tuple[bytes, str]:
        """(cubin, log) of texts that are, or are like, those of `path` and the header."""
        program = ctypes.c_void_p()
        text = HEADER.read_text() if header is None else header
        included, name = ((ctypes.c_char_p * 1)(one.encode()) for one in (text, HEADER.name))
        self.check(self.library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), path.name.encode(), 1, included, name))
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self.library.nvrtcCompileProgram(program, len(options), array)
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
        if code:
            sys.exit(f"{path}: does not compile with {' '.join(options)}\n{log}")
        cubin = self.text(program, "CUBIN")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin, log


def sections(cubin: bytes) -> dict[str, tuple[bytes, int, int]]:
    """The sections of an ELF file: contents, and the fields link and info of the header."""
    if cubin[:4] != b"\x7fELF":
        sys.exit("the cubin is not an ELF file")
    start, = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    names = heads[names_at]
    text = cubin[names[4]:names[4] + names[5]]
    # Type 8 (NOBITS) has no contents in the file.
    return {text[h[0]:].split(b"\0", 1)[0].decode(): (b"" if h[1] == 8 else cubin[h[4]:h[4] + h[5]], h[5], h[7]) for h in heads}


def usage(cubin: bytes) -> dict[str, dict[str, int]]:
    """By kernel: bytes of code, registers (the upper byte of the code section's info), shared memory and stack."""
    found = sections(cubin)
    kernels = {}
    for name, (contents, _, info) in found.items():
        if name.startswith(".text."):
            kernel = name.removeprefix(".text.")
            shared = found.get(f".nv.shared.{kernel}", (b"", 0, 0))[1]
            kernels[kernel] = {"code": len(contents), "registers": info >> 24, "shared": shared}
    return kernels


def from_log(log: str) -> dict[str, dict[str, int]]:
    """By kernel: what ptxas says with -v."""
    kernels, name = {}, None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
        if name and (match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            kernels[name] = {"stack": int(match[1]), "spilled": int(match[2]) + int(match[3])}
        if name and (match := re.search(r"Used (\d+) registers", line)):
            kernels[name]["registers"] = int(match[1])
    return kernels


def report(cubin: bytes, log: str, arch: str, name: str, path: pathlib.Path = SOURCE) -> list[str]:
    """Prints what the kernel takes; what is wrong with it."""
    (kernel,), (said,) = usage(cubin).values(), from_log(log).values()
    kernel |= said
    print(f"{arch:7} {name:48} {kernel['registers']:3} registers {kernel['shared']:5} B shared {kernel['stack']:3} B stack "
          f"{kernel['spilled']:3} B spilled {kernel['code']:6} B code", flush=True)
    wrong = []
    if kernel["spilled"] or kernel["stack"]:
        wrong.append(f"{arch}, {name}: {kernel['stack']} bytes of stack, {kernel['spilled']} spilled")
    if kernel["registers"] > MAX_REGISTERS[path]:
        wrong.append(f"{arch}, {name}: {kernel['registers']} registers, at most {MAX_REGISTERS[path]}")
    return wrong


# --- machine code -----------------------------------------------------------------------------

# Of `Workspace`, in bytes: where flags lie, and where the slots begin.
ARRIVED, SLOTS = 16 + 64 * 8, 16 + 64 * 8 + 16 * 64 * 8
# What is changed in the source, and what has to be found wrong then.
MISTAKES = {
    "a flag without release": ("st.release.sys", "st.relaxed.sys", "fence"),
    "a flag for one GPU": ("st.release.sys", "st.release.gpu", "flag"),
    "a wait without acquire": ("ld.acquire.sys", "ld.relaxed.sys", "cache"),
    "loads that are not coherent": ("uint4 v = *static_cast<const uint4*>(at);", 'uint4 v; asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" '
                                    ': "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));', "coherent"),
    "counters of a block": ("red.relaxed.gpu", "red.relaxed.cta", "counter"),
    "the flag before the barrier": ("#ifdef ALIGHT_EARLY_FLAG", "#define ALIGHT_EARLY_FLAG\n#ifdef ALIGHT_EARLY_FLAG", "barrier"),
}  # fmt: skip


def find_nvdisasm() -> pathlib.Path:
    """The program that a package of this Python has brought."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        if found := sorted(pathlib.Path(folder).glob("**/bin/nvdisasm")):
            return found[-1]
    sys.exit(f"{sys.executable} has no nvdisasm: make cuda installs it, or pip install -r evidence/requirements-cuda.txt")


def instructions(cubin: bytes) -> list[str]:
    """What touches memory or orders what does, in the order of the code: an instruction with its operands, without its predicate."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([find_nvdisasm(), "-c", file.name], capture_output=True, text=True, check=True)
    found = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?((?:LD|ST|ATOM|RED|MEMBAR|CCTL|BAR\.)(?!C|S\b|S\.)\S*)(.*?);", done.stdout, re.M)
    return [f"{name} {operands.strip()}" for name, operands in found]


def unordered(cubin: bytes) -> list[str]:
    """What the protocol needs of the machine code and is not there."""
    code = instructions(cubin)
    flag, slot = f"+{ARRIVED:#x}]", f"+{SLOTS:#x}]"
    raised = [at for at, one in enumerate(code) if one.startswith("STG.E.64.STRONG.SYS") and flag in one]
    waits = [at for at, one in enumerate(code) if one.startswith("LDG.E.64.STRONG.SYS") and flag in one]
    pushed = [at for at, one in enumerate(code) if one.startswith("ST") and slot in one]
    wrong = []
    if len(raised) != 1 or not waits:
        return [f"{len(raised)} stores and {len(waits)} loads of a flag for the whole system, expected one and some"]
    if not code[raised[0] - 1].startswith("MEMBAR.ALL.SYS"):
        wrong.append(f"no fence of the whole system before the flag, but {code[raised[0] - 1]}")
    if not any(one.startswith("BAR.RED") for one in code[max(pushed, default=0) : raised[0]]):
        wrong.append("no barrier between what is pushed and the flag")
    if any(at + 1 == len(code) or not code[at + 1].startswith("CCTL.IVALL") for at in waits):
        wrong.append("a load of a flag after which the first cache keeps what it has")
    if not any(one.startswith("BAR.RED") for one in code[waits[-1] :]):
        wrong.append("no barrier after the wait")
    wrong += [f"a load that is not coherent: {one}" for one in code if one.startswith("LD") and re.search(r"\.(CONSTANT|NC|CI)\b", one)]
    if not any(re.match(r"REDG?\.E\.ADD\.64\.STRONG\.GPU", one) for one in code) or not any("EXCH.64.STRONG.GPU" in one for one in code):
        wrong.append("a counter that is not changed by an atomic of the GPU")
    return wrong


def mistakes(nvrtc: Nvrtc, source: str, options: list[str]) -> list[str]:
    """Kernels that lack something of this on purpose, and are not found wrong for it."""
    missed = []
    for name, (old, new, word) in MISTAKES.items():
        header = HEADER.read_text()
        if (count := source.count(old) + header.count(old)) != 1:
            sys.exit(f"{SOURCE}, {HEADER}: {old!r} is there {count} times, not once")
        found = unordered(nvrtc.compile(source.replace(old, new), options, header=header.replace(old, new))[0])
        if not any(word in one for one in found):
            missed.append(f"{name}: not noticed in the machine code ({found})")
    return missed


def add_arguments(parser) -> None:
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--nvrtc", type=pathlib.Path)
    parser.add_argument("--stamp", type=pathlib.Path)


def run(arguments) -> None:
    source, options = SOURCE.read_text(), options_of_the_library()
    everything = [source, BLOCKS.read_text(), HEADER.read_text(), str(options), str(arguments.arch), str(arguments.all),
                  pathlib.Path(__file__).read_text()]  # fmt: skip
    digest = hashlib.sha256("\0".join(everything).encode()).hexdigest()
    if arguments.stamp and arguments.stamp.exists() and arguments.stamp.read_text() == digest:
        return print(f"{SOURCE.name}, {BLOCKS.name}: compiled before, unchanged")
    nvrtc = Nvrtc(arguments.nvrtc or find_nvrtc())
    wrong, start, count = [], time.monotonic(), 0

    def keep(arch: str, name: str, cubin: bytes) -> None:
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"{arch} {name.replace(', ', '_').replace(' ', '-')}.cubin").write_bytes(cubin)

    for arch in arguments.arch:
        here = [*options, f"--gpu-architecture={arch}", "--ptxas-options=-v"]
        made = variants(arguments.all)
        for name, macros in made:
            cubin, log = nvrtc.compile(source, [*here, *macros])
            wrong += report(cubin, log, arch, name)
            if arguments.all or arch == "sm_90" or name == made[0][0]:
                wrong += [f"{arch}, {name}: {what}" for what in unordered(cubin)]
            count += 1
            keep(arch, name, cubin)
        for name, macros in variants_of_blocks(arguments.all):
            cubin, log = nvrtc.compile(BLOCKS.read_text(), [*here, *macros], BLOCKS)
            wrong += report(cubin, log, arch, name, BLOCKS)
            count += 1
            keep(arch, name, cubin)
        if arch == "sm_90" or arguments.all:
            for control in CONTROLS:
                nvrtc.compile(source, [*here, *made[0][1], f"-D{control}", "-DALIGHT_DELAYS"])
                count += 1
            for what, some in MISTAKES_OF_BLOCKS.items():
                macros = next(macros for _, macros in variants_of_blocks(False) if any(macro.startswith(f"-D{what}") for macro in macros))
                for mistake in some:
                    nvrtc.compile(BLOCKS.read_text(), [*here, *macros, f"-D{mistake}"], BLOCKS)
                    count += 1
            wrong += mistakes(nvrtc, source, [*here, *made[0][1]])
    print(f"NVRTC {nvrtc.version}: {count} kernels in {time.monotonic() - start:.1f} s; {len(MISTAKES)} mistakes looked for in machine code")
    if wrong:
        sys.exit("\n".join(wrong))
    if arguments.stamp:
        arguments.stamp.write_text(digest)
