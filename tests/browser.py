"""Chromium without a window, driven over a pair of pipes by its DevTools protocol: no package, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# File descriptors 3 and 4 are where Chromium reads and writes with --remote-debugging-pipe.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, end in zip((3, 4), ends):
    os.dup2(end, fd)
os.execv(sys.argv[3], sys.argv[3:])
"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def installed() -> str | None:
    """The path of a Chromium."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One tab.

    Attributes:
        errors: what the console said since the page was opened, and exceptions.
        requests: every address that the page asked for.
    """

    def __init__(self, program: str, folder: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        command = [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), program, *flags]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        os.close(to_read)
        os.close(to_write)
        self._received, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    # --- the protocol: JSON, each message ends with a zero byte ---

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            assert chunk, "Chromium does not answer"
            self._received += chunk
        message, _, self._received = self._received.partition(b"\0")
        answer = json.loads(message)
        self._note(answer.get("method"), answer.get("params", {}))
        return answer

    def _note(self, event: str | None, said: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.errors.append(json.dumps(said["args"]))
        elif event == "Log.entryAdded":
            self.errors.append(said["entry"]["text"])

    # --- what a reader does ---

    def open(self, page: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a page in a window of this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.errors, self.requests, self._loaded = [], [], False
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._next()

    def value(self, expression: str) -> Any:
        """A JavaScript expression's value, as plain Python."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, element: str) -> None:
        """Press the mouse in the middle of the element of a JavaScript expression."""
        place = self.value(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})({element})"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, for the element that has the focus."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )  # fmt: skip

    def type(self, text: str) -> None:
        """Write into the element that has the focus, in place of what is there."""
        self.value("document.activeElement.select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.press("Delete", 46)

    def screenshot(self, to: Path) -> None:
        """The whole page, as long as it is."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        to.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, to: Path) -> None:
        """The page as it prints."""
        to.write_bytes(base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"]))
