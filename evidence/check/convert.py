"""Holds `alight convert` against sources made by another hand: evidence/lib/sources, numpy from the descriptions of the formats.

For every source (Hugging Face, Meta, ggml/ggmf/ggjt of all eras, each in several numbers of parts) it converts and checks:
- every tensor: name, type, dimensions, bytes, place (a multiple of 4096, in the order of use);
- every key: type and value; keys that no format prescribes may only be those that sources/expect.py lists;
- sources of a group, which differ in their parts alone, give the same bytes, and so does a second conversion;
- nothing but the result lies in the folder afterwards;
- where the case says so: the file answers as one that the `gguf` package wrote from the same weights, token by token, in
  `alight run` and in llama.cpp (as the library xllamacpp), greedily, for several prompts.
Then conversions with --type against the `gguf` package's quantisation bit for bit, and GGUF sources: one file and shards.

    .venv/bin/python -m evidence check convert                            the small models, as `make test-all` does
    .venv/bin/python -m evidence check convert --model smollm2 gemma3     the real ones: minutes, 3 GB of disk

Ends with status 1 if anything differs.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from evidence.lib import checks, common, gguf_files, peers, process
from evidence.lib.lazy import lazily
from evidence.lib.llama import Llama
from evidence.lib.sources import cases, expect, meta
from evidence.lib.sources import model as mod

np = lazily("numpy")

PROMPTS = {"tiny": ["the was this", "they said: 12, 日é", "of to and in"],
           "real": ["The capital of France is", "Once upon a time, in a village", "def fibonacci(n):\n", "1, 1, 2, 3, 5,"]}


class Checks(checks.Checks):
    def __init__(self, args):
        super().__init__(quiet=not args.verbose)
        self.args, self.program = args, common.alight(args.alight)

    def convert(self, source, out, *options) -> subprocess.CompletedProcess:
        return process.run([self.program, "convert", source, "-o", out, *options], timeout=900)

    # --- answers ---

    def greedy(self, path, prompt, count) -> list:
        done = process.run(peers.alight_run(self.args, path, prompt, "--json", tokens=count, context=256), timeout=300)
        return json.loads(done.stdout)["tokens"] if done.returncode == 0 else [done.stderr.strip()]

    def answers(self, what, path, want, folder, prompts) -> None:
        """The file and the same model written by the `gguf` package, in both engines."""
        same = folder / "reference.gguf"
        found = expect.read(path).fields
        for keys in (want.keys, want.may):  # what had to be guessed is guessed alike
            for key, (kind, value) in list(keys.items()):
                if value is expect.ANY and key in found:
                    keys[key] = (kind, found[key].contents())
        expect.reference(same, want)
        wrong, count = [], 8 if self.args.model == ["tiny"] else 24
        for prompt in prompts:
            ours, theirs = self.greedy(path, prompt, count), self.greedy(same, prompt, count)
            if ours != theirs or not all(isinstance(t, int) for t in ours):
                wrong.append(f"{prompt!r}: {ours} and of the reference {theirs}")
        self.wrong(f"{what}: answers in Alight", wrong)
        if self.args.no_llama:
            return
        told = []
        for file in (path, same):
            try:
                with Llama(file) as llama:
                    told.append([llama.tokens(prompt, count) for prompt in prompts])
            except (Exception, SystemExit) as error:
                told.append(f"{file.name}: {error}")
        self.wrong(f"{what}: answers in llama.cpp", [] if isinstance(told[0], list) and told[0] == told[1] else [f"{told[0]} and of the reference {told[1]}"])
        same.unlink()

    # --- sources ---

    def case(self, case, folder, firsts) -> None:
        made = case.make(folder / "source")
        out = folder / "out" / "model.gguf"
        out.parent.mkdir()
        done = self.convert(made.source, out, *made.options)
        if not self.wrong(f"{case.name}: converts", [done.stderr.strip()] if done.returncode else []):
            return
        left = sorted(p.name for p in out.parent.iterdir())
        self.wrong(f"{case.name}: tensors and keys",
                 expect.differences(out, made.want) + ([] if left == ["model.gguf"] else [f"left in the folder: {left}"]))
        if case.answers and not self.args.no_answers:
            self.answers(case.name, out, made.want, folder, PROMPTS["tiny" if self.args.model == ["tiny"] else "real"])
        if case.group in firsts:
            first, name = firsts[case.group]
            same = filecmp.cmp(first, out, shallow=False)
            self.wrong(f"{case.name}: the bytes of {name}", [] if same else [f"{out} and {first} differ"])
            return
        again = self.convert(made.source, folder / "again.gguf", *made.options)
        same = again.returncode == 0 and filecmp.cmp(folder / "again.gguf", out, shallow=False)
        self.wrong(f"{case.name}: twice the same", [] if same else [again.stderr.strip() or "two conversions differ"])
        kept = firsts["folder"] / f"{len(firsts)}.gguf"
        shutil.move(out, kept)
        firsts[case.group] = (kept, case.name)

    def sources(self, list_of_cases, work) -> None:
        firsts, last = {"folder": work / "firsts"}, {}
        firsts["folder"].mkdir()
        for i, case in enumerate(list_of_cases):
            last[case.group] = i
        for i, case in enumerate(list_of_cases):
            if not common.is_asked(self.args, case.name):
                continue
            folder = work / "case"
            (folder / "source").mkdir(parents=True)
            start = time.monotonic()
            self.case(case, folder, firsts)
            if self.args.verbose:
                common.say(f"    {time.monotonic() - start:.2f} s")
            shutil.rmtree(folder)
            if last[case.group] == i and case.group in firsts:
                firsts.pop(case.group)[0].unlink()

    # --- types, and GGUF in ---

    def types(self, work) -> None:
        """--type: what is quantised has the bytes of the `gguf` package; the source is F32, so the rest stays."""
        import gguf

        m = mod.tiny(seed=3, n_kv=2)
        made = cases.of_hf(lambda: m, work / "types", dtype="F32")
        for name in ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q6_k", "q4_k_m"):
            out = work / f"{name}.gguf"
            done = self.convert(made.source, out, "--type", name)
            if not self.wrong(f"--type {name}: converts", [done.stderr.strip()] if done.returncode else []):
                continue
            wrong, kinds = [], {}
            for t in expect.read(out).tensors:
                x, kind = m.tensors[t.name], t.tensor_type.name
                if x.ndim == 2:
                    kinds[kind] = kinds.get(kind, 0) + 1
                if kind.endswith("_K"):
                    error = np.sqrt(np.mean((gguf.dequantize(t.data, t.tensor_type) - x) ** 2) / np.mean(x**2))
                    if error > {"Q4_K": 0.09, "Q5_K": 0.045, "Q6_K": 0.022}[kind]:
                        wrong.append(f"{t.name} in {kind} is off by {error:.3f}")
                    continue
                theirs = mod.cast(x, kind) if kind in ("F32", "F16", "BF16") else gguf.quantize(x, t.tensor_type)
                if not np.array_equal(np.ascontiguousarray(t.data).view(np.uint8).ravel(), theirs.view(np.uint8).ravel()):
                    wrong.append(f"{t.name} in {kind} has other bytes than the gguf package's")
            wanted = name.upper().removesuffix("_M")
            if kinds.get(wanted, 0) < sum(kinds.values()) * 0.6:
                wrong.append(f"of {sum(kinds.values())} matrices the types are {kinds}")
            self.wrong(f"--type {name}: {kinds}", wrong)

    def ranks(self, work) -> None:
        """Llama 3's tokenizer.model: the file has ranks, GGUF wants merges. Both ways have to cut words alike."""
        vocab = mod.ranks_vocab()
        n = len(vocab.tokens)
        m = mod.tiny(seed=6, n_kv=2, n_embd=64, n_head=2, n_mult=64, vocab=vocab, n_vocab=n + 256)
        source, out = meta.write(work / "ranks/tiny", m, "BF16", 2, embedding="rows", rope_theta=500000.0), work / "ranks.gguf"
        done = self.convert(source, out)
        if not self.wrong("Meta, Llama 3's tokenizer.model: converts", [done.stderr.strip()] if done.returncode else []):
            return
        fields = {k: f.contents() for k, f in expect.read(out).fields.items() if k.startswith("tokenizer.")}
        shown, wrong = mod.byte_alphabet(), []
        tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
        if tokens[:n] != ["".join(shown[b] for b in t) for t in vocab.tokens] or tokens[n] != "<|begin_of_text|>":
            wrong.append("other tokens")
        if types != [1] * n + [3] * 256 or fields["tokenizer.ggml.model"] != "gpt2" or fields["tokenizer.ggml.pre"] != "llama-bpe":
            wrong.append(f"types, model {fields['tokenizer.ggml.model']} or pre {fields['tokenizer.ggml.pre']}")
        order = {tuple(merge.split(" ")): i for i, merge in enumerate(fields["tokenizer.ggml.merges"])}
        numbers = {t: i for i, t in enumerate(vocab.tokens)}

        def cut(pieces, rank):
            """The pair of the lowest rank first, until no pair has one."""
            while True:
                best = min((r, i) for i in range(len(pieces) - 1) if (r := rank(*pieces[i:i + 2])) is not None) if any(
                    rank(*pieces[i:i + 2]) is not None for i in range(len(pieces) - 1)) else None
                if best is None:
                    return pieces
                pieces[best[1]:best[1] + 2] = [pieces[best[1]] + pieces[best[1] + 1]]

        rng = np.random.default_rng(8)
        words = [" " + w for w in mod.WORDS.split()] + ["".join(rng.choice(list(" theofandiws"), 9)) for _ in range(300)]
        for word in words:
            theirs = cut([bytes([b]) for b in word.encode()], lambda a, b: numbers.get(a + b))
            ours = cut([shown[b] for b in word.encode()], lambda a, b: order.get((a, b)))
            if ours != ["".join(shown[b] for b in t) for t in theirs]:
                wrong.append(f"{word!r} is cut into {ours} instead of {theirs}")
        self.wrong(f"Meta, Llama 3's tokenizer.model: {len(order)} merges cut {len(words)} words as the ranks do", wrong)

    def gguf_in(self, work) -> None:
        import gguf

        m = mod.tiny(seed=4, n_kv=2)
        made = cases.of_hf(lambda: m, work / "gguf-in", dtype="BF16")
        one = work / "one.gguf"
        expect.reference(one, made.want)
        folder = work / "shards"
        folder.mkdir()
        writer = gguf.GGUFWriter(folder / "tiny.gguf", "llama", split_max_tensors=6)
        gguf_files.copy_keys(expect.read(one), writer, lambda key: key.startswith(("llama.", "tokenizer.")) or key == "general.file_type")
        for name, (kind, x) in made.want.tensors.items():
            writer.add_tensor(name, x.view(np.uint8) if kind == "BF16" else x, raw_dtype=gguf.GGMLQuantizationType[kind])
        gguf_files.finish(writer)
        shards = sorted(folder.iterdir())
        for what, source in (("one file", one), ("folder of shards", folder), ("first shard", shards[0])):
            out = work / "from-gguf.gguf"
            done = self.convert(source, out, "--force")
            wrong = [done.stderr.strip()] if done.returncode else expect.differences(out, made.want)
            self.wrong(f"GGUF, {what}{f' ({len(shards)} shards)' if source != one else ''}", wrong)


