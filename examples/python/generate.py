"""An answer, and what it cost: python examples/python/generate.py model.gguf"""

import sys

import alight

model = alight.Model(sys.argv[1])
answer = model.generate("What is the capital of Germany?", temperature=0, max_tokens=30)
print(answer)
print(f"{answer.prompt_tokens} tokens read, {len(answer.tokens)} written, ended by: {answer.finish}", file=sys.stderr)
