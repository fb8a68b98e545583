"""Language models straight from a mapped file.

`Model` answers prompts with the engine of `alight run`, in this process. `pull` fetches a model of the hub. `open` gives the catalog of a model file (GGUF, or
safetensors with or without an index): metadata, and tensors whose bytes Python's buffer protocol shows in place. `config` and
`Tokenizer` are what the engine of `alight run` has read of a model and checked. `alight.jax` makes JAX arrays of the tensors.
"""

from ._alight import (
    ALIGNMENT,
    AlightError,
    Array,
    Block,
    Catalog,
    ClosedError,
    Completion,
    ComputeError,
    ContextFullError,
    Decoder,
    FileChangedError,
    FormatError,
    HubError,
    Model,
    NotEnoughMemoryError,
    OptionError,
    PromptError,
    Residency,
    Stream,
    Tensor,
    Tokenizer,
    __version__,
    config,
    open,
    pull,
)

__all__ = [
    "ALIGNMENT",
    "AlightError",
    "Array",
    "Block",
    "Catalog",
    "ClosedError",
    "Completion",
    "ComputeError",
    "ContextFullError",
    "Decoder",
    "FileChangedError",
    "FormatError",
    "HubError",
    "Model",
    "NotEnoughMemoryError",
    "OptionError",
    "PromptError",
    "Residency",
    "Stream",
    "Tensor",
    "Tokenizer",
    "__version__",
    "config",
    "open",
    "pull",
]
