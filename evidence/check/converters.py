"""`alight convert` beside llama.cpp's own converters, on the same sources: tensor by tensor, key by key.

- convert_hf_to_gguf.py on Hugging Face folders: those of evidence/lib/sources, those of `make hf-models` (every
  architecture; --hf-models FOLDER names what it wrote, also with `--published`), and any that --folder names;
- examples/convert_legacy_llama.py on Meta's folders, in 1 and 4 parts;
- convert_llama_ggml_to_gguf.py on ggml, ggmf and ggjt files, where it takes them (one part, blocks that are still the same).

Tensors have to agree in name, type, dimensions and bytes, keys in type and value; a difference has to be one of ALLOWED
below, which says why. Each that was met is printed with its reason and how often. Order and places of tensors and of keys
are not compared: ours are in the order of use, at multiples of 4096.

llama.cpp's converters need torch, transformers, sentencepiece and safetensors, in an environment of their own:
    python3 -m venv PEER && PEER/bin/pip install torch transformers sentencepiece safetensors protobuf numpy pyyaml tqdm requests
    .venv/bin/python -m evidence check converters --peer-python PEER/bin/python [--model smollm2 gemma3]
--llama-source: llama.cpp's source (default: what scripts/build_llama_cpp.sh unpacked). Ends with status 1 at any difference
that is not allowed, or if a converter fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

from evidence.lib import common, gguf_files, process
from evidence.lib.lazy import lazily
from evidence.lib.sources import cases, expect, hf, legacy, meta
from evidence.lib.sources import model as mod

np = lazily("numpy")

# Pattern of "kind: key" or of "source: kind: key", and why it may be so.
SAME = "said, where theirs leaves it to the reader: the same value"
LEFT = {"llama.rope.freq_base": 10000.0, "gemma2.rope.freq_base": 10000.0, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.add_space_prefix": True, "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}
FOLLOWS = "said, where theirs leaves it to the reader: it follows from the width and the number of heads"
NAMES = "words about the file, which no source has"
ALLOWED = [
    (r"only ours: general\.alignment", "ours is made to be mapped"),
    (r"(only ours|only theirs|differs): general\.(name|description|type|basename|size_label|finetune|quantization_version)", NAMES),
    (r"gg.*: only ours: llama\.(vocab_size|rope\.freq_base)", SAME),
    (r"(gg|Meta).*: only ours: tokenizer\.ggml\.add_(bos|eos|space)_.*", SAME),
    (r"Meta.*: only ours: (llama\.rope\.freq_base|tokenizer\.ggml\.(pre|(bos|eos|unknown)_token_id))",
     SAME),
    (r"HF.*: only ours: tokenizer\.ggml\.(unknown|bos|eos)_token_id", "tokenizer.model says it; theirs asks the other files"),
    (r"HF.*: only ours: tokenizer\.ggml\.eot_token_id", "generation_config.json names another token that ends an answer"),
    (r"HF.*: only ours: tokenizer\.ggml\.eos_token_ids", "all tokens that end an answer, if there are several, which theirs does not keep"),
    (r"HF: gemma.*: differs: tokenizer\.ggml\.add_space_prefix", "theirs says no for every Gemma; this test's tokenizer.model says yes"),
    (r"HF: gemma2.*: only ours: gemma2\.rope\.freq_base", SAME),
    (r"HF: gemma3.*: only ours: gemma3\.attention\.sliding_window_pattern",
     "config.json has another pattern than every sixth layer, which theirs does not say"),
    (r"HF: .*: only ours: .*\.attention\.(key|value)_length", FOLLOWS),
    (r"HF: gemma3-pictures: only ours: tokenizer\.ggml\.padding_token_id", "the text part of config.json says it; theirs asks the whole alone"),
    (r"HF: qwen3_5_moe: only ours: qwen35moe\.feed_forward_length", "its class has it where config.json does not, and no layer uses it"),
    (r"HF: gemma: only ours: gemma\.rope\.freq_base", SAME),
    (r"HF: gemma: only theirs: tokenizer\.ggml\.eot_token_id", "a number of Gemma's own vocabulary, which theirs writes for every folder"),
    (r"HF: nemotron: differs: tokenizer\.ggml\.unknown_token_id", "a number of Nemotron's own vocabulary, which theirs writes for every folder"),
    (r"HF: (cohere.*|nemotron|starcoder2): only theirs: .*\.attention\.layer_norm_rms_epsilon",
     "these models say rms_norm_eps besides, and have LayerNorm"),
    (r"HF: cohere2: only theirs: cohere2\.attention\.(key|value)_length", FOLLOWS),
    (r"HF: ernie4_5_moe: differs: ernie4_5-moe\.expert_shared_feed_forward_length",
     "theirs divides the width of dense layers by the heads of keys, which gives the right one for the published models alone"),
    (r"HF: (deepseek_v.*|minimax_m2|dots1|afmoe): only ours: .*\.expert_(gating_func|weights_norm)",
     "what its class does where config.json does not say it, as transformers 5 writes it"),
    (r"HF: (gpt_neox.*|falcon.*|stablelm): only ours: .*\.rope\.freq_base", SAME),
    (r"HF: gpt_neox.*: only ours: (gptneox\.attention\.head_count_kv|general\.file_type)", SAME),
    (r"HF: falcon.*: differs: falcon\.(context_length|feed_forward_length)",
     "theirs says 2048 positions and four times the width for every Falcon; ours what config.json says"),
    (r"HF: exaone: only (ours|theirs): exaone\.attention\.layer_norm(_rms)?_epsilon",
     "theirs has it under the name of a LayerNorm; the network has RMSNorm, and llama.cpp reads the one of that"),
    (r"HF: exaone4: only theirs: exaone4\.attention\.sliding_window_pattern", "every fourth layer, which goes without saying"),
    (r"HF: granite-hybrid.*: differs: granitehybrid\.context_length", "theirs says a million for whatever does not rotate; ours what config.json says"),
    (r"HF: granite-(hybrid-dense|attention): differs: granite(hybrid)?\.feed_forward_length",
     "where there are no experts, the layers have the width of what all tokens go through, which theirs does not say"),
    (r"HF: granite-(hybrid-dense|attention): only theirs: granite(hybrid)?\.expert_(count|used_count|shared_feed_forward_length)",
     "there are no experts"),
    (r"HF: granite-attention: (only theirs: granite\.(ssm\..*|rope\.scaling\.finetuned)|type .*: granite\.attention\.head_count_kv)",
     "of layers that there are none of"),
    (r"HF: gemma4.*: only ours: tokenizer\.ggml\.pre", "said, where theirs leaves it to the model's name"),
    (r"HF: gemma4-small: tensor only theirs: blk\.\d+\.attn_(k|v|k_norm)\.weight", "of layers that have the keys and values of an earlier one; nobody reads them"),
    (r"HF: llama4.*: only ours: llama4\.attention\.sliding_window", "of chunks of another length than 8192, which theirs takes for granted"),
    (r"HF: olmo3: only theirs: olmo2\.(rope\.freq_base_swa|attention\.sliding_window_pattern)", "what readers take where it is not said"),
    (r"HF: .*: bytes: blk\.\d+\.ssm_a", "ours is e to its power to the last bit, theirs as near as torch's vectors are"),
    (r"only theirs: tokenizer\.ggml\.add_bos_token", "theirs has an exception for Granite's number of tokens, 49152; no is the default"),
]
# convert_llama_ggml_to_gguf.py hands the `gguf` package numbers of elements where it has asked for bytes since 2024, so that
# it writes wrong dimensions or ends with an error. It runs with that one call mended.
MENDED = """
import gguf, runpy, sys
plain = gguf.GGUFWriter.add_tensor
def add_tensor(self, name, data, raw_shape=None, raw_dtype=None):
    plain(self, name, data, raw_shape=gguf.quants.quant_shape_to_byte_shape(raw_shape, raw_dtype), raw_dtype=raw_dtype)
