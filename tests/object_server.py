"""A real S3 server on loopback (moto), which can be told to refuse requests, and counts them."""

import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import platformdirs
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from clew.storage.places import open_place

# "PUT", "/bucket/key"
Request = tuple[str, str]
# The status and the code of an error document, None to let a request through.
Refusal = tuple[str, str] | None

_DELETE = ("POST", "delete")  # S3 deletes several objects with one POST to the bucket


@dataclass
class ObjectServer:
    """`endpoint` is its address. `requests` holds the method and path of every request so far."""

    requests: list[Request] = field(default_factory=list)
    refuse: Callable[[str, str], Refusal] | None = None
    endpoint: str = ""
    last_key: str = ""
    buckets: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    _lose: str = ""

    def __post_init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server: Any = None
        self.start()

    def start(self, port: int = 0) -> None:
        self._server = make_server("127.0.0.1", port, self._answer, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def remove_cached(self) -> None:
        """Leaves no copies of its stores in the user's cache."""
        for bucket in self.buckets:
            copies = Path(platformdirs.user_cache_dir("clew"), "stores", "s3:", bucket)
            shutil.rmtree(copies, ignore_errors=True)

    def stop(self) -> None:
        """Answers nothing until `start(port)`; what was stored is kept."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_url(self) -> str:
        """`s3://bucket/prefix` with a bucket of its own."""
        import boto3

        bucket = f"bucket-{uuid4()}"  # the user's cache has those of all servers
        self.buckets.append(bucket)
        keys = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "any"}
        client = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=bucket)
        return f"s3://{bucket}/some/prefix"

    @contextmanager
    def refusing(self, method: str, status: str, code: str, times: int = 1 << 30) -> Iterator[None]:
        """Answers requests with this method ("DELETE" for deletions) with an error, the first
        `times` of them."""
        left = itertools.count(times, -1)

        def refuse(found: str, query: str) -> Refusal:
            kind = "DELETE" if (found, query) == _DELETE else found
            return (status, code) if kind == method and next(left) > 0 else None

        self.refuse = refuse
        try:
            yield
        finally:
            self.refuse = None

    @contextmanager
    def losing_an_answer(self, method: str) -> Iterator[None]:
        """Carries out the next request with this method, and answers 500."""
        self._lose = method
        try:
            yield
        finally:
            self._lose = ""

    @contextmanager
    def holding(self, method: str) -> Iterator[None]:
        """Requests with this method wait until the end of the block; `held` says that one does."""
        go_on = threading.Event()

        def wait(found: str, _: str) -> Refusal:
            if found == method:
                self.held.set()
                go_on.wait(60)
            return None

        self.held.clear()
        self.refuse = wait
        try:
            yield
        finally:
            self.refuse = None
            go_on.set()

    @contextmanager
    def looking(self, look: Callable[[], int]) -> Iterator[list[int]]:
        """What `look` finds at every request, before it is answered."""
        found: list[int] = []
        self.refuse = lambda *_: found.append(look())
        try:
            yield found
        finally:
            self.refuse = None

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        self.requests.append((method, environ["PATH_INFO"]))
        if signed := environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2]:
            self.last_key = signed.partition("/")[0]
        refusal = self.refuse(method, query) if self.refuse is not None else None
        if refusal is None and method != self._lose:
            return self._app(environ, start_response)
        if refusal is None:
            self._lose, refusal = "", ("500 Internal Server Error", "InternalError")
            b"".join(self._app(environ, lambda *_: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(refusal[0], [("Content-Type", "application/xml")])
        return [f"<Error><Code>{refusal[1]}</Code><Message>no</Message></Error>".encode()]


def upload(folder: Path, url: str) -> str:
    """Puts a folder's files, except locks, under the URL, which it returns."""
    place = open_place(url)
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            upload(path, f"{url}/{path.name}")
        elif not path.name.startswith("."):
            place.replace(path.name, path.read_bytes(), None)
    return url
