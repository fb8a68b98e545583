"""Tables of the documentation that are made from measured figures (`evidence.lib.results`).

A page has a table between two comments, and nothing between them is written by hand:

    <!--results:NAME-->
    <!--end-->

A new table is an entry of TABLES and the two comments in its page; `python -m evidence make tables` writes what belongs between them.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from evidence.lib import common, results
from evidence.lib.results import Figure, Result

README, BENCHMARKS, CELLS, PERFORMANCE, CUDA = "README.md", "docs/reference/benchmarks.md", "docs/reference/benchmarks-intel.md", "docs/explanation/performance.md", "docs/explanation/cuda.md"
COPY, RUSAGE, CONVERTING = "docs/how-to/copy.md", "docs/how-to/rusage.md", "docs/reference/converting.md"
SECURITY = "SECURITY.md"
LOADING, PROMPTS, JAX = "docs/explanation/loading.md", "docs/reference/prompt-cache.md", "docs/reference/jax.md"
# How many words a page may have (as `wc -w` counts), so that it stays an answer.
MAX_WORDS = {BENCHMARKS: 1500, CUDA: 2000, PERFORMANCE: 3000}
MAX_CELL = 200
BEGIN, END = "<!--results:{}-->", "<!--end-->"
DASH = "–"


@dataclass(frozen=True)
class Column:
    """What stands in a column. `figure`: its name, or several, of which the least counts (ratios to several peers)."""

    title: str
    figure: str | tuple[str, ...] = ""
    best: bool = False
    """Of several values the largest alone: a peer's ways to run."""
    spread: bool = False
    text: str = ""
    """Instead of a figure, what the line itself has: `date` or `commit`."""
    joined: tuple[str, ...] = ()
    """Instead of one figure, all of these that the line has, with their names and units."""

    def names(self) -> tuple[str, ...]:
        return (self.figure,) if isinstance(self.figure, str) else self.figure

    def cell(self, line: Result) -> str:
        if self.text:
            return getattr(line, self.text)
        if self.joined:
            return "; ".join(f"{name}: {cell(line.figures[name], False)} {line.figures[name].unit}" for name in self.joined if name in line.figures)
        found = [line.figures[name] for name in self.names() if name in line.figures]
        if not found:
            return DASH
        figure = min(found, key=lambda one: one.middle())
        shown = number(max(figure.values)) if self.best and figure.values else cell(figure, self.spread)
        return f"**{shown}**" if self.names()[0].startswith(OURS) and figure.middle() < 1 else shown


# Ratios that begin with one of these are ours to a peer's: below 1 we are behind.
OURS = ("packed / ", "GGUF / ", "better of ours / ")


@dataclass(frozen=True)
class Pick:
    """Rows of a table: all lines of a set, all but one, or one, which may have a name of its own."""

    set: str
    case: str = ""
    label: str = ""
    without: str = ""


@dataclass(frozen=True)
class Table:
    page: str
    head: str
    """The name of the first column."""
    rows: tuple[Pick, ...]
    columns: tuple[Column, ...]
    caption: bool = True
    """Whether a line below it says machine, date, versions and peers."""

    def lines(self, found: list[Result]) -> list[tuple[str, Result]]:
        """The rows' names and lines."""
        out = []
        for pick in self.rows:
            chosen = [results.of_case(found, pick.set, pick.case)] if pick.case else results.of_set(found, pick.set)
            out += [(pick.label or label(one.case), one) for one in chosen if one.case != pick.without]
        return out

    def draw(self, found: list[Result]) -> str:
        rows = self.lines(found)
        for column in self.columns:
            if not column.text and not column.joined and not any(set(column.names()) & set(line.figures) for _, line in rows):
                raise SystemExit(f"{self.page}: no line has a figure {' or '.join(map(repr, column.names()))} for the column {column.title!r}")
        out = [[self.head, *(column.title for column in self.columns)]]
        out += [[name, *(column.cell(line) for column in self.columns)] for name, line in rows]
        head, *body = ["| " + " | ".join(row) + " |" for row in out]
        text = "\n".join([head, "|" + "---|" * len(out[0]), *body])
        return f"{text}\n\n{self.about([line for _, line in rows])}" if self.caption else text

    def about(self, lines: list[Result]) -> str:
        """Machines, dates, versions of ours and of the peers."""
        machines = list(dict.fromkeys(line.machine for line in lines))
        commits: dict[str, list[str]] = {}
        for line in lines:
            commits.setdefault(line.date, []).append(line.commit)
        days = [f"{day} ({', '.join(dict.fromkeys(of_day))})" for day, of_day in commits.items()]
        peers = list(dict.fromkeys(f"{name}: {version}" for line in lines for name, version in line.peers.items()))
        return ". ".join("; ".join(one) for one in (machines, days, peers) if one) + "."


