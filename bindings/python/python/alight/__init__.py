"""Language models straight from a mapped file.

`open` gives the catalog of a model file (GGUF, or safetensors with or without an index): metadata, and
tensors whose bytes Python's buffer protocol shows where they lie in the file. `alight.jax` makes JAX
arrays of them.
"""

from ._alight import (
    ALIGNMENT,
    Block,
    Catalog,
    FileChangedError,
    FormatError,
    Residency,
    Tensor,
    __version__,
    open,
)

__all__ = [
    "ALIGNMENT",
    "Block",
    "Catalog",
    "FileChangedError",
    "FormatError",
    "Residency",
    "Tensor",
    "__version__",
    "open",
]
