"""Llama, Qwen and Gemma as plain JAX, tensor-parallel.

    from alight.jax.models import Sampling, load_model

    model = load_model("model.gguf", tp=2)
    for token in model.generate(ids, max_tokens=64, sampling=Sampling.greedy()):
        ...

What must stay true:

- One block structure serves all architectures. They differ by data, which the Rust crate `model` has read and checked, so both
  engines refuse the same files and are fed the same tokens.
- Products with weights and attention are behind one interface (`_arithmetic.py`) with two implementations: custom calls on the
  map of the file, and arrays of floats with XLA's own operations. Each is a check of the other.
- Any number of ranks works. Each has equally many heads, feed-forward columns and rows of the vocabulary; padding is zeros, or
  −∞ for logits (`_cut.py`). Blocks of quantised columns stay whole. All ranks draw the same token, from the best of each.
- A launch computes a chunk of a prompt, or several tokens. The cache is donated to it, and neither cache nor file is copied in it.
  At most two launches are not waited for. The padding of a chunk lies after all positions that are seen, and is overwritten.
- A compiled program is kept under everything that it is made from (`_cache.py`). An entry is whole or not there, and one that is
  broken is no error. The folder is the user's alone, because entries are code.
- A part of a tensor is contiguous in the file and begins at a multiple of 64 bytes, or it is copied once, into memory that XLA
  uses as it is. `alight.jax.plan` says which and why, from the header alone. Devices that hold the same part show the same memory.
"""

from ._continuous import ContinuousBatch
from ._load import load_model
from ._model import KVCache, Model
from ._sample import Sampling

__all__ = ["ContinuousBatch", "KVCache", "Model", "Sampling", "load_model"]
