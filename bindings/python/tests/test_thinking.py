"""A model that thinks first, by a template that has no switch for it: the mark that ends the thinking comes at once."""

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
