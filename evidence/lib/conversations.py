"""Conversations that agents have with a scripted model: what the model writes at each turn, in the notation of a family, and what has to come of it.

The model's text of a turn is what the family's own template makes of such a message, rendered by Python's jinja2: the text that follows the beginning of
an answer. So nothing of our own knows the notation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from evidence.agree.chat import environment
from evidence.lib import common, scripted

SYSTEM = "You keep notes for someone. Use the tools that you have, one step at a time, and say when all is done."
# A template of our own, for where there are no published ones.
OWN_TEMPLATE = """{%- if tools or messages[0].role == 'system' %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}{% if message.role != 'system' %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CHAT_ML = ("<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")


@dataclass(frozen=True)
class Family:
    """A template, and what of its notation are tokens of their own."""

    file: str | None
    control: tuple[str, ...]
    user: tuple[str, ...]
    end: str
    thinks: bool = False
    """Whether an answer may begin with thinking."""
    ids: str = "call{number:05}"
    """The id of a call, by its number and name."""
    several: bool = True
    """Whether an answer may have several calls."""
    preamble: bool = True
    """Whether text of the answer precedes its calls."""
    ends: tuple[str, ...] = ()
    """What else ends the model's part of a rendered message."""
    left_out: tuple[str, ...] = ()
    """The tokens at the end of a prompt that the template leaves out after the user's next message: the beginning of thinking."""

    def source(self, templates: Path | None) -> str:
        """The template's text."""
        return (templates / self.file).read_text() if self.file else OWN_TEMPLATE

    def specials(self) -> dict[str, str]:
        """As the scripted model takes them."""
        return dict.fromkeys(self.control, "control") | dict.fromkeys(self.user, "user")


FAMILIES = {
    "own": Family(None, CHAT_ML, (*THINK, "<tool_call>", "</tool_call>"), "<|im_end|>", thinks=True),
    "qwen3": Family("Qwen-Qwen3-0.6B.jinja", CHAT_ML, (*THINK, "<tool_call>", "</tool_call>"), "<|im_end|>", thinks=True),
    "qwen3.5": Family("Qwen3.5-4B.jinja", CHAT_ML, (*THINK, "<tool_call>", "</tool_call>"), "<|im_end|>", thinks=True,
                      left_out=("<think>", "\n")),
    "glm": Family("GLM-4.6.jinja", ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
                  (*THINK, "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), "<|user|>", thinks=True),
    "deepseek": Family("deepseek-ai-DeepSeek-V3.1.jinja", ("<s>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
                       (*THINK, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
                        "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"), "<｜end▁of▁sentence｜>"),
    "kimi": Family("moonshotai-Kimi-K2.jinja", ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
                   ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
                   "<|im_end|>", ids="functions.{name}:{number}"),
    "minimax": Family("MiniMax-M2.jinja", ("]~!b[", "]~b]", "[e~["), (*THINK, "<minimax:tool_call>", "</minimax:tool_call>"), "[e~[", thinks=True),
    "mistral": Family("Mistral-Small-3.2-24B-Instruct-2506.jinja",
                      ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
                       "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), (), "</s>", ids="call{number:05}"),
    "llama": Family("meta-llama-Llama-3.1-8B-Instruct.jinja", ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
                    ("<|python_tag|>",), "<|eot_id|>", several=False),
    "gemma4": Family("google-gemma-4-31B-it.jinja", ("<bos>", "<|turn>", "<turn|>", "<|tool_response>"),
                     ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<tool_response|>", '<|"|>', "<|tool>", "<tool|>", "<|think|>"), "<turn|>",
                     preamble=False, ends=("<|tool_response>",)),
    "gpt-oss": Family("openai-gpt-oss-120b.jinja", ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"), (),
                      "<|return|>", several=False, preamble=False),
}


@dataclass(frozen=True)
class Turn:
    """What the model does at a turn."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, dict], ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A conversation: what the user says, and what the model does at each turn."""

    messages: list[str]
    turns: list[Turn]
    form: dict | None = None

    @property
    def calls(self) -> list[list]:
        """All calls, in their order."""
        return [[name, arguments] for turn in self.turns for name, arguments in turn.calls]

    @property
    def texts(self) -> list[str]:
        """The texts that answer the user."""
        return [turn.text for turn in self.turns if not turn.calls]

    @property
    def thinking(self) -> list[str]:
        """All thinking."""
        return [turn.thinking for turn in self.turns if turn.thinking]


@dataclass
class Library:
    """The scripts of one model: several scenarios, one after another. Without a marker in the prompt, the model says only that it is there."""

    family: Family
    templates: Path | None
    scripts: list[str] = field(default_factory=lambda: ["I am here."])
    history: list[dict] = field(default_factory=list)
    calls: int = 0

    def write(self, path: Path) -> Path:
        """The model's file."""
        family = self.family
        bos = next((one for one in family.control if one in ("<s>", "<bos>", "<|begin_of_text|>")), None)
        # Agents say much, in English.
        texts = [page.read_text() for page in sorted((common.ROOT / "docs").rglob("*.md"))]
        return scripted.write(path, self.scripts, pieces=4096, texts=texts, longest=12, template=family.source(self.templates), specials=family.specials(),
                              end=family.end, bos=bos)

    def marker(self) -> str:
        """The marker of the next script."""
        return scripted.marker(len(self.scripts))

    def ask(self, message: str) -> str:
        """A message of the user, which begins a conversation or goes on with it; returns it with the marker of the next script."""
        marked = f"{message} {self.marker()}"
        self.history.append({"role": "user", "content": marked})
        return marked

    def add(self, turn: Turn, thinks: bool = True) -> None:
        """The next script: a turn in the conversation, as the template writes it after the beginning of an answer, with thinking on or off."""
        calls = [{"id": self.family.ids.format(number=self.calls + number, name=name), "type": "function",
                  "function": {"name": name, "arguments": arguments}} for number, (name, arguments) in enumerate(turn.calls)]
        self.calls += len(calls)
        message = {"role": "assistant", "content": turn.text}
        if turn.thinking:
            message |= {"reasoning_content": turn.thinking, "thinking": turn.thinking}
        if calls:
            message["tool_calls"] = calls
        begun, whole = self.render(self.history, True, thinks), self.render([*self.history, message], False, thinks)
        same = next((at for at, (a, b) in enumerate(zip(begun, whole)) if a != b), min(len(begun), len(whole)))
        text, open_thinking = whole[same:], begun[same:]
        for end in (self.family.end, *self.family.ends):
            text = text[: text.rindex(end)] if end in text else text
        text = text if thinks else text.lstrip("\n")
        # A grammar may hold the answer's text, so that begins with a token of its own.
        text = text.replace(turn.text, scripted.CUT + turn.text, 1) if turn.text else text
        # A prompt that opens thinking, where the message has none: it is closed at once.
        self.scripts.append(f"\n{THINK[1]}\n\n{text}" if open_thinking.startswith(THINK[0]) else text)
        results = [{"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "done"} for call in calls]
        self.history += [message, *results]

    def render(self, messages: list[dict], begins: bool, thinks: bool) -> str:
        """By jinja2."""
        template = environment().from_string(self.family.source(self.templates))
        return template.render(messages=messages, tools=None, add_generation_prompt=begins, enable_thinking=thinks, bos_token="", eos_token="")


def tools(library: Library, turns: int, names: dict[str, str] | None = None, own: list[tuple[str, dict]] | None = None) -> Scenario:
    """Calls at all turns but the last. `names`: what the client calls the tools; `own`: tools of the client's, with arguments in which a marker can stand."""
    name_of = lambda name: (names or {}).get(name, name)
    library.history.clear()
    begun, done = library.ask("Please look at my notes."), []
    for number in range(turns - 1):
        library_marker = scripted.marker(len(library.scripts) + 1)
        note = {
            0: [("read_note", {"name": f"1.50 {library_marker}", "line": number})],
            1: [("write_note", {"name": f"null {library_marker}", "text": 'def f(x):\n    return "<b>" + x + \'\\n\'', "tags": ["a", "true", "7"]})],
            2: [("read_note", {"name": f'{{"a": 1}} {library_marker}', "line": -number})],
            3: [("add", {"a": 1.5, "b": number}), ("read_note", {"name": f"both {library_marker}", "line": 1})],
            4: [("write_note", {"name": f"日本 é 🚀 {library_marker}", "text": "true", "tags": []})],
        }[number % 5]
        if own and number % 5 == 4:
            tool, arguments = own[number // 5 % len(own)]
            note = [(tool, {key: value.replace("MARKER", library_marker) if isinstance(value, str) else value for key, value in arguments.items()})]
        if not library.family.several:
            note = note[-1:]
        turn = Turn(
            text=f"I look at it, step {number}." if library.family.preamble and number % 5 == 2 else "",
            thinking=f"Is step {number} the right one?" if library.family.thinks and number % 5 in (1, 3) else "",
            calls=tuple((name_of(name), arguments) for name, arguments in note))
        library.add(turn)
        done.append(Turn(turn.text, turn.thinking, tuple((name, arguments) for name, arguments in note)))
    last = Turn("All is done: 日本 🚀.")
    library.add(last)
    return Scenario([begun], [*done, last])


def chat(library: Library, turns: int = 3) -> Scenario:
    """Messages of the user, each answered."""
    library.history.clear()
    messages, done = [], []
    for number in range(turns):
        messages.append(library.ask(f"Question {number}."))
        turn = Turn(f"Answer {number}: é 🚀, \"so\" <b>.", f"Hm, {number}." if library.family.thinks else "")
        library.add(turn)
        done.append(turn)
    return Scenario(messages, done)


def form(library: Library, call: str = "", thinks: bool = False) -> Scenario:
    """An answer that follows a schema; with `call`, as the arguments of a call of that name; with `thinks`, of a client that wants thinking."""
    found = {"city": "Zürich", "degrees": -4, "rain": True}
    library.history.clear()
    message = library.ask("How is the weather?")
    if call:
        turn = Turn(calls=((call, found),))
    else:
        turn = Turn(json.dumps(found, ensure_ascii=False, separators=(",", ":")))
    # An answer that is held to a schema has no thinking, unless the template itself begins it.
    library.add(turn, thinks=thinks or bool(call))
    return Scenario([message], [turn], found)
