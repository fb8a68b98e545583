"""Which text is nearest in meaning, by vectors: python examples/python/embed.py model.gguf"""

import sys

import alight

model = alight.Model(sys.argv[1])
texts = ["A dog is barking in the garden.", "The stock market fell sharply today.", "My cat sleeps on the sofa."]
question, *vectors = (row.tolist() for row in map(model.embed, ["The puppy is playing outside.", *texts]))
near = [sum(a * b for a, b in zip(question, vector)) for vector in vectors]  # of length 1: the cosine
for score, text in sorted(zip(near, texts), reverse=True):
    print(f"{score:.3f}  {text}")