def number(value: float) -> str:
    """As it was measured: 21.0 is not 21. Thousands are marked from ten thousand on."""
    if value >= 10_000:
        return f"{value:,}"
    return str(value) if abs(value) >= 0.001 or value == 0 else f"{value:f}"


def cell(figure: Figure, spread: bool) -> str:
    ends = [number(end) for end in (figure.least, figure.most) if end is not None]
    if not figure.values:
        return f"> {ends[0]}" if figure.most is None else "–".join(ends)
    shown = ", ".join(number(value) for value in figure.values)
    return f"{shown} ({'–'.join(ends)})" if spread and ends else shown


# What a row is called, where the lines have the short names of the tools.
WORDS = [("SmolLM2 135M Q4_1", "SmolLM2"), ("Gemma 3 270M Q4_K_M", "Gemma 3"), ("random 3B Q4_0", "3B"), ("random 7B Q4_0", "7B"), ("tg64 at depth 4096", "answer after 4096"),
         ("tg32 at depth 4096", "answer after 4096"), ("'s shape, 4 layers, Q4_K_M", ""), ("'s shape, 2 layers, MXFP4", ""),
         ("'s shape, 8 layers, Q4_K_M", ""), ("a hybrid of Qwen 3.5's kind, Q4_K_M", "Qwen 3.5 hybrid")]


def label(case: str) -> str:
    for name, word in WORDS:
        case = case.replace(name, word)
    return re.sub(r"\bpp(\d+)", r"prompt of \1", re.sub(r"\btg\d+", "answer", case.replace("pp512", "prompt")))


PACKED, GGUF, LLAMA = Column("packed", "alight, packed"), Column("GGUF", "alight, GGUF"), Column("llama.cpp", "llama.cpp")
IK = Column("ik_llama.cpp", "ik_llama.cpp", best=True)
RATIO = Column("packed / best peer", ("packed / llama.cpp", "packed / ik_llama.cpp"))
SPEED = (PACKED, GGUF, LLAMA, IK, RATIO)
ANSWER = Column("answer, tokens/s", "answer")

