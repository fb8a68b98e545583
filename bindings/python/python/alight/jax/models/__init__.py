"""Llama, Qwen and Gemma as plain JAX, tensor-parallel.

    from alight.jax.models import Sampling, load_model

    model = load_model("model.gguf", tp=2)
    for token in model.generate(ids, max_tokens=64, sampling=Sampling.greedy()):
        ...
"""

from ._load import load_model
from ._model import Model
from ._sample import Sampling

__all__ = ["Model", "Sampling", "load_model"]
