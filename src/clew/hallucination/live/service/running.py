"""Run the service: listen at once, load the model meanwhile, end without breaking off a stream."""

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clew.errors import InputError, StoppedError
from clew.hallucination.live.service.errors import describe_refusal
from clew.hallucination.live.service.front import Front
from clew.hallucination.live.service.keys import ApiKeys
from clew.hallucination.live.service.lifecycle import Lifecycle
from clew.hallucination.live.service.metrics import Metrics
from clew.pages.guard import HOST, App, Door, Limits, named_hosts
from clew.pages.server import LocalServer, open_api
from clew.progress import Event

if TYPE_CHECKING:
    from clew.hallucination.live.session import Session

_LOADING = "clew-loading"
_LOOPBACK = frozenset({HOST, "localhost", "::1"})


@dataclass(frozen=True, kw_only=True)
class ServiceReady(Event):
    """The model is loaded, and requests are answered."""

    address: str
    model: str
    detector: str

    def __str__(self) -> str:
        return f"serving {self.model} with the detector {self.detector} at {self.address}v1"


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

    def door(self, metrics: Metrics) -> Door:
        """Who is let in; the others are counted."""
        names = [self.host, *self.allowed_hosts]
        if self.host not in _LOOPBACK:
            names += [socket.gethostname(), socket.getfqdn()]
        return Door(
            admit=self.keys.admit,
            is_own_name=named_hosts(names),
            describe=describe_refusal,
            on_refusal=lambda refusal: metrics.count_refusal(refusal.status),
        )


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A session, and the app around it."""

    session: "Session"
    app: App


def run_service(
    address: Address,
    limits: Limits,
    lifecycle: Lifecycle,
    metrics: Metrics,
    load: Callable[[], Loaded],
    on_ready: Callable[[LocalServer, Loaded], None],
) -> None:
    """Serve until a signal ends it. `load` runs in a thread of its own; what it raises ends the
    server, and is raised here. Raises InputError if the address cannot be used."""
    front = Front()
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
        on_ready(server, loaded)

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


def is_loading() -> bool:
    """Whether the thread of a server that was stopped early still loads its model."""
    return any(thread.name == _LOADING for thread in threading.enumerate())


def _close(loading: "Future[Loaded]") -> None:
    if not loading.done():
        return
    with suppress(StoppedError):  # the signal that ended the server has also ended the loading
        loading.result().session.close()
