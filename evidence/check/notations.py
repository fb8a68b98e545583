"""How every family of models writes thinking and calls, through all four protocols of `alight serve`, by models that write what they are given.

Of each family a scripted model (`evidence.lib.scripted`) writes answers in the family's notation (`evidence.lib.notations`): text, thinking, one call and
several, values that look like others, the notation's own ends in a value, and what models do wrong. They are asked for by `/v1/chat/completions`,
`/v1/responses`, `/v1/messages` and `/api/chat`, whole and streamed; what comes is compared with what was scripted: names, arguments as values, ids, thinking, text and
why it ended; the pieces of a stream, joined, are the whole. Then with choices of the client: a call that is required, of a named tool, none, one alone, arguments
held to their schema, and an answer held to one next to thinking.

    .venv/bin/python -m evidence check notations                      every family, protocol and way, the answers cut into tokens in several ways
    .venv/bin/python -m evidence check notations --sample             each answer once, streamed, by one of the protocols in turn
    .venv/bin/python -m evidence check notations --only glm kimi      families whose name has that in it
    .venv/bin/python -m evidence check notations --templates FOLDER   with the published templates there (llama.cpp's models/templates)
"""

from __future__ import annotations

import http.client
import json
import re
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from evidence.check.clients import serving
from evidence.lib import common, notations, scripted
from evidence.lib.checks import Checks
from evidence.lib.notations import Answer, Call, Family, Failure

PROTOCOLS = ("chat", "responses", "messages", "ollama")
PARAMETERS = {"type": "object", "properties": {
    "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "boolean"}, "d": {"type": "array", "items": {"type": "string"}},
    "e": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "code": {"type": "string"}, "empty": {"type": "string"}, "list": {"type": "string"},
    "m": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}}, "none": {"type": "string"},
    "o": {"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": "integer"}}}, "object": {"type": "string"},
    "ratio": {"type": "number"}, "truth": {"type": "string"}, "unit": {"enum": ["C", "F"]}}}
