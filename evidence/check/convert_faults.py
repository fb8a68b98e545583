"""What `alight convert` must not do, with sources of evidence/lib/sources that are wrong in one thing, and with killed runs.

- wrong sources: parts missing, too many, of other sizes, with other norms, headers or vocabularies; a Hugging Face index that
  names a file that is missing, outside of the folder or without the tensor, tensors too few or of a wrong shape, an
  architecture that nobody knows: each ends with status 1, says in one line what is wrong (the words are checked), and
  leaves nothing;
- the result's place: a file that is there is refused without --force and replaced with it; the source itself, under its
  name or a link, is refused either way and stays as it was; a folder that is missing is named;
- killed runs: SIGKILL and SIGINT at random moments leave nothing beside the source, an older result is as it was, SIGINT
  ends with 130.

Two parts that changed names are not found: the formats say nothing of a part's number, and all it could be told by, the
norms, are the same in all. That is checked too, so that nobody believes otherwise.

Ends with status 1 if anything is otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from evidence.lib import common, process
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily
from evidence.lib.sources import big, hf, legacy, meta
from evidence.lib.sources import model as mod

np = lazily("numpy")


def files(folder) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def removed(name: str):
    return lambda source: (source / name).unlink()


def cut(path, count: int) -> None:
    os.truncate(path, os.path.getsize(path) - count)


def changed_json(name: str, change):
    """Changes the JSON document `name` of a source."""
    def spoil(source) -> None:
        told = json.loads((source / name).read_text())
        change(told)
        (source / name).write_text(json.dumps(told))

    return spoil


class Faults(Checks):
    def __init__(self, args, work):
        super().__init__(quiet=not args.verbose)
        self.program, self.work, self.args, self.n = common.alight(args.alight), work, args, 0

    def folder(self) -> Path:
        self.n += 1
        out = self.work / str(self.n)
        out.mkdir()
        return out

    def convert(self, source, out, *more):
        return process.run([self.program, "convert", source, "-o", out, *more], timeout=120)

    def refused(self, what, folder, source, words, *more, out=None) -> None:
        """Status 1, one line with these words, and the folder as it was."""
        before = files(folder)
        done = self.convert(source, out or folder / "out.gguf", *more)
        text, wrong = done.stderr.strip(), ""
        if done.returncode != 1:
            wrong = f"status {done.returncode}: {text[-300:]}"
        elif not re.search(words, text, re.I | re.S):
            wrong = f"{text[-300:]!r} has not {words!r}"
        elif "panicked" in text or "\u2717" in text:
            wrong = text[-300:]
        elif (after := files(folder)) != before:
            wrong = f"changed: {sorted(set(after.items()) ^ set(before.items()))[:3]}"
        elif self.args.verbose:
            what += f"\n      {text.splitlines()[-1][:300]}"
        self.wrong(what, wrong)

    def spoilt(self, what: str, words: str, make, spoil=None) -> None:
        """What `make(folder)` gives, spoilt by `spoil(source)`, is refused with these words."""
        folder = self.folder()
        source = make(folder)
        if spoil:
            spoil(source)
        self.refused(what, folder, source, words)

    # --- wrong sources ---

    def parts(self) -> None:
        m, other = mod.tiny(), mod.tiny(seed=2)
        names = [f"consolidated.{n:02d}.pth" for n in range(4)]
        wq, wo = "layers.0.attention.wq.weight", "layers.1.attention.wo.weight"

        def meta_of(parts=2, at=None, change=None, **more):
            def hands_off(part, tensors):
                return change(dict(tensors)) if part == at else tensors
            return lambda folder: meta.write(folder / "tiny", m, parts=parts, hands_off=hands_off, **more)

        def without(t):
            del t[wo]
            return t

        for what, at, change, words in (
                ("another norm in part 2", 2, lambda t: t | {n: t[n] + np.float16(1) for n in ["layers.1.ffn_norm.weight"]}, r"ffn_norm"),
                ("rows too few in part 1", 1, lambda t: t | {wq: t[wq][:-1]}, r"wq"),
                ("another type in part 3", 3, lambda t: t | {wq: t[wq].astype(np.float32)}, r"wq"),
                ("a tensor too few in part 1", 1, without, r"layers\.1\.attention\.wo"),
                ("a tensor too many in part 1", 1, lambda t: t | {"layers.2.attention.wo.weight": t[wo]}, r"layers\.2"),
                ("a tensor too few in part 0", 0, without, r"layers\.1\.attention\.wo")):
            self.spoilt(f"Meta: {what}", words, meta_of(4, at, change))
        for what, gone in (("the last part", 3), ("a part in the middle", 1), ("the first part", 0)):
            self.spoilt(f"Meta: {what} is missing", r"consolidated|part", meta_of(4), removed(names[gone]))
        self.spoilt("Meta: a third part of two", r"consolidated|part", meta_of(), lambda s: shutil.copy(s / names[1], s / names[2]))
        self.spoilt("Meta: a part of another model", r"norm", meta_of(), lambda s: shutil.copy(
            meta.write(s.parent / "other", other, parts=2) / names[1], s / names[1]))
        self.spoilt("Meta: a part cut short", names[1].replace(".", r"\."), meta_of(), lambda s: cut(s / names[1], 1000))
        for key, value, words in (("n_heads", 7, r"n_heads|head"), ("dim", -3, r"dim"), ("n_layers", 3, r"layers\.2|blk\.2|n_layers"),
                                  ("norm_eps", "x", r"norm_eps")):
            self.spoilt(f"Meta: params.json with {key} {value}", words, meta_of(**{key: value}))
        self.spoilt("Meta: without params.json", r"params\.json", meta_of(), removed("params.json"))

    def legacy_parts(self) -> None:
        m, other = mod.tiny(), mod.tiny(seed=2)

        def made(parts=2, **more):
            def make(folder):
                legacy.write(folder / "tiny.bin", m, "Q4_0", "ggjt", 3, parts, **more)
                return folder / "tiny.bin"
            return make

        def nudge(part, name, x):
            return x + np.float32(part == 2) if name == "blk.1.ffn_norm.weight" else x

        def second_of(model, version):
            """Puts the second part of another model in the place of this one's."""
            def spoil(source):
                legacy.write(source.parent / "x/tiny.bin", model, "Q4_0", "ggjt", version, 2)
                shutil.move(source.parent / "x/tiny.bin.1", f"{source}.1")
            return spoil

        # The number of parts follows from the widths: 256 columns, of which part 0 has 64.
        for what, gone in (("last part", 3), ("middle part", 1)):
            self.spoilt(f"legacy: {what} missing", r"tiny\.bin\.\d|part", made(4), lambda s: os.unlink(f"{s}.{gone}"))
        self.spoilt("legacy: a third part of two", r"tiny\.bin\.2|part", made(), lambda s: shutil.copy(f"{s}.1", f"{s}.2"))
        self.spoilt("legacy: another norm in part 2", r"ffn_norm", made(4, hands_off=nudge))
        self.spoilt("legacy: a part of another version", r"version|tiny\.bin\.1", made(), second_of(other, 2))
        changed = replace(m.vocab, tokens=m.vocab.tokens[:-1] + ["changed"])
        self.spoilt("legacy: a part with another vocabulary", r"vocab|token", made(), second_of(replace(m, vocab=changed), 3))
        self.spoilt("legacy: cut by one byte", r"tiny\.bin", made(1), lambda s: cut(s, 1))
        # Nothing in the formats could tell: noted, not wished for.
        folder = self.folder()
        source = made()(folder)
        os.rename(source, folder / "swap")
        os.rename(f"{source}.1", source)
        os.rename(folder / "swap", f"{source}.1")
        done = self.convert(source, folder / "out.gguf")
        self.wrong("legacy: parts that changed names cannot be told", "" if done.returncode in (0, 1) else done.stderr)

    def huggingface(self) -> None:
        m = mod.tiny(n_kv=2, tied=True, vocab=mod.bpe_vocab())

        def made(shards=1):
            return lambda folder: hf.write(folder / "tiny", m, "F16", shards)

        def index(change):
            return changed_json("model.safetensors.index.json", lambda told: change(told["weight_map"]))

        first = "model-00001-of-00003.safetensors"
        for what, words, spoil in (
                ("a shard is missing", r"model-00002-of-00003", removed("model-00002-of-00003.safetensors")),
                ("a tensor that the index does not name", r"model\.norm\.weight", index(lambda w: w.pop("model.norm.weight"))),
                ("the index names a tensor that is nowhere", r"model\.extra\.weight", index(lambda w: w.update({"model.extra.weight": first}))),
                ("the index leaves the folder", r"\.\./x", index(lambda w: w.update({"model.norm.weight": "../x/model-00003-of-00003.safetensors"}))),
                ("the index names the wrong shard", r"model\.norm\.weight", index(lambda w: w.update({"model.norm.weight": first})))):
            self.spoilt(f"HF: {what}", words, made(3), spoil)
        for key, value, words in (
                ("architectures", ["StrangeForCausalLM"], r"Strange"), ("num_attention_heads", 0, r"num_attention_heads"),
                ("num_key_value_heads", 3, r"num_key_value_heads"), ("num_hidden_layers", 3, r"layers\.2|num_hidden_layers"),
                ("num_hidden_layers", 1, r"layers\.1|num_hidden_layers"), ("hidden_size", 128, r"hidden_size|embed_tokens"),
                ("intermediate_size", 512, r"intermediate_size|mlp"), ("rms_norm_eps", -1, r"rms_norm_eps"),
                ("rope_scaling", {"rope_type": "strange", "factor": 2.0}, r"strange|rope"), ("vocab_size", 100, r"vocab_size|embed_tokens")):
            more = {"model_type": "strange"} if key == "architectures" else {}
            self.spoilt(f"HF: config.json with {key} {value}", words, made(), changed_json("config.json", lambda c: c.update({key: value} | more)))
        for name in ("config.json", "tokenizer.json"):
            self.spoilt(f"HF: {name} is half", name.replace(".", r"\."), made(), lambda s: (s / name).write_text("{"))
        self.spoilt("HF: without config.json", r"config\.json", made(), removed("config.json"))
        broken = replace(m, tensors={k: v for k, v in m.tensors.items() if "1.ffn_up" not in k})
        self.spoilt("HF: a tensor too few", r"layers\.1\.mlp\.up_proj|blk\.1\.ffn_up", made(), lambda s: hf.write(s, broken, "F16"))
        v = replace(m.vocab, merges=[*m.vocab.merges, "strange words"])
        self.spoilt("HF: a merge of unknown tokens", r"merge|strange", made(), lambda s: hf.tokenizer_files(s, replace(m, vocab=v)))

    # --- the result's place ---

    def places(self) -> None:
        m = mod.tiny()
        folder = self.folder()
        source = meta.write(folder / "tiny", m, parts=2)
        out = folder / "out.gguf"
        out.write_bytes(b"mine")
        self.refused("a file that is there", folder, source, r"out\.gguf.*--force")
        done = self.convert(source, out, "--force")
        self.wrong("--force replaces it", "" if done.returncode == 0 and out.read_bytes()[:4] == b"GGUF" else done.stderr)
        part = source / "consolidated.01.pth"
        os.link(part, folder / "hard")
        (folder / "soft").symlink_to(part)
        single = folder / "one.bin"
        legacy.write(single, m, "F16")
        for what, src, dst in (("a part of it", source, part), ("a hard link to a part", source, folder / "hard"),
                               ("a symbolic link to a part", source, folder / "soft"), ("the file itself", single, single),
                               ("params.json", source, source / "params.json")):
            for force in ([], ["--force"]):
                self.refused(f"writing over the source: {what} {' '.join(force)}", folder, src, r"source|itself|input|exist", *force, out=dst)
        source = meta.write(folder / "again", m, parts=2)
        self.refused("a folder that is missing", folder, source, r"no/", out=folder / "no/where.gguf")
        self.refused("a source that is missing", folder, folder / "nothing", r"nothing")
        (folder / "empty").mkdir()
        self.refused("an empty folder", folder, folder / "empty", r"empty")
        done = self.convert(source, folder / "dry.gguf", "--dry-run")
        self.wrong("--dry-run writes nothing", "" if done.returncode == 0 and not (folder / "dry.gguf").exists() and done.stderr else done.stderr or "says nothing")

    # --- killed ---

    def kills(self) -> None:
        folder = self.folder()
        m = big.shape(layers=self.args.layers, n_embd=2048, n_ff=5632, n_vocab=4000)
        source, size = big.write(folder / "big", m=m)
        out = folder / "out.gguf"
        start = time.monotonic()
        done = self.convert(source, out)
        took = time.monotonic() - start
        if done.returncode:
            self.wrong("the source to be killed over", done.stderr)
            return
        rng, whole = random.Random(7), hashlib.sha256(out.read_bytes()).hexdigest()
        seen = {"killed": 0, "done": 0}
        for i in range(self.args.kills):
            number = signal.SIGKILL if i % 3 < 2 else signal.SIGINT
            old = i % 2 == 0
            out.unlink(missing_ok=True)
            if old:
                out.write_bytes(b"older")
            line = [str(part) for part in (self.program, "convert", source, "-o", out, "--force", *(["--type", "q8_0"] if i % 4 == 3 else []))]
            running = subprocess.Popen(line, stderr=subprocess.PIPE)
            time.sleep(rng.uniform(0, took))
            running.send_signal(number)
            said = running.stderr.read().decode()
            status = running.wait()
            names = sorted(p.name for p in folder.iterdir())
            wrong = ""
            if status == 0:
                seen["done"] += 1
            else:
                seen["killed"] += 1
                expected = (-signal.SIGKILL,) if number == signal.SIGKILL else (130,)
                if status not in expected and not (number == signal.SIGINT and status == -signal.SIGINT):
                    wrong = f"status {status}: {said[-200:]}"
                elif names != (["big", "out.gguf"] if old else ["big"]) or old and out.read_bytes() != b"older":
                    wrong = f"left {names}"
            if sorted(p.name for p in source.iterdir()) != sorted([*(f"consolidated.{n:02d}.pth" for n in range(8)), "params.json", "tokenizer.model"]):
                wrong = "files beside the source"
            self.wrong(f"{signal.Signals(number).name} number {i + 1} ({'an older result' if old else 'nothing'} there, status {status})", wrong)
        done = self.convert(source, out, "--force")
        same = done.returncode == 0 and hashlib.sha256(out.read_bytes()).hexdigest() == whole
        self.wrong("afterwards it converts as before", "" if same else done.stderr or "other bytes")
        common.say(f"{size / 1e6:.0f} MB in {took:.2f} s; {seen['killed']} runs killed, {seen['done']} were done first")


def add_arguments(parser) -> None:
    parser.add_argument("--kills", type=int, default=12, help="how many runs are killed (default: 12)")
    parser.add_argument("--layers", type=int, default=2, help="of the model over which they are: 100 MB each (default: 2)")
    common.add_folder_argument(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="also what is as it should be, and its messages")
    common.add_arguments(parser)


def run(args) -> int:
    start = time.monotonic()
    with common.temporary_folder(args, "check-faults") as work:
        faults = Faults(args, Path(work))
        for part in (faults.parts, faults.legacy_parts, faults.huggingface, faults.places, faults.kills):
            part()
    print(f"convert, faults: {faults.passed} as they should be, {faults.failed} not, {time.monotonic() - start:.0f} s")
    return faults.status()
