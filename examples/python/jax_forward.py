"""The network as a pure function in a `jax.jit` of your own, and several prompts of different lengths at once:
python examples/python/jax_forward.py model.gguf"""

import functools
import sys

import alight
import jax
import jax.numpy as jnp
import numpy as np
from alight.jax.models import Sampling, load_model

jax.config.update("jax_num_cpu_devices", 2)
path = sys.argv[1]
model = load_model(path, tp=2, weights="bf16", context=256)
tokenizer = alight.Tokenizer(path)


@functools.partial(jax.jit, donate_argnums=1)
def likelihood(params, cache, tokens, counts):
    """How likely each text is, in nats for each of its tokens."""
    logits, _ = model.forward(params, tokens, cache, counts)
    found = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)[..., 0]
    there = jnp.arange(1, tokens.shape[1]) < counts[:, None]
    return jnp.where(there, found, 0).sum(axis=1) / (counts - 1)


texts = ["The capital of France is Paris.", "The capital of France is a purple umbrella.", "France the is of Paris capital."]
encoded = [tokenizer.encode(text) for text in texts]
counts = np.array([len(ids) for ids in encoded], np.int32)
tokens = np.zeros((len(texts), counts.max()), np.int32)
for row, ids in zip(tokens, encoded):
    row[: len(ids)] = ids
scores = likelihood(model.params, model.empty_cache(len(texts)), tokens, counts)
for text, score in sorted(zip(texts, scores.tolist()), key=lambda one: -one[1]):
    print(f"{score:6.2f}  {text}")

questions = ["What is the capital of Germany?", "Name the capital of Japan, please, in one word."]
prompts = [tokenizer.chat([{"role": "user", "content": question}]) for question in questions]
answers = model.generate_batch(prompts, max_tokens=24, sampling=Sampling.greedy(), stop=tokenizer.ends)
for question, answer in zip(questions, answers):
    print(question, tokenizer.decode(answer))
