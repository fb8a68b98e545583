"""Pictures of the tables of docs/reference/benchmarks.md that give tokens per second of whole models on a CPU: ours beside each peer, below
what memory or the multipliers allow.

Where the page says what the limit was (in the table, or in a table of limits beside it), marks are shares of it. A peer's share is ours,
divided by the ratio of the table, which was taken within rounds. Where the page has no limit, marks are ratios to the best peer. Numbers
come from the page alone; of two rounds that a cell shows, the mean.

A table more is an entry of SPEEDS.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean

from evidence.lib.svg import DotRow, Look, Mark, Panel, dots
from evidence.lib.tables import figures, number, table_with

PACKED, GGUF, LLAMA, IK = "Alight, packed", "Alight, GGUF", "llama.cpp", "ik_llama.cpp"
LOOKS = {PACKED: Look("circle", "ours"), GGUF: Look("circle", "hollow"), LLAMA: Look("square", "other"), IK: Look("diamond", "third")}
BOTH_OURS = (PACKED, GGUF)
SHARES = {"tg": "Answers: share of what memory allows", "pp": "Prompts: share of what the multipliers allow"}
NO_LIMIT = "No limit is stated: times the best peer"
LIMITS = "what the limit is"

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Speeds:
    """A table, and what makes panels of it: `read(rows, page, self)`."""

    title: str
    about: list[str]
    heading: str
    columns: tuple[str, ...]
    read: Callable[[Rows, str, "Speeds"], list[Panel]]
    looks: dict[str, Look]
    said: str = "t/s: ours, best peer"
    which: int = 0

    def draw(self, page: str) -> str:
        return dots(self.title, self.about, self.looks, self.said, self.read(table_with(self.heading, self.columns, page, self.which), page, self))


def percent(least: float, most: float) -> str:
    return f"{100 * least:.0f} %" if round(100 * least) == round(100 * most) else f"{100 * least:.0f}–{100 * most:.0f} %"


def times(values: list[float]) -> str:
    ends = [f"{round(one, 2 if one < 2 else 1):g}" for one in (min(values), max(values))]
    return f"{ends[0]} ×" if ends[0] == ends[1] else f"{ends[0]}–{ends[1]} ×"


def speed(values: list[float]) -> str:
    """One figure as it is in the table, of several the mean."""
    return f"{values[0]:g}" if len(values) == 1 else f"{round(mean(values), 0 if mean(values) >= 100 else 1):g}"


def mark(values: list[float]) -> Mark:
    """One value, or the middle of several with their ends."""
    return Mark(mean(values), *((min(values), max(values)) if len(values) > 1 else ()))


def short(model: str) -> str:
    """A model's name where the longest one has to stand beside a case."""
    return model.replace("Gemma 3 270M Q4_K_M", "Gemma 3 Q4_K_M").replace("SmolLM2 135M", "SmolLM2")


def split(row: DotRow, limits: dict[str, Panel], panel: Panel) -> None:
    limits.setdefault(panel.name, panel).rows.append(row)


# The table of Zen 4: each file of ours has its own share, measured beside it.


