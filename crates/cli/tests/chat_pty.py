#!/usr/bin/env python3
"""Holds a chat with `alight run MODEL` on a pseudo-terminal, as a person would.

    chat_pty.py ALIGHT MODEL

Exits 0 if everything that should happen does. Standard library only.
"""

import os
import pty
import re
import select
import signal
import sys
import tempfile
import time

TIMEOUT = 60.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
PROMPT = "> "


class Chat:
    """The program on a terminal of its own; stdout goes there too unless `stdout` names a file."""

    def __init__(self, args, stdout=None, env=()):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if stdout:
                os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
            # Whoever runs the tests may ignore them, as nohup and a script's `&` do.
            for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
                signal.signal(ignored, signal.SIG_DFL)
            os.environ.update({"TERM": "xterm-256color", **dict(env)})
            os.execv(args[0], args)
        self.raw = ""
        self.seen = 0

    def text(self):
        return ESCAPES.sub("", self.raw)

    def read(self, wait):
        """Takes what comes within `wait` seconds; False at the end."""
        ready, _, _ = select.select([self.fd], [], [], wait)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def expect(self, what):
        """Waits for text after what was expected before, in which a line may be broken at each blank; returns what stood between."""
        pattern = re.compile(r"\b\s\b".join(map(re.escape, re.split(r"\b \b", what))))
        end = time.monotonic() + TIMEOUT
        while True:
            new = self.text()[self.seen:]
            found = pattern.search(new)
            if found:
                self.seen += found.end()
                return new[: found.start()]
            if time.monotonic() > end or not self.read(0.2):
                raise SystemExit(f"expected {what!r}, have {new!r}\nall of it: {self.raw!r}")

    def send(self, text):
        os.write(self.fd, text.encode())

    def ask(self, line):
        """Sends a line and returns the answer, once the prompt is back."""
        self.send(line + "\r")
        self.expect(line)
        return self.expect("\n" + PROMPT).strip("\n")

    def leave(self, keys):
        """Sends `keys` and returns the exit status."""
        self.send(keys)
        end = time.monotonic() + TIMEOUT
        while self.read(0.2) and time.monotonic() < end:
            pass
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            raise SystemExit(f"ended by signal {os.WTERMSIG(status)}: {self.raw!r}")
        return os.WEXITSTATUS(status)


def check(good, what, *more):
    if not good:
        raise SystemExit(f"{what}: {more!r}")


def conversation(alight, model):
    chat = Chat([alight, "run", model, "--temp", "0", "-n", "24", "--stats"])
    greeting = chat.expect(PROMPT)
    check("Ctrl-C stops an answer, Ctrl-D leaves" in greeting, "greeting", greeting)
    first = chat.ask("Say hello.")
    check(len(first.strip()) > 3 and "tokens/s" in first, "an answer and its statistics", first)
    first_tokens = int(re.search(r"prompt +(\d+) tokens", first)[1])
    # The second turn computes what was added, not the whole history (30 tokens and more).
    second = chat.ask("Again.")
    second_tokens = int(re.search(r"prompt +(\d+) tokens", second)[1])
    check(second_tokens < first_tokens, "the cache is reused", first_tokens, second_tokens)
    # Arrow up twice recalls the first line.
    chat.send("\x1b[A\x1b[A\r")
    chat.expect("Say hello.")
    chat.expect("\n" + PROMPT)
    # An empty line asks nothing.
    chat.send("\r")
    check(chat.expect(PROMPT).strip() == "", "an empty line")
    check(chat.leave("\x04") == 0, "Ctrl-D leaves with status 0")


def interruption(alight, model):
    chat = Chat([alight, "run", model, "--temp", "0", "--ignore-eos", "-n", "100000", "-c", "8192"])
    chat.expect(PROMPT)
    chat.send("Count to a million.\r")
    chat.expect("Count to a million.\n")
    while len(chat.text()[chat.seen:]) < 20:
        check(chat.read(5), "an answer begins", chat.raw)
    chat.send("\x03")
    chat.expect("\n" + PROMPT)
    # The program lives on and answers.
    chat.send("And now?\r")
    chat.expect("And now?\n")
    while len(chat.text()[chat.seen:]) < 20:
        check(chat.read(5), "another answer begins", chat.raw)
    chat.send("\x03")
    chat.expect("\n" + PROMPT)
    # The second press of one that was late finds the prompt, and leaves nothing.
    chat.send("\x03")
    chat.expect("press Ctrl-C again")
    chat.expect("\n" + PROMPT)
    check(chat.leave("\x03") == 0, "Ctrl-C leaves when it is pressed twice at the prompt")


def forgetting(alight, model):
    chat = Chat([alight, "run", model, "--temp", "0", "--ignore-eos", "-n", "40", "-c", "192"])
    chat.expect(PROMPT)
    told = ""
    for i in range(4):
        told += chat.ask(f"Tell me about the number {i}.")
    told = " ".join(told.split())
    check("no longer fits" in told and "forgotten its oldest exchange" in told, "forgetting", told)
    long = "word " * 200
    chat.send(long.strip() + "\r")
    told = chat.expect("shorten it")
    check("192" in told, "a message that is too long", told)
    chat.expect("\n" + PROMPT)
    check(len(chat.ask("Hi.").strip()) > 3, "the chat goes on")
    check(chat.leave("\x04") == 0, "status")


def full_context(alight, model):
    chat = Chat([alight, "run", model, "--temp", "0", "--ignore-eos", "-c", "96"])
    chat.expect(PROMPT)
    told = chat.ask("Tell me a long story.")
    check("the context of 96 tokens is full" in told, "a full context is said", told)
    check("the context of 96 tokens is full" in chat.ask("And then?"), "and survived")
    check(chat.leave("\x04") == 0, "status")


def redirected(alight, model):
    """With stdout in a file, the answers go there and nothing else does."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out")
        chat = Chat([alight, "run", model, "--temp", "0", "-n", "8"], stdout=path)
        chat.expect(PROMPT)
        chat.send("Say hello.\r")
        chat.expect("Say hello.")
        chat.expect(PROMPT)
        check(chat.leave("\x04") == 0, "status")
        with open(path, encoding="utf-8") as file:
            out = file.read()
        check(out.endswith("\n") and len(out.strip()) > 3, "the answer is in the file", out)
        check(PROMPT not in out and "\x1b" not in out and "Ctrl" not in out, "and nothing else", out)


def colours(alight, model):
    """Notes are styled on a terminal, and not with NO_COLOR."""
    args = [alight, "run", model + ".none", "x"]
    for env, styled in [((), True), ((("NO_COLOR", "1"),), False)]:
        chat = Chat(args, env=env)
        chat.expect("does not exist")
        check(("\x1b[" in chat.raw) == styled, "colour", env, chat.raw)
        check(chat.leave("") == 1, "status")


def main():
    signal.alarm(600)
    alight, model = sys.argv[1:3]
    os.environ.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        scenes(alight, model)


def scenes(alight, model):
    for scene in [colours, conversation, interruption, forgetting, full_context, redirected]:
        scene(alight, model)
        print(f"{scene.__name__}: as it should be")


if __name__ == "__main__":
    main()
