"""Writes tiny random models of every architecture to a folder: what the fuzz target `model` changes.

    python -m evidence make fuzz-models FOLDER

They are the first of each architecture in `agree architectures`, with fewer layers and a smaller vocabulary, one in F32 and one in Q8_0
where its rows are whole blocks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evidence.agree import architectures
from evidence.lib import tiny_models


def add_arguments(parser) -> None:
    parser.add_argument("folder", type=Path)


def run(args) -> int:
    args.folder.mkdir(parents=True, exist_ok=True)
    firsts = {}
    for model, _ in architectures.CASES:
        firsts.setdefault(model.arch, model)
    for arch, model in firsts.items():
        tiny_models.write(replace(model, ff=min(model.ff, 64)), args.folder / f"{arch}.gguf")
    print(f"{len(firsts)} models in {args.folder}")
    return 0
