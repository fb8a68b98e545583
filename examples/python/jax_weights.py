"""Weights of a model file as JAX arrays that are the file's own pages: python examples/python/jax_weights.py model.gguf"""

import sys

import alight
import alight.jax

weights = alight.jax.load(sys.argv[1])
norm = weights["output_norm.weight"]
print(f"{len(weights)} arrays; output_norm.weight: {norm.shape[0]} of {norm.dtype}, mean {float(norm.mean()):.3f}")
print(alight.jax.plan(sys.argv[1]))  # what is in place, what is copied, and why
