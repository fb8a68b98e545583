"""Agents and libraries as people use them, unchanged, against `alight serve`: do they work, and what does each turn of a conversation read anew?

An agent sends the whole conversation at every turn: its instructions, its tools, and all that was said and done. A server that reads it all again
spends minutes on what it knew. Here each of them has a conversation of twenty turns with tools, and others: several messages of the user, an answer by a
schema; by each interface that it has, whole and streamed. The part of each turn's prompt that was known has to be all that the turn before has sent, but
for its last token and down to a whole page of the KV cache. What reaches the tools and the caller has to be what the model wrote.

The model is a scripted one (evidence/lib/scripted.py): it writes calls, thinking and texts in the notation of a family, as the family's own template
writes them. `--templates` names a folder of published templates (llama.cpp's models/templates); without it there is one of our own.

The packages are pinned in evidence/agents and take 1.7 GB; npm and pip put them into a folder that you name. A relay that changes nothing keeps every
request; `--record` writes them to a folder, which `check replay` reads.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from evidence.check.clients import serving
from evidence.lib import common, conversations, process, relay
from evidence.lib.checks import Checks
from evidence.lib.conversations import FAMILIES, Library, Scenario

PACKAGES = common.ROOT / "evidence/agents"
PAGE = 64
# The libraries: what runs their driver, the driver, and the interfaces.
LIBRARIES = {
    "openai-agents": ("python", "with_openai_agents.py", ("chat", "responses")),
    "pydantic-ai": ("python", "with_pydantic_ai.py", ("chat", "responses", "messages")),
    "langchain": ("python", "with_langchain.py", ("chat", "responses", "messages", "ollama")),
    "ai": ("node", "with_ai.js", ("compatible", "chat", "responses", "messages")),
}
ECHO = {"command": "echo MARKER", "description": "Says something"}


@dataclass
class Session:
    """A conversation of a client, and what was seen of it."""

    client: str
    api: str
    stream: bool
    kind: str
    scenario: Scenario
    agent: bool = False
    exchanges: list[relay.Exchange] = field(default_factory=list)
    seen: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in messages, and of its file."""
        return "-".join((self.client, self.api, "stream" if self.stream else "whole", self.kind, *(["agent"] if self.agent else [])))

    def plan(self, address: str) -> dict:
        """As the drivers take it."""
        # No two conversations begin alike, so that what is known of one is of itself.
        system = f"{self.name}: {conversations.SYSTEM}"
        return {"address": address, "api": self.api, "stream": self.stream, "kind": self.kind, "agent": self.agent, "system": system,
                "messages": self.scenario.messages, "turns": len(self.scenario.turns) + 2}


def add_arguments(parser) -> None:
    """The program; where the packages are, how many turns there are, of which families."""
    parser.add_argument("--alight", type=Path, default=None, help="the binary (default: target/release/alight)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of a table")
    parser.add_argument("--folder", type=Path, required=True, help="where npm and pip put the packages, and find them the next time")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--templates", type=Path, help="a folder of published templates, for families other than `own`")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=["own"], help="whose notations (default: own)")
    parser.add_argument("--record", type=Path, help="where the exchanges and the models are written")
    parser.add_argument("clients", nargs="*", choices=[[], *LIBRARIES, *PROGRAMS], help="which of them; default: all")


def installed(folder: Path) -> None:
    """Installs the packages, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in PACKAGES.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    wanted = "".join((PACKAGES / name).read_text() for name in ("package.json", "requirements.txt"))
    done = folder / "installed"
    if done.is_file() and done.read_text() == wanted:
        return
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    if not (folder / "venv").is_dir():
        subprocess.run([sys.executable, "-m", "venv", "venv"], cwd=folder, check=True)
    subprocess.run(["venv/bin/pip", "install", "--quiet", "--requirement", "requirements.txt"], cwd=folder, check=True)
    done.write_text(wanted)


def versions(folder: Path) -> dict[str, str]:
    """What is installed."""
    found = json.loads((folder / "package.json").read_text())["dependencies"]
    lines = (line.split("==") for line in (folder / "requirements.txt").read_text().splitlines() if "==" in line)
    return found | {name.split("[")[0]: version for name, version in lines}


def environment(home: Path) -> dict[str, str]:
    """Of a client that knows nothing of this machine's user."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"HOME": str(home), "DO_NOT_TRACK": "1", "LANGSMITH_TRACING": "false", "AI_SDK_LOG_WARNINGS": "false"}