gguf.GGUFWriter.add_tensor = add_tensor
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# The vocabulary of these small folders is a tokenizer.model, whatever their family has: so networks of all families are compared,
# and vocabularies where the folders have those of real models. What predicts further tokens is left out, as by ours.
NETWORKS = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path[:0] = [os.path.dirname(sys.argv[0])]
from conversion.base import ModelBase, TextModel
plain = {name: getattr(TextModel, name) for name in ("_set_vocab_gpt2", "_set_vocab_glm")}
def vocabulary(name):
    def of(self):
        has = [(self.dir_model / file).is_file() for file in ("tokenizer.json", "tokenizer.model")]
        plain[name](self) if has != [False, True] else self._set_vocab_sentencepiece()
    return of
for name in plain:
    setattr(TextModel, name, vocabulary(name))
from conversion.glm import Glm4Model
Glm4Model.set_vocab = TextModel.set_vocab
ModelBase.no_mtp = True
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def files(path):
    reader = expect.read(path)
    keys = {k: (tuple(t.name for t in f.types), f.contents()) for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    return keys, {t.name: t for t in reader.tensors}


def extents(tensor) -> list[int]:
    """Innermost first; readers take what is not there for 1."""
    found = [int(n) for n in tensor.shape]
    while len(found) > 1 and found[-1] == 1:
        found.pop()
    return found


def differences(ours, theirs) -> list[tuple[str, str]]:
    """(kind and key, in words)."""
    (a_keys, a_tensors), (b_keys, b_tensors), out = files(ours), files(theirs), []
    for key in [*a_keys, *(k for k in b_keys if k not in a_keys)]:
        a, b = a_keys.get(key), b_keys.get(key)
        if a is None or b is None:
            out.append((f"only {'ours' if b is None else 'theirs'}: {key}", f"{(a or b)[1]!r:.60}"))
        elif a != b:
            out.append((f"{'differs' if a[0] == b[0] else f'type {a[0]} and {b[0]}'}: {key}", gguf_files.difference(a[1], b[1])))
    for name in [*a_tensors, *(n for n in b_tensors if n not in a_tensors)]:
        a, b = a_tensors.get(name), b_tensors.get(name)
        if a is None or b is None:
            out.append((f"tensor only {'ours' if b is None else 'theirs'}: {name}", ""))
        elif a.tensor_type != b.tensor_type or extents(a) != extents(b):
            out.append((f"tensor: {name}", f"{a.tensor_type.name} {a.shape.tolist()} and {b.tensor_type.name} {b.shape.tolist()}"))
        elif not np.array_equal(gguf_files.raw(a.data), gguf_files.raw(b.data)):
            out.append((f"bytes: {name}", a.tensor_type.name))
    return out


class Comparison:
    def __init__(self, args, work):
        self.args, self.work, self.program = args, work, common.alight(args.alight)
        self.compared, self.failed, self.met, self.tensors, self.keys = 0, 0, {}, 0, 0

    def peer(self, what, script, out, *line) -> str:
        """What went wrong. With --keep, what was made before is taken again: the sources are the same each time."""
        kept = self.args.keep and self.args.keep / (re.sub(r"\W+", "-", what) + ".gguf")
        if kept and kept.is_file():
            shutil.copyfile(kept, out)
            return ""
        mended = {"convert_hf_to_gguf.py": ["-c", NETWORKS], "convert_llama_ggml_to_gguf.py": ["-c", MENDED]}.get(script, [])
        line = [self.args.peer_python, *mended, self.args.llama_source / script, *line]
        # Some of it is found beside the working directory, and nothing may be asked of the network.
        env = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join([str(self.args.llama_source / "gguf-py"), str(self.args.llama_source)])}
        done = process.run(line, timeout=900, env=env, cwd=self.work)
        if kept and done.returncode == 0:
            shutil.copyfile(out, kept)
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]

    def compare(self, what, source, options, script, line) -> None:
        if not common.is_asked(self.args, what):
            return
        ours, theirs = self.work / "ours.gguf", self.work / "theirs.gguf"
        for path in (ours, theirs):
            path.unlink(missing_ok=True)
        done = process.run([self.program, "convert", source, "-o", ours, *options])
        wrong = self.peer(what, script, theirs, *[theirs if part is None else part for part in line])
        found = []
        if done.returncode or wrong:
            if done.returncode and wrong:
                common.say(f"{what}: both refuse: alight: {done.stderr.strip().splitlines()[-1]}; llama.cpp: {wrong}")
                return
            found = [(f"fails: {'alight' if done.returncode else 'llama.cpp'}", done.stderr.strip() if done.returncode else wrong)]
        else:
            found = differences(ours, theirs)
            self.tensors += len(files(ours)[1])
            self.keys += len(files(ours)[0])
        self.compared += 1
        bad = []
        for kind, words in found:
            why = next((why for pattern, why in ALLOWED if re.fullmatch(pattern, kind) or re.fullmatch(pattern, f"{what}: {kind}")), None)
            key = kind.split(": ")[-1]
            if why is None or why is SAME and key in LEFT and words != repr(LEFT[key]):
                bad.append(f"{kind}: {words}")
            else:
                self.met.setdefault((re.sub(r"\.\d+\.", ".N.", kind), why), []).append((what, words))
        self.failed += bool(bad)
        common.say(f"{'DIFFERS' if bad else 'agree'}: {what}" + "".join(f"\n    {line[:400]}" for line in bad[:40]))

    def huggingface(self, what, folder, outtype, *options) -> None:
        self.compare(what, folder, options, "convert_hf_to_gguf.py", [folder, "--outfile", None, "--outtype", outtype])


