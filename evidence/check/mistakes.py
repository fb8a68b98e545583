"""Deliberate mistakes, one for each kind of check: each must be seen by the step of `make test`, or of `make test-all`, that is named beside it.

They are made one after the other in a clone of the last commit, in `target/mistakes`, which is built once. The step is run there by
`python -m evidence test --only STEP`, a test program of Rust by `cargo test` of its crate alone; it has to fail with the mistake, and to pass without
any. Needs what `make test` needs, 3 GB of disk, and one or two minutes for each mistake.

    .venv/bin/python -m evidence check mistakes                what `make test` sees
    .venv/bin/python -m evidence check mistakes --all          also what only `make test-all` sees
    .venv/bin/python -m evidence check mistakes --only rope    those whose name has that in it
    .venv/bin/python -m evidence check mistakes --list         the list, as Markdown

Ends with status 1 if a mistake is not seen, or a text that one changes is not there any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from evidence.lib import common


@dataclass(frozen=True)
class Mistake:
    what: str
    file: str
    right: str
    wrong: str
    step: str
    """The step that sees it: part of its name, for `--only`."""
    everything: bool = False
    """Whether only `make test-all` has the step."""


R = "crates/"
MISTAKES = (
    Mistake("a line that is not formatted", R + "files/src/lib.rs", "\nuse ", "\nuse  ", "format"),
    Mistake("a clone that clippy finds", R + "types/src/lib.rs", "pub mod packed;", "pub mod packed;\n\npub fn twice(x: u32) -> u32 { return x.clone() * 2; }", "check lints"),
    Mistake("a command that nobody lists", "evidence/commands.py", 'Command("check gguf"', 'Command("check ggufs"', "evidence selftest"),
    Mistake("a link that leads nowhere", "README.md", "(docs/README.md)", "(docs/READ" "YOU.md)", "check docs"),
    Mistake("a picture that is not its results'", "docs/pictures/start.svg", "</svg>", "<g/></svg>", "make pictures"),
    Mistake("a table that is not its results'", "docs/reference/benchmarks.md", "| 242 |", "| 243 |", "make tables"),
    Mistake("a result of a version that is not known", "evidence/results/speed.jsonl", '"commit": "773cdf65"', '"commit": "773cdf66"', "make tables"),
    Mistake("a feature that makes two builds of a crate", "bindings/python/Cargo.toml", 'memchr = "2"\n', "", "check features"),
    Mistake("a second type of a name", R + "model/src/norm.rs", "pub(crate) struct Norm {", "pub(crate) struct Linear;\n\npub(crate) struct Norm {", "check names"),
    Mistake("a line for one system in a place for all", R + "text/src/lib.rs", "mod ", "#[cfg(target_os = \"linux\")]\nmod ", "check macos"),
    Mistake("a code book with another number", R + "kernels/src/blocks/grids.rs", "0x0000, 0x0002,", "0x0000, 0x0003,", "make codebooks"),
    Mistake("a zero point left out", R + "kernels/src/blocks/q6_k.rs", "const ZERO: i32 = 32;", "const ZERO: i32 = 31;", "rust kernels"),
    Mistake("tokens of a pair taken for one another (AVX-512)", R + "kernels/src/matmul/dot/avx512.rs", "let [high, low] = q[t];", "let [high, low] = q[T - 1 - t];", "rust kernels"),
    Mistake("a tail of columns left out", R + "kernels/src/matmul/dot/avx512.rs", "let rest = k % 256;", "let rest = k % 256 / 64 * 64;", "rust kernels"),
    Mistake("a bound of what low bits add that is a thousandth too small", R + "kernels/src/matmul/best.rs", "magnitudes * (7.5 + rounding)", "magnitudes * (7.4925 + rounding)", "rust kernels"),
    Mistake("an instruction that is called", R + "kernels/src/matmul/dot/avx512.rs", "        let mut out = [[0.0; R]; T];\n        for t in 0..T {\n            out[t] = sums(total[t]);\n        }\n        out",
            "        #[inline(never)]\n        fn apart(v: __m512) -> f32 {\n            // SAFETY: none.\n            unsafe { _mm512_reduce_add_ps(v) }\n        }\n"
            "        std::array::from_fn(|t| std::array::from_fn(|r| apart(total[t][r])))", "check inlined"),
    Mistake("a quantiser that cuts instead of rounding", R + "kernels/src/fit/simple.rs", "*out = (x * id).round() as i8 as u8;", "*out = (x * id) as i8 as u8;", "rust kernels"),
    Mistake("rotary pairs that lie elsewhere", R + "model/src/spec/arch/qwen3.rs", "RopePairing::NeoX", "RopePairing::Interleaved", "agree architectures"),
    Mistake("a sampler that keeps too many", R + "model/src/engine/sampler.rs", "if reached >= wanted &&", "if reached > 2.0 * wanted &&", "rust model"),
    Mistake("a repetition that goes beyond what breaks it", R + "model/src/engine/dry.rs", ".min(longest);", ";", "rust model"),
    Mistake("a page of keys that begins too late", R + "model/src/cache/pages.rs", "positions.div_ceil(POSITIONS)", "(positions / POSITIONS)", "rust model"),
    Mistake("a header whose sizes are multiplied unchecked", R + "formats/src/gguf/parse.rs", "product.checked_mul(*n)", "Some(product.wrapping_mul(*n))", "rust formats"),
    Mistake("merges in the order of their places", R + "text/src/tokenizer/bpe.rs", "self.heap.push(Reverse(Candidate { rank, left, right, len }));", "self.heap.push(Reverse(Candidate { rank: rank & 0, left, right, len }));", "agree tokens"),
    Mistake("blanks after a tag that stay", R + "text/src/template/lexer.rs", "return text.trim_end_matches(is_space);", "return text;", "rust text"),
    Mistake("a piece that is handed out before all of it has come", R + "pages/src/slots/visit.rs", "state.slots[slot as usize].left == 0;", "state.slots[slot as usize].left <= 1;", "rust pages"),
    Mistake("a hash that is not compared", R + "hub/src/pull.rs", "if found == expected {", "if !found.is_empty() {", "rust hub"),
    Mistake("a copy that anybody may write", R + "copy/src/keep.rs", "let mut mode = was.mode() & 0o7777;", "let mut mode = was.mode() & 0o7777 | 0o002;", "rust copy"),
    Mistake("values that are not rotated back", R + "kernels/src/attention/stream.rs", "rotation::rotate_lanes::<S>(v_block, &mut row[..shape.v_dim])", "rotation::rotate_lanes::<S>(1, &mut row[..shape.v_dim])", "rust kernels"),
    Mistake("kilobytes taken for bytes", R + "rusage/src/usage.rs", "max_rss_bytes: count(raw.ru_maxrss) * unit,", "max_rss_bytes: count(raw.ru_maxrss),", "rust rusage"),
    Mistake("a stream without its end", R + "server/src/openai/chat.rs", 'out.push_str("data: [DONE]\\n\\n");', "", "rust alight tests"),
    Mistake("a wrong key that is let in", R + "server/src/access.rs", "if self.keys.is_empty() {", "if self.keys.len() < 2 {", "rust alight tests"),
    Mistake("a usage error with the status of a failure", R + "cli/src/outcome.rs", "ExitCode::from(2)", "ExitCode::from(1)", "rust alight tests"),
    Mistake("an epsilon left out", R + "collective/src/rows/mod.rs", "(mean + f64::from(spec.epsilon)).sqrt()", "mean.sqrt()", "rust collective"),
    Mistake("an error of another class", "bindings/python/src/error.rs", "ModelError::ContextFull { .. } => &CONTEXT_FULL,", "ModelError::ContextFull { .. } => &OPTION,", "python"),
    Mistake("positions that begin at one", "bindings/python/python/alight/jax/models/_programs.py", "found: tuple[jax.Array, Cache] = self._run(\"logits\")(params, cache, tokens, pos)", "found: tuple[jax.Array, Cache] = self._run(\"logits\")(params, cache, tokens, pos + 1)", "python"),
    Mistake("an id of a call that clients of Ollama do not get", R + "server/src/ollama/mod.rs", 'call.id.unwrap_or_else(|| ids::id("call_"))', 'ids::id("call_")', "check notations"),
    Mistake("an assertion that only a checked build has", R + "kernels/src/matmul/matrix.rs", "debug_assert!(self.layout == Layout::Rows);", "debug_assert!(self.layout == Layout::Tiles);", "checked arithmetic", True),
)


def add_arguments(parser) -> None:
    """Which mistakes."""
    parser.add_argument("--all", action="store_true", help="also those that only `make test-all` sees")
    parser.add_argument("--list", action="store_true", help="print them, as a table")
    common.add_only_argument(parser, "mistakes")


def tested(folder: Path, step: str, everything: bool) -> subprocess.CompletedProcess:
    """The step in the clone, with what it needs."""
    line = [sys.executable, "-m", "evidence", "test", *(["--all"] if everything else []), "--only", step]
    if step.startswith("rust "):
        name = step.split()[1]
        line = ["cargo", "test", "--release", "--locked", "--quiet", "--tests", "-p", name if name in ("alight", "rusage") else f"alight-{name}"]
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, env=environment)


def clone() -> Path:
    """A clone of the last commit, with what has been fetched here."""
    folder = common.TARGET / "mistakes"
    if folder.is_dir():
        subprocess.run(["git", "-C", folder, "fetch", "--quiet", "origin"], check=True)
        subprocess.run(["git", "-C", folder, "reset", "--quiet", "--hard", "origin/HEAD"], check=True)
    else:
        subprocess.run(["git", "clone", "--quiet", common.ROOT, folder], check=True)
    for name in ("models", ".venv", ".venv-cuda"):
        if (common.ROOT / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to(common.ROOT / name)
    return folder


def run(args) -> int:
    """Makes each mistake, and says whether it was seen; the exit status."""
    chosen = [m for m in MISTAKES if common.is_asked(args, m.what) and (args.all or args.list or not m.everything)]
    if args.list:
        common.table([["mistake", "in", "seen by", "of"]] + [
            [m.what, f"`{m.file}`", m.step, "make test-all" if m.everything else "make test"] for m in chosen])
        return 0
    folder, missed = clone(), 0
    for step, everything in dict.fromkeys((m.step, m.everything) for m in chosen):
        done = tested(folder, step, everything)
        if done.returncode != 0:
            print(f"{step} fails without a mistake, and shows nothing:\n{done.stdout[-2000:]}{done.stderr[-2000:]}", flush=True)
            return 1
    for mistake in chosen:
        began, path = time.monotonic(), folder / mistake.file
        before = path.read_text()
        if mistake.right not in before:
            print(f"NOT THERE: {mistake.what}: {mistake.file} has no {mistake.right!r}", flush=True)
            missed += 1
            continue
        path.write_text(before.replace(mistake.right, mistake.wrong, 1))
        try:
            done = tested(folder, mistake.step, mistake.everything)
        finally:
            path.write_text(before)
        said = done.stdout + done.stderr
        # A build that fails shows nothing.
        built = not mistake.step.startswith("rust ") or "could not compile" not in said
        seen = done.returncode != 0 and built and (mistake.step.startswith("rust ") or f"FAILED    {mistake.step}" in said)
        missed += not seen
        print(f"{'seen' if seen else 'NOT SEEN'} by {mistake.step}: {mistake.what} ({mistake.file}), {time.monotonic() - began:.0f} s", flush=True)
        if not seen:
            print(said[-1500:], flush=True)
    print(f"mistakes: {len(chosen) - missed} passed, {missed} failed")
    if not missed and not args.only:
        shutil.rmtree(folder)
    return 1 if missed else 0
