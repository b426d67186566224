"""A real Chromium, driven over its DevTools protocol through a pipe: real keys, real clicks."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--remote-debugging-pipe", "--hide-scrollbars"),
)
_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
# What the page waits for is waited for in the page: no clock runs here.
_WAIT = """new Promise((resolve) => {
  const look = () => { if (%s) resolve(true); else setTimeout(look, 10); };
  look();
})"""


class Browser:
    """One tab. `complaints` are errors that the page logged or threw."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._left, self._last = write, read, b"", 0
        self._session: str | None = None
        self._is_loaded = False
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (reply := self._next()).get("id") != number:
            self._notice(reply)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def open(self, address: str, ready: str) -> None:
        self._is_loaded = False
        self.call("Page.navigate", url=address)
        while not self._is_loaded:
            self._notice(self._next())
        self.wait(ready)

    def run(self, script: str) -> Any:
        reply = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until it holds; the test's own time limit ends a wait for ever."""
        assert self.run(_WAIT % condition)

    def press(self, *keys: str) -> None:
        for key in keys:
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            code = _CODES.get(key, 0)
            named: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def size(self, width: int, height: int, *, is_phone: bool = False, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has ended"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))

    def _notice(self, reply: dict[str, Any]) -> None:
        kind, details = reply.get("method"), reply.get("params", {})
        if kind == "Page.loadEventFired":
            self._is_loaded = True
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])


@contextmanager
def open_browser(profile: Path, *flags: str) -> Iterator[Browser]:
    ours, theirs = os.pipe(), os.pipe()
    write, read = ours[1], theirs[0]
    process = _start(profile, flags, ours[0], theirs[1])
    try:
        yield Browser(write, read)
    finally:
        os.close(write)  # that ends it
        os.close(read)
        os.waitpid(process, 0)


def _start(profile: Path, more: tuple[str, ...], commands: int, replies: int) -> int:
    """The browser reads at its number 3 and writes at 4."""
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (commands, replies)]
    moved = [(os.POSIX_SPAWN_DUP2, one, number) for one, number in zip(high, (3, 4), strict=True)]
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    flags = [*_FLAGS, *more, f"--user-data-dir={profile}", "about:blank"]
    process = os.posix_spawn(
        str(CHROMIUM), ["chromium", *flags], os.environ, file_actions=[*quiet, *moved]
    )
    for one in (*high, commands, replies):
        os.close(one)
    return process