# What a client that holds arguments to a schema has.
HELD = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": False}
TOOLS = {"f": PARAMETERS, "g": {"type": "object", "properties": {}}, "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, "held": HELD}
# Texts that look like other values, and other values.
VALUES = {"a": "1.50", "b": -3, "c": True, "d": ["x", "1.50", "true"], "e": None, "code": 'if a < b and c & "d":\n\tprint(\'é 🚀\\n\')  # \\\n', "empty": "", "list": "[1, 2]",
          "m": [{"x": 1.5}, {"x": 2}], "none": "null", "o": {"k": "1.50", "n": 2}, "object": '{"a": 1}', "ratio": 0.25, "truth": "true", "unit": "F"}
PET = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": False}
# The input of a custom tool, and its grammar.
PATCH = "*** Begin Patch\n*** Add File: a/b.py\n+print(\"é\")\n+\n*** End Patch"
PATCHES = r"""start: "*** Begin Patch" LF add+ "*** End Patch" LF?
add: "*** Add File: " /(.+)/ LF line+
line: "+" /(.*)/ LF
%import common.LF
"""
# Of what is said to be wrong.
LINE = 600
# Requests to a server at the same time.
CLIENTS = 4
F, G, H = notations.F, notations.G, Call("held", {"a": "x", "b": 1})
WEATHER = Call("get_weather", {"city": "São Tomé"})


def add_arguments(parser) -> None:
    """The program, and how much is done."""
    common.add_arguments(parser, threads=1)
    common.add_only_argument(parser, "families")
    parser.add_argument("--sample", action="store_true", help="each answer once")
    parser.add_argument("--cuts", type=int, default=3, help="how often each answer is cut into tokens in another way (default: 3)")
    parser.add_argument("--templates", type=Path, metavar="FOLDER", help="use the published templates there")
    parser.add_argument("--verbose", action="store_true", help="say also what holds")


@dataclass(frozen=True)
class Case:
    """An answer as it is written, and what has to come of it."""

    what: str
    written: str
    answer: Answer
    end: str
    asked: dict = field(default_factory=dict)
    """What the client asks for besides, in words of chat completions."""
    protocols: tuple[str, ...] = PROTOCOLS
    anything: bool = False
    """Whether calls of the tools are all that is wanted, since the grammar forbids what is written."""
    cut: bool = False
    """Whether the client wants half as many tokens as it has."""
    form: bool = False
    """Whether the text is a form that the client wants, and not what is written."""
    late_ids: bool = False
    """Whether a stream begins a call without the id that the model gives it."""


@dataclass
class Got:
    """What came of an answer, by any protocol."""

    thinking: str = ""
    text: str = ""
    calls: list[dict] = field(default_factory=list)
    """Name, arguments as text or as a value, id."""
    reason: str = ""
    wrong: list[str] = field(default_factory=list)
    """What does not fit together in the events themselves."""


def cases(family: Family, opened: bool) -> list[Case]:
    """The answers of a family."""
    found: list[Case] = []

    def add(what: str, answer: Answer, **more) -> None:
        numbered = replace(answer, calls=notations.number(answer.calls, family))
        hidden = replace(numbered, calls=tuple(replace(call, arguments=notations.literals(call.arguments)) for call in numbered.calls))
        end = family.end_of_calls if answer.calls and family.end_of_calls else family.end
        held = bool({"tool_choice", "strict", "custom"} & set(more.get("asked", ())))
        found.append(Case(what, family.answer(hidden, opened, held), numbered, end, late_ids=family.late_ids, **more))

    thinking = "Hm,\n\nlet me see." if family.think else ""
    add("text", Answer("Yes.\n\nIt is *so*: 1 < 2 & é 🚀."))
    add("a call", Answer(calls=(F,)))
    add("no arguments", Answer(calls=(G,)))
    add("values of every type", Answer(calls=(Call("f", VALUES),)))
    add("half of the values", Answer(calls=(Call("f", VALUES),)), cut=True)
    if family.marks:
        add("ends in a value", Answer(calls=(Call("f", {"a": f"x{'y'.join(family.marks)}\nz", "b": 1}),)))
    if thinking:
        add("thinking and text", Answer("Yes.", thinking))
        add("thinking and a call", Answer("", thinking, (WEATHER,)))
    if family.text_before_calls:
        add("text and a call", Answer("I look.", thinking, (WEATHER,)))
    if family.several:
        add("several calls", Answer(calls=(WEATHER, G, WEATHER, F)))
    for failure in family.failures:
        found.append(of_failure(family, failure, opened))
    limited = {"parallel_tool_calls": False}
    some = tuple(one for one in PROTOCOLS if one != "ollama")
    for what, choice in (("required", "required"), ("named", {"type": "function", "function": {"name": "f"}})):
        add(f"a call, {what}", Answer(calls=(F,)), asked={"tool_choice": choice}, protocols=some)
        if thinking:
            add(f"thinking and a call, {what}", Answer("", thinking, (F,)), asked={"tool_choice": choice}, protocols=some)
        add(f"text where a call is {what}", Answer("Yes, it is."), asked={"tool_choice": choice, "max_tokens": 60}, protocols=some, anything=True)
    add("a call, none", Answer(calls=(F,)), asked={"tool_choice": "none"}, protocols=some)
    if family.several:
        add("several calls, one alone", Answer(calls=(WEATHER, G)), asked=limited, protocols=some)
    if family.several and family.several_held:
        add("several calls, required", Answer(calls=(WEATHER, G)), asked={"tool_choice": "required"}, protocols=some)
    add("a call, held to its schema", Answer(calls=(H,)), asked={"strict": True}, protocols=some)
    add("the input of a custom tool", Answer(calls=(Call("patch", {"input": PATCH}),)), asked={"custom": True}, protocols=("chat", "responses"))
    if thinking and opened:
        form = {"tools": {}, "schema": PET, "think": True}
        add("thinking and an answer of a schema", Answer('{"name":"Ann","age":3}', thinking), asked=form)
        add("thinking, and text where an answer of a schema is", Answer("No, it is a dog.", thinking), asked=form | {"max_tokens": 120}, form=True)
    return found


def of_failure(family: Family, failure: Failure, opened: bool) -> Case:
    """A failure as a case. It is written after the usual end of the prompt."""
    written = failure.written
    if family.opened and not opened:
        written = family.think[0] + written
    end = failure.ends or (family.end_of_calls if failure.answer.calls and family.end_of_calls else family.end)
    return Case(failure.what, written, failure.answer, end)


def tools(asked: dict, shape: str) -> list[dict]:
    """The tools in the shape of a protocol."""
    found = []
    for name, parameters in asked.get("tools", TOOLS).items():
        strict = {"strict": True} if asked.get("strict") and name == "held" else {}
        flat = {"name": name, "description": f"The tool {name}", **strict}
        if shape == "messages":
            found.append(flat | {"input_schema": parameters})
        elif shape == "responses":
            found.append({"type": "function", **flat, "parameters": parameters})
        else:
            found.append({"type": "function", "function": flat | {"parameters": parameters}})
    if asked.get("custom"):
        grammar, custom = {"syntax": "lark", "definition": PATCHES}, {"name": "patch", "description": "Changes files"}
        if shape == "responses":
            found.append({"type": "custom", **custom, "format": {"type": "grammar", **grammar}})
        else:
            found.append({"type": "custom", "custom": custom | {"format": {"type": "grammar", "grammar": grammar}}})
    return found


def request(protocol: str, case: Case, number: int, steps: int, stream: bool) -> tuple[str, dict]:
    """Path and body. `number` and `steps` of the script."""
    prompt, asked = f"Go on. {scripted.marker(number)}", case.asked
    if case.cut:
        asked = asked | {"max_tokens": steps // 2}
    shown = tools(asked, protocol)
    choice, most, schema = asked.get("tool_choice"), asked.get("max_tokens", max(900, steps + 100)), asked.get("schema")
    if protocol == "responses":
        body = {"input": prompt, "max_output_tokens": most, "stream": stream, "temperature": 0}
        if choice:
            body["tool_choice"] = {"type": "function", "name": choice["function"]["name"]} if isinstance(choice, dict) else choice
        if schema:
            body["text"] = {"format": {"type": "json_schema", "name": "pet", "schema": schema, "strict": True}}
    elif protocol == "ollama":
        body = {"model": "", "messages": [{"role": "user", "content": prompt}], "stream": stream, "options": {"temperature": 0, "num_predict": most}}
        if schema:
            body["format"] = schema
    else:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": most, "stream": stream, "temperature": 0}
        if protocol == "messages" and (choice or "parallel_tool_calls" in asked):
            kinds = {"required": "any", "none": "none", None: "auto"}
            body["tool_choice"] = {"type": "tool", "name": choice["function"]["name"]} if isinstance(choice, dict) else {"type": kinds[choice]}
            if asked.get("parallel_tool_calls") is False:
                body["tool_choice"]["disable_parallel_tool_use"] = True
        elif choice:
            body["tool_choice"] = choice
        if schema and protocol == "messages":
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        elif schema:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}
    if asked.get("think"):
        wishes = {"ollama": {"think": True}, "messages": {"thinking": {"type": "enabled", "budget_tokens": 1024 + steps}, "max_tokens": 1100 + steps}}
        body |= wishes.get(protocol, {"chat_template_kwargs": {"enable_thinking": True}})
    if protocol in ("chat", "responses") and "parallel_tool_calls" in asked:
        body["parallel_tool_calls"] = asked["parallel_tool_calls"]
    paths = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages", "ollama": "/api/chat"}
    return paths[protocol], body | ({"tools": shown} if shown else {})


def events(said: bytes) -> list[dict]:
    """The documents of a stream of events."""
    lines = (line.removeprefix("data: ") for line in said.decode().splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def named(call: dict) -> dict:
    """The function of a call; that of a custom tool has its input as the only argument."""
    if "custom" in call:
        return {"name": call["custom"]["name"], "arguments": json.dumps({"input": call["custom"]["input"]})}
    return call["function"]


def of_chat(said: bytes, stream: bool) -> Got:
    """An answer of chat completions."""
    got = Got()
    if not stream:
        choice = json.loads(said)["choices"][0]
        message = choice["message"]
        calls = [named(call) | {"id": call["id"]} for call in message.get("tool_calls") or []]
        return Got(message.get("reasoning_content") or "", message["content"] or "", calls, choice["finish_reason"])
    for event in events(said):
        for choice in event["choices"]:
            delta = choice["delta"]
            got.thinking += delta.get("reasoning_content") or ""
            got.text += delta.get("content") or ""
            got.reason = choice["finish_reason"] or got.reason
            for call in delta.get("tool_calls") or []:
                if "id" in call:
                    if call["index"] != len(got.calls):
                        got.wrong.append(f"call {len(got.calls)} has the index {call['index']}")
                    got.calls.append({"id": call["id"], **(call.get("function") or call["custom"])})
                else:
                    for key, more in (call.get("function") or call["custom"]).items():
                        got.calls[call["index"]][key] += more
    got.calls = [named({"custom": call}) | {"id": call["id"]} if "input" in call else call for call in got.calls]
    return got


def of_items(response: dict) -> Got:
    """A response's items."""
    got = Got(reason=response["status"] if response["status"] != "incomplete" else response["incomplete_details"]["reason"])
    for item in response["output"]:
        if item["type"] == "function_call":
            got.calls.append({"name": item["name"], "arguments": item["arguments"], "id": item["call_id"]})
        elif item["type"] == "custom_tool_call":
            got.calls.append(named({"custom": item}) | {"id": item["call_id"]})
        elif item["type"] == "reasoning":
            got.thinking += "".join(part["text"] for part in item["content"])
        else:
            got.text += "".join(part["text"] for part in item["content"])
    return got


def of_responses(said: bytes, stream: bool) -> Got:
    """A response; of a stream also whether its pieces are the items."""
    if not stream:
        return of_items(json.loads(said))
    all_, pieces = events(said), {}
    got = of_items(all_[-1]["response"])
    for at, event in enumerate(all_):
        if event["sequence_number"] != at:
            got.wrong.append(f"event {at} has the number {event['sequence_number']}")
        if event["type"].endswith(".delta"):
            pieces[event["item_id"]] = pieces.get(event["item_id"], "") + event["delta"]
        elif event["type"] == "response.output_item.done":
            item = event["item"]
            fields = {"function_call": "arguments", "custom_tool_call": "input"}
            whole = item[fields[item["type"]]] if item["type"] in fields else "".join(part["text"] for part in item["content"])
            if pieces.get(item["id"], "") != whole:
                got.wrong.append(f"the pieces are {pieces.get(item['id'], '')!r}, the whole is {whole!r}")
    return got


def of_blocks(message: dict) -> Got:
    """A message's blocks."""
    got = Got(reason=message["stop_reason"])
    for block in message["content"]:
        if block["type"] == "tool_use":
            got.calls.append({"name": block["name"], "arguments": block["input"], "id": block["id"]})
        else:
            setattr(got, block["type"], getattr(got, block["type"]) + block[block["type"]])
    return got


def of_messages(said: bytes, stream: bool) -> Got:
    """A message of Anthropic's."""
    if not stream:
        return of_blocks(json.loads(said))
    message, wrong = {"content": [], "stop_reason": None}, []
    for event in events(said):
        if event["type"] == "content_block_start":
            if event["index"] != len(message["content"]):
                wrong.append(f"block {len(message['content'])} has the index {event['index']}")
            message["content"].append(event["content_block"] | {"json": ""})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], message["content"][event["index"]]
            key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "json"}[delta["type"]]
            block[key] += delta["partial_json" if key == "json" else key]
        elif event["type"] == "message_delta":
            message["stop_reason"] = event["delta"]["stop_reason"]
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = block["json"] or "{}"
    got = of_blocks(message)
    got.wrong += wrong
    return got


