"""How each family of models writes thinking and calls, written down once more, apart from the engine's table: for scripted models.

Marks and rules are those of the families' published templates and of their reports, as `Family` has them. A family writes answers (`answer`); what models do
wrong is in its `failures`, each with what has to come of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from evidence.lib.scripted import CUT, literal, plain


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict
    id: str | None = None
    """What the model calls it, where the client has to be told."""


@dataclass(frozen=True)
class Answer:
    """An answer in parts."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Failure:
    """What a model does wrong."""

    what: str
    written: str
    """After the prompt."""
    answer: Answer
    ends: str | None = None
    """The token that ends it, if it is not the family's."""


@dataclass(frozen=True)
class Family:
    name: str
    format: str
    """The engine's name for it."""
    published: str
    """llama.cpp's name of a template of the family."""
    calls: Callable[[tuple[Call, ...]], str]
    """The calls of an answer, all of them."""
    think: tuple[str, str] | None = ("<think>\n", "\n</think>\n\n")
    """Before and after thinking."""
    opened: bool = False
    """Whether the prompt opens it."""
    text: tuple[str, str] = ("", "")
    """Before and after the text."""
    specials: dict[str, str] = field(default_factory=dict)
    """Special tokens, besides `end`."""
    end: str = "<|im_end|>"
    end_of_calls: str | None = None
    """The token after calls, if it is another."""
    tail: str = ""
    """What it writes before it ends."""
    marks: tuple[str, ...] = ()
    """What ends a value, a call, and all calls: texts that a value may have in it."""
    several: bool = True
    """Whether an answer has several calls."""
    text_before_calls: bool = True
    ids: Callable[[int, str], str] | None = None
    """The id that the model gives a call, by its number and name."""
    late_ids: bool = False
    """Whether it stands after the arguments, so that a stream has begun the call without it."""
    failures: tuple[Failure, ...] = ()
    held: Callable[[tuple[Call, ...]], str] | None = None
    """The calls as a grammar holds them, if that is another way."""
    several_held: bool = True
    """Whether a grammar lets several be written."""

    def answer(self, answer: Answer, opened: bool | None = None, held: bool = False) -> str:
        """The script of an answer. `opened`: whether the prompt has opened the thinking; `held`: whether a grammar holds the calls."""
        opened, written = self.opened if opened is None else opened, ""
        if answer.thinking or opened:
            before, after = self.think
            written += ("" if opened else before) + answer.thinking + after
        if answer.text:
            # A grammar for the text begins with a token of its own.
            written += self.text[0] + CUT + answer.text + self.text[1]
        calls = self.held if held and self.held else self.calls
        return written + (calls(answer.calls) if answer.calls else "") + self.tail

    def marks_of(self) -> dict[str, str]:
        """All its special tokens."""
        return self.specials | {end: "control" for end in (self.end, self.end_of_calls) if end}


def j(value) -> str:
    """JSON as templates write it."""
    return json.dumps(value, ensure_ascii=False)


def raw(value) -> str:
    """A text as it is, all else as JSON."""
    return value if isinstance(value, str) else j(value)


def joined(one: Callable[[Call], str], between: str = "", before: str = "", after: str = "") -> Callable:
    """Calls one after the other, between marks."""
    return lambda calls: before + between.join(one(call) for call in calls) + after


def json_list(name: str, arguments: str, before: str, after: str = "", ids: str | None = None) -> Callable:
    """Calls as a JSON list between marks."""
    def written(calls: tuple[Call, ...]) -> str:
        found = [({ids: call.id or str(at)} if ids == "tool_call_id" else {}) | {name: call.name, arguments: call.arguments} | ({ids: call.id} if ids == "id" else {})
                 for at, call in enumerate(calls)]
        return before + j(found) + after
    return written


def tagged(open_: str, name_end: str, key: str, key_end: str, value_end: str, close: str, value: Callable = raw, kind: Callable | None = None, between: str = "\n") -> Callable:
    """A call whose arguments stand between tags."""
    def written(call: Call) -> str:
        arguments = [f"{key}{name}{kind(one) if kind else ''}{key_end}{value(one)}{value_end}" for name, one in call.arguments.items()]
        return open_ + call.name + name_end + between + "".join(one + between for one in arguments) + close
    return written


