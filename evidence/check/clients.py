"""Unchanged clients against `alight serve`: the packages openai, anthropic and ollama, of Python and of Node, with SmolLM2.

Clients of vectors and scores (cohere, and the classes of LangChain and LlamaIndex, besides these) are driven with a small encoder and a small reranker:
evidence/lib/vector_clients.py.

Each is given an address and no more. They chat, whole and streamed, call tools and are told results, ask for likelihoods and
vectors, and make mistakes, which must cost one request each. What they get is compared with what `alight run` says for the same
prompt and seed; likelihoods of a text, as evaluation harnesses ask for them, with those of `alight perplexity`.

The packages for Node are pinned in evidence/node and installed there by npm. Where there is no Node, or npm reaches no registry, they
are left out, which is said.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

from evidence.lib import common, process, vector_clients
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily

openai = lazily("openai")
anthropic = lazily("anthropic")
ollama = lazily("ollama")

# Tokens of a text that are scored together.
CHUNK = 32
PROMPT, SEED, TOKENS = "Why is the sky blue?", 7, 24
TEXT = (
    "The harbour is dredged every spring. The library keeps the maps of the old town, and the bridge was rebuilt after "
    "the flood. On market days the square is full before sunrise. "
) * 2
TOOL = {"name": "weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CHAT = [{"role": "user", "content": PROMPT}]
NODE = common.ROOT / "evidence/node"
# A conversation in which a tool was called.
CALLED = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How is the weather in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees, rain"},
]


def add_arguments(parser) -> None:
    """The program and the models."""
    common.add_arguments(parser)


@contextlib.contextmanager
def serving(program: Path, *arguments):
    """A server at a free port; its address."""
    command = [program, "serve", *arguments, "--port", "0", "--no-cache"]
    server = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    said = []
    try:
        for line in server.stderr:
            said.append(line)
            if line.startswith("listening on "):
                yield line.removeprefix("listening on ").strip()
                return
        raise SystemExit(f"alight serve has ended: {''.join(said)}")
    finally:
        server.terminate()
        server.wait()


class Counted:
    """Counts the requests of a client by asking the client's own HTTP layer."""

    def __init__(self):
        self.requests = 0

    def __call__(self, _request) -> None:
        self.requests += 1


def close(one: float, other: float, limit: float = 1e-4) -> bool:
    return math.isclose(one, other, rel_tol=limit, abs_tol=limit)