def with_library(client: str, sessions: list[Session], folder: Path, address: str) -> None:
    """All conversations of a library, in one process."""
    runs, driver, _ = LIBRARIES[client]
    program = folder / "venv/bin/python" if runs == "python" else "node"
    with ExitStack() as relays, tempfile.TemporaryDirectory() as home:
        plans = []
        for session in sessions:
            relayed, session.exchanges = relays.enter_context(relay.relaying(address))
            plans.append(session.plan(relayed))
        command = [str(program), str(folder / driver), json.dumps(plans)]
        done = subprocess.run(command, env=environment(Path(home)), cwd=home, capture_output=True, text=True, timeout=3600, check=False)
    reports = process.results(done.stdout)
    for session, seen in zip(sessions, reports):
        session.seen = seen
    for session in sessions[len(reports):]:
        session.seen = {"error": f"the driver has ended with {done.returncode}: {done.stderr[-2000:]}"}


def sessions_of(client: str, with_tools: Scenario, chat: Scenario, form: Scenario, called: Scenario, thought: Scenario) -> list[Session]:
    """The conversations of a library. `called` is the form as a call, `thought` that of a client that wants thinking."""
    found = []
    for api in LIBRARIES[client][2]:
        for stream in (False, True):
            found += [Session(client, api, stream, "tools", with_tools), Session(client, api, stream, "chat", chat)]
            if client == "ai":
                found.append(Session(client, api, stream, "tools", with_tools, agent=True))
        # pydantic-ai refuses schemas for models of Anthropic's interface whose names it does not know.
        if (client, api) != ("pydantic-ai", "messages"):
            # Vercel's package has the model call a tool instead; LangChain asks Ollama's interface for thinking.
            forms = {("ai", "messages"): called, ("langchain", "ollama"): thought}
            found.append(Session(client, api, False, "form", forms.get((client, api), form)))
    return found


def notes(folder: Path) -> list[str]:
    """The command of the MCP server."""
    return [str(folder / "venv/bin/python"), str(folder / "notes_server.py")]


def codex(folder: Path, home: Path, address: str, calls: Path) -> tuple[list, dict]:
    """The command and the environment of Codex."""
    program, *arguments = notes(folder)
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text("\n".join((
        'model = "local"', 'model_provider = "alight"', 'approval_policy = "never"', 'sandbox_mode = "danger-full-access"',
        "[model_providers.alight]", 'name = "Alight"', f'base_url = "{address}/v1"', 'wire_api = "responses"',
        "[mcp_servers.notes]", f"command = {json.dumps(program)}", f"args = {json.dumps(arguments)}", "startup_timeout_sec = 300", "required = true",
        "[mcp_servers.notes.env]", f"ALIGHT_CALLS_FILE = {json.dumps(str(calls))}", "")))
    return [folder / "node_modules/.bin/codex", "exec", "--skip-git-repo-check"], {}