def measured_shares(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    """Each row is one file of ours; llama.cpp ran beside both. So there are two figures of its share, one by each of our rows: the ends of
    its line."""
    cases: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows:
        cases.setdefault((row["model"], row["case"]), {})[row["file"]] = row
    panels: dict[str, Panel] = {}
    for (model, case), files in cases.items():
        share = {name: 1.0 if row["share of the limit"] == "all of it" else number(row["share of the limit"]) / 100 for name, row in files.items()}
        peer = [share[name] / number(files[name]["ratio"]) for name in ("GGUF", "packed")]
        marks = {PACKED: Mark(share["packed"]), GGUF: Mark(share["GGUF"]), LLAMA: mark(peer)}
        best = max(files, key=lambda name: (share[name], name))
        said = f"{files[best]['alight t/s'].split()[0]}, {files['GGUF']['llama.cpp t/s'].split()[0]}"
        name = SHARES[case[:2]]
        split(DotRow(f"{model}, {case}", marks, percent(share[best], share[best]), said), panels, Panel(name, "the limit", [], share=True))
    return list(panels.values())


# The tables with a column for each engine and a ratio to each peer.


def limit_of(model: str, case: str, tps: float, heading: str, page: str) -> list[float] | None:
    """What the table of limits of a section says of our packed file: its share, one number or the ends of a range."""
    for row in table_with(heading, (LIMITS,), page):
        if row[LIMITS].startswith(f"packed {case}") and "%" in row.get(model, ""):
            return [float(one) / 100 for one in re.findall(r"[\d.]*\d", row[model])]
        if row[LIMITS].startswith(f"{case} ") and re.search(r"\d", row.get(model, "")):
            return [tps / number(row[model])]
    return None


def ratio_columns(limited: bool) -> Callable[[Rows, str, Speeds], list[Panel]]:
    """Marks by the ratios of the table, which are to ik_llama.cpp, or, where it did not run, to llama.cpp."""

    def read(rows: Rows, page: str, of: Speeds) -> list[Panel]:
        panels: dict[str, Panel] = {}
        for row in rows:
            model, case = row["model"], row["case"]
            with_ik = "packed / ik" in row
            to_best = {file: number(row[f"{file} / ik" if with_ik else f"{file} / that"]) for file in ("GGUF", "packed")}
            marks = {PACKED: to_best["packed"], GGUF: to_best["GGUF"], LLAMA: 1.0}
            if with_ik:
                marks |= {LLAMA: to_best["packed"] / number(row["packed / llama.cpp"]), IK: 1.0}
            base = max(one for name, one in marks.items() if name not in BOTH_OURS)
            peers = [figures(row["llama.cpp, its best"])[0], *(figures(row["ik_llama.cpp, -rtr 0, 1"]) if with_ik else [])]
            best = PACKED if to_best["packed"] >= to_best["GGUF"] else GGUF
            tps = {PACKED: figures(row["alight, packed"])[0], GGUF: figures(row["alight, GGUF"])[0]}
            said = f"{tps[best]:g}, {max(peers):g}"
            limit = limit_of(model, case, tps[PACKED], of.heading, page) if limited else None
            label = short(f"{model}, {case.replace('tg32 at ', '')}")
            if limit is None:
                drawn = DotRow(label, {name: Mark(one / base) for name, one in marks.items()}, times([marks[best] / base]), said)
                split(drawn, panels, Panel(NO_LIMIT, "the best peer", [], share=False))
                continue
            scale = [one / to_best["packed"] for one in limit]
            shown = {name: mark([one * each for each in scale]) for name, one in marks.items()}
            drawn = DotRow(label, shown, percent(marks[best] * scale[0], marks[best] * scale[-1]), said)
            split(drawn, panels, Panel(SHARES[case[:2]], "the limit", [], share=True))
        return [panels[name] for name in (*SHARES.values(), NO_LIMIT) if name in panels]

    return read


# The tables that have tokens per second, and nothing that says a limit.


@dataclass(frozen=True)
class Cells:
    """A label, the cell of each engine, and the ratios that the table has itself, as it rounds them."""

    label: str
    cells: dict[str, str]
    stated: dict[str, list[float]] = field(default_factory=dict)


def ratios(name: str, limit: str, lines: list[Cells], ours: tuple[str, ...], against: str | None = None) -> Panel:
    """A panel of ratios to the best of those that are not ours, or to `against`. Rounds that a cell shows are compared one by one."""
    drawn = []
    for line in lines:
        tps = {engine: figures(cell) for engine, cell in line.cells.items() if figures(cell)}
        base = against or max((engine for engine in tps if engine not in ours), key=lambda engine: mean(tps[engine]))
        by = {engine: [a / b for a, b in zip(each, tps[base])] if len(each) == len(tps[base]) else [mean(each) / mean(tps[base])]
              for engine, each in tps.items()} | line.stated
        best = max((engine for engine in tps if engine in ours and engine != base), key=lambda engine: mean(by[engine]))
        marks = {engine: mark(each) if engine in ours else Mark(mean(each)) for engine, each in by.items()}
        drawn.append(DotRow(line.label, marks, times(by[best]), f"{speed(tps[best])}, {speed(tps[base])}"))
    return Panel(name, limit, drawn, share=False)


def first_avx2(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    lines = [Cells(short(row[""]), {PACKED: row["alight, packed"], GGUF: row["alight, GGUF"], LLAMA: row["llama.cpp"]},
                   {PACKED: figures(row["packed / llama.cpp"])}) for row in rows]
    return [ratios(NO_LIMIT, "llama.cpp", lines, BOTH_OURS)]


def levels(names: tuple[str, ...], stated: str, tokens: bool = False) -> Callable[[Rows, str, Speeds], list[Panel]]:
    """A column for each level of one and the same program. The others are compared with the first; the column `stated` has the second's ratio."""

    def read(rows: Rows, page: str, of: Speeds) -> list[Panel]:
        lines, model = [], ""
        for row in rows:
            label = row[""]
            same = re.match(r"the same, (.*)", label)
            model = model if same else label.removesuffix(", GGUF").removesuffix(", prompt")
            label = f"{model}, {same[1]}" if same else label
            label = short(f"{label}, {row['tokens']}" if tokens else label)
            lines.append(Cells(label, {name: row[name] for name in names}, {names[1]: figures(row[stated])}))
        return [ratios(f"No limit is stated, and no peer ran: times the level {names[0]}", names[0], lines, names, against=names[0])]

    return read


def mixtures(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    lines = []
    for row in rows:
        model = re.sub(r"^a hybrid of (Qwen 3\.5's kind),.*", r"\1", re.sub(r"'s shape,.*", "", row["model"]))
        cells = {PACKED: row["packed"], GGUF: row["alight t/s"], LLAMA: row["llama.cpp"], IK: row["ik_llama.cpp"]}
        # The ratio is of the better of ours; the other's is as much smaller as its tokens per second.
        ours = {name: figures(cells[name])[0] for name in BOTH_OURS}
        stated = {name: [number(row["ratio to the better"]) * tps / max(ours.values())] for name, tps in ours.items()}
        lines.append(Cells(f"{model}, {row['case']}", cells, stated))
    return [ratios(NO_LIMIT, "the best peer", lines, BOTH_OURS)]


def sequences(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    """A row for each engine, a column for each number of sequences. Of the two ways of ik_llama.cpp, the better."""
    names = {"alight, packed": PACKED, "alight, GGUF": GGUF, "llama.cpp": LLAMA, "ik_llama.cpp": IK, "ik_llama.cpp -rtr": IK}
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        for count in (name for name in row if name.isdigit() and row["engine"] in names and row[name]):
            of_engine = cells.setdefault((row["model"], count), {})
            name = names[row["engine"]]
            if name not in of_engine or mean(figures(row[count])) > mean(figures(of_engine[name])):
                of_engine[name] = row[count]
    ratio = {row["model"]: row for row in rows if row["engine"] == "packed / the best of both"}
    lines = [Cells(f"{model}, {count} sequence{'s' * (count != '1')}", engines, {PACKED: figures(ratio[model][count])} if model in ratio else {})
             for (model, count), engines in cells.items() if {LLAMA, IK} & set(engines)]
    return [ratios("What memory gave at that hour is not stated: times the best peer", "the best peer", lines, BOTH_OURS)]


def server(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    lines = []
    for row in rows:
        label = next(iter(row.values()))
        if clients := re.match(r"(?:tokens/s )?of (\d+)", label):
            label = f"{clients[1]} client{'s' * (clients[1] != '1')}"
            lines.append(Cells(label, {name: row[name] for name in SERVERS}, {"alight": figures(row["ratio"])}))
    return [ratios("No limit is stated: times llama-server", "llama-server", lines, ("alight",))]


SLOTS, MAP = "Alight, slots (the default)", "Alight, --load mmap"
WITHIN = {SLOTS: Look("circle", "ours"), MAP: Look("circle", "hollow"), LLAMA: Look("square", "other")}
ROOMS = "The disk's limit is not in the table: times llama.cpp in the same memory"


def who(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    names, lines = {"slots (the default)": SLOTS, "--load mmap": MAP, "llama.cpp, mmap": LLAMA}, {}
    for row in rows:
        lines.setdefault(row["experts that fit"], {})[names[row["who"]]] = row["t/s"]
    return [ratios(ROOMS, "llama.cpp", [Cells(f"{share} of the experts fit", cells) for share, cells in lines.items()], (SLOTS, MAP))]


def longer(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    """Of two rounds, the last: llama.cpp ran in it."""
    lines = []
    for row in rows:
        if row["llama.cpp, mmap"]:
            cells = {SLOTS: row["slots (the default)"], MAP: row["--load mmap"], LLAMA: row["llama.cpp, mmap"]}
            cells = {name: cell.split(", ")[-1] for name, cell in cells.items()}
            lines.append(Cells(f"{row['experts that fit']} fit, {number(row['answer']):g} tokens", cells, {SLOTS: figures(row["slots / llama.cpp"])}))
    return [ratios(ROOMS, "llama.cpp", lines, (SLOTS, MAP))]


def below_disk(rows: Rows, page: str, of: Speeds) -> list[Panel]:
    """Shares as the table has them; the map's by the same limit. Two rounds are the ends of a line."""
    drawn = []
    for row in rows:
        share, tps = [one / 100 for one in figures(row["share of it"].replace("%", ""))], figures(row["t/s"])
        limits, by_map = figures(row["the lower of the disk's and memory's limit"]), figures(row["the map in the same memory, t/s"])
        marks = {SLOTS: share}
        if by_map:
            marks[MAP] = [a / b for a, b in zip(by_map, limits)]
        shown = {name: mark(each) for name, each in marks.items()}
        # Where all of it fits, there are no slots: the map is the default.
        label = row["memory"] if row["memory"] != "all" else "all in memory (a map)"
        drawn.append(DotRow(label, shown, percent(min(share), max(share)), ", ".join(speed(one) for one in (tps, by_map) if one)))
    return [Panel("Answers: share of the lower of the disk's and memory's limit", "the limit", drawn, share=True)]


TOKENS, EXPERTS = "Tokens per second", "In less memory than they take"
SEVERAL, SERVER = "Several sequences", "The server beside llama-server"
WITH_IK = ("case", "packed / ik")
WITHOUT_IK = {name: look for name, look in LOOKS.items() if name != IK}
AVX2 = "AVX2 alone, 2 cores of Zen 3"
LEVELS = {"avx512": Look("square", "plain"), "amxint8": Look("circle", "ours"), "amx": Look("circle", "hollow")}
VNNI = {"avx2": Look("square", "plain"), "avxvnni": Look("circle", "ours")}
SERVERS = {"alight": Look("circle", "ours"), "llama-server": Look("square", "other")}
WHO = ("experts that fit", "who", "t/s")
BELOW = ("memory", "t/s", "the lower of the disk's and memory's limit", "share of it")

SPEEDS = {
    "speed-zen4.svg": Speeds(
        "Tokens per second on Zen 4, as shares of the limit",
        ["2 threads of 2 cores of Zen 4, 2026-11-22. llama.cpp's share is ours divided by the table's ratio,", "by each of our two files: the ends of its line."],
        TOKENS, ("model", "case", "share of the limit"), measured_shares, WITHOUT_IK),
    "speed-avx2-first.svg": Speeds(
        "Tokens per second with AVX2, 2026-11-25", [f"{AVX2}, 2 threads, two rounds (the lines)"],
        TOKENS, ("alight, packed", "before, GGUF"), first_avx2, WITHOUT_IK),
    "speed-avx2-second.svg": Speeds(
        "Tokens per second with AVX2, 2026-11-26", [f"{AVX2}, 2 threads, ratios within rounds, medians"],
        TOKENS, ("case", "packed / that"), ratio_columns(limited=False), WITHOUT_IK),
    "speed-avx2.svg": Speeds(
        "Tokens per second with AVX2, 2026-11-27",
        [f"{AVX2}, 2 threads; peers' shares by the ratios of the table.", "What the multipliers allow was not measured."],
        TOKENS, WITH_IK, ratio_columns(limited=True), LOOKS),
    "speed-zen4-later.svg": Speeds(
        "Tokens per second on Zen 4, once more",
        ["2 threads of 2 cores of an AMD EPYC of the Zen 4 kind, 2026-11-29, medians; peers' shares by the ratios of the table"],
        "Zen 4 once more", WITH_IK, ratio_columns(limited=True), LOOKS),
    "speed-intel.svg": Speeds(
        "Tokens per second with AVX-512 on Intel, as shares of the limit",
        ["2 threads of an Intel Xeon with AVX-512 VNNI, 2026-11-27; peers' shares by the ratios of the table"],
        "AVX-512 on Intel", WITH_IK, ratio_columns(limited=True), LOOKS),
    "speed-avxvnni.svg": Speeds(
        "Tokens per second with AVX-VNNI and with AVX2",
        ["2 threads of an Intel Xeon with AMX, prompts of 512 tokens (3B: 128), 2026-11-28, medians"],
        "AVX-VNNI", ("avx2", "avxvnni"), levels(("avx2", "avxvnni"), "ratio"), VNNI, said="t/s: avxvnni, avx2"),
    "speed-amx.svg": Speeds(
        "Tokens per second of prompts with AMX",
        ["2 threads of an Intel Xeon with AMX, 2026-11-28, medians; behind each model the tokens of its prompt"],
        "Prompts with AMX", ("tokens", "avx512", "amxint8"), levels(("avx512", "amxint8", "amx"), "amxint8 / avx512", tokens=True), LEVELS, said="t/s: the best, avx512"),
    "speed-amx-peers.svg": Speeds(
        "Tokens per second with AMX, beside llama.cpp and ik_llama.cpp",
        ["2 threads of an Intel Xeon with AMX, 2026-11-28, medians"],
        "Beside llama.cpp and ik_llama.cpp, with AMX", WITH_IK, ratio_columns(limited=False), LOOKS),
    "speed-mixtures.svg": Speeds(
        "Tokens per second of mixtures, latent attention and a hybrid", ["2 threads of 2 cores of Zen 4, 2026-11-23, medians"],
        "Mixtures of experts, latent attention and hybrids", ("model", "case", "ratio to the better"), mixtures, LOOKS),
    "speed-experts-first.svg": Speeds(
        "A mixture in less memory than it takes, 32 tokens",
        ["16 layers of Qwen3-30B-A3B's shape (6.48 GB), random routers; 2 cores of Zen 3, 2026-11-26, one round"],
        EXPERTS, WHO, who, WITHIN, said="t/s: the better, llama.cpp"),
    "speed-experts-longer.svg": Speeds(
        "A mixture in less memory than it takes, 32 and 128 tokens",
        ["16 layers of Qwen3-30B-A3B's shape (6.48 GB); 2 cores of Zen 3, 2026-11-27, of two rounds the one with llama.cpp"],
        EXPERTS, ("answer", "slots (the default)", "--load mmap"), longer, WITHIN, said="t/s: the better, llama.cpp"),
    "speed-experts-routed.svg": Speeds(
        "A mixture that chooses as Qwen3 does, in less memory than it takes",
        ["16 layers of Qwen3-30B-A3B's shape (6.48 GB), 128 tokens; Intel Xeon with AVX-512, 2026-11-27, one round"],
        EXPERTS, WHO, who, WITHIN, said="t/s: the better, llama.cpp", which=1),
    "speed-experts-disk.svg": Speeds(
        "18.56 GB of a mixture in 4, 6 and 8 GB, from the GGUF file",
        ["48 layers of Qwen3-30B-A3B's shape; Intel Xeon with AVX-512, 2026-11-27, one round"],
        EXPERTS, BELOW, below_disk, {SLOTS: WITHIN[SLOTS], MAP: WITHIN[MAP]}, said="t/s: slots, the map"),
    "speed-experts-packed.svg": Speeds(
        "18.56 GB of a mixture in 4, 6 and 8 GB, packed",
        ["48 layers of Qwen3-30B-A3B's shape; Intel Xeon with AVX-512, 2026-11-28, two rounds (the lines)"],
        EXPERTS, BELOW, below_disk, {SLOTS: WITHIN[SLOTS], MAP: WITHIN[MAP]}, said="t/s: slots, the map", which=1),
    "speed-experts-llama.svg": Speeds(
        "18.56 GB of a mixture beside llama.cpp in one memory group",
        ["48 layers of Qwen3-30B-A3B's shape, 128 tokens; Intel Xeon with AVX-512, 2026-11-28, two rounds (the lines)"],
        EXPERTS, WHO, who, WITHIN, said="t/s: the better, llama.cpp", which=2),
    "speed-sequences.svg": Speeds(
        "Several sequences beside the peers",
        ["2 threads of 2 cores of Zen 4, 2026-11-23 14:15; the middle of what the table gives"],
        SEVERAL, ("model", "engine", "16"), sequences, LOOKS),
    "speed-sequences-later.svg": Speeds(
        "Several sequences beside the peers, later that day",
        ["2 threads of 2 cores of Zen 4, 2026-11-23; the middle of what the table gives"],
        SEVERAL, ("model", "engine", "16"), sequences, LOOKS, which=1),
    "speed-server.svg": Speeds(
        "Tokens per second of a server, SmolLM2", ["ours packed; 2 cores of Zen 3 (AVX2), 2026-11-26, medians of three rounds"],
        SERVER, ("SmolLM2 Q4_1", "alight", "llama-server", "ratio"), server, SERVERS, said="t/s: ours, llama-server"),
    "speed-server-3b.svg": Speeds(
        "Tokens per second of a server, a 3B", ["ours packed; 2 cores of Zen 3 (AVX2), 2026-11-26, one round"],
        SERVER, ("random 3B Q4_0", "alight", "llama-server", "ratio"), server, SERVERS, said="t/s: ours, llama-server"),
}
