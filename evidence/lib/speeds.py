"""Pictures of tokens per second of whole models on a CPU, from the measured figures (`evidence.lib.results`): ours beside each peer, below
what memory or the multipliers allow.

Where a line has the limit, marks are shares of it. A peer's share is ours, divided by the ratio of the line, which was taken within
rounds. Where it has none, marks are ratios to the best peer.

A picture more is an entry of SPEEDS.
"""

from dataclasses import dataclass

from evidence.lib import results
from evidence.lib.results import Result
from evidence.lib.svg import DotRow, Look, Mark, Panel, dots
from evidence.lib.tables import label

PACKED, GGUF, LLAMA, IK = "Alight, packed", "Alight, GGUF", "llama.cpp", "ik_llama.cpp"
LOOKS = {PACKED: Look("circle", "ours"), GGUF: Look("circle", "hollow"), LLAMA: Look("square", "other"), IK: Look("diamond", "third")}
SHARES = {"answer": "Answers: share of what memory allows", "prompt": "Prompts: share of what the multipliers allow"}
NO_LIMIT = "No limit is stated: times the best peer"


@dataclass(frozen=True)
class Speeds:
    """A picture of the lines of a set that have ratios to both peers."""

    title: str
    set: str

    def draw(self, found: list[Result]) -> str:
        lines = [line for line in results.of_set(found, self.set) if "packed / ik_llama.cpp" in line.figures]
        about = [f"2 threads; {lines[0].machine}", f"{lines[0].date}, medians; peers' shares by the ratios within rounds"]
        return dots(self.title, about, LOOKS, "t/s: ours, best peer", panels(lines))


def percent(least: float, most: float) -> str:
    return f"{100 * least:.0f} %" if round(100 * least) == round(100 * most) else f"{100 * least:.0f}–{100 * most:.0f} %"


def times(value: float) -> str:
    return f"{round(value, 2 if value < 2 else 1):g} ×"


def mark(values: list[float]) -> Mark:
    """One value, or the middle of several with their ends."""
    return Mark(sum(values) / len(values), *((min(values), max(values)) if len(values) > 1 else ()))


def limit(line: Result) -> list[float] | None:
    """Our packed file's share of the limit, one number or the ends of a range."""
    if share := line.figures.get("packed, share of the limit"):
        return [number / 100 for number in share.numbers()]
    if "limit" in line.figures:
        return [line.figures["alight, packed"].middle() / line.figures["limit"].middle()]
    return None


def panels(lines: list[Result]) -> list[Panel]:
    """Marks by the ratios of the lines, which are to ik_llama.cpp."""
    found: dict[str, Panel] = {}
    for line in lines:
        value = {name: figure.middle() for name, figure in line.figures.items()}
        packed, gguf = value["packed / ik_llama.cpp"], value["GGUF / ik_llama.cpp"]
        marks = {PACKED: packed, GGUF: gguf, LLAMA: packed / value["packed / llama.cpp"], IK: 1.0}
        base = max(marks[LLAMA], marks[IK])
        peer = max(line.figures["llama.cpp"].values + line.figures["ik_llama.cpp"].values)
        best = PACKED if packed >= gguf else GGUF
        said = f"{value['alight, packed' if best == PACKED else 'alight, GGUF']:g}, {peer:g}"
        name, share = label(line.case), limit(line)
        if share is None:
            shown, reached = {name: Mark(one / base) for name, one in marks.items()}, times(marks[best] / base)
            panel = found.setdefault(NO_LIMIT, Panel(NO_LIMIT, "the best peer", [], share=False))
        else:
            scale = [one / packed for one in share]
            shown = {name: mark([one * each for each in scale]) for name, one in marks.items()}
            reached = percent(marks[best] * scale[0], marks[best] * scale[-1])
            title = SHARES["answer" if "answer" in name else "prompt"]
            panel = found.setdefault(title, Panel(title, "the limit", [], share=True))
        panel.rows.append(DotRow(name, shown, reached, said))
    return [found[name] for name in (*SHARES.values(), NO_LIMIT) if name in found]


SPEEDS = {
    "speed-zen4.svg": Speeds("Tokens per second on Zen 4 (AVX-512)", "zen4"),
    "speed-intel.svg": Speeds("Tokens per second on Intel with AVX-512", "intel"),
    "speed-amx.svg": Speeds("Tokens per second on Intel with AMX", "amx"),
    "speed-avx2.svg": Speeds("Tokens per second on Zen 3 (AVX2 alone)", "zen3"),
}
