"""Several prompts at once, with the answers that they have alone: python examples/python/batch.py model.gguf"""

import sys

import alight

model = alight.Model(sys.argv[1])
prompts = [f"What is the capital of {country}?" for country in ("Germany", "Egypt", "Japan")]
for prompt, answer in zip(prompts, model.batch(prompts, temperature=0, max_tokens=20)):
    print(f"{prompt} {answer.answer.strip()}")
    assert answer.text == model.generate(prompt, temperature=0, max_tokens=20).text