def outtype(folder) -> str:
    """Left to itself theirs makes F16 of F32, which ours keeps."""
    with open(min(folder.glob("*.safetensors")), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    kinds = {entry["dtype"] for name, entry in header.items() if name != "__metadata__" and len(entry["shape"]) == 2}
    return {"F32": "f32", "F16": "f16", "BF16": "bf16"}.get(kinds.pop(), "auto") if len(kinds) == 1 else "auto"


def small_models(c: Comparison, args) -> None:
    plain, grouped = mod.tiny(), mod.tiny(seed=2, n_kv=2)
    # llama.cpp knows a pre-tokenizer by what the real vocabulary makes of a text: small weights under the real one.
    vocab = mod.from_gguf(common.model_path("smollm2", args.models)).vocab
    under = mod.tiny(seed=5, n_kv=2, tied=True, vocab=vocab)
    for what, m, dtype, shards in (("llama, tokenizer.model, BF16", plain, "BF16", 1), ("llama, tokenizer.model, F16, 3 shards", grouped, "F16", 3),
                                   ("llama, tokenizer.model, F32", grouped, "F32", 1), ("llama, tokenizer.json of SmolLM2, F16", under, "F16", 3)):
        folder = hf.write(c.work / f"hf{shards}{dtype}{m.n_vocab}" / "tiny", m, dtype, shards)
        c.huggingface(f"HF: {what}", folder, dtype.lower())
    for parts, m in ((1, plain), (4, plain), (4, grouped)):
        folder = meta.write(c.work / f"meta{parts}{m.n_kv}" / "tiny", m, "F16", parts, embedding="columns", rope=True)
        c.compare(f"Meta: {parts} parts, {m.n_kv} key/value heads", folder, [], "examples/convert_legacy_llama.py",
                  [folder, "--outtype", "f16", "--outfile", None])
    for magic, version in (("ggml", 0), ("ggmf", 1), ("ggjt", 1), ("ggjt", 2), ("ggjt", 3)):
        for kind in ["F32", "F16"] + (legacy.OF_ERA["current"] if version == 3 else ["Q5_0", "Q5_1"] if version == 2 else []):
            source = c.work / f"{magic}{version}{kind}" / "tiny.bin"
            legacy.write(source, plain, kind, magic, version)
            c.compare(f"{magic}{version or ''}: {kind}", source, [], "convert_llama_ggml_to_gguf.py",
                      ["-i", source, "-o", None, *([] if version == 3 else ["--eps", "1e-6"])])


def add_arguments(parser) -> None:
    parser.add_argument("--peer-python", type=Path, required=True, help="a Python that has torch and transformers")
    parser.add_argument("--llama-source", type=Path, help="llama.cpp's source (default: target/llama.cpp/source/thirdparty/llama.cpp)")
    parser.add_argument("--hf-models", type=Path, help="a folder of folders, from python -m evidence make hf-models")
    parser.add_argument("--folder", dest="folders", type=Path, nargs="+", default=[], help="more Hugging Face folders")
    parser.add_argument("--model", nargs="*", default=[], choices=["smollm2", "gemma3"], help="real models too, as BF16")
    parser.add_argument("--keep", type=Path, help="a folder where the results of llama.cpp's converters are kept for the next time")
    common.add_only_argument(parser, "sources")
    parser.add_argument("--no-small", action="store_true", help="without the small models of evidence/lib/sources")
    common.add_folder_argument(parser)
    common.add_arguments(parser)


def run(args) -> int:
    args.llama_source = (args.llama_source or common.TARGET / "llama.cpp/source/thirdparty/llama.cpp").resolve()
    args.peer_python = args.peer_python.absolute()
    if not (args.llama_source / "convert_hf_to_gguf.py").is_file():
        raise SystemExit(f"{args.llama_source} has no convert_hf_to_gguf.py: --llama-source names llama.cpp's source")
    start = time.monotonic()
    with common.temporary_folder(args, "compare-converters") as work:
        c = Comparison(args, Path(work).resolve())
        if not args.no_small:
            small_models(c, args)
        for name in args.model or []:
            made = cases.of_hf(lambda: mod.from_gguf(common.model_path(name, args.models)), c.work / name, dtype="BF16", shards=3)
            c.huggingface(f"HF: {name}, BF16, 3 shards", made.source, "bf16")
        for folder in sorted(p for p in args.hf_models.iterdir() if (p / "config.json").is_file()) if args.hf_models else []:
            c.huggingface(f"HF: {folder.name}", folder.resolve(), outtype(folder))
        for folder in args.folders:
            c.huggingface(f"HF: {folder.name}", folder.resolve(), outtype(folder))
    print(f"\n{c.compared} conversions by both, {c.tensors} tensors and {c.keys} keys compared; {c.failed} with differences that are "
          f"not allowed; {time.monotonic() - start:.0f} s\n")
    if c.met:
        rows = sorted([kind, why, str(len(seen)), f"{seen[0][1]:.60}" if len({w for _, w in seen}) == 1 else f"{seen[0][1]:.50} …"]
                      for (kind, why), seen in c.met.items())
        common.table([["difference", "why", "times", "ours and theirs"], *rows])
    return 1 if c.failed else 0