def claude(folder: Path, home: Path, address: str, calls: Path) -> tuple[list, dict]:
    """The command and the environment of Claude Code."""
    program, *arguments = notes(folder)
    servers = home / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"notes": {"command": program, "args": arguments, "env": {"ALIGHT_CALLS_FILE": str(calls)}}}}))
    command = [folder / "node_modules/.bin/claude", "--mcp-config", servers, "--allowedTools", "mcp__notes", "Bash(echo:*)", "--print"]
    return command, {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "local", "ANTHROPIC_SMALL_FAST_MODEL": "local",
                     "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "API_TIMEOUT_MS": "1200000", "MCP_TIMEOUT": "300000"}


def opencode(folder: Path, home: Path, address: str, calls: Path) -> tuple[list, dict]:
    """The command and the environment of opencode."""
    place = home / ".config/opencode"
    place.mkdir(parents=True)
    model = {"name": "Local", "limit": {"context": 131072, "output": 4096}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Alight", "options": {"baseURL": f"{address}/v1", "apiKey": "none"}, "models": {"local": model}}
    server = {"type": "local", "command": notes(folder), "environment": {"ALIGHT_CALLS_FILE": str(calls)}, "timeout": 300000}
    (place / "opencode.json").write_text(json.dumps({
        "provider": {"alight": provider}, "model": "alight/local", "small_model": "alight/local", "mcp": {"notes": server},
        "permission": {"*": "allow"}, "autoupdate": False, "share": "disabled"}))
    return [folder / "node_modules/.bin/opencode", "run"], {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}


@dataclass(frozen=True)
class Program:
    """An agent that is a program: its command, its interface, what it calls the tools of the MCP server, and a tool of its own."""

    command: object
    api: str
    prefix: str
    own: tuple[str, dict]


PROGRAMS = {
    "codex": Program(codex, "responses", "mcp__notes__", ("exec_command", {"cmd": "echo MARKER"})),
    "claude": Program(claude, "messages", "mcp__notes__", ("Bash", ECHO)),
    "opencode": Program(opencode, "chat", "notes_", ("bash", ECHO)),
}


def session_of(client: str, library: Library, turns: int) -> Session:
    """The conversation of a program."""
    program = PROGRAMS[client]
    names = {name: program.prefix + name for name in ("read_note", "write_note", "add")}
    return Session(client, program.api, True, "tools", conversations.tools(library, turns, names, [program.own]))


def with_program(session: Session, folder: Path, address: str) -> None:
    """A conversation of a program, in an empty folder."""
    # Codex takes no home among temporary files.
    with tempfile.TemporaryDirectory(dir=folder) as home, relay.relaying(address) as (relayed, session.exchanges):
        place, calls = Path(home, "work"), Path(home, "calls")
        place.mkdir()
        command, more = PROGRAMS[session.client].command(folder, Path(home), relayed, calls)
        command = [*map(str, command), session.scenario.messages[0]]
        done = subprocess.run(command, cwd=place, env=environment(Path(home)) | more, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=3600, check=False)
        called = [json.loads(line) for line in calls.read_text().splitlines()] if calls.is_file() else []
    session.seen = {"calls": called, "texts": [done.stdout.strip()], "thinking": []}
    if done.returncode:
        session.seen["error"] = f"it has ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"


def turns_of(session: Session) -> list[relay.Exchange]:
    """The turns of the conversation, without what else a program asks: a title for it, for example."""
    return [one for one in session.exchanges if one.continues and (session.kind != "tools" or one.body().get("tools"))]


def judged(session: Session, family: str, checks: Checks) -> dict:
    """What is right and wrong about a conversation; a row of the results."""
    name, scenario, seen, turns = f"{family}/{session.name}", session.scenario, session.seen, turns_of(session)
    counts = [turn.usage() for turn in turns]
    checks.wrong(f"{name}: it came to its end", seen.get("error", ""))
    checks.wrong(f"{name}: every request was answered", [f"{one.status} {one.path}: {one.answer[:500]}" for one in session.exchanges
                                                         if one.continues and one.status != 200])
    checks.add(len(turns) == len(scenario.turns), f"{name}: {len(turns)} turns of {len(scenario.turns)}")
    wanted = [call for call in scenario.calls if call[0] in ("read_note", "write_note", "add")]
    # The calls of one answer are made at the same time.
    for call in seen.get("calls", []):
        if call in wanted:
            wanted.remove(call)
        else:
            wanted.append(["not written:", call])
    checks.wrong(f"{name}: the tools got what the model wrote", [str(call) for call in wanted])
    texts = seen.get("texts", [])
    if session.kind == "form":
        checks.add(seen.get("form") == scenario.form, f"{name}: the object is {seen.get('form')}")
    elif session.client in PROGRAMS:
        # It may print what precedes calls as well.
        checks.add(bool(texts) and texts[-1].endswith(scenario.texts[-1]), f"{name}: the texts are {texts}")
    else:
        checks.add(texts == scenario.texts, f"{name}: the texts are {texts}")
    # Ollama's interface does not say what was known.
    told = all("known" in one for one in counts)
    pairs = list(zip(counts, counts[1:]))
    short = [f"turn {number}: {now} after {before}" for number, (before, now) in enumerate(pairs, 2)
             if now.get("known", 0) < (before.get("prompt", 1) - 1 - len(FAMILIES[family].left_out)) // PAGE * PAGE]
    if pairs and (told or session.api != "ollama"):
        checks.wrong(f"{name}: each turn knows all that was sent before", short)
    return {"family": family, "session": session.name, "turns": len(turns), "first": counts[0].get("prompt") if counts else None, "last": counts[-1].get("prompt") if counts else None,
            "new": [one["prompt"] - one["known"] for one in counts[1:]] if told else None,
            "thinking": seen.get("thinking") == scenario.thinking if scenario.thinking else None}


def of_family(family: str, args, program: Path, folder: Path, checks: Checks) -> list[dict]:
    """All conversations with one family's model."""
    library = Library(FAMILIES[family], args.templates)
    wanted = args.clients or [*LIBRARIES, *PROGRAMS]
    scenarios = (conversations.tools(library, args.turns), conversations.chat(library), conversations.form(library), conversations.form(library, "json"),
                 conversations.form(library, thinks=True))
    shared = {client: sessions_of(client, *scenarios) for client in wanted if client in LIBRARIES}
    alone = {client: session_of(client, library, args.turns) for client in wanted if client in PROGRAMS}
    rows = []
    with tempfile.TemporaryDirectory() as place:
        models = (args.record or Path(place)) / family
        models.mkdir(parents=True, exist_ok=True)
        model = library.write(models / "model.gguf")
        with serving(program, model, "--ctx-size", "131072", "--parallel", "2", "--threads", "1", "--temp", "0", "--top-k", "1", "--predict", "2000") as address:
            for client in wanted:
                if client in LIBRARIES:
                    with_library(client, shared[client], folder, address)
                else:
                    with_program(alone[client], folder, address)
                for session in shared[client] if client in LIBRARIES else [alone[client]]:
                    rows.append(judged(session, family, checks))
                    if args.record:
                        relay.write(args.record / family / f"{session.name}.jsonl", session.exchanges)
    return rows


def run(args) -> int:
    """All of them."""
    checks, program, folder = Checks(quiet=True), common.alight(args.alight), args.folder.absolute()
    installed(folder)
    rows = []
    for family in args.families:
        if FAMILIES[family].file and not args.templates:
            raise SystemExit(f"--templates is missing: {family} has a published template, and a folder of them is needed")
        rows += of_family(family, args, program, folder, checks)
    if args.json:
        print(json.dumps({"versions": versions(folder), "sessions": rows}, indent=1))
    else:
        common.table([["family", "conversation", "turns", "first prompt", "last prompt", "new at a turn", "thinking"]] + [
            [row["family"], row["session"], row["turns"], row["first"], row["last"],
             f"{min(row['new'])}–{max(row['new'])}" if row["new"] else "-", {True: "yes", False: "no", None: "-"}[row["thinking"]]] for row in rows])
        print(f"\n{len(rows)} conversations, {sum(row['turns'] for row in rows)} turns; {checks.failed} of {checks.failed + checks.passed} checks fail")
    return checks.status()