def quiet_library() -> None:
    """llama.cpp writes its log to file descriptor 2 from threads of its own: what this script says goes elsewhere."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def add_arguments(parser) -> None:
    parser.add_argument("--model", nargs="+", default=["tiny"], choices=["tiny", "smollm2", "gemma3"])
    common.add_only_argument(parser, "cases")
    common.add_folder_argument(parser)
    parser.add_argument("--ranks", action="store_true", help="also Llama 3's tokenizer.model, a file of ranks, of full length")
    parser.add_argument("--no-llama", action="store_true", help="without llama.cpp")
    parser.add_argument("--no-answers", action="store_true", help="without running the models")
    parser.add_argument("-v", "--verbose", action="store_true")
    common.add_arguments(parser)


def run(args) -> int:
    quiet_library()
    checks, start = Checks(args), time.monotonic()
    for name in args.model:
        with common.temporary_folder(args, "check-convert") as work:
            work = Path(work)
            listed = cases.quick() if name == "tiny" else cases.full(common.model_path(name, args.models), name)
            checks.sources(listed, work)
            if name == "tiny" and not args.only:
                checks.types(work)
                checks.gguf_in(work)
            if args.ranks:
                checks.ranks(work)
    print(f"convert: {checks.passed} checks passed, {checks.failed} failed, {time.monotonic() - start:.0f} s")
    return checks.status()
