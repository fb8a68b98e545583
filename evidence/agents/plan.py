"""What the drivers of Python libraries share: the plans that `python -m evidence check agents` gives them, the tools that the model may call, and the report.

A driver runs with the Python in which its library is installed. It takes its plans, a list of JSON objects, as its argument:

    address   of the server
    api       which interface of the server: chat, responses, messages or ollama
    stream    whether answers come in pieces
    kind      tools: one message of the user, and calls until the model ends
              chat: several messages of the user
              form: an answer that follows the schema of `Weather`
    system    the system prompt
    messages  of the user
    turns     at most

and prints a JSON object for each: the calls that reached the tools, the texts and the thinking that reached the caller, and the object of a form; or the
error that ended it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

CALLED: list[tuple[str, dict]] = []
# Where calls are written down as well, if it is named: a tool may be in another process than the report.
CALLS_FILE = os.environ.get("ALIGHT_CALLS_FILE")


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int
    rain: bool


def called(tool: str, /, **arguments) -> None:
    """Notes a call that has reached a tool."""
    CALLED.append((tool, arguments))
    if CALLS_FILE:
        with Path(CALLS_FILE).open("a") as file:
            file.write(json.dumps(CALLED[-1]) + "\n")


def read_note(name: str, line: int) -> str:
    """Reads a line of a note."""
    called("read_note", name=name, line=line)
    return f"Line {line} of {name} is empty."


def write_note(name: str, text: str, tags: list[str]) -> str:
    """Writes a note."""
    called("write_note", name=name, text=text, tags=tags)
    return f"{name} has {len(text)} characters and {len(tags)} tags."


def add(a: float, b: float) -> str:
    """Adds two numbers."""
    called("add", a=a, b=b)
    return f"The sum is {a + b}."


TOOLS = (read_note, write_note, add)


def follow(work: Callable[[dict], tuple[list[str], list[str], BaseModel | None]]) -> None:
    """Works by each plan, and reports: `work` returns the texts, the thinking, and the object of a form."""
    for plan in json.loads(sys.argv[1]):
        CALLED.clear()
        try:
            texts, thinking, form = work(plan)
            seen = {"texts": texts, "thinking": [text for text in thinking if text], "form": form and form.model_dump()}
        except Exception:  # of a library, whatever it raises
            seen = {"error": traceback.format_exc()[-2000:]}
        print("RESULT " + json.dumps({"calls": CALLED, **seen}), flush=True)