def with_openai(address: str, expected: str, checks: Checks) -> None:
    """Chat, stream, tools, likelihoods, vectors, mistakes."""
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    ask = {"model": "any", "messages": CHAT, "seed": SEED, "max_completion_tokens": TOKENS}
    whole = client.chat.completions.create(**ask)
    checks.add(whole.choices[0].message.content == expected, "openai: the answer is that of alight run")
    checks.add(whole.usage.completion_tokens <= TOKENS and whole.usage.prompt_tokens > 0, "openai: usage")

    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    checks.add(text == expected, "openai: the streamed answer is the whole one")
    checks.add(chunks[-1].usage.total_tokens == whole.usage.total_tokens, "openai: usage of a stream")
    # It raises where an answer is cut off, so this one is ended by a text.
    ended = ask | {"stop": [" "], "max_completion_tokens": 200}
    with client.chat.completions.stream(**ended) as stream:
        final = stream.get_final_completion()
    checks.add(final.choices[0].message.content == expected.split(" ")[0], "openai: the package's own assembly of a stream")

    told = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    joined = b"".join(bytes(token.bytes) for token in told).decode()
    checks.add(joined == expected and all(len(token.top_logprobs) == 3 for token in told), "openai: logprobs of each token")

    tools = [{"type": "function", "function": TOOL}]
    insisted = client.chat.completions.create(**ask | {"tools": tools, "tool_choice": "required", "max_completion_tokens": 200})
    function = insisted.choices[0].message.tool_calls[0].function
    checks.add(function.name == "weather" and "city" in json.loads(function.arguments), "openai: a tool is called if the client insists")
    forced = ask | {"tools": tools, "tool_choice": "required", "max_completion_tokens": 200}
    with client.chat.completions.stream(**forced) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta" and event.arguments_delta]
        assembled = stream.get_final_completion().choices[0].message.tool_calls[0].function
    same = assembled.arguments == function.arguments == "".join(piece.arguments_delta for piece in pieces)
    checks.add(same and len(pieces) > 1, f"openai: arguments of a call come in pieces ({len(pieces)}), which are the whole ones")
    more = client.chat.completions.create(model="any", messages=CALLED, tools=tools, temperature=0, max_tokens=8)
    checks.add(bool(more.choices[0].message.content or more.choices[0].message.tool_calls), "openai: the result of a tool is answered")

    twice = client.chat.completions.create(**ask | {"n": 2, "stop": ["\n"]})
    checks.add([choice.index for choice in twice.choices] == [0, 1], "openai: two answers")

    biased = client.chat.completions.create(**ask | {"logit_bias": {"28": 100}, "max_completion_tokens": 4, "temperature": 0})
    plain = client.chat.completions.create(**ask | {"max_completion_tokens": 4, "temperature": 0})
    checks.add(biased.choices[0].message.content != plain.choices[0].message.content, "openai: a bias changes the answer")

    pet = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
           "required": ["name", "age"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": pet, "strict": True}}
    held = client.chat.completions.create(**ask | {"response_format": form, "max_completion_tokens": 100})
    checks.add(set(json.loads(held.choices[0].message.content)) == {"name", "age"}, "openai: an answer is held to its schema")

    asked = {"model": "any", "input": PROMPT, "max_output_tokens": TOKENS, "extra_body": {"seed": SEED}}
    response = client.responses.create(**asked)
    checks.add(response.output_text == expected, "openai: a response is the answer of alight run")
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    # The package's own get_final_response knows no answer that is cut off.
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    ended = asked | {"max_output_tokens": 200, "extra_body": {"seed": SEED, "stop": [" "]}}
    with client.responses.stream(**ended) as stream:
        first = stream.get_final_response().output_text
    checks.add(first == expected.split(" ")[0], "openai: the package's own assembly of a streamed response")
    checks.add(said == expected == final.output_text, "openai: a streamed response is the whole one")
    checks.add(final.usage.input_tokens_details.cached_tokens > 0, "openai: usage of a response")
    flat = {"type": "function", **TOOL}
    called = client.responses.create(**asked | {"tools": [flat], "tool_choice": "required", "max_output_tokens": 200})
    call = called.output[0]
    checks.add(call.type == "function_call" and "city" in json.loads(call.arguments), "openai: a response that calls a tool")
    with client.responses.stream(**asked | {"tools": [flat], "tool_choice": "required", "max_output_tokens": 200}) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        streamed = stream.get_final_response().output[0].arguments
    same = "".join(pieces) == streamed == call.arguments
    checks.add(same and len(pieces) > 1, f"openai: arguments of a streamed response come in pieces ({len(pieces)})")
    told = [{"role": "user", "content": PROMPT}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "4 degrees"}]
    more = client.responses.create(**asked | {"input": told, "tools": [flat]})
    checks.add(len(more.output) > 0, "openai: the result of a tool is answered in a response")

    vectors = client.embeddings.create(model="any", input=["The sky is blue.", "A cat sleeps.", "The sky is blue."]).data
    same = sum(a * b for a, b in zip(vectors[0].embedding, vectors[2].embedding, strict=True))
    other = sum(a * b for a, b in zip(vectors[0].embedding, vectors[1].embedding, strict=True))
    checks.add(close(same, 1) and other < 0.9999, "openai: embeddings of length 1, alike for like texts")
    checks.add([model.id for model in client.models.list().data] == ["smol"], "openai: the model is listed")

    for what, wrong, kind in (
        ("a number that makes no sense", {"temperature": -1}, openai.BadRequestError),
        ("a prompt that does not fit", {"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError),
        ("messages without a role", {"messages": [{"content": "a"}]}, openai.BadRequestError),
    ):
        for stream in (False, True):
            counted = Counted()
            client._client.event_hooks["request"] = [counted]
            try:
                client.chat.completions.create(**ask | wrong, stream=stream)
                checks.wrong(f"openai: {what}", "it was answered")
            except kind as error:
                good = counted.requests == 1 and "message" in (error.body or {})
                checks.add(good, f"openai: {what} is an error of one request{', streamed' if stream else ''}")
            client._client.event_hooks["request"] = []


def with_echo(address: str, nats: float, checks: Checks) -> None:
    """The likelihood of a text, as evaluation harnesses ask for it: by `echo`, with no token generated."""
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    scored = client.completions.create(model="any", prompt=TEXT, max_tokens=0, echo=True, logprobs=1)
    told = scored.choices[0].logprobs
    checks.add(scored.choices[0].text == TEXT and told.token_logprobs[0] is None, "openai: echo repeats the prompt")
    # Of a chunk, perplexity scores what has half of it before it.
    half = told.token_logprobs[CHUNK // 2 + 1 : CHUNK]
    mean = -sum(half) / len(half)
    checks.add(close(mean, nats, 1e-5), f"openai: the likelihood of a text is that of alight perplexity ({mean:.6f}, {nats:.6f})")


def with_anthropic(address: str, expected: str, checks: Checks) -> None:
    """Messages, their stream, tools, counts, mistakes."""
    client = anthropic.Anthropic(base_url=address, api_key="none")
    ask = {"model": "any", "messages": CHAT, "max_tokens": TOKENS, "extra_body": {"seed": SEED}}
    whole = client.messages.create(**ask)
    checks.add(whole.content[0].text == expected, "anthropic: the answer is that of alight run")
    checks.add(whole.stop_reason in ("end_turn", "max_tokens"), "anthropic: why it ended")
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    checks.add(text == expected and final.content[0].text == expected, "anthropic: the streamed answer is the whole one")
    usage = final.usage
    counted = client.messages.count_tokens(model="any", messages=CHAT).input_tokens
    checks.add(counted == usage.input_tokens + usage.cache_read_input_tokens, "anthropic: counted tokens are those that were read")
    checks.add(usage.cache_read_input_tokens > 0, "anthropic: the same prompt is known the second time")

    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    messages = [
        {"role": "user", "content": "How is the weather in Oslo?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "4 degrees, rain"}]},
    ]
    forced = ask | {"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 200}
    called = client.messages.create(**forced).content[0]
    with client.messages.stream(**forced) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message().content[0]
    same = streamed.input == called.input == json.loads("".join(pieces))
    checks.add(same and len(pieces) > 1, f"anthropic: the input of a tool comes in pieces ({len(pieces)}), which are the whole one")
    answer = client.messages.create(model="any", system="Be short.", messages=messages, tools=[tool], max_tokens=8)
    checks.add(len(answer.content) > 0, "anthropic: the result of a tool is answered")
    try:
        client.messages.create(model="any", messages=[{"role": "user", "content": "word " * 9000}], max_tokens=8)
        checks.wrong("anthropic: a prompt that does not fit", "it was answered")
    except anthropic.BadRequestError as error:
        checks.add("prompt is too long" in str(error), "anthropic: a prompt that does not fit is said in its agent's words")


def with_ollama(address: str, expected: str, checks: Checks) -> None:
    """Lists, chat, its stream, a text, vectors, mistakes."""
    client = ollama.Client(host=address)
    checks.add([model.model for model in client.list().models] == ["smol"], "ollama: the model is listed")
    shown = client.show("smol")
    checks.add("completion" in shown.capabilities and shown.modelinfo["llama.context_length"] > 0, "ollama: the model is shown")
    ask = {"model": "smol", "messages": CHAT, "options": {"seed": SEED, "num_predict": TOKENS, "num_ctx": 2048}}
    whole = client.chat(**ask)
    checks.add(whole.message.content == expected and whole.eval_count <= TOKENS, "ollama: the answer is that of alight run")
    pieces = list(client.chat(**ask, stream=True))
    text = "".join(piece.message.content for piece in pieces)
    checks.add(text == expected and pieces[-1].done, "ollama: the streamed answer is the whole one")
    said = client.generate(model="smol:latest", prompt=PROMPT, options={"seed": SEED, "num_predict": TOKENS})
    checks.add(said.response == expected, "ollama: generate says what chat does")
    form = {"type": "object", "properties": {"cat": {"type": "boolean"}}, "required": ["cat"], "additionalProperties": False}
    held = client.chat(**ask | {"format": form})
    checks.add(set(json.loads(held.message.content)) == {"cat"}, "ollama: an answer is held to its schema")
    vectors = client.embed(model="smol", input=["one", "two"]).embeddings
    checks.add(len(vectors) == 2 and close(sum(x * x for x in vectors[0]), 1), "ollama: embeddings")
    checks.add(client.ps().models[0].model == "smol", "ollama: the model is running")
    try:
        client.chat(model="smol", messages=CHAT, options={"temperature": -1})
        checks.wrong("ollama: a number that makes no sense", "it was answered")
    except ollama.ResponseError as error:
        checks.add(error.status_code == 400 and "temperature" in str(error), "ollama: a mistake is said")


def packages_for_node() -> str | None:
    """Installs them, unless they are; why they are not, if they cannot be."""
    missing = [program for program in ("node", "npm") if not shutil.which(program)]
    if missing:
        return f"there is no {missing[0]}"
    # npm writes it at the end.
    lock, installed = NODE / "package-lock.json", NODE / "node_modules/.package-lock.json"
    if installed.is_file() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return None
    npm = subprocess.run(["npm", "ci", "--no-progress"], cwd=NODE, capture_output=True, text=True)
    return None if npm.returncode == 0 else f"npm has not installed them: {npm.stderr.strip()[-500:]}"


def with_node(address: str, expected: str, checks: Checks) -> None:
    """The same packages of another language, as evidence/node/clients.js uses them."""
    if why := packages_for_node():
        common.say(f"left out: the clients for Node: {why}")
        return
    told = {"address": address, "expected": expected, "chat": CHAT, "tool": TOOL, "seed": SEED, "tokens": TOKENS}
    node = subprocess.run(["node", "clients.js", json.dumps(told)], cwd=NODE, capture_output=True, text=True, timeout=600)
    for line in node.stdout.splitlines():
        checks.add(**json.loads(line))
    checks.wrong("node: the clients have come to their end", "" if node.returncode == 0 else node.stderr.strip()[-2000:])


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    program, model, checks = common.alight(args.alight), common.model_path("smollm2", args.models), Checks(quiet=True)
    said = process.told([program, "run", model, PROMPT, "-n", TOKENS, "-s", SEED, "--json"], timeout=120)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.write_text(TEXT)
        scored = process.told([program, "perplexity", model, text, "-c", CHUNK, "--chunks", 1, "--json"], timeout=120)
    with serving(program, model, "--alias", "smol") as address:
        with_openai(address, said["text"], checks)
        with_echo(address, math.log(scored["perplexity"]["value"]), checks)
        with_anthropic(address, said["text"], checks)
        with_ollama(address, said["text"], checks)
        with_node(address, said["text"], checks)
    with tempfile.TemporaryDirectory() as folder:
        vector_clients.run(program, Path(folder), serving, checks)
    return checks.status()
