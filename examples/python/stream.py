"""An answer piece by piece, left as soon as it has what you want: python examples/python/stream.py model.gguf"""

import sys

import alight

model = alight.Model(sys.argv[1])
with model.stream("1, 2, 3, 4,", raw=True, temperature=0, max_tokens=120) as stream:
    for piece in stream:
        print(piece, end="", flush=True)
        if "9" in piece:
            break  # nothing more is computed
print(f"\nleft after {len(stream.completion.tokens)} tokens")