def of_ollama(said: bytes, stream: bool) -> Got:
    """A chat of Ollama's."""
    got = Got()
    for line in said.decode().splitlines():
        event = json.loads(line)
        message = event["message"]
        got.thinking += message.get("thinking") or ""
        got.text += message["content"]
        got.calls += [call["function"] | {"id": call.get("id")} for call in message.get("tool_calls") or []]
        got.reason = event.get("done_reason") or got.reason
    return got


READERS = {"chat": of_chat, "responses": of_responses, "messages": of_messages, "ollama": of_ollama}
REASONS = {"chat": ("stop", "tool_calls", "length"), "responses": ("completed", "completed", "max_output_tokens"),
           "messages": ("end_turn", "tool_use", "max_tokens"), "ollama": ("stop", "stop", "length")}


def wrong_of(case: Case, got: Got, protocol: str, stream: bool) -> list[str]:
    """What differs from what was scripted."""
    wrong, answer = list(got.wrong), case.answer
    stop, called, cut = REASONS[protocol]
    parsed = []
    for call in got.calls:
        arguments = call["arguments"]
        if isinstance(arguments, str) and (got.reason != cut or not (case.anything or case.cut)):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                wrong.append(f"arguments of {call['name']} are not JSON: {arguments!r}")
        parsed.append((call["name"], arguments))
    if case.cut:
        if got.reason != cut:
            wrong.append(f"it ended by {got.reason} instead of {cut}")
        return wrong + [f"a call of {name}" for name, _ in parsed if name != "f"]
    if case.anything:
        if got.text:
            wrong.append(f"there is text, {got.text!r}")
        if got.reason not in (called, cut):
            wrong.append(f"it ended by {got.reason}")
        names = {"f"} if isinstance(case.asked.get("tool_choice"), dict) else set(TOOLS)
        return wrong + [f"a call of {name}" for name, _ in parsed if name not in names]
    if case.asked.get("tool_choice") == "none":
        return wrong + ([f"it calls {parsed}"] if parsed else []) + ([f"it ended by {got.reason}"] if got.reason != stop else [])
    calls = answer.calls[:1] if case.asked.get("parallel_tool_calls") is False else answer.calls
    wanted = [(call.name, call.arguments) for call in calls]
    if json.dumps(parsed, sort_keys=True) != json.dumps(wanted, sort_keys=True):
        wrong.append(f"calls: {json.dumps(parsed, ensure_ascii=False)} instead of {json.dumps(wanted, ensure_ascii=False)}")
    ids = [call["id"] for call in got.calls]
    if len(set(ids)) != len(ids) or not all(isinstance(one, str) and one for one in ids):
        wrong.append(f"ids: {ids}")
    # Ollama's streams have calls whole.
    late = case.late_ids and stream and protocol != "ollama"
    for call, id_ in zip(calls, ids):
        if call.id and id_ != call.id and not late:
            wrong.append(f"the id of a call is {id_!r} instead of {call.id!r}")
    if case.form:
        # Blanks may come before it.
        begun = got.text.lstrip().startswith('{"name":"')
        return wrong + ([] if begun and got.thinking == answer.thinking else [f"thinking {got.thinking!r}, text {got.text!r}"])
    for what, found, scripted_ in (("thinking", got.thinking, answer.thinking), ("text", got.text, answer.text)):
        if found != scripted_:
            wrong.append(f"{what}: {found!r} instead of {scripted_!r}")
    reason = called if calls else stop
    if got.reason != reason:
        wrong.append(f"it ended by {got.reason} instead of {reason}")
    return [line if len(line) < LINE else f"{line[:LINE]}…" for line in wrong]


