"""A browser without a window, driven by WebDriver: enough of it to type, click, look and take pictures."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from evidence.lib import process

# The name under which WebDriver hands out elements.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATIENCE = 120.0


def driver() -> str | None:
    """The program that drives a browser, if this machine has one."""
    return shutil.which("chromedriver")


class Gone(Exception):
    """What was looked for is not there, or not as it should be."""


def wait_for(holds, what: str):
    """What a function returns, as soon as that is true."""
    end = time.monotonic() + PATIENCE
    while not (value := holds()):
        if time.monotonic() > end:
            raise Gone(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(0.05)
    return value


class Browser:
    """One window. Made by `opened`."""

    def __init__(self, address: str):
        self.address = address
        self.session = None

    def ask(self, method: str, path: str, body: dict | None = None):
        """What WebDriver answers."""
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.address + path, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            told = json.loads(error.read())["value"]
            raise Gone(f"{told['error']}: {told['message'].splitlines()[0]}") from None

    def of(self, method: str, path: str, body: dict | None = None):
        """The same, of this window."""
        return self.ask(method, f"/session/{self.session}{path}", body)

    def go(self, address: str) -> None:
        """Opens a page."""
        self.of("POST", "/url", {"url": address})

    def run(self, script: str, *arguments):
        """What a function body returns that runs in the page."""
        return self.of("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        """The first element of a CSS selector."""
        return self.of("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector: str) -> None:
        """As with a mouse: what is covered or not shown cannot be clicked."""
        self.of("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """As with a keyboard."""
        self.of("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def keys(self, keys: str) -> None:
        """Keys one after the other, to whatever has the focus."""
        actions = [step for key in keys for step in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})]
        self.of("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, selector: str) -> str:
        """The text of all elements of a selector."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent).join('\\n')", selector)

    def until(self, script: str, *arguments):
        """What a function body returns, as soon as that is true."""
        return wait_for(lambda: self.run(script, *arguments), script)

    def window(self) -> str:
        """The tab that is driven."""
        return self.of("GET", "/window")

    def switch(self, window: str) -> None:
        """Drives another tab."""
        self.of("POST", "/window", {"handle": window})

    def open_tab(self, address: str) -> str:
        """Opens another tab of the same browser, and drives it."""
        window = self.of("POST", "/window/new", {"type": "tab"})["handle"]
        self.switch(window)
        self.go(address)
        return window

    def close(self) -> None:
        """Closes the tab that is driven; another one is to be chosen then."""
        self.of("DELETE", "/window")

    def tap(self, x: int, y: int) -> None:
        """As with a finger, at a point of the page."""
        actions = [{"type": "pointerMove", "x": x, "y": y, "origin": "viewport"}, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.of("POST", "/actions", {"actions": [{"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": actions}]})

    def files(self, selector: str, path: Path) -> None:
        """Gives a file to a field for files."""
        self.type(selector, str(path))

    def command(self, name: str, **parameters) -> None:
        """A command of Chrome's own protocol."""
        self.of("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def downloads(self, folder: Path) -> None:
        """Where files that the page hands out are kept."""
        self.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def allow_clipboard(self) -> None:
        """The page may read and write the clipboard."""
        self.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def errors(self) -> list[str]:
        """What the browser has complained about since this was last asked; advice is no complaint."""
        entries = self.of("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def picture(self, path: Path) -> None:
        """Keeps what is to be seen."""
        path.write_bytes(base64.b64decode(self.of("GET", "/screenshot")))

    def size(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the page, as a device of that size would have it, and whether its person likes the dark."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])


@contextlib.contextmanager
def opened():
    """A browser of its own, with a fresh profile."""
    port = process.free_port()
    # A group of its own: a browser that hangs outlives its driver.
    chromedriver = subprocess.Popen([driver(), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    browser = Browser(f"http://127.0.0.1:{port}")
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        options = {
            # Root has no sandbox of its own to run it in.
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"],
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            end = time.monotonic() + PATIENCE
            while browser.session is None:
                try:
                    body = {"capabilities": {"alwaysMatch": wanted}}
                    browser.session = browser.ask("POST", "/session", body)["sessionId"]
                except OSError:
                    if time.monotonic() > end or chromedriver.poll() is not None:
                        raise
                    time.sleep(0.1)
            yield browser
        finally:
            if browser.session is not None:
                with contextlib.suppress(Exception):
                    browser.of("DELETE", "")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(chromedriver.pid, signal.SIGKILL)
            chromedriver.wait()
