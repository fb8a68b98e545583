"""Tasks of asyncio that ask one model at the same time: python examples/python/tasks.py model.gguf"""

import asyncio
import sys

import alight

model = alight.Model(sys.argv[1])


async def ask(question: str) -> str:
    # A thread waits; the model computes all of them together, and Python runs on meanwhile.
    answer = await asyncio.to_thread(model.generate, question, temperature=0, max_tokens=20)
    return f"{question} {answer.answer.strip()}"


async def main() -> None:
    questions = [f"What is the capital of {country}?" for country in ("China", "Greece", "Poland")]
    for done in asyncio.as_completed(map(ask, questions)):
        print(await done)


asyncio.run(main())