def python(value) -> str:
    """A literal of Python."""
    if isinstance(value, str):
        # JSON's escapes are Python's as well.
        return j(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(python, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{j(key)}: {python(one)}" for key, one in value.items()) + "}"
    return repr(value)


def pythonic(call: Call) -> str:
    return f"{call.name}({', '.join(f'{key}={python(value)}' for key, value in call.arguments.items())})"


def gemma(value) -> str:
    """A value in Gemma 4's notation."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(one)}" for key, one in sorted(value.items())) + "}"
    return j(value)


M3 = "]<]minimax[>["


def elements(value, key: str) -> str:
    """A value in MiniMax M3's notation."""
    if isinstance(value, dict):
        inner = "".join(elements(one, name) for name, one in value.items())
    elif isinstance(value, list):
        inner = "".join(elements(one, "item") for one in value)
    else:
        inner = raw(value)
    return f"{M3}<{key}>{inner}{M3}</{key}>"


def harmony(calls: tuple[Call, ...]) -> str:
    call, = calls
    return f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{j(call.arguments)}"


def kimi_id(number: int, name: str) -> str:
    return f"functions.{name}:{number}"


def nine(number: int, _name: str) -> str:
    return f"a1B2c3D{number:02}"


THINK = {"<think>": "user", "</think>": "user"}
CHATML = {"<|im_start|>": "control", "<|im_end|>": "control"}
TOOL_CALL = {"<tool_call>": "user", "</tool_call>": "user"}


def controls(*marks: str) -> dict[str, str]:
    return dict.fromkeys(marks, "control")


F, G = Call("f", {"b": 1}), Call("g", {})
QWEN_JSON = joined(lambda call: f'<tool_call>\n{{"name": {j(call.name)}, "arguments": {j(call.arguments)}}}\n</tool_call>', "\n")
CODER = joined(tagged("<tool_call>\n<function=", ">", "<parameter=", ">\n", "\n</parameter>", "</function>\n</tool_call>"), "\n")
GLM = tagged("<tool_call>", "", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</tool_call>", between="")
GLM_LINES = tagged("<tool_call>", "", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "</tool_call>")
HY3 = joined(tagged("<tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>",
                    "</tool_call:opensource>"), "\n", "<tool_calls:opensource>\n", "\n</tool_calls:opensource>")
HORIZON = joined(tagged("<ifm|tool_call>", "", "<ifm|arg_key>", "</ifm|arg_key>\n<ifm|arg_value>", "</ifm|arg_value>", "</ifm|tool_call>"), "\n", "<ifm|tool_calls>\n", "\n</ifm|tool_calls>")
V3 = joined(lambda call: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n```json\n{j(call.arguments)}\n```<｜tool▁call▁end｜>", "\n", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
V31 = joined(lambda call: f"<｜tool▁call▁begin｜>{call.name}<｜tool▁sep｜>{j(call.arguments)}<｜tool▁call▁end｜>", "", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def dsml(outer: str, blank: str = "") -> Callable:
    mark = f"｜DSML｜{blank}"
    one = tagged(f'<{mark}invoke name="', '">', f'<{mark}parameter name="', ">", f"</{mark}parameter>", f"</{mark}invoke>",
                 kind=lambda value: f'" string="{j(isinstance(value, str))}"')
    return joined(one, "\n", f"\n\n<{mark}{outer}>\n", f"\n</{mark}{outer}>")


KIMI = joined(lambda call: f"<|tool_call_begin|>{call.id}<|tool_call_argument_begin|>{j(call.arguments)}<|tool_call_end|>", "", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")


def k3(calls: tuple[Call, ...]) -> str:
    names = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object", type(None): "null"}
    written = ""
    for number, call in enumerate(calls, 1):
        arguments = "".join(f'<|open|>argument key="{key}" type="{names[type(value)]}"<|sep|>{raw(value)}<|close|>argument<|sep|>' for key, value in call.arguments.items())
        written += f'<|open|>call tool="{call.name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>'
    return f"<|open|>tools<|sep|>{written}<|close|>tools<|sep|>"


M2 = joined(tagged('<invoke name="', '">', '<parameter name="', '">', "</parameter>", "</invoke>"), "\n", "<minimax:tool_call>\n", "\n</minimax:tool_call>")
MINIMAX3 = joined(lambda call: f'{M3}<invoke name="{call.name}">{"".join(elements(value, key) for key, value in call.arguments.items())}{M3}</invoke>', "\n",
                  f"{M3}<tool_call>\n", f"\n{M3}</tool_call>")
LLAMA = joined(lambda call: f'{{"name": {j(call.name)}, "parameters": {j(call.arguments)}}}', "; ")
SEED = joined(tagged("<seed:tool_call>\n<function=", ">", "<parameter=", ">", "</parameter>", "</function>\n</seed:tool_call>"), "\n")
MINICPM = joined(tagged('<function name="', '">', '<param name="', '">', "</param>", "</function>", value=lambda value: f"<![CDATA[{value}]]>" if "<" in str(value) else raw(value), between=""), "\n")
SOLAR = joined(lambda call: f"<|tool_call:begin|>a{call.name}1<|tool_call:name|>{call.name}<|tool_call:args|>{j(call.arguments)}<|tool_call:end|>", "", "<|tool_calls|>")

GIGA = joined(lambda call: f'<|function_call|>{{"name": {j(call.name)}, "arguments": {j(call.arguments)}}}')
MUSE_CALL = tagged('<atem:function_calls>\n<atem:invoke name="', '">', '<atem:parameter name="', '">', "</atem:parameter>", "</atem:invoke>\n</atem:function_calls>")
MUSE = joined(lambda call: f" to={call.name}<|message|>{MUSE_CALL(call)}", "<|eom|><|start|>assistant")
INKLING = joined(lambda call: f'<|content_invoke_tool_json|>{{"name": {j(call.name)}, "args": {j(call.arguments)}}}<|end_message|>', "<|message_model|>")


def of(text: str = "", thinking: str = "", *calls: Call) -> Answer:
    return Answer(text, thinking, calls)


FAMILIES = (
    Family("qwen3", "ChatMl", "Qwen-Qwen3-0.6B", QWEN_JSON, specials=THINK | CHATML | TOOL_CALL, marks=("</tool_call>",), failures=(
        Failure("a second object in one block", '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n{"name": "g", "arguments": {}}\n</tool_call>', of("", "", F, G)),
        Failure("arguments as a text", '<tool_call>\n{"name": "f", "arguments": "{\\"b\\": 1}"}\n</tool_call>', of("", "", F)),
        Failure("parameters for arguments", '<tool_call>\n{"name": "f", "parameters": {"b": 1}}\n</tool_call>', of("", "", F)),
        Failure("a mark that is quoted", "The mark is `<tool_call>`.", of("The mark is `<tool_call>`.")),
    )),
    Family("hermes", "ChatMl", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", QWEN_JSON, think=None, specials=CHATML, marks=("</tool_call>",)),
    Family("ernie4.5", "ChatMl", "", QWEN_JSON, think=("<think>\n", "\n</think>\n\n\n"), opened=True, text=("<response>\n", "\n</response>\n"), specials=THINK | CHATML | TOOL_CALL,
           text_before_calls=False, marks=("</tool_call>",)),
    Family("functionary3.1", "Functionary", "meetkai-functionary-medium-v3.1", joined(lambda call: f"<function={call.name}>{j(call.arguments)}</function>"), think=None,
           specials=controls("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"), end="<|eot_id|>", marks=("</function>",)),
    Family("qwen3.5", "ChatMl", "Qwen3.5-4B", CODER, opened=True, specials=THINK | CHATML | TOOL_CALL, marks=("</parameter>", "</function>", "</tool_call>"), failures=(
        Failure("a call inside open thinking", "Hm.\n<tool_call>\n<function=f>\n<parameter=b>\n1\n</parameter>\n</function>\n</tool_call>", of("", "Hm.", F)),
        Failure("no opening mark", "Hm.\n</think>\n\n<function=f>\n<parameter=b>\n1\n</parameter>\n</function>\n</tool_call>", of("", "Hm.", F)),
        Failure("a value that ends twice", "</think>\n\n<tool_call>\n<function=f>\n<parameter=b>\n1\n</parameter>\n</parameter>\n</function>\n</tool_call>", of("", "", F)),
        Failure("text between thinking and call", "Hm.\n</think>\n\nSo.\n\n<tool_call>\n<function=g>\n</function>\n</tool_call>", of("So.", "Hm.", G)),
        Failure("words of Python", "</think>\n\n<tool_call>\n<function=f>\n<parameter=c>\nTrue\n</parameter>\n<parameter=e>\nNone\n</parameter>\n</function>\n</tool_call>",
                of("", "", Call("f", {"c": True, "e": None}))),
        Failure("a mark in thinking", "A <tool_call> is not one.\n</think>\n\nYes.", of("Yes.", "A <tool_call> is not one.")),
    )),
    Family("qwen3-coder", "ChatMl", "Qwen3-Coder", CODER, think=None, specials=CHATML | TOOL_CALL, marks=("</parameter>", "</function>", "</tool_call>"), failures=(
        Failure("no opening mark", "I look.\n<function=f>\n<parameter=b>\n1\n</parameter>\n</function>\n</tool_call>", of("I look.", "", F)),
    )),
    Family("gemma4", "Gemma4", "google-gemma-4-31B-it", joined(lambda call: f"<|tool_call>call:{call.name}{gemma(call.arguments)}<tool_call|>"), think=("<|channel>thought\n", "\n<channel|>"),
           specials=controls("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|turn>", "<|tool_response>"), end="<turn|>",
           end_of_calls="<|tool_response>", marks=("<tool_call|>", "}"), failures=(
        Failure("ordinary quotes", "<|tool_call>call:f{a:\"x, y} \\\"z\\\" ]\",d:['it\"s', \"b\"],o:{\"k\":\"v\"}}<tool_call|>",
                of("", "", Call("f", {"a": 'x, y} "z" ]', "d": ['it"s', "b"], "o": {"k": "v"}})), "<|tool_response>"),
        Failure("JSON", '<|tool_call>{"name": "f", "arguments": {"b": 1}}<tool_call|>', of("", "", F), "<|tool_response>"),
    )),
    Family("gpt-oss", "Harmony", "openai-gpt-oss-120b", harmony, think=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"), text=("<|channel|>final<|message|>", ""),
           specials=controls("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"), end="<|return|>", end_of_calls="<|call|>",
           several=False, text_before_calls=False, failures=(
        Failure("a recipient on the analysis channel", '<|channel|>analysis to=functions.f code<|message|>{"b": 1}', of("", "", F), "<|call|>"),
        Failure("a recipient before the channel", ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"b": 1}', of("", "", F), "<|call|>"),
        Failure("a preamble", '<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"b": 1}', of("I look.", "", F), "<|call|>"),
        Failure("no header", "Yes.", of("Yes.")),
    )),
    Family("mistral-v3", "Mistral", "mistralai-Mistral-Nemo-Instruct-2407", json_list("name", "arguments", "[TOOL_CALLS]", ids="id"), think=None,
           specials=controls("[TOOL_CALLS]", "[INST]", "[/INST]"), end="</s>", text_before_calls=False, marks=("]",), ids=nine, late_ids=True),
    Family("mistral-v11", "Mistral", "Mistral-Small-3.2-24B-Instruct-2506", joined(lambda call: f"[TOOL_CALLS]{call.name}[CALL_ID]{call.id}[ARGS]{j(call.arguments)}"), think=None,
           specials=controls("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[INST]", "[/INST]"), end="</s>", marks=("[TOOL_CALLS]",), ids=nine),
    Family("ministral3", "Mistral", "mistralai-Ministral-3-14B-Reasoning-2512", joined(lambda call: f"[TOOL_CALLS]{call.name}[ARGS]{j(call.arguments)}"), think=("[THINK]", "[/THINK]"),
           specials=controls("[TOOL_CALLS]", "[ARGS]", "[INST]", "[/INST]", "[THINK]", "[/THINK]"), end="</s>", marks=("[TOOL_CALLS]",), failures=(
        Failure("a call inside thinking", '[THINK]Hm.[TOOL_CALLS]f[ARGS]{"b": 1}', of("", "Hm.", F)),
    )),
    Family("glm4.7", "Glm", "GLM-4.7-Flash", joined(GLM), think=("<think>", "</think>"), opened=True, specials=THINK | TOOL_CALL | dict.fromkeys(("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), "user"),
           end="<|user|>", marks=("</arg_value>", "</tool_call>"), failures=(
        Failure("no opening mark of a key", "</think><tool_call>fb</arg_key><arg_value>1</arg_value></tool_call>", of("", "", F)),
        Failure("two ends of a key", "</think><tool_call>f<arg_key>b</arg_key>\n</arg_key>\n<arg_value>1</arg_value></tool_call>", of("", "", F)),
        Failure("JSON", '</think><tool_call>f\n{"b": 1}\n</tool_call>', of("", "", F)),
    )),
    Family("glm4.5", "Glm", "GLM-4.6", joined(GLM_LINES, "\n"), think=("\n<think>", "</think>\n"), specials=THINK | TOOL_CALL, end="<|user|>", marks=("</arg_value>", "</tool_call>")),
    Family("hy3", "Hy3", "tencent-Hy3", HY3, think=("<think:opensource>", "</think:opensource>"), opened=True,
           specials=dict.fromkeys((f"<{mark}:opensource>" for mark in ("think", "/think", "tool_calls", "/tool_calls", "tool_call", "/tool_call", "tool_sep", "arg_key", "/arg_key", "arg_value", "/arg_value")), "user"),
           end="<|hy_eos|>", marks=("</arg_value:opensource>",)),
    Family("k2-horizon", "Horizon", "", HORIZON, think=("<ifm|think>", "</ifm|think>"),
           specials=controls(*(f"<{mark}>" for mark in ("ifm|think", "/ifm|think", "ifm|tool_calls", "/ifm|tool_calls", "ifm|tool_call", "/ifm|tool_call", "ifm|arg_key", "/ifm|arg_key", "ifm|arg_value", "/ifm|arg_value"))),
           end="<|ifm|im_end|>", marks=("</ifm|arg_value>",)),
    Family("deepseek-v3", "DeepSeek", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", V3, think=("<think>\n", "\n</think>\n\n"), opened=True,
           specials=THINK | controls(*(f"<｜tool▁{mark}｜>" for mark in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))), end="<｜end▁of▁sentence｜>", marks=("```",), failures=(
        Failure("no opening mark", "Hm.\n</think>\n\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"b\": 1}\n```<｜tool▁call▁end｜>", of("", "Hm.", F)),
    )),
    Family("deepseek-v3.1", "DeepSeek", "deepseek-ai-DeepSeek-V3.1", V31, think=("<think>", "</think>"), opened=True,
           specials=THINK | controls(*(f"<｜tool▁{mark}｜>" for mark in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))), end="<｜end▁of▁sentence｜>"),
    Family("deepseek-v3.2", "Dsml", "deepseek-ai-DeepSeek-V3.2", dsml("function_calls"), think=("<think>", "</think>"), opened=True, specials=THINK | {"｜DSML｜": "user"},
           end="<｜end▁of▁sentence｜>", marks=("</｜DSML｜parameter>", "</｜DSML｜invoke>"), failures=(
        Failure("no opening mark", '</think>\n\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="b" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', of("", "", F)),
        Failure("ordinary bars", '</think><|DSML|function_calls><|DSML|invoke name="f"><|DSML|parameter name="b" string="false">1</|DSML|parameter></|DSML|invoke></|DSML|function_calls>', of("", "", F)),
        Failure("all arguments in one", '</think><｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="arguments" string="false">{"b": 1}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>', of("", "", F)),
        Failure("an end that has no beginning", "</think></｜DSML｜function_calls>\nYes.", of("Yes.")),
    )),
    Family("deepseek-v4", "Dsml", "deepseek-ai-DeepSeek-V4", dsml("tool_calls"), think=("<think>", "</think>"), opened=True, specials=THINK | {"｜DSML｜": "user"}, end="<｜end▁of▁sentence｜>",
           marks=("</｜DSML｜parameter>",)),
    Family("deepseek-v4.1", "Dsml", "", dsml("calls", " "), think=("<think>", "</think>"), opened=True, specials=THINK | {"｜DSML｜": "user"}, end="<｜end▁of▁sentence｜>",
           marks=("</｜DSML｜ parameter>",)),
    Family("kimi-k2", "Kimi", "Kimi-K2-Thinking", KIMI, think=("<think>", "</think>"), specials=THINK | CHATML | controls(
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"), ids=kimi_id, failures=(
        Failure("one call's section", '<|tool_call_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"b": 1}<|tool_call_end|><|tool_call_section_end|>', of("", "", Call("f", {"b": 1}, "functions.f:0"))),
        Failure("no section", '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"b": 1}<|tool_call_end|>', of("", "", Call("f", {"b": 1}, "functions.f:0"))),
        Failure("a name alone", '<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{"b": 1}<|tool_call_end|><|tool_calls_section_end|>', of("", "", Call("f", {"b": 1}, "f:0"))),
        Failure("underscores", '<|tool_calls_section_begin|><|tool_call_begin|>functions_f_2<|tool_call_argument_begin|>{"b": 1}<|tool_call_end|><|tool_calls_section_end|>', of("", "", Call("f", {"b": 1}, "functions_f_2"))),
        Failure("a call inside thinking", '<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"b": 1}<|tool_call_end|><|tool_calls_section_end|>', of("", "Hm.", Call("f", {"b": 1}, "functions.f:0"))),
    )),
    Family("kimi-k3", "KimiK3", "Kimi-K3", k3, think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"), opened=True, text=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
           specials=controls("<|open|>", "<|close|>", "<|sep|>"), end="<|end_of_msg|>", tail="<|close|>message<|sep|>"),
    Family("minimax-m2", "MiniMax", "MiniMax-M2", M2, opened=True, specials=THINK | dict.fromkeys(("<minimax:tool_call>", "</minimax:tool_call>"), "user"), end="[e~[", marks=("</parameter>", "</invoke>")),
    Family("minimax-m3", "MiniMax3", "MiniMax-M3", MINIMAX3, think=("<mm:think>", "</mm:think>"), specials={M3: "user", "<mm:think>": "user", "</mm:think>": "user"}, end="[e~[", marks=("</a>",), failures=(
        Failure("thinking that only ends", "</mm:think>Yes.", of("Yes.")),
    )),
    Family("llama3", "Llama", "meta-llama-Llama-3.1-8B-Instruct", LLAMA, think=None, several_held=False,
           specials=controls("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eom_id|>"), end="<|eot_id|>", text_before_calls=False, failures=(
        Failure("its type first", '{"type": "function", "name": "f", "parameters": {"b": 1}}', of("", "", F)),
        Failure("after text", 'I look.\n{"name": "f", "parameters": {"b": 1}}', of("I look.", "", F)),
        Failure("code after its mark", "<|python_tag|>f.call(b=1)", of("", "", F), "<|eom_id|>"),
        Failure("JSON of something else", '{"name": "Ann", "age": 3}', of('{"name": "Ann", "age": 3}')),
    )),
    Family("llama4", "Llama", "meta-llama-Llama-3.2-3B-Instruct", joined(pythonic, ", ", "[", "]"), think=None, held=LLAMA, several_held=False,
           specials=controls("<|begin_of_text|>", "<|python_tag|>", "<|python_start|>", "<|python_end|>"), end="<|eot_id|>", text_before_calls=False, failures=(
        Failure("between marks", "<|python_start|>[f(b=1), g()]<|python_end|>", of("", "", F, G)),
        Failure("JSON between marks", '<|python_start|>{"name": "f", "parameters": {"b": 1}}<|python_end|>', of("", "", F)),
        Failure("a list of something else", "[1, 2] and [f] and f(1).", of("[1, 2] and [f] and f(1).")),
    )),
    Family("seed-oss", "Seed", "ByteDance-Seed-OSS", SEED, think=("<seed:think>", "</seed:think>"), specials=controls("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
           end="<seed:eos>", marks=("</parameter>", "</function>")),
    Family("lfm2", "Lfm2", "LFM2.5-8B-A1B", joined(pythonic, ", ", "<|tool_call_start|>[", "]<|tool_call_end|>"), think=("<think>", "</think>"),
           specials=THINK | CHATML | controls("<|tool_call_start|>", "<|tool_call_end|>"), marks=(")",), failures=(
        Failure("all arguments in one", '<|tool_call_start|>[f(properties={"b": 1})]<|tool_call_end|>', of("", "", F)),
        Failure("JSON's words", '<|tool_call_start|>[f(c=true, e=null)]<|tool_call_end|>', of("", "", Call("f", {"c": True, "e": None}))),
        Failure("escapes of Python", "<|tool_call_start|>[f(a='it\\'s \\x41\\u00e9\\n\\\\')]<|tool_call_end|>", of("", "", Call("f", {"a": "it's Aé\n\\"}))),
        Failure("JSON", '<|tool_call_start|>[{"name": "f", "arguments": {"b": 1}}]<|tool_call_end|>', of("", "", F)),
    )),
    Family("command-r7b", "Command", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", json_list("tool_name", "parameters", "<|START_ACTION|>", "<|END_ACTION|>", "tool_call_id"),
           think=("<|START_THINKING|>", "<|END_THINKING|>"), text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"), text_before_calls=False,
           specials=controls(*(f"<|{word}_{what}|>" for word in ("START", "END") for what in ("THINKING", "ACTION", "RESPONSE", "TEXT"))), end="<|END_OF_TURN_TOKEN|>", marks=("]",)),
    Family("granite3.3", "Granite3", "ibm-granite-granite-3.3-2B-Instruct", json_list("name", "arguments", "<|tool_call|>"), think=("<think>", "</think>"), text=("<response>", "</response>"),
           specials=controls("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"), end="<|end_of_text|>", marks=("]",)),
    Family("phi4-mini", "Granite3", "", json_list("name", "arguments", "<|tool_call|>", "<|/tool_call|>"), think=None, specials=controls("<|tool_call|>", "<|/tool_call|>", "<|tool|>", "<|/tool|>"),
           end="<|end|>", marks=("]",), failures=(
        Failure("without its mark", 'functools[{"name": "f", "arguments": {"b": 1}}]', of("", "", F)),
        Failure("a word of Python's", "Python's functools[0] is none.", of("Python's functools[0] is none.")),
    )),
    Family("nemotron2", "Nemotron2", "NVIDIA-Nemotron-Nano-v2", json_list("name", "arguments", "<TOOLCALL>", "</TOOLCALL>"), opened=True, specials=THINK | dict.fromkeys(("<TOOLCALL>", "</TOOLCALL>"), "user"),
           end="<SPECIAL_12>", marks=("]", "</TOOLCALL>")),
    Family("hunyuan", "ToolCalls", "", json_list("name", "arguments", "<tool_calls>", "</tool_calls>"), think=("<think>\n", "\n</think>\n"), text=("<answer>\n", "\n</answer>"),
           specials={}, end="<|eos|>", marks=("</tool_calls>",), failures=(
        Failure("calls inside the answer", '<think>\nHm.\n</think>\n<answer>\nI look.\n<tool_calls>[{"name": "f", "arguments": {"b": 1}}]</tool_calls>\n</answer>', of("I look.", "Hm.", F)),
    )),
    Family("apertus", "Apertus", "Apertus-8B-Instruct", lambda calls: f"<|tools_prefix|>{j([{call.name: call.arguments} for call in calls])}<|tools_suffix|>", think=("<|inner_prefix|>", "<|inner_suffix|>"),
           specials=controls("<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>"), end="<|assistant_end|>", marks=("]",)),
    Family("solar-open", "Solar", "upstage-Solar-Open-100B", SOLAR, think=("<|think|>", "<|end|><|begin|>assistant"), text=("<|content|>", "<|end|>"), text_before_calls=False,
           specials=controls("<|begin|>", "<|think|>", "<|content|>", "<|end|>", "<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "<|flush|>"),
           end="<|calls|>"),
    Family("minicpm5", "MiniCpm5", "openbmb-MiniCPM5-1B", MINICPM, specials=THINK | CHATML, marks=("</param>", "</function>")),
    Family("gigachat3", "GigaChat", "GigaChat3.1-10B-A1.8B", GIGA, think=None, specials=controls("<|function_call|>", "<|message_sep|>", "<|role_sep|>"), end="</s>", several=False, failures=(
        Failure("a message of its own", 'I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {"b": 1}}', of("I look.", "", F)),
    )),
    Family("muse-glimmer", "Muse", "muse-glimmer", MUSE, think=(" to=self<|message|>", "<|eom|><|start|>assistant"), text=(" to=user<|message|>", ""),
           specials=controls("<|start|>", "<|message|>", "<|eom|>"), end="<|eot|>", text_before_calls=False, marks=("</atem:parameter>",), failures=(
        Failure("no header", "Yes.", of("Yes.")),
        Failure("no opening mark", 'I look.\n<atem:invoke name="f">\n<atem:parameter name="b">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>', of("I look.", "", F)),
    )),
    Family("inkling", "Inkling", "", INKLING, think=("<|content_thinking|>", "<|end_message|><|message_model|>"), text=("<|content_text|>", "<|end_message|>"),
           specials=controls("<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>", "<|end_message|>"),
           end="<|content_model_end_sampling|>", text_before_calls=False, marks=("<|end_message|>",), failures=(
        Failure("the name before the block", '<|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {"b": 1}}<|end_message|>', of("", "", F)),
        Failure("a call inside thinking", '<|content_thinking|>Hm.<|content_invoke_tool_json|>{"name": "f", "args": {"b": 1}}<|end_message|>', of("", "Hm.", F)),
    )),
)


def number(calls: tuple[Call, ...], family: Family) -> tuple[Call, ...]:
    """With the ids that the model gives them."""
    return tuple(Call(call.name, call.arguments, family.ids(at, call.name) if family.ids else None) for at, call in enumerate(calls))


def literals(value):
    """A value of which no text becomes a special token."""
    if isinstance(value, str):
        return literal(value) if any(mark in value for mark in ("<", "[", "｜")) else value
    if isinstance(value, list):
        return [literals(one) for one in value]
    return {key: literals(one) for key, one in value.items()} if isinstance(value, dict) else value


def template(family: Family, opened: bool | None = None) -> str:
    """A small template by our own hand, for a family: it shows tools and messages, and has the marks that say which family it is."""
    opened = family.opened if opened is None else opened
    sample = plain(family.calls(number((Call("f", {"k": "v"}),), family))) + (family.think[1] if family.think else "") + "".join(family.text)
    # Marks of what is written; a comment of a template ends at "#}".
    sample = sample.replace("#}", "# }")
    begin = f"{{{{ {j(family.think[0])} }}}}" if opened else ""
    return (f"{{# {sample} #}}" "{%- if tools %}{{ tools | tojson }}\n{% endif %}"
            "{%- for message in messages %}[{{ message.role }}] {{ message.content or '' }}"
            "{%- for call in message.tool_calls or [] %} {{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
            "{%- if add_generation_prompt %}[assistant]\n" + begin + "{% endif %}")
