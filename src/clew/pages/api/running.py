"""Run an API: listen at once, load its model meanwhile, end without breaking off an answer."""

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Event, Reporter
from clew.pages.api.errors import describe_refusal
from clew.pages.api.front import Front
from clew.pages.api.keys import ApiKeys
from clew.pages.api.lifecycle import Lifecycle
from clew.pages.api.metrics import RequestMetrics
from clew.pages.api.static import StaticPage
from clew.pages.guard import HOST, App, Door, Limits, named_hosts
from clew.pages.server import open_api

_LOADING = "clew-loading"
_LOOPBACK = frozenset({HOST, "localhost", "::1"})


@dataclass(frozen=True, kw_only=True)
class ServiceReady(Event):
    """The model is loaded, and requests are answered. `served` is what, in words; the API is below
    `address`/`path`."""

    address: str
    served: str
    path: str = ""

    def __str__(self) -> str:
        return f"serving {self.served} at {self.address}{self.path}"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the service listens, and whom it lets in. Another `host` than this machine's own
    requires keys, unless everyone may enter. `allowed_hosts` are further names of the server, such
    as a proxy's."""

    host: str = HOST
    port: int = 8000
    keys: ApiKeys
    allow_anonymous: bool = False
    allowed_hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.host not in _LOOPBACK and not self.keys and not self.allow_anonymous:
            raise InputError(
                "everyone who reaches this machine could use the model. Give API keys in "
                "`api_keys_file`, or use `allow_anonymous=True`.",
                setting="host",
                value=self.host,
            )

    def door(self, metrics: RequestMetrics) -> Door:
        """Who is let in; the others are counted."""
        names = [self.host, *self.allowed_hosts]
        if self.host not in _LOOPBACK:
            names += [socket.gethostname(), socket.getfqdn()]
        return Door(
            admit=self.keys.admit,
            knows=self.keys.has_sent,
            is_own_name=named_hosts(names),
            describe=describe_refusal,
            on_refusal=lambda refusal: metrics.count_refusal(refusal.status),
        )


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """An app that is ready: what it serves, in words, the path of its API, and what to call when
    the server has ended."""

    app: App
    served: str
    path: str = ""
    close: Callable[[], None] = lambda: None


def run_service(
    address: Address,
    limits: Limits,
    lifecycle: Lifecycle,
    metrics: RequestMetrics,
    page: StaticPage,
    load: Callable[[], Loaded],
    reporter: Reporter,
) -> None:
    """Serve until a signal ends it. `load` runs in a thread of its own; what it raises ends the
    server, and is raised here; `reporter` gets ServiceReady once it has returned. Raises InputError
    if the address cannot be used."""
    front = Front(page)
    loading: Future[Loaded] = Future()

    def work() -> None:
        try:
            loaded = load()
        except BaseException as error:  # raised where the server runs
            loading.set_exception(error)
            lifecycle.begin()
            return
        front.app = loaded.app
        loading.set_result(loaded)
        reporter(ServiceReady(address=server.address, served=loaded.served, path=loaded.path))

    with open_api(
        front,
        address.door(metrics),
        host=address.host,
        port=address.port,
        limits=limits,
        ending=lifecycle,
    ) as server:
        # A model that still loads does not hold up the end of the process.
        threading.Thread(target=work, name=_LOADING, daemon=True).start()
        try:
            server.run()
        finally:
            _close(loading)


def connection_limits(max_body_bytes: int, connections: int = 512) -> Limits:
    """For many clients at a time, each of which may keep its connection open while it waits for
    an answer."""
    if max_body_bytes < 1:
        raise InputError("it must be 1 or more.", setting="max_body_bytes", value=max_body_bytes)
    return Limits(body_bytes=max_body_bytes, connections=connections)


def is_loading() -> bool:
    """Whether the thread of a server that was stopped early still loads its model."""
    return any(thread.name == _LOADING for thread in threading.enumerate())


def _close(loading: "Future[Loaded]") -> None:
    if not loading.done():
        return
    with suppress(StoppedError):  # the signal that ended the server has also ended the loading
        loading.result().close()
