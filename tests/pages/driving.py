"""A real Chromium, driven over its DevTools protocol through a pipe: real keys, real clicks."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: install the package chromium"
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--remote-debugging-pipe", "--hide-scrollbars"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)
_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
# What the page waits for is waited for in the page: no clock runs here.
_WAIT = """new Promise((resolve) => {
  const look = () => { if (%s) resolve(true); else setTimeout(look, 10); };
  look();
})"""
_MEASURE = """(() => {
  const root = document.documentElement, main = document.querySelector("main");
  const style = getComputedStyle(main), edge = main.getBoundingClientRect().left;
  const margin = edge + parseFloat(style.paddingLeft);
  const parts = [...document.querySelectorAll("main section > *, main table, main .scroll")];
  const crossing = parts.filter((part) => part.getBoundingClientRect().left < margin - 1);
  return {
    window: root.clientWidth,
    content: root.scrollWidth,
    crossing: crossing.map((part) => part.outerHTML.slice(0, 60)),
  };
})()"""


class Chromium:
    """The process. Its tabs share nothing, and are used one after another."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._left, self._last = write, read, b"", 0

    @contextmanager
    def open_tab(self) -> "Iterator[Browser]":
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", flatten=True, **target)
        yield Browser(self, attached["sessionId"])
        self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, tab: "Browser | None" = None, **parameters: Any) -> Any:
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if tab is not None:
            message["sessionId"] = tab.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (reply := self.next()).get("id") != number:
            if tab is not None:
                tab.notice(reply)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has ended"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))


class Browser:
    """One tab. `complaints` are errors that the page logged or threw, and all that it wrote to the
    console."""

    def __init__(self, chromium: Chromium, session: str) -> None:
        self._chromium, self.session = chromium, session
        self._is_loaded = False
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        return self._chromium.call(method, self, **parameters)

    def open(self, address: str, ready: str) -> None:
        self._is_loaded = False
        self.call("Page.navigate", url=address)
        while not self._is_loaded:
            self.notice(self._chromium.next())
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

    def notice(self, reply: dict[str, Any]) -> None:
        if reply.get("sessionId") != self.session:
            return
        kind, details = reply.get("method"), reply.get("params", {})
        if kind == "Page.loadEventFired":
            self._is_loaded = True
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled":
            self.complaints.append(str(details["args"]))
        elif kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])

    def read_page(self, page: Path, *, width: int = 1200) -> str:
        """The document of a file, as the browser built it in a window of `width` pixels."""
        self.complaints.clear()
        self.size(width, 2000)
        self.open(page.as_uri(), "true")
        return str(self.run("document.documentElement.outerHTML"))

    def measure_layout(self, page: Path, *, width: int) -> "Layout":
        self.read_page(page, width=width)
        layout = Layout(**self.run(_MEASURE))
        assert self.complaints == []
        return layout


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Widths in pixels; `crossing` are the parts that begin left of the text's margin."""

    window: int
    content: int
    crossing: list[str]

    @property
    def fits(self) -> bool:
        return self.content <= self.window and not self.crossing


@contextmanager
def start_chromium(profile: Path) -> Iterator[Chromium]:
    ours, theirs = os.pipe(), os.pipe()
    write, read = ours[1], theirs[0]
    process = _start(profile, ours[0], theirs[1])
    try:
        yield Chromium(write, read)
    finally:
        os.close(write)  # that ends it
        os.close(read)
        os.waitpid(process, 0)


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """One of its own; the tests share the one of the fixture `browser`."""
    with start_chromium(profile) as chromium, chromium.open_tab() as tab:
        yield tab


def _start(profile: Path, commands: int, replies: int) -> int:
    """The browser reads at its number 3 and writes at 4."""
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (commands, replies)]
    moved = [(os.POSIX_SPAWN_DUP2, one, number) for one, number in zip(high, (3, 4), strict=True)]
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    flags = [*_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = os.posix_spawn(
        str(CHROMIUM), ["chromium", *flags], os.environ, file_actions=[*quiet, *moved]
    )
    for one in (*high, commands, replies):
        os.close(one)
    return process
