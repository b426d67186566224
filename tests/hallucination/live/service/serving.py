"""A real server on a loopback port, in a thread of the test's process or in one of its own."""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

from openai import OpenAI

from clew.hallucination.grounded import Reader, load_reader
from clew.hallucination.live.feedback import Feedback
from clew.hallucination.live.page.stored import PageFiles
from clew.hallucination.live.service.app import build_app
from clew.hallucination.live.service.service import Metrics, ServiceSettings
from clew.hallucination.live.service.telemetry import Telemetry
from clew.hallucination.live.service.upstream import UpstreamSettings
from clew.hallucination.live.session import Session
from clew.pages.api import ApiKeys, Lifecycle
from clew.pages.server import open_api
from clew.pages.service import Address, connection_limits
from tests.hallucination.capture.processes import ClewProcess

MODEL = "tiny"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
DIALOGUE = [{"role": "system", "content": "Be brief."}, *QUESTION]
_ADDRESS = re.compile(r"at (http://[\d.:]+/v1)")


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that runs; `ending` ends it. Its clients are closed after it."""

    address: str
    session: Session
    ending: Lifecycle
    clients: ExitStack = field(default_factory=ExitStack)

    def client(self, **options: Any) -> OpenAI:
        given = {"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        return self.clients.enter_context(OpenAI(base_url=f"{self.address}v1", **given))

    def fetch(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Message]:
        """Status, content (parsed if it is JSON) and headers of a response."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"{self.address}{path}", data, given)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, _content(reply.read(), reply.headers), reply.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _content(error.read(), error.headers), error.headers

    def wait_until_idle(self) -> None:
        """Until the batch is empty."""
        self.wait_until(
            lambda: (load := self.session.load) is not None and load.running + load.waiting == 0
        )

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Fails after a minute."""
        for _ in range(6000):
            if holds():
                return
            threading.Event().wait(0.01)
        raise AssertionError("it does not come true")


def _content(content: bytes, headers: Message) -> Any:
    is_json = headers.get_content_type() == "application/json"
    return json.loads(content) if is_json else content.decode()


@contextmanager
def serving(
    session: Session,
    files: PageFiles | None = None,
    keys: Sequence[str] = (),
    feedback: Feedback | None = None,
    reader: Callable[[], Reader] = load_reader,
    upstream: UpstreamSettings | None = None,
    telemetry: Telemetry | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Serves a session, which stays open."""
    changed = ServiceSettings(**{"model_name": MODEL, "max_tokens": 200, **settings})
    lifecycle = Lifecycle(changed.drain_seconds)
    app = build_app(session, changed, lifecycle, None, files, feedback, reader, upstream, telemetry)
    address = Address(port=0, keys=ApiKeys(keys))
    limits = connection_limits(100_000)
    with open_api(
        app, address.access(Metrics()), host="127.0.0.1", port=0, limits=limits, ending=lifecycle
    ) as server:
        running = threading.Thread(target=server.run)
        running.start()
        served = Served(address=server.address, session=session, ending=lifecycle)
        try:
            yield served
        finally:
            lifecycle.begin()
            running.join(timeout=60)
            served.clients.close()
            assert not running.is_alive()


@contextmanager
def process_serving(
    output: Path, *words: object, **variables: str
) -> Iterator[tuple[ClewProcess, str]]:
    """`clew serve WORDS` and its address, once it is ready. What it prints goes to a file."""
    arguments = ["serve", *map(str, words), "--port", "0"]
    with ClewProcess(arguments, output, **variables) as process:
        assert process.wait_until(lambda: _ADDRESS.search(process.output) is not None)
        found = _ADDRESS.search(process.output)
        assert found, process.output
        yield process, found[1]