class Client:
    """Requests over one connection."""

    def __init__(self, address: str):
        self.connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=900)

    def ask(self, path: str, body: dict) -> tuple[int, bytes]:
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, answer.read()


def family_checks(family: Family, args, folder: Path, turn: int) -> tuple[Checks, int]:
    """Makes a family's model, and asks it for all its answers."""
    checks, source = Checks(quiet=not args.verbose), None
    if args.templates and family.published:
        source = (args.templates / f"{family.published}.jinja").read_text()
    opened = family.opened if source is None else opens(source, family)
    all_ = cases(family, opened)
    specials = family.marks_of()
    cuts = 1 if args.sample else args.cuts
    scripts = [[b"No."]]
    for cut in range(cuts):
        # The longest tokens first: one for most of a text.
        longest = (4, 1, 24, 2, 9)[cut % 5]
        scripts += [cut_for(case, specials, longest, seed=cut * 1000 + at) for at, case in enumerate(all_)]
    model = scripted.write(folder / f"{family.name}.gguf", scripts, template=source or notations.template(family), specials=specials, end=family.end)
    wanted = []
    for number in range(1, len(scripts)):
        case = all_[(number - 1) % len(all_)]
        protocols = case.protocols if not args.sample else (case.protocols[(turn + number) % len(case.protocols)],)
        wanted += [(case, number, protocol, stream) for protocol in protocols for stream in ((True,) if args.sample else (False, True))]
    with serving(args.alight, model, "--threads", args.threads) as address, ThreadPoolExecutor(CLIENTS) as pool:
        clients = threading.local()

        def answered(case: Case, number: int, protocol: str, stream: bool) -> tuple[str, list[str]]:
            if not hasattr(clients, "own"):
                clients.own = Client(address)
            status, said = clients.own.ask(*request(protocol, case, number, len(scripts[number]), stream))
            wrong = wrong_of(case, READERS[protocol](said, stream), protocol, stream) if status == 200 else [f"{status}: {said.decode()[:400]}"]
            return f"{family.name}: {case.what}, {protocol}{', streamed' if stream else ''}", wrong

        for what, wrong in pool.map(lambda one: answered(*one), wanted):
            checks.wrong(what, wrong)
    model.unlink()
    return checks, len(wanted)


