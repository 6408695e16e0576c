"""A headless Chromium, driven through the pipe of its DevTools protocol: nothing but Python is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
    "chrome",
)
VARIABLE = "FINDTTA_CHROMIUM"
ABSENT = f"no Chromium: install one, or name it in ${VARIABLE}"

_PATIENCE = 60.0  # seconds

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--remote-debugging-pipe",
)  # fmt: skip


def find() -> str | None:
    """Where a Chromium is: the one that is named, one on the path, or one that playwright has fetched."""
    if os.name != "posix":
        return None  # the pipe has numbers there that other systems do not have
    named = os.environ.get(VARIABLE)
    if named:
        return named
    on_path = next((path for name in NAMES if (path := shutil.which(name))), None)
    fetched = sorted(Path.home().glob(".cache/ms-playwright/chromium*/*/*"))
    executable = [path for path in fetched if path.name in ("chrome", "headless_shell", "chrome-headless-shell")]
    return on_path or (str(executable[-1]) if executable else None)


class Browser:
    """A browser with one tab; what goes wrong in it is in ``complaints``, what it asks for in ``requests``."""

    def __init__(self, executable: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads commands from its file 3 and writes to its file 4.
        wiring = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", wiring, executable, *_FLAGS, f"--user-data-dir={self._profile.name}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)  # the end of its commands is the end of the browser
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return what it gives."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light", script: bool = True
    ) -> None:
        """Open a file and wait until it is there."""
        self.complaints.clear()
        self.requests.clear()
        self.resize(width, height)
        self.media(scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._read()

    def resize(self, width: int, height: int) -> None:
        """Give the window another size; below 700 pixels it is a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )

    def media(self, scheme: str, kind: str = "screen") -> None:
        """Prefer light or dark; be a screen or paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that fits."""
        x, y = self.middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        """Move the pointer into the middle of the first element that fits."""
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to an element and return where its middle is."""
        x, y = self.value(
            f"""(() => {{ const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
        )
        return x, y

    def press(self, key: str) -> None:
        """Press a key that has no character."""
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], _PATIENCE)
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser has gone away, or says nothing")
            self._unread += chunk
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        self._take_note(answer.get("method", ""), answer.get("params", {}))
        return answer

    def _take_note(self, event: str, parameters: dict[str, Any]) -> None:
        note: dict[str, Callable[[], object]] = {
            "Page.loadEventFired": lambda: setattr(self, "_loaded", True),
            "Network.requestWillBeSent": lambda: self.requests.append(parameters["request"]["url"]),
            "Runtime.exceptionThrown": lambda: self.complaints.append(json.dumps(parameters["exceptionDetails"])),
            "Runtime.consoleAPICalled": lambda: self.complaints.append(json.dumps(parameters["args"])),
            "Log.entryAdded": lambda: self.complaints.append(parameters["entry"]["text"]),
        }
        if event in note:
            note[event]()
