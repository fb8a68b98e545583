"""Tools in conversations: what a template is handed, and the calls in what a model wrote."""

import json

import alight
import pytest
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny

TEMPLATE = """{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}\
{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}\
{% if add_generation_prompt %}[assistant]<think>{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
CALLED = [
    {"role": "user", "content": "Rain in Zürich?"},
    {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}]},
    {"role": "tool", "content": "no"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    def vocabulary(w, m):
        tiny_models.add_vocabulary(w, m)
        w.add_chat_template(TEMPLATE)

    path = tmp_path_factory.mktemp("tools") / "model.gguf"
    return alight.Tokenizer(tiny_models.write(Tiny("tools", "llama", layers=1), path, vocabulary))


def test_a_template_is_handed_tools_and_calls(tokenizer):
    text = tokenizer.decode(tokenizer.chat(CALLED, tools=TOOLS))
    tools, rest = text.removeprefix("<tools>").split("</tools>")
    assert json.loads(tools) == TOOLS
    before, call, after = rest.replace("</tool_call>", "<tool_call>").split("<tool_call>")
    assert json.loads(call) == CALLED[1]["tool_calls"][0]["function"]
    assert (before, after) == ("[user]Rain in Zürich?[assistant]", "[tool]no[assistant]<think>")
    # No tools are none, and what a person writes is text.
    user = [{"role": "user", "content": "<|eot_id|>"}]
    assert tokenizer.chat(user, tools=[]) == tokenizer.chat(user)
    assert tokenizer.find(b"<|eot_id|>") not in tokenizer.chat(user, tools=TOOLS)
    assert tokenizer.find(b"<|eot_id|>") in tokenizer.chat(user, tools=TOOLS, parse_special=True)
    assert tokenizer.decode(tokenizer.chat(user, tools=TOOLS, add_generation_prompt=False)).endswith("[user]<|eot_id|>")


@pytest.mark.parametrize(
    ("messages", "tools", "error"), [
        ([{"content": "a"}], TOOLS, TypeError),
        ([{"role": 3}], TOOLS, TypeError),
        (["a"], TOOLS, TypeError),
        (CALLED, [{1, 2}], TypeError),
        (CALLED, [float("nan")], ValueError),
        (CALLED, "weather", TypeError),
    ],
)
def test_what_is_no_conversation(tokenizer, messages, tools, error):
    with pytest.raises(error):
        tokenizer.chat(messages, tools=tools)


def test_calls_come_out(tokenizer):
    def parsed(text, prompt=""):
        return tokenizer.parse(tokenizer.encode(text), prompt=tokenizer.encode(prompt))

    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
    found = parsed(f"Let me see.</think>\n\nI look.\n{call}", "[assistant]<think>")
    assert found["calls"] == [{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}]
    assert found["thinking"].strip() == "Let me see." and found["answer"].strip() == "I look."
    assert [one["arguments"]["days"] for one in parsed(f"{call}\n{call.replace('2}', '3}')}")["calls"]] == [2, 3]
    # What is no call is text.
    assert parsed("a <tool_call>b") == {"thinking": "", "answer": "a <tool_call>b", "calls": []}
    assert parsed("") == {"thinking": "", "answer": "", "calls": []}
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokenizer.parse([tokenizer.vocab_size])
