"""Compares our rendering of chat templates with Python's jinja2, set up as Hugging Face does.

    python -m evidence agree chat                     the templates in tests/data/chat/
    python -m evidence agree chat FOLDER …            the *.jinja files in other folders (llama.cpp's
                                              models/templates, say)
    python -m evidence agree chat --golden            write jinja2's answers for tests/data/chat/

Every template is rendered on several conversations. Where jinja2 fails, ours must too.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

from evidence.lib import common
from evidence.lib.common import ROOT
from evidence.lib.lazy import lazily

jinja2 = lazily("jinja2")

OWN = ROOT / "tests/data/chat"
GOLDEN = ROOT / "tests/data/chat_rendered.json"
BOS, EOS = "<s>", "</s>"


def environment():
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` … `{% endgeneration %}` without effect."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

        def _same(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return env


TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a \"city\" <now> & then",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "é"},
                                                    "days": {"type": "integer", "default": 1.5}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}]}

NO_ARGUMENTS = {"type": "function", "function": {"name": "list_files", "description": "", "parameters": {"type": "object", "properties": {}}}}


def called(*arguments, **more) -> list[dict]:
    """A question, a message with these calls, and their results."""
    ids = [f"call0000{number}" for number in range(len(arguments))]
    calls = [{"id": id_, "type": "function", "function": {"name": "get_weather" if one else "list_files", "arguments": one}} for id_, one in zip(ids, arguments)]
    results = [{"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": f"result {number} <of>\n\"é\""} for number, call in enumerate(calls)]
    return [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": calls} | more, *results]


def agent(messages: list[dict], begun: bool = True) -> dict:
    """An agent's conversation as variables of a template."""
    return {"messages": messages, "tools": [TOOL, NO_ARGUMENTS], "add_generation_prompt": begun}


ZURICH, DEEP = {"city": "Zürich", "days": 2}, {"city": "a \"b\" </tool_call>\n", "days": 1.5, "deep": {"list": [1, None, True, {"k": []}], "none": None}}
CONVERSATIONS = {
    "one": {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": True},
    "system": {"messages": [{"role": "system", "content": " You are\nterse. "}, {"role": "user", "content": "  Hi ä 日本 🚀 "}],
               "add_generation_prompt": True},
    "several": {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a\n\n"},
                             {"role": "assistant", "content": "<think>hm</think>\n\nb \"c\" <d> & 'e'"},
                             {"role": "user", "content": "{{ f }} {% g %}"}], "add_generation_prompt": False},
    "tools": {"messages": [{"role": "user", "content": "Weather?"}, CALL,
                           {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"t\": 21.5}"},
                           {"role": "assistant", "content": "21.5"}, {"role": "user", "content": "Thanks"}],
              "tools": [TOOL], "add_generation_prompt": True},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]}],
              "add_generation_prompt": True},
    # What agents send: several calls with their results, thinking, nothing said, arguments as text, a second round.
    "calls": agent(called(ZURICH, {}, DEEP)),
    "calls without text": agent(called(ZURICH, {}, content=None)),
    "call with thinking": agent(called(ZURICH, content="I look.", reasoning_content="Hm,\nlet me see.", thinking="Hm,\nlet me see.", reasoning="Hm,\nlet me see.")),
    "arguments as text": agent(called(json.dumps(DEEP), "{}")),
    "rounds": agent([{"role": "system", "content": "Be short."}, *called(ZURICH), *called(DEEP, reasoning_content="So.")[1:],
                     {"role": "assistant", "content": "21.5", "reasoning_content": "Done."}, *called({})]),
    "answered": agent([*called(ZURICH), {"role": "assistant", "content": "21.5"}], False),
    "wrong order": {"messages": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
                    "add_generation_prompt": True},
}


def rendered_by_jinja2(source: str, context: dict):
    try:
        full = {"bos_token": BOS, "eos_token": EOS, "tools": None, "documents": None, **context}
        return environment().from_string(source).render(**full)
    except Exception as error:  # whatever a template does wrong
        return {"error": f"{type(error).__name__}: {error}"}


def add_arguments(parser) -> None:
    parser.add_argument("folders", nargs="*", type=Path, default=[OWN])
    parser.add_argument("--golden", action="store_true", help=f"write {GOLDEN.relative_to(ROOT)}")
    parser.add_argument("--binary", type=Path, help="the built example (default: builds it)")


def run(args) -> None:
    templates = sorted(path for folder in args.folders for path in folder.glob("*.jinja"))
    asked = [(path, name) for path in templates for name in CONVERSATIONS]
    theirs = [rendered_by_jinja2(path.read_text(), CONVERSATIONS[name]) for path, name in asked]
    if args.golden:
        golden = [{"template": path.name, "conversation": name, "context": CONVERSATIONS[name],
                   "rendered": answer if isinstance(answer, str) else None}
                  for (path, name), answer in zip(asked, theirs)]
        GOLDEN.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in golden) + "\n]\n")
        print(f"{len(golden)} renderings -> {GOLDEN}")
        return
    ours = common.answers(args.binary or common.example("render_chat"), (
        {"template": path.read_text(), "bos": BOS, "eos": EOS, "context": CONVERSATIONS[name]} for path, name in asked))
    same = both_fail = 0
    differ = []
    for (path, name), mine, other in zip(asked, ours, theirs, strict=True):
        if isinstance(mine, dict) and isinstance(other, dict):
            both_fail += 1
        elif mine == other:
            same += 1
        else:
            differ.append((path, name, mine, other))
    print(f"{len(templates)} templates, {len(asked)} renderings: {same} identical, {both_fail} fail in both, "
          f"{len(differ)} differ")
    for path, name, mine, other in differ:
        if isinstance(mine, str) and isinstance(other, str):
            at = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
            print(f"  {path.name} / {name}: ours {mine[at - 20 if at > 20 else 0:at + 40]!r}, jinja2 {other[at - 20 if at > 20 else 0:at + 40]!r}")
        else:
            print(f"  {path.name} / {name}: ours {str(mine)[:150]!r}, jinja2 {str(other)[:150]!r}")
    if differ:
        sys.exit(1)
