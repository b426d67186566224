"""clew serve, and what all commands with a page or an API share: packages, browser, the end by
Ctrl-C."""

import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.progress import Event
from clew.cli.commands import Call, read_command
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.cli.signals import exit_interrupted, log_to_stderr
from clew.hallucination.workflow import serve

if TYPE_CHECKING:
    from clew.cli.commands import Call
    from clew.pages.server import LocalServer


COMMAND = read_command(serve)


def run(call: Call) -> None:
    run_api(call, serve)


_KEYS_VARIABLE = "CLEW_API_KEYS"


def check_web(wanted: bool) -> None:
    """Raise InputError, before any work is done, if a page is requested and the packages of the
    extra "web" are missing."""
    if wanted:
        from clew.pages.server import require_web

        require_web()


def can_open_browser(console: Console) -> bool:
    """Whether somebody sits at this machine."""
    return console.is_terminal and _has_screen()


def serve_until_done(console: Console, server: "LocalServer", *, browser: bool) -> None:
    """Serve until a person finishes on the page, or presses Ctrl-C."""
    if browser and can_open_browser(console):
        webbrowser.open(server.address)
    with until_ctrl_c():
        server.run()


@contextmanager
def until_ctrl_c() -> Iterator[None]:
    """Ctrl-C is how a person ends what runs in the block; other signals end the command."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if getattr(interrupt, "number", signal.SIGINT) != signal.SIGINT:
            raise exit_interrupted(interrupt) from None


def run_api(call: "Call", serve: Callable[..., None]) -> None:
    """Serve until a signal ends it. API keys may be in the usual environment variable."""
    from clew.pages.service import ServiceReady, is_loading

    log_to_stderr()
    settings = dict(call.settings)
    if settings["api_keys_env"] is None and _KEYS_VARIABLE in os.environ:
        settings["api_keys_env"] = _KEYS_VARIABLE
    with Renderer(call.progress) as show:

        def report(event: Event, /) -> None:
            if isinstance(event, ServiceReady):
                print_line(call.console, f"{event}")
                print_line(call.console, f"page: {event.address} (Ctrl-C stops the server)")
            else:
                show(event)

        serve(**settings, reporter=report)
    print_line(call.progress, "stopped")
    if is_loading():
        # The libraries abort a process that ends while one of their threads is at work. What has
        # been built of a detector is complete by itself.
        sys.stdout.flush()
        os._exit(0)


def _has_screen() -> bool:
    """Whether there is a graphical display. Without one, a text browser might open in this
    terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
