"""A relay between a client and a server that changes nothing, and keeps every exchange; folders of such exchanges."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# The addresses that continue a conversation, without `/v1`.
ANSWERING = ("/chat/completions", "/responses", "/messages", "/api/chat")
# Headers that name a connection, or a length that the relay writes itself.
OWN_HEADERS = ("host", "connection", "content-length", "transfer-encoding", "accept-encoding", "keep-alive")


@dataclass
class Exchange:
    """A request and its answer."""

    method: str
    path: str
    request: str
    status: int
    answer: str

    @property
    def continues(self) -> bool:
        """Whether it asks for the next part of a conversation."""
        return self.method == "POST" and self.path.split("?")[0].removeprefix("/v1") in ANSWERING

    def body(self) -> dict:
        """What was sent."""
        return json.loads(self.request)

    def usage(self) -> dict:
        """The tokens of the prompt, and those of them that were known; empty if the answer has none."""
        found = {}
        for event in events(self.answer):
            usage = (event.get("response") or event.get("message") or event).get("usage") or {}
            if "cache_read_input_tokens" in usage:
                known = usage["cache_read_input_tokens"]
                found = {"prompt": usage["input_tokens"] + known, "known": known}
            elif "input_tokens_details" in usage:
                found = {"prompt": usage["input_tokens"], "known": usage["input_tokens_details"]["cached_tokens"]}
            elif "prompt_tokens" in usage:
                found = {"prompt": usage["prompt_tokens"], "known": usage["prompt_tokens_details"]["cached_tokens"]}
            elif event.get("done") and "prompt_eval_count" in event:
                # Ollama's interface does not tell them apart.
                found = {"prompt": event["prompt_eval_count"]}
        return found


def events(answer: str) -> list[dict]:
    """The objects of an answer, whether it came whole, as events or as lines."""
    found = []
    lines = [answer] if answer.startswith("{") and "\n{" not in answer else answer.splitlines()
    for line in lines:
        text = line.removeprefix("data: ")
        if text.startswith("{"):
            found.append(json.loads(text))
    return found


class Relay(BaseHTTPRequestHandler):
    """Passes requests on, and answers back as they come."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_words) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """Without a body."""
        self.relay(b"")

    def do_HEAD(self) -> None:
        """Without a body."""
        self.relay(b"")

    def do_POST(self) -> None:
        """With its body."""
        self.relay(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def relay(self, body: bytes) -> None:
        """One exchange."""
        server = http.client.HTTPConnection(self.server.address)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN_HEADERS}
        server.request(self.command, self.path, body, headers)
        answer = server.getresponse()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in OWN_HEADERS:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        pieces = []
        while piece := answer.read1(1 << 16):
            pieces.append(piece)
            self.wfile.write(piece)
            self.wfile.flush()
        exchange = Exchange(self.command, self.path, body.decode(), answer.status, b"".join(pieces).decode())
        self.server.exchanges.append(exchange)


@contextmanager
def relaying(address: str):
    """A relay to the server; its address, and its exchanges in the order in which they end."""
    relay = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    relay.address, relay.exchanges = address.removeprefix("http://"), []
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{relay.server_port}", relay.exchanges
    finally:
        relay.shutdown()
        relay.server_close()


def write(path: Path, exchanges: list[Exchange]) -> None:
    """A conversation as a file, an exchange a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(exchange)) + "\n" for exchange in exchanges))


def read(path: Path) -> list[Exchange]:
    """The exchanges of such a file."""
    return [Exchange(**json.loads(line)) for line in path.read_text().splitlines()]
