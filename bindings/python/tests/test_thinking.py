"""A model that thinks first, by a template that has no switch for it: the mark that ends the thinking comes at once."""

import pytest

import alight
from evidence.lib import scripted

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]\n<think>"


def test_thinking_is_ended_at_once(tmp_path):
    specials = {"<think>": "user", "</think>": "user", "<end>": "control"}
    script = [b"Let me", b" see.", "</think>", b"Yes", b"."]
    path = scripted.write(tmp_path / "model.gguf", [script], template=TEMPLATE, specials=specials, end="<end>")
    with alight.Model(path) as model:
        thinks = model.generate("Is it?", temperature=0, max_tokens=20)
        assert (thinks.thinking, thinks.answer) == ("Let me see.", "Yes.")
        first = [model.tokenizer.decode(thinks.tokens[:1])]
        # This model begins its script anew after any mark.
        without = model.generate("Is it?", temperature=0, max_tokens=20, thinking=False)
        assert [*first, model.tokenizer.decode(without.tokens[:1])] == ["Let me", "</think>"]
        assert without.thinking is None


def test_an_answer_is_held_from_where_the_thinking_ends(tmp_path):
    specials = {"<think>": "user", "</think>": "user", "<end>": "control"}
    script = [b"Let me", b" see.", "</think>", b"Yes", b"."]
    path = scripted.write(tmp_path / "model.gguf", [script], template=TEMPLATE, specials=specials, end="<end>")
    with alight.Model(path) as model:
        held = model.generate("Is it?", temperature=0, max_tokens=20, regex="Yes[.]")
        assert (held.thinking, held.answer) == ("Let me see.", "Yes.")
        # Where it may not think, the mark that ends the thinking comes first.
        without = model.generate("Is it?", temperature=0, max_tokens=20, regex="(Yes|No)[.]", thinking=False)
        assert model.tokenizer.decode(without.tokens[:1]) == "</think>"
        assert without.thinking is None and without.answer in ("Yes.", "No.")


def test_a_conversation_that_is_too_long_is_refused_before_its_tokens_are_sought(tmp_path):
    template = "{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{% endfor %}"
    path = scripted.write(tmp_path / "model.gguf", [[b"Yes"]], template=template, specials={"<end>": "control"}, end="<end>")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "x" * 10**7}, {"role": "user", "content": "c"}]
    with alight.Model(path, context=100) as model, pytest.raises(alight.ContextFullError, match="^the prompt has 1000000[0-9] bytes.* give a larger context=…$"):
        model.chat(messages)
