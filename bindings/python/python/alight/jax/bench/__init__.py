"""Measurements: `python -m alight.jax.bench collective`, which is what `alight bench collective` runs."""
