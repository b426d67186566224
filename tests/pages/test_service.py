"""The server before its model is loaded, over real HTTP: who is let in, and how it refuses."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai.types.shared import ErrorObject

from clew.base.errors import InputError
from clew.base.progress import ignore_event
from clew.hallucination.live.page.routes import PAGE
from clew.hallucination.live.service.service import Metrics
from clew.pages.api import ApiKeys, Lifecycle
from clew.pages.guard import Limits
from clew.pages.server import LocalServer, open_api
from clew.pages.service import Address, Front, run_service

METRICS = Metrics()
KEY = "sk-a-key-of-a-test"
LIMITS = Limits(body_bytes=1000, linger_seconds=0.1)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    address, lifecycle = Address(port=0, keys=ApiKeys([KEY])), Lifecycle(0)
    with (
        open_api(
            Front(PAGE),
            address.access(METRICS),
            host="127.0.0.1",
            port=0,
            limits=LIMITS,
            ending=lifecycle,
        ) as opened,
        running(opened.run, opened.stop),
    ):
        yield opened


@contextmanager
def running(run: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


def fetch(server: LocalServer, path: str, body: bytes | None = None, **headers: str) -> Any:
    given = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{server.address}{path}", body, given)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


def test_the_page_is_there_while_the_model_loads(server: LocalServer) -> None:
    for path, kind in (("", "text/html"), ("page/page.js", "text/javascript")):
        with urllib.request.urlopen(f"{server.address}{path}", timeout=60) as reply:
            assert reply.status == 200 and reply.headers.get_content_type() == kind
            assert b"clew" in reply.read()


def test_nothing_is_answered_while_the_model_loads(server: LocalServer) -> None:
    assert fetch(server, "healthz")[:2] == (200, {"status": "loading"})
    for path in ("readyz", "v1/models", "metrics", "score"):
        status, content, headers = fetch(server, path)
        assert (status, content["error"]["code"]) == (503, "loading")
        assert int(headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (401, b"{}", {"Authorization": "Bearer wrong-key"}),
        (401, b"{}", {"Authorization": "Basic c2VjcmV0"}),
        (403, b"{}", {"Host": "evil.example"}),
        (403, b"{}", {"Origin": "https://evil.example"}),
        (413, b" " * 1001, {}),
        (400, b"{", {}),
        (400, b'{"a": NaN}', {}),
    ],
)
def test_refusals_have_the_shape_of_openai(
    server: LocalServer, status: int, body: bytes, headers: dict[str, str]
) -> None:
    found, content, got = fetch(server, "v1/chat/completions", body, **headers)
    assert found == status
    error = ErrorObject.model_validate(content["error"], strict=True)
    assert error.message.endswith(".") and error.message[0].isupper()
    assert KEY not in json.dumps(content)
    assert got["Content-Security-Policy"].startswith("default-src 'none'")
    assert ("WWW-Authenticate" in got) == (status == 401)
    assert f'clew_requests_total{{path="refused",status="{status}"}}' in METRICS.render({})


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    def load() -> Any:
        raise InputError("there is no such model.", setting="model", value="nowhere")

    address = Address(port=0, keys=ApiKeys())
    with pytest.raises(InputError, match="no such model"):
        run_service(address, Limits(), Lifecycle(60), Metrics(), PAGE, load, ignore_event)


def test_a_server_can_be_stopped_while_its_model_loads() -> None:
    lifecycle, is_free = Lifecycle(60), threading.Event()

    def load() -> Any:
        lifecycle.begin()
        is_free.wait(timeout=60)
        raise InputError("too late.")

    run_service(
        Address(port=0, keys=ApiKeys()), Limits(), lifecycle, Metrics(), PAGE, load, ignore_event
    )
    is_free.set()


def load_nothing() -> Any:
    raise AssertionError("the address is checked first")


def test_a_port_or_host_that_cannot_be_used_is_named(server: LocalServer) -> None:
    port = int(server.address.rsplit(":", 1)[1].strip("/"))
    for host, setting in (("127.0.0.1", "port"), ("no.such.host.invalid", "host")):
        address = Address(host=host, port=port, keys=ApiKeys([KEY]))
        with pytest.raises(InputError) as error:
            run_service(
                address, Limits(), Lifecycle(0), Metrics(), PAGE, load_nothing, ignore_event
            )
        assert error.value.setting == setting
