"""A conversation that keeps what was said. Lines come from standard input: python examples/python/chat.py model.gguf

What was computed of earlier turns is found again, so each turn costs what is new in it.
"""

import sys

import alight

model = alight.Model(sys.argv[1])
messages = [{"role": "system", "content": "You are a friendly assistant. You answer in one sentence."}]
for line in sys.stdin:
    messages.append({"role": "user", "content": line.strip()})
    answer = model.chat(messages, temperature=0, max_tokens=60)
    messages.append({"role": "assistant", "content": answer.answer})
    print(f"{answer.answer}  [{answer.reused_tokens} of {answer.prompt_tokens} tokens were known]", flush=True)
