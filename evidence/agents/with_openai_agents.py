"""OpenAI's Agents SDK, by plans (plan.py)."""

import asyncio

import agents
from openai import AsyncOpenAI
from plan import TOOLS, Weather, follow


async def answered(agent: agents.Agent, items: list, plan: dict):
    """The result of one message of the user."""
    if not plan["stream"]:
        return await agents.Runner.run(agent, items, max_turns=plan["turns"])
    result = agents.Runner.run_streamed(agent, items, max_turns=plan["turns"])
    async for _event in result.stream_events():
        pass
    return result


def thought(item) -> str:
    """The text of a reasoning item, which is in its content or its summary."""
    parts = (item.raw_item.content or []) + (item.raw_item.summary or [])
    return "".join(part.text for part in parts)


async def conversation(plan: dict):
    """All messages of the user."""
    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(AsyncOpenAI(base_url=f"{plan['address']}/v1", api_key="none"), use_for_tracing=False)
    agents.set_default_openai_api("chat_completions" if plan["api"] == "chat" else "responses")
    tools = [agents.function_tool(tool) for tool in TOOLS] if plan["kind"] == "tools" else []
    form = Weather if plan["kind"] == "form" else None
    agent = agents.Agent(name="Notes", instructions=plan["system"], model="any", tools=tools, output_type=form)
    items, texts, thinking, last = [], [], [], None
    for message in plan["messages"]:
        items.append({"role": "user", "content": message})
        result = await answered(agent, items, plan)
        thinking += [thought(item) for item in result.new_items if isinstance(item, agents.ReasoningItem)]
        items, last = result.to_input_list(), result.final_output
        texts.append(str(last))
    return texts, thinking, last if form else None


follow(lambda plan: asyncio.run(conversation(plan)))
