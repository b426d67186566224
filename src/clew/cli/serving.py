"""Pages of commands: the packages they require, the browser, and the end by Ctrl-C."""

import os
import signal
import sys
import webbrowser
from typing import TYPE_CHECKING

from rich.console import Console

from clew.cli.signals import exit_interrupted

if TYPE_CHECKING:
    from clew.pages.server import LocalServer


def check_web(wanted: bool) -> None:
    """Raise InputError, before any work is done, if a page is requested and the packages of the
    extra "web" are missing."""
    if wanted:
        from clew.pages.server import require_web

        require_web()


def open_browser(console: Console, address: str, *, wanted: bool) -> None:
    """Open a page, if somebody sits at this machine."""
    if wanted and console.is_terminal and _has_screen():
        webbrowser.open(address)


def serve_until_done(console: Console, server: "LocalServer", *, browser: bool) -> None:
    """Serve until a person finishes on the page, or presses Ctrl-C."""
    open_browser(console, server.address, wanted=browser)
    try:
        server.run()
    except KeyboardInterrupt as interrupt:
        if getattr(interrupt, "number", signal.SIGINT) != signal.SIGINT:
            raise exit_interrupted(interrupt) from None


def _has_screen() -> bool:
    """Whether there is a graphical display. Without one, a text browser might open in this
    terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
