"""Pictures of measurements as SVG: bars and lines that can be read on light and on dark pages, with text that stays text.

The look is that of `alight bench load --svg` (crates/cli/src/bench/load/svg.rs). A picture brings its own ground, since a book can be dark
on a system that is light.
"""

from dataclasses import dataclass
from html import escape
from math import floor, log2

WIDTH = 760
# Where bars begin and the longest of them ends: names stand before it, numbers behind it.
LEFT, RIGHT, ROW = 250, 610, 18

STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #222 }
.ground { fill: #fff }
.title { font-weight: 600; font-size: 14px }
.group { font-weight: 600 }
.small { fill: #666 }
.ours { fill: #2e8b57 } .other { fill: #3b82c4 } .plain { fill: #777 }
.line { fill: none; stroke-width: 2 } .line.ours { stroke: #2e8b57 } .line.plain { stroke: #777 }
.spread { stroke: #222; stroke-width: 1 }
.limit { stroke: #c0392b; stroke-width: 1; stroke-dasharray: 4 3 }
.axis { stroke: #999; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .ground { fill: #1b1e23 } .small { fill: #aaa } .spread { stroke: #ddd } .limit { stroke: #ff7f6e } .axis { stroke: #777 }
}
"""


@dataclass(frozen=True)
class Bar:
    """A bar: `value` is its length, `least` and `most` the ends of the line over it, `said` what stands behind it."""

    name: str
    value: float
    said: str
    colour: str = "plain"
    least: float | None = None
    most: float | None = None


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>\n'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>\n'


def picture(title: str, about: list[str], body: str, height: float, style: str = "") -> str:
    """A whole file. `about` are small lines below the title; the body begins at `top(about)`. `style` is what this picture has beside STYLE."""
    head = text(12, 24, title, "title") + "".join(text(12, 42 + 16 * i, one, "small") for i, one in enumerate(about))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img">\n'
            f"<title>{escape(title)}</title>\n<style>\n{STYLE}{style}</style>\n"
            f'<rect class="ground" width="{WIDTH}" height="{height:.0f}" rx="6"/>\n{head}{body}</svg>\n')


def top(about: list[str]) -> float:
    return 42 + 16 * (len(about) - 1)


def bars(title: str, about: list[str], groups: list[tuple[str, list[Bar]]]) -> str:
    """Bars in groups. Each group has a scale of its own, which begins at zero."""
    body, y = "", top(about)
    for name, of_group in groups:
        y += 28
        body += text(12, y, name, "group")
        longest = max([1e-9, *(bar.value for bar in of_group), *(bar.most for bar in of_group if bar.most is not None)])

        def x(value: float, longest: float = longest) -> float:
            return LEFT + (RIGHT - LEFT) * value / longest

        for bar in of_group:
            y += ROW
            body += text(LEFT - 8, y, bar.name, anchor="end")
            if bar.value > 0:
                body += f'<rect class="{bar.colour}" x="{LEFT}" y="{y - 10:.1f}" width="{max(1, x(bar.value) - LEFT):.1f}" height="12"/>\n'
            if bar.least is not None and bar.most is not None:
                body += line("spread", x(bar.least), y - 4, x(bar.most), y - 4)
            body += text(x(max(bar.value, bar.most or 0)) + 6, y, bar.said)
    return picture(title, about, body, y + 20)


@dataclass(frozen=True)
class Line:
    """Measured points, joined: (x, y) each."""

    name: str
    points: list[tuple[float, float]]
    colour: str


def roofline(title: str, about: list[str], lines: list[Line], limits: list[tuple[str, list[tuple[float, float]]]], *, of_x: str, of_y: str) -> str:
    """Measured lines below limits. Both axes are logarithmic, so that a limit that grows with x is straight, too."""
    left, right, upper, height = 60, WIDTH - 190, top(about) + 34, 300
    steps = sorted({x for one in lines for x, _ in one.points})
    values = [y for points in [*(one.points for one in lines), *(points for _, points in limits)] for _, y in points]
    least, most = 2 ** floor(log2(min(values))), max(values) * 1.1

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        return left + (right - left) * log2(x / steps[0]) / log2(steps[-1] / steps[0]), upper + height * (1 - log2(y / least) / log2(most / least))

    body = text(left, upper - 12, of_y, "small", "middle") + line("axis", left, upper, left, upper + height)
    body += line("axis", left, upper + height, right, upper + height)
    for step in steps:
        body += text(at((step, least))[0], upper + height + 16, f"{step:g}", "small", "middle")
    body += text(right, upper + height + 34, of_x, "small", "end")
    tick = least
    while tick <= most:
        body += text(left - 6, at((steps[0], tick))[1] + 4, f"{tick:g}", "small", "end")
        tick *= 2
    for name, points in limits:
        (x1, y1), (x2, y2) = map(at, points)
        body += line("limit", x1, y1, x2, y2)
        # Beside the end of a level one, above the middle of one that rises.
        body += text(x2 + 6, y2 + 4, name, "small") if y1 == y2 else text((x1 + x2) / 2 - 12, (y1 + y2) / 2, name, "small", "end")
    for one in lines:
        ends = [at(point) for point in one.points]
        body += f'<polyline class="line {one.colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in ends)}"/>\n'
        for (x, y), (at_x, value) in zip(ends, one.points):
            # Its number stands below it, or above where another line is in the way.
            crowded = any(y < at(other)[1] < y + 24 for beside in lines if beside is not one for other in beside.points if other[0] == at_x)
            body += f'<circle class="{one.colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>\n' + text(x + 6, y - 18 if crowded else y + 18, f"{value:.1f}")
        body += text(ends[-1][0] + 10, ends[-1][1] + 4, one.name)
    return picture(title, about, body, upper + height + 46)


def growth(title: str, about: list[str], panels: list[tuple[str, Line]]) -> str:
    """A panel for each line, named; all axes are logarithmic, and a step is as long on one as on the other, so that a slope is an exponent."""
    left, right, y, body = 90, WIDTH - 40, top(about) + 8, ""
    for name, one in panels:
        (x0, _), (x1, _) = one.points[0], one.points[-1]
        least, most = min(cost for _, cost in one.points), max(cost for _, cost in one.points)
        per_step = (right - left) / log2(x1 / x0)
        height = max(24, per_step * log2(most / least))
        body += text(12, y + 16, name, "group")
        upper = y + 40

        def at(point: tuple[float, float], x0: float = x0, least: float = least, per_step: float = per_step, lower: float = upper + height) -> tuple[float, float]:
            return left + per_step * log2(point[0] / x0), lower - per_step * log2(point[1] / least)

        ends = [at(point) for point in one.points]
        body += line("axis", left, upper + height + 6, right, upper + height + 6)
        body += f'<polyline class="line {one.colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in ends)}"/>\n'
        for (x, height_of), (size, cost) in zip(ends, one.points):
            body += f'<circle class="{one.colour}" cx="{x:.1f}" cy="{height_of:.1f}" r="4"/>\n' + text(x, height_of - 9, f"{cost:.3g}", "", "middle")
            body += text(x, upper + height + 22, f"{size:,g}", "small", "middle")
        y = upper + height + 28
    return picture(title, about, body, y + 8)


# Where the axis of `dots` begins and ends, and the two columns behind it.
FROM, TO, VALUE, SAID = 208, 560, 574, 752
DOTS = """\
.third { fill: #c8811a } .hollow { fill: none; stroke: #2e8b57; stroke-width: 2 }
.reach { stroke: #888; stroke-width: 2; opacity: .6 } .grid { stroke: #e2e2e2; stroke-width: 1 }
@media (prefers-color-scheme: dark) { .grid { stroke: #363b43 } }
"""


@dataclass(frozen=True)
class Look:
    """How the marks of an engine look: by shape as well as by colour, for those who do not see the latter."""

    shape: str
    colour: str

    def at(self, x: float, y: float) -> str:
        if self.shape == "circle":
            return f'<circle class="{self.colour}" cx="{x:.1f}" cy="{y:.1f}" r="{4 if self.colour == "hollow" else 5}"/>\n'
        half = 4.5 if self.shape == "square" else 6
        corners = ((-half, -half), (half, -half), (half, half), (-half, half)) if self.shape == "square" else ((0, -half), (half, 0), (0, half), (-half, 0))
        return f'<polygon class="{self.colour}" points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}"/>\n'


@dataclass(frozen=True)
class Mark:
    """What one engine reaches, as a share of the limit or as a ratio; `least` and `most` where it is known no better."""

    value: float
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class DotRow:
    """A line of a panel: marks by engine, the value that is printed behind it, and the tokens per second behind that."""

    name: str
    marks: dict[str, Mark]
    value: str
    said: str


@dataclass(frozen=True)
class Panel:
    """Rows on one axis, which begins at zero. `limit` is what stands at 1: where shares end, or what ratios are to."""

    name: str
    limit: str
    rows: list[DotRow]
    share: bool


def dots(title: str, about: list[str], looks: dict[str, Look], said: str, panels: list[Panel]) -> str:
    """Marks of several engines below a limit. `said` names the last column."""
    y = top(about) + 24
    body, x = "", 16.0
    for name, look in looks.items():
        body += look.at(x, y - 4) + text(x + 10, y, name)
        x += 34 + 6.4 * len(name)
    for panel in panels:
        y += 30
        body += text(12, y, panel.name, "group")
        y += 18
        body += text(SAID, y, said, "small", "end")
        most = max([1.0, *(max(mark.value, mark.most or 0) for row in panel.rows for mark in row.marks.values())])
        step = 0.25 if panel.share else next(one for one in (0.5, 1, 2, 5, 10, 20) if most / one <= 6)

        def at(value: float, most: float = most) -> float:
            return FROM + (TO - FROM) * value / most

        upper, lower = y + 6, y + 6 + 20 * len(panel.rows)
        body += text(at(1), y, panel.limit, "small", "end" if panel.share else "middle")
        ticks = [step * i for i in range(int(most / step + 1e-9) + 1)]
        for tick in ticks:
            body += line("grid", at(tick), upper, at(tick), lower)
            body += text(at(tick), lower + 14, f"{100 * tick:.0f} %" if panel.share else f"{tick:g} ×", "small", "middle")
        body += line("limit", at(1), upper, at(1), lower) + line("axis", at(0), lower, at(most), lower)
        for row in panel.rows:
            y += 20
            body += text(FROM - 10, y, row.name, anchor="end")
            for mark in row.marks.values():
                if mark.least is not None and mark.most is not None:
                    body += line("reach", at(mark.least), y - 4, at(mark.most), y - 4)
            # Ours last, so that nothing covers it.
            for name in reversed([name for name in looks if name in row.marks]):
                body += looks[name].at(at(row.marks[name].value), y - 4)
            body += text(VALUE, y, row.value, "group") + text(SAID, y, row.said, "small", "end")
        y = lower + 14
    return picture(title, about, body, y + 16, DOTS)
