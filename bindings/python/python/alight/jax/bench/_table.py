"""The cells as lines of a table, which says what they are figures of."""

from __future__ import annotations

from typing import Any

LAYERS = 64


def about(report: dict[str, Any]) -> str:
    """What the figures are of, in one sentence."""
    if report["platform"] == "gpu":
        where = "GPUs of one process"
    elif report["processes"] > 1:
        where = f"CPU devices of {report['processes']} processes that share {report['cores']} cores (no GPU figures)"
    else:
        where = f"CPU devices that share {report['cores']} cores (no GPU figures)"
    return f"{where}, bf16, {report['layers']} layers in one program, load {report['load']:.1f}, {report['date']}"


def heading(report: dict[str, Any]) -> str:
    return (
        f"{about(report)}\nµs per layer: median of {report['turns']} turns (lower quartile)\n"
        "devices rows hidden           fused   psum+residual+norm   ratio (of the quartiles)   psum by"
    )


def line(cell: dict[str, Any]) -> str:
    return (
        "{devices:7} {rows:4} {hidden:6} {fused_us:8.1f} ({fused_low_us:7.1f}) {unfused_us:8.1f} ({unfused_low_us:7.1f})   "
        "{ratio:5.2f} ({ratio_low:.2f})               {beside}".format(**cell)
    )


def start(text: str) -> None:
    """Lines of the table as they come."""
    print(text, flush=True)
