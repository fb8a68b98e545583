"""The cells as a picture: two bars for each, readable on light and dark pages."""

from __future__ import annotations

from html import escape
from typing import Any

from . import _table

WIDTH = 760.0
LEFT, RIGHT = 190.0, 640.0
"""Where bars begin, after their names, and where the longest one ends, before its number."""
ROW = 18.0
# Colours of bars have enough contrast with white and with black.
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #222 }
.title { font-weight: 600; font-size: 14px }
.group { font-weight: 600 }
.small { fill: #666 }
.fused { fill: #2e8b57 } .unfused { fill: #3b82c4 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .small { fill: #aaa } }
"""


def text(x: float, y: float, kind: str, anchor: str, content: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>\n'


def draw(report: dict[str, Any]) -> str:
    title = "The fused collective beside psum + residual + norm"
    body, y = text(12, 24, "title", "start", title), 42.0
    body += text(12, y, "small", "start", _table.about(report))
    body += text(12, y + 16, "small", "start", f"µs per layer, medians of {report['turns']} turns; scales differ by group")
    y += 16
    groups: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for cell in report["cells"]:
        groups.setdefault((cell["devices"], cell["hidden"], cell["beside"]), []).append(cell)
    for (devices, hidden, beside), cells in groups.items():
        y += 28
        body += text(12, y, "group", "start", f"{devices} devices, width {hidden}; psum by {beside}")
        longest = max(max(cell["fused_us"], cell["unfused_us"]) for cell in cells)
        for cell in cells:
            y += 6
            for kind in ("fused", "unfused"):
                y += ROW
                time = cell[f"{kind}_us"]
                end = LEFT + (RIGHT - LEFT) * time / longest
                name = f"{cell['rows']} rows, fused" if kind == "fused" else "psum + residual + norm"
                ratio = f", {cell['ratio']:.1f} times" if kind == "unfused" else ""
                body += text(LEFT - 8, y, "", "end", name)
                body += f'<rect class="{kind}" x="{LEFT}" y="{y - 10:.1f}" width="{max(end - LEFT, 1):.1f}" height="12"/>\n'
                body += text(end + 6, y, "", "start", f"{time:.3g}{ratio}")
    height = y + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}" '
        f'height="{height:.0f}" role="img">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n{body}</svg>\n'
    )
