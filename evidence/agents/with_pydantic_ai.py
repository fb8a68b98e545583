"""pydantic-ai, by plans (plan.py)."""

import asyncio

from plan import TOOLS, Weather, follow
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits


def model_of(plan: dict):
    """The model, by one of the interfaces."""
    if plan["api"] == "messages":
        return AnthropicModel("any", provider=AnthropicProvider(base_url=plan["address"], api_key="none"))
    kind = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[plan["api"]]
    return kind("any", provider=OpenAIProvider(base_url=f"{plan['address']}/v1", api_key="none"))


async def read(_context, events) -> None:
    """Reads a stream to its end. That there is a reader makes the library ask for a stream."""
    async for _event in events:
        pass


async def conversation(plan: dict):
    """All messages of the user."""
    form = NativeOutput(Weather) if plan["kind"] == "form" else str
    agent = Agent(model_of(plan), instructions=plan["system"], output_type=form)
    for tool in TOOLS if plan["kind"] == "tools" else ():
        agent.tool_plain(tool)
    history, texts, thinking, last = [], [], [], None
    for message in plan["messages"]:
        limits = UsageLimits(request_limit=plan["turns"])
        reader = read if plan["stream"] else None
        result = await agent.run(message, message_history=history, usage_limits=limits, event_stream_handler=reader)
        parts = [part for one in result.new_messages() for part in one.parts]
        thinking += [part.content for part in parts if isinstance(part, ThinkingPart)]
        history, last = result.all_messages(), result.output
        texts.append(str(last))
    return texts, thinking, last if plan["kind"] == "form" else None


follow(lambda plan: asyncio.run(conversation(plan)))