TABLES = {
    "speed": Table(README, "tokens per second", (
        Pick("zen4", "SmolLM2 135M Q4_1, tg128", "answer, SmolLM2 135M, Zen 4"), Pick("zen4", "SmolLM2 135M Q4_1, pp512", "prompt, SmolLM2 135M, Zen 4"),
        Pick("zen4", "random 7B Q4_0, tg32", "answer, 7B, Zen 4: memory is the limit"), Pick("zen4", "random 7B Q4_0, pp256", "prompt, 7B, Zen 4"),
        Pick("intel", "random 7B Q4_0, tg128", "answer, 7B, Intel with AVX-512"), Pick("intel", "random 7B Q4_0, pp512", "prompt, 7B, Intel with AVX-512"),
        Pick("amx", "random 3B Q4_0, tg128", "answer, 3B, Intel with AMX"), Pick("amx", "random 3B Q4_0, pp512", "prompt, 3B, Intel with AMX"),
        Pick("zen3", "random 3B Q4_0, tg128", "answer, 3B, Zen 3 (AVX2)"), Pick("zen3", "random 3B Q4_0, pp512", "prompt, 3B, Zen 3 (AVX2)"),
    ), (*SPEED, Column("measured", text="date"), Column("version", text="commit")), caption=False),
    "start-readme": Table(README, "first token of a new process", (
        Pick("start-7b", "alight, packed file (auto: map)", "7B, Zen 4: Alight, packed"), Pick("start-7b", "alight (auto: map in place)", "7B, Zen 4: Alight, GGUF"),
        Pick("start-7b", "llama.cpp, its best, --no-repack", "7B, Zen 4: llama.cpp, its best options"), Pick("start-7b", "llama.cpp", "7B, Zen 4: llama.cpp"),
        Pick("start-intel", "random 3B Q4_0, packed", "3B, Intel with AVX-512: Alight, packed"), Pick("start-intel", "random 3B Q4_0, GGUF", "3B, Intel with AVX-512: Alight, GGUF"),
        Pick("start-intel", "SmolLM2 135M Q4_1, packed", "SmolLM2 135M, Intel with AVX-512: Alight, packed"), Pick("start-intel", "SmolLM2 135M Q4_1, GGUF", "SmolLM2 135M, Intel with AVX-512: Alight, GGUF"),
    ), (Column("file cached, ms", "warm"), Column("nothing cached, ms", "cold"), Column("measured", text="date"), Column("version", text="commit")), caption=False),
    "zen4": Table(BENCHMARKS, "Zen 4, tokens/s", (Pick("zen4", without="Gemma 3 270M Q4_K_M, tg64 at depth 4096"),), SPEED),
    "intel": Table(BENCHMARKS, "Intel, AVX-512, tokens/s", (Pick("intel", without="Gemma 3 270M Q4_K_M, tg32 at depth 4096"),), SPEED),
    "cells": Table(CELLS, "Intel, AVX-512, tokens/s", (Pick("cells"),), (
        PACKED, GGUF, IK, Column("packed / ik_llama.cpp", "packed / ik_llama.cpp"), Column("GGUF / ik_llama.cpp", "GGUF / ik_llama.cpp"),
        Column("packed, % of the limit", "packed, share of the limit"), Column("GGUF, % of the limit", "GGUF, share of the limit"))),
    "amx": Table(BENCHMARKS, "Intel, AMX, tokens/s", (Pick("amx"),), SPEED),
    "zen3": Table(BENCHMARKS, "Zen 3, AVX2, tokens/s", (Pick("zen3", without="Gemma 3 270M Q4_K_M, tg32 at depth 4096"),), SPEED),
    "mixtures": Table(BENCHMARKS, "Zen 4, tokens/s", (Pick("mixtures"),), (PACKED, GGUF, LLAMA, IK, Column("ours / best peer", "better of ours / best peer"))),
    "experts-group": Table(LOADING, "experts that fit", (Pick("experts-group"),), (ANSWER, Column("first token, s", "first token"), Column("read, GB", "read"))),
    "start-7b": Table(BENCHMARKS, "7B, ms", (
        Pick("start-7b", "alight, packed file (auto: map)", "packed"), Pick("start-7b", "alight (auto: map in place)", "GGUF"),
        Pick("start-7b", "llama.cpp"), Pick("start-7b", "llama.cpp, its best, --no-repack", "llama.cpp --no-repack"),
    ), (Column("cached", "warm"), Column("cold", "cold"), Column("peak, MiB", "peak resident"))),
    "start-packed": Table(LOADING, "packed, cached", tuple(Pick("start-packed", case) for case in (
        "SmolLM2 135M Q4_1", "random 3B Q4_0", "random 7B Q4_0")), (Column("ms", "alight, packed", spread=True),)),
    "processes": Table(BENCHMARKS, "processes", (Pick("processes"),), (Column("one copy, MiB", "one copy"), Column("together, MiB", "all together"), Column("ratio", "ratio"))),
    "server": Table(BENCHMARKS, "server, Zen 3", (
        Pick("server", "from the start of the process to the first answered request", "SmolLM2: first answer, ms"),
        Pick("server", "tokens/s of 1 client that asks again when it was answered", "1 client, tokens/s"), Pick("server", "tokens/s of 4 clients", "4 clients, tokens/s"),
        Pick("server", "tokens/s of 16 clients", "16 clients, tokens/s"),
        Pick("server", "longest gap of a stream while a prompt of some 3,000 tokens is read", "longest gap beside a long prompt, ms"),
        Pick("server-3b", "from the start of the process to the first answered request", "3B: first answer, ms"),
        Pick("server-3b", "tokens/s of 1 client, prompts of some 65 tokens included", "1 client, tokens/s"), Pick("server-3b", "tokens/s of 16 clients", "16 clients, tokens/s"),
    ), (Column("alight", "alight"), Column("llama-server", "llama-server"))),
    "embeddings": Table("docs/how-to/embeddings.md", "all-MiniLM-L6-v2, texts/s", (Pick("embeddings"),), tuple(
        Column(name, name) for name in ("alight Q8_0", "alight F32", "llama.cpp Q8_0", "llama.cpp F32", "torch F32"))),
    "soak": Table(SECURITY, "random and hostile requests", (Pick("soak"),), (
        Column("answered, to the bit as alone", "answered"), Column("left by their clients", "left"), Column("refused or hostile", "others"),
        Column("memory in each sixth, at most, MiB", "memory"),
    )),
    "planes": Table("docs/explanation/output-matrix.md", "Gemma 3 270M, tokens/s", (Pick("planes"),), (
        Column("packed with `--planes`", "planes"), Column("packed", "tiles"), Column("ratio", "ratio"))),
    "notations": Table("docs/explanation/evidence.md", "answers of scripted models", (Pick("notations"),), (
        Column("as scripted", "as scripted"), Column("otherwise", "otherwise"))),
    "zen4-avx2": Table(PERFORMANCE, "AVX2 alone, on Zen 4, tokens/s", (Pick("zen4-avx2"),), (PACKED, GGUF, LLAMA, Column("packed / llama.cpp", "packed / llama.cpp"))),
    "levels-vnni": Table(PERFORMANCE, "tokens/s", (Pick("levels-vnni"),), (Column("avx2", "avx2"), Column("avxvnni", "avxvnni"), Column("ratio", "avxvnni / avx2"))),
    "levels-amx": Table(PERFORMANCE, "tokens/s", (Pick("levels-amx"),), (Column("avx512", "avx512"), Column("amxint8", "amxint8"), Column("amx", "amx"), Column("amxint8 / avx512", "amxint8 / avx512"))),
    "sequences": Table(PERFORMANCE, "sequences at once, tokens/s of all", (Pick("sequences"),), tuple(Column(count, count) for count in ("1", "2", "4", "8", "16"))),
    "drafts": Table(PERFORMANCE, "tokens/s", (Pick("drafts"),), (Column("off", "off", spread=True), Column("auto", "auto", spread=True))),
    "neighbour": Table(PERFORMANCE, "beside a process that spins", (Pick("neighbour"),), (Column("s", "time", spread=True), Column("times idle", "time / idle"))),
    "cache-types": Table(LOADING, "--cache-type", (Pick("cache-types"),), (
        Column("perplexity", "perplexity"), Column("perplexity / f16", "perplexity / f16"))),
    "accuracy": Table(PERFORMANCE, "engine", (Pick("accuracy"),), (
        Column("mean KL", "mean KL"), Column("99 %", "99 %"), Column("same first token, %", "same first token"), Column("perplexity / exact", "perplexity / exact"))),
    "context": Table(LOADING, "memory of a process, MiB", (Pick("context"),), tuple(Column(title, name) for title, name in (
        ("its own with -c 4096", "anonymous at -c 4096"), ("after 700 words", "anonymous after some 700 words"), ("of which KV cache", "of which KV cache"), ("the file's, shared", "of the file")))),
    "windows": Table(LOADING, "memory of what was read, MiB", (Pick("windows"),), (
        Column("all layers keep all (c980e456)", "of the depth, before"), Column("windows", "of the depth, now"), Column("of which keys and values", "kept, now"))),
    "start-gguf": Table(LOADING, "GGUF, cached, ms", (Pick("start-gguf"),), tuple(Column(name, name, spread=True) for name in ("alight, GGUF", "llama.cpp", "llama.cpp, its best"))),
    "experts-cold": Table(LOADING, "prompt", (Pick("experts-cold"),), (Column("first token, s", "first token"), Column("read by then, GB", "read"))),
    "experts-budget": Table(LOADING, "memory", (Pick("experts-budget"),), (
        ANSWER, Column("experts that fit, %", "experts that fit"), Column("of those chosen, in memory, %", "of those chosen, in memory"),
        Column("the map in the same memory, tokens/s", "the map in the same memory"), Column("share of the limit, %", "share of the limit"))),
    "prompt-files": Table(PROMPTS, "prompt", (Pick("prompt-files"),), (
        Column("computed, s", "first token, computed"), Column("from a file, ms", "first token, from a file", spread=True), Column("file, MB", "file"),
        Column("own memory computed, MB", "anonymous memory, computed"), Column("from a file, MB", "anonymous memory, from a file"))),
    "cp": Table(COPY, "tool", (Pick("cp"),), (
        Column("on the disk after, s", "on the disk after", spread=True), Column("MB/s", "speed"), Column("time / fastest other", "time / fastest other of the round"),
        Column("most cached, MiB", "peak cached"), Column("left cached of source, copy, MiB", "left cached"))),
    "rusage": Table(RUSAGE, "tool", (Pick("rusage"),), (Column("added, µs (quartiles)", "added", spread=True), Column("wall time reported, µs", "reported"))),
    "convert": Table(CONVERTING, "converted", (Pick("convert"),), (
        Column("alight convert, s", "alight convert", spread=True), Column("cp, s", "cp", spread=True), Column("speed / cp", "speed / cp", spread=True), Column("peak, MB", "peak resident"))),
    "quantize": Table(CONVERTING, "type", (Pick("quantize"),), (
        Column("alight, million weights/s", "alight"), Column("llama.cpp", "llama.cpp"), Column("ratio", "ratio", spread=True))),
    "collective-cpu": Table(JAX, "µs a layer; 1, 8, 32 rows", (Pick("collective-cpu"),), tuple(Column(name, name) for name in ("fused", "psum, residual and norm", "ratio"))),
    "decode-cpu": Table(JAX, "ms a token; devices", (Pick("decode-cpu"),), tuple(Column(name, name) for name in ("fused", "psum, residual and norm", "native engine"))),
    "start-jax": Table(JAX, "first token, ms", (Pick("start-jax"),), tuple(Column(name, name) for name in (
        "alight run", "tp 1, kept programs", "tp 1, none kept", "tp 2, kept programs", "tp 2, none kept"))),
    "folder": Table(JAX, "where the files are, way", (Pick("folder"),), (Column("s", "time", spread=True), Column("own memory, GB", "memory of its own"), Column("peak, GB", "peak"))),
    "gpu": Table(CUDA, "one GPU", (
        Pick("gpu-models"), Pick("gpu-blocks", "14336 × 4096", "product of blocks, 14336 × 4096, one token"),
        Pick("gpu-collective", "8 × 4608", "collective, 8 × 4608, one GPU as all ranks")), (
        Column("figures", joined=("answer", "share of a copy's rate", "8 sequences", "32 sequences", "load", "first token of 512", "Q8_0", "Q8_0, share of a copy's rate",
                                  "Q4_K", "Q4_K, share of a copy's rate", "1 rank", "2", "4", "8")),)),
}


