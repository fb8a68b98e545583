"""Recorded conversations of agents, rendered again: is every text in the prompt, is each prompt the beginning of the next, and is it what another binary makes?

    python -m evidence check agents --folder DIR --record RECORDED …      records them
    python -m evidence check replay --folder RECORDED [--base BINARY]

Nothing is generated. A folder has a folder for each family, with its model and a file for each conversation; they hold the agents' own texts, which are
not ours to publish. A prompt is what `/apply-template` shows for the body of a request, in the interface that the request has come by.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from evidence.check.clients import serving
from evidence.lib import common, relay
from evidence.lib.checks import Checks
from evidence.lib.conversations import FAMILIES

# The address for a body of each interface.
TEMPLATES = {"/chat/completions": "/apply-template", "/api/chat": "/apply-template", "/responses": "/apply-template?of=responses",
             "/messages": "/apply-template?of=messages"}
# Where the tokens of a body are counted.
COUNTS = {"/responses": "input_tokens", "/messages": "count_tokens"}
# Claude Code's stamp, which differs from request to request and is left out.
STAMP = "x-anthropic-billing-header:"
OPTIONS = ("--ctx-size", "131072", "--threads", "1")


def add_arguments(parser) -> None:
    """The recorded folder, and the programs."""
    parser.add_argument("--folder", type=Path, required=True, nargs="+", help="of recorded conversations, as `check agents --record` writes it")
    parser.add_argument("--alight", type=Path, default=None, help="the binary (default: target/release/alight)")
    parser.add_argument("--base", type=Path, help="another binary, whose prompts are compared")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of a table")


@dataclass
class Counts:
    """Of a family's conversations."""

    conversations: int = 0
    requests: int = 0
    texts: int = 0
    lost: Counter = field(default_factory=Counter)
    longer: int = 0
    rewritten: int = 0
    changed: int = 0


def posted(address: str, body: dict) -> dict | None:
    """The answer; None, with a message, if the body is refused."""
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        common.say(f"refused: {error.read().decode()[:500]}")
        return None


@dataclass(frozen=True)
class Prompt:
    """Of a request: the text, if the server shows it, and the number of tokens, if the interface counts them; neither if the request is refused."""

    text: str | None
    tokens: int | None

    def differs(self, other: Prompt) -> str:
        """How, or nothing."""
        if self.text is not None and other.text is not None and self.text != other.text:
            return difference(other.text, self.text)
        if self.tokens != other.tokens:
            return f"it has {self.tokens} tokens, and had {other.tokens}"
        return ""


def shown(address: str, exchange: relay.Exchange, knows: bool) -> Prompt:
    """The prompt of a request. `knows`: whether the server shows those of all interfaces."""
    path, body = exchange.path.split("?")[0].removeprefix("/v1"), exchange.body()
    counted = posted(f"{address}{path}/{COUNTS[path]}", body) if path in COUNTS else None
    if path in COUNTS and not knows:
        rendered = None
    else:
        rendered = posted(address + TEMPLATES[path], of_ollama(body) if path == "/api/chat" else body)
    return Prompt(rendered and rendered["prompt"], counted and counted["input_tokens"])


def with_items(turns: list[relay.Exchange]) -> list[relay.Exchange]:
    """The turns, with the items that a client only refers to: the server that answered them remembered them, and this one has never seen them."""
    items, found = {}, []
    for turn in turns:
        body = turn.body()
        if isinstance(body.get("input"), list):
            body["input"] = [items.get(item.get("id"), item) if item.get("type") == "item_reference" else item for item in body["input"]]
            turn = replace(turn, request=json.dumps(body))
        found.append(turn)
        for event in relay.events(turn.answer):
            answered = (event.get("response") or event).get("output") or [event.get("item") or {}]
            items |= {item["id"]: item for item in answered if "id" in item}
    return found


def knows_interfaces(address: str) -> bool:
    """Whether it shows the prompts of all interfaces: an older one reads every body as a chat."""
    message = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/apply-template?of=nothing", message), timeout=60):
            return False
    except urllib.error.HTTPError:
        return True


def of_ollama(body: dict) -> dict:
    """A body of Ollama's interface in OpenAI's words."""
    messages = [{("reasoning_content" if key == "thinking" else key): value for key, value in message.items()} for message in body["messages"]]
    for call in (call for message in messages for call in message.get("tool_calls") or []):
        call.setdefault("type", "function")
    return {"messages": messages, "tools": body.get("tools"), "chat_template_kwargs": {"enable_thinking": body.get("think", True)}}


def texts(body: dict) -> list[tuple[str, str]]:
    """The texts of a request that the model has to see, each with its kind."""
    found = []
    for tool in body.get("tools") or []:
        name = (tool.get("function") or tool).get("name")
        # Other tools run at OpenAI or Anthropic.
        if name and (tool.get("type") or "custom") in ("function", "custom"):
            found.append(("tool", name))
    for key in ("system", "instructions"):
        found += of_content("system", body.get(key))
    messages = body.get("messages", body.get("input"))
    for message in [{"role": "user", "content": messages}] if isinstance(messages, str) else messages:
        found += of_message(message)
    return found


def of_message(message: dict) -> list[tuple[str, str]]:
    """The texts of a message, or of an item of `responses`."""
    kind, role = message.get("type"), message.get("role", "")
    if kind == "function_call":
        return of_call(message["name"], message["arguments"])
    if kind == "function_call_output":
        return of_content("result", message["output"])
    if kind == "reasoning":
        return of_content("thinking", message.get("content") or message.get("summary"))
    found = of_content("result" if role == "tool" else role, message.get("content"))
    found += of_content("thinking", message.get("reasoning_content") or message.get("thinking"))
    for call in message.get("tool_calls") or []:
        found += of_call(call["function"]["name"], call["function"]["arguments"])
    return found


