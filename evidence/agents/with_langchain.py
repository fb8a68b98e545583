"""LangChain, by plans (plan.py)."""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from plan import TOOLS, Weather, follow


def model_of(plan: dict):
    """The model, by one of the interfaces."""
    if plan["api"] == "messages":
        return ChatAnthropic(model="any", base_url=plan["address"], api_key="none", max_tokens=4096)
    if plan["api"] == "ollama":
        return ChatOllama(model="any", base_url=plan["address"], reasoning=True)
    responses = plan["api"] == "responses"
    return ChatOpenAI(model="any", base_url=f"{plan['address']}/v1", api_key="none", use_responses_api=responses, stream_usage=True)


def answered(agent, messages: list, plan: dict) -> list:
    """The conversation with its answers."""
    limit = {"recursion_limit": 4 * plan["turns"]}
    if not plan["stream"]:
        return agent.invoke({"messages": messages}, limit)["messages"]
    last = {"messages": messages}
    for mode, piece in agent.stream({"messages": messages}, limit, stream_mode=["messages", "values"]):
        if mode == "values":
            last = piece
    return last["messages"]


def thought(message: AIMessage) -> str:
    """The thinking of an answer, wherever the library puts it."""
    blocks = [block for block in message.content_blocks if block["type"] == "reasoning"]
    return "".join(block.get("reasoning", "") for block in blocks)


def conversation(plan: dict):
    """All messages of the user."""
    model = model_of(plan)
    if plan["kind"] == "form":
        form = model.with_structured_output(Weather, method="json_schema").invoke(plan["messages"][0])
        return [form.model_dump_json()], [], form
    agent = create_agent(model, list(TOOLS) if plan["kind"] == "tools" else [], system_prompt=plan["system"])
    messages, texts, thinking = [], [], []
    for message in plan["messages"]:
        before = len(messages) + 1
        messages = answered(agent, [*messages, {"role": "user", "content": message}], plan)
        thinking += [thought(one) for one in messages[before:] if isinstance(one, AIMessage)]
        texts.append(messages[-1].text)
    return texts, thinking, None


follow(conversation)