def cut_for(case: Case, specials: dict[str, str], longest: int, seed: int) -> list:
    """The steps of a case's script, with its own end. No token has the end of an answer of a schema and what follows it: none is allowed."""
    parts = re.split(r"(?<=\})(?=\s*</)", case.written) if case.asked.get("schema") else [case.written]
    return [*(step for part in parts for step in scripted.steps(part, list(specials), longest, seed)), case.end]


def opens(source: str, family: Family) -> bool:
    """Whether the prompt of a published template ends with the beginning of thinking."""
    from evidence.agree.chat import rendered_by_jinja2

    context = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools({}, "chat"), "add_generation_prompt": True}
    prompt = rendered_by_jinja2(source, context)
    return isinstance(prompt, str) and family.think is not None and prompt.rstrip().endswith(family.think[0].strip())


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    args.alight = common.alight(args.alight)
    chosen = [(turn, family) for turn, family in enumerate(notations.FAMILIES) if common.is_asked(args, family.name)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda one: family_checks(one[1], args, Path(folder), one[0]), chosen))
    asked, failed = sum(count for _, count in done), sum(checks.failed for checks, _ in done)
    print(f"notations: {len(chosen)} families, {asked} answers: {asked - failed} as scripted, {failed} not")
    return int(failed > 0)