def of_content(kind: str, content) -> list[tuple[str, str]]:
    """The texts of a content: a text, or parts and blocks."""
    if not content:
        return []
    if isinstance(content, str):
        return [] if content.startswith(STAMP) else [(kind, content)]
    found = []
    for part in content:
        match part.get("type"):
            case "tool_use":
                found += of_call(part["name"], part["input"])
            case "tool_result":
                found += of_content("result", part.get("content"))
            case "thinking":
                found.append(("thinking", part["thinking"]))
            case _:
                found += of_content(kind, part.get("text"))
    return found


def of_call(name: str, arguments) -> list[tuple[str, str]]:
    """The name of a call, and the texts among its arguments."""
    arguments = json.loads(arguments) if isinstance(arguments, str) and arguments else arguments or {}
    return [("call", name)] + [("argument", text) for text in leaves(arguments)]


def leaves(value) -> list[str]:
    """All texts of a value."""
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in values for text in leaves(one)]


def is_in(text: str, prompt: str) -> bool:
    """Whether a text stands in a prompt: as it is but for blanks at its ends, or as text of JSON."""
    text = text.strip()
    return text in prompt or any(json.dumps(text, ensure_ascii=ascii)[1:-1] in prompt for ascii in (False, True))


def of_conversation(name: str, prompts: list[str], turns: list[relay.Exchange], counts: Counts, checks: Checks) -> None:
    """What is lost in a conversation, and which prompts do not begin with the one before, without what the template leaves out of that."""
    family = FAMILIES.get(name.split("/")[0])
    left_out = "".join(family.left_out) if family else ""
    for number, (prompt, turn) in enumerate(zip(prompts, turns), 1):
        wanted = texts(turn.body())
        counts.texts += len(wanted)
        lost = [(kind, text) for kind, text in wanted if not is_in(text, prompt)]
        counts.lost.update(kind for kind, _ in lost)
        # A template may leave out what was thought before the last message of the user.
        checks.wrong(f"{name} turn {number}: every text is in the prompt", [f"{kind}: {text[:200]!r}" for kind, text in lost if kind != "thinking"])
    for number, (before, now) in enumerate(zip(prompts, prompts[1:]), 2):
        same = now.startswith(before) or now.startswith(before.removesuffix(left_out))
        counts.longer += same
        counts.rewritten += not same
        checks.wrong(f"{name} turn {number}: the prompt begins with the one before", "" if same else difference(before, now))


def difference(one: str, other: str) -> str:
    """Where two prompts part."""
    at = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return f"at {at} of {len(one)}: {one[max(0, at - 40) : at + 60]!r}, then {other[max(0, at - 40) : at + 60]!r}"


def of_family(folder: Path, programs: list[Path], checks: Checks) -> Counts:
    """All conversations with one model."""
    counts, recorded = Counts(), {}
    for path in sorted(folder.glob("*.jsonl")):
        turns = [one for one in relay.read(path) if one.continues and (one.body().get("tools") or "-tools" not in path.stem)]
        recorded[f"{folder.name}/{path.stem}"] = with_items(turns)
    ours = rendered(programs[0], folder / "model.gguf", recorded)
    base = rendered(programs[-1], folder / "model.gguf", recorded) if len(programs) > 1 else ours
    for name, turns in recorded.items():
        counts.conversations += 1
        counts.requests += len(turns)
        texts_of = [prompt.text for prompt in ours[name]]
        if checks.add(None not in texts_of, f"{name}: {texts_of.count(None)} of {len(turns)} prompts are not shown"):
            of_conversation(name, texts_of, turns, counts, checks)
        for number, (now, before) in enumerate(zip(ours[name], base[name]), 1):
            if differs := now.differs(before):
                counts.changed += 1
                common.say(f"{name} turn {number}: {differs}")
    return counts


def rendered(program: Path, model: Path, recorded: dict[str, list[relay.Exchange]]) -> dict[str, list[Prompt]]:
    """The prompts that a program makes of all conversations."""
    with serving(program, model, *OPTIONS) as address:
        knows = knows_interfaces(address)
        if not knows:
            common.say(f"{program} does not show the prompts of `responses` and `messages`; it counts their tokens")
        return {name: [shown(address, turn, knows) for turn in turns] for name, turns in recorded.items()}


def run(args) -> int:
    """All of them."""
    checks = Checks(quiet=True)
    programs = [common.alight(args.alight), *([args.base.resolve()] if args.base else [])]
    families = sorted(path.parent for folder in args.folder for path in folder.glob("*/model.gguf"))
    if not families:
        raise SystemExit(f"{args.folder[0]} has no recorded conversations: `check agents --record` writes them")
    found = {str(folder): of_family(folder, programs, checks) for folder in families}
    if args.json:
        print(json.dumps({name: vars(counts) for name, counts in found.items()}, indent=1))
    else:
        titles = ["family", "conversations", "requests", "texts", "lost", "thinking left out", "prompts that go on", "rewritten", "changed"]
        common.table([titles] + [
            [Path(name).name, c.conversations, c.requests, c.texts, sum(c.lost.values()) - c.lost["thinking"], c.lost["thinking"], c.longer, c.rewritten,
             c.changed if args.base else "-"] for name, c in found.items()])
    return checks.status()