def used() -> dict[str, set[str]]:
    """The sets that tables show, with the pages."""
    found: dict[str, set[str]] = {}
    for table in TABLES.values():
        for pick in table.rows:
            found.setdefault(pick.set, set()).add(table.page)
    return found


def filled(page: str, text: str, found: list[Result]) -> str:
    """The text of a page with its tables as they have to be; ends the program if a table of its is not there, or one that is not known."""
    for name in re.findall(BEGIN.format("(.+?)"), text):
        if name not in TABLES or TABLES[name].page != page:
            raise SystemExit(f"{page}: the table {name!r} is no table of this page in evidence/lib/tables.py")
    for name, table in TABLES.items():
        if table.page == page:
            begin = BEGIN.format(name)
            pattern = rf"{re.escape(begin)}\n.*?{re.escape(END)}"
            if len(re.findall(pattern, text, re.S)) != 1:
                raise SystemExit(f"{page}: the table {name!r} has to be there once, between {begin} and {END}")
            text = re.sub(pattern, lambda _: f"{begin}\n\n{table.draw(found)}\n\n{END}", text, flags=re.S)
    return text


def long(page: str, text: str) -> list[str]:
    """A page of more words than it may have, and cells that are too long."""
    out = []
    words = len(text.split())
    if words > MAX_WORDS.get(page, words):
        out.append(f"{page}: {words} words, and at most {MAX_WORDS[page]} are kept: take something away")
    for line in text.splitlines():
        out += [f"{page}: a cell of {len(one)} characters, at most {MAX_CELL}: {one.strip()[:60]}" for one in line.split("|") if line.startswith("|") and len(one) > MAX_CELL]
    return out


def pages() -> dict[str, Path]:
    """The pages that have tables."""
    return {page: common.ROOT / page for page in dict.fromkeys(table.page for table in TABLES.values())}
