"""Coding agents as people run them, Codex and Claude Code, unchanged, against `alight serve`: what each turn of a conversation reads anew.

An agent sends the whole conversation at every turn: its instructions, its tools, and all that was said and done. A server that reads it all again
spends minutes on what it knew. Here each agent works in an empty folder for some turns, and the part of each turn's prompt that was known has to be
all of what the turn before has sent, but for its last token and down to a whole page of the KV cache.

The models that are here are too small to use tools of their own accord. So between the agent and the server stands a relay that changes two things of a
request: one tool, which looks at a file or a folder, takes nothing but a short name, and the model has to call it until the last turn. The names are
nonsense; what the agent does with them is its own: it looks, finds nothing, and sends what it was told.

The agents are pinned in evidence/agents and take 660 MB; npm puts them into a folder that you name.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from evidence.check.clients import serving
from evidence.lib import common
from evidence.lib.checks import Checks

PACKAGES = common.ROOT / "evidence/agents"
PAGE = 64
TASK = "Say which files are here."
# What only looks, by the name of the tool: an argument, and what it may be.
LOOK = {"exec_command": ("cmd", "^ls [a-z]{1,12}$"), "shell_command": ("command", "^ls [a-z]{1,12}$"), "Read": ("file_path", "^/[a-z]{1,12}$")}
# The base model has no template of its own.
TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def add_arguments(parser) -> None:
    """The program and the models; where the agents are, and how many turns they take."""
    common.add_arguments(parser)
    parser.add_argument("--folder", type=Path, required=True, help="where npm puts the agents, and finds them the next time")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("agents", nargs="*", choices=[[], *AGENTS], help="which of them; default: all")


class Relay(BaseHTTPRequestHandler):
    """Hands requests on to the server, and keeps what was read of each prompt."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_words) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """As it is."""
        self.relay(b"")

    def do_POST(self) -> None:
        """With a choice of tools."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asks = self.path.split("?")[0] in ("/v1/responses", "/v1/messages")
        if asks:
            body = self.changed(json.loads(body))
        self.relay(body, asks)

    def changed(self, request: dict) -> bytes:
        """Until the last turn a tool is called."""
        anthropic = "messages" in request
        look = [tool for tool in request.get("tools", []) if tool.get("name") in LOOK][:1]
        for tool in look:
            argument, pattern = LOOK[tool["name"]]
            tool["input_schema" if anthropic else "parameters"] = {
                "type": "object", "properties": {argument: {"type": "string", "pattern": pattern}}, "required": [argument], "additionalProperties": False}
        # What has no tools is not the conversation: a title for it, for example.
        if look and len(self.server.turns) + 1 < self.server.most:
            request["tool_choice"] = {"type": "tool" if anthropic else "function", "name": look[0]["name"]}
        else:
            request["max_tokens" if anthropic else "max_output_tokens"] = 16
        return json.dumps(request).encode()

    def relay(self, body: bytes, asks: bool = False) -> None:
        """Hands on, and takes the answer apart on its way."""
        server = http.client.HTTPConnection(self.server.address)
        headers = {name: self.headers[name] for name in ("Content-Type", "Authorization", "Accept", "anthropic-version") if self.headers[name]}
        server.request(self.command, self.path, body, headers)
        answer = server.getresponse()
        said = answer.read()
        if asks and b'"tools"' in body:
            self.server.turns.append(used(answer.status, said))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


def used(status: int, said: bytes) -> dict:
    """The tokens of a prompt, and those of them that were known."""
    found = {"status": status}
    for line in said.decode().splitlines() if b"data:" in said else [f"data: {said.decode()}"]:
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        usage = (event.get("response") or event.get("message") or event).get("usage") or {}
        if "cache_read_input_tokens" in usage:
            known = usage["cache_read_input_tokens"]
            found |= {"prompt": usage["input_tokens"] + known, "known": known}
        elif "input_tokens_details" in usage:
            found |= {"prompt": usage["input_tokens"], "known": usage["input_tokens_details"]["cached_tokens"]}
    return found


@contextmanager
def relaying(address: str, most: int):
    """A relay to the server; its address, and what it keeps."""
    relay = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    relay.address, relay.most, relay.turns = address.removeprefix("http://"), most, []
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{relay.server_port}", relay.turns
    finally:
        relay.shutdown()


def codex(programs: Path, home: Path, address: str) -> tuple[list, dict]:
    """The command and the environment of Codex."""
    (home / ".codex").mkdir()
    provider = f'name = "Alight"\nbase_url = "{address}/v1"\nwire_api = "responses"\n'
    (home / ".codex/config.toml").write_text(f'model = "local"\nmodel_provider = "alight"\n[model_providers.alight]\n{provider}')
    return [programs / "codex", "exec", "--skip-git-repo-check", TASK], {}


def claude(programs: Path, _home: Path, address: str) -> tuple[list, dict]:
    """The command and the environment of Claude Code."""
    return [programs / "claude", "-p", TASK], {
        "ANTHROPIC_BASE_URL": address, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "local", "ANTHROPIC_SMALL_FAST_MODEL": "local",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "API_TIMEOUT_MS": "1200000"}


AGENTS = {"codex": codex, "claude": claude}


def installed(folder: Path) -> Path:
    """The agents' programs."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGES / "package.json", folder)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    return (folder / "node_modules/.bin").absolute()


def work(agent: str, programs: Path, address: str, most: int, checks: Checks) -> list[dict]:
    """One conversation."""
    with tempfile.TemporaryDirectory() as home, relaying(address, most) as (relay, turns):
        place = Path(home) / "work"
        place.mkdir()
        (place / "notes.txt").write_text("Nothing yet.\n")
        command, environment = AGENTS[agent](programs, Path(home), relay)
        done = subprocess.run([str(word) for word in command], cwd=place, env={**os.environ, "HOME": home, **environment}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=3600, check=False)
    for number, turn in enumerate(turns, 1):
        common.say(f"{agent} turn {number}: {turn}")
    common.say(f"{agent} has ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    checks.add(len(turns) >= most, f"{agent} has taken {len(turns)} turns of {most}")
    checks.wrong(f"{agent}: every request was answered", [turn for turn in turns if turn["status"] != 200 or "prompt" not in turn])
    pairs = list(zip(turns, turns[1:]))
    short = [number for number, (before, now) in enumerate(pairs, 2) if now.get("known", 0) < (before.get("prompt", 1) - 1) // PAGE * PAGE]
    checks.wrong(f"{agent}: each turn knows all that was sent before", short)
    return turns


def run(args) -> int:
    """All of them."""
    checks = Checks()
    program, model = common.alight(args.alight), common.model_path("gemma3", args.models)
    programs, rows = installed(args.folder), {}
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        options = ("--ctx-size", "32768", "--parallel", "2", "--predict", "200", "--chat-template-file", template.name)
        for agent in args.agents or AGENTS:
            with serving(program, model, *options) as address:
                rows[agent] = work(agent, programs, address, args.turns, checks)
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        for agent, turns in rows.items():
            prompts, known = (sum(turn.get(what, 0) for turn in turns) for what in ("prompt", "known"))
            print(f"{agent}: {len(turns)} turns, {turns[-1].get('prompt')} tokens at the last; {prompts} were sent, {known} of them known")
    return checks.status()
