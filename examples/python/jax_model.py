"""The model in JAX, its matrices cut between two CPU devices: python examples/python/jax_model.py model.gguf"""

import sys

import alight
import jax
from alight.jax.models import Sampling, load_model

jax.config.update("jax_num_cpu_devices", 2)
path = sys.argv[1]
tokenizer, model = alight.Tokenizer(path), load_model(path, tp=2)
prompt = tokenizer.chat([{"role": "user", "content": "What is the capital of Germany?"}])
decoder = tokenizer.stream()
for token in model.generate(prompt, max_tokens=30, sampling=Sampling.greedy(), stop=tokenizer.ends):
    print(decoder.push(token), end="", flush=True)
print()
