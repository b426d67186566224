"""A real server of a classifier, on a loopback port, in a thread of the test's process."""

import io
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from PIL import Image

from clew.pages.api import ApiKeys
from clew.pages.server import open_api
from clew.pages.service import Address, connection_limits
from clew.patterns.serving.app import CONNECTIONS, PhotoService, build_app
from clew.patterns.serving.corrections import Corrections
from clew.patterns.settings import ServeSettings
from clew.patterns.trained.model import PatternModel
from tests.patterns.identification.making import COLORS

LIMIT_BYTES = 300_000


def photo_of(label: str, kind: str = "PNG", sides: tuple[int, int] = (60, 40)) -> bytes:
    """The bytes of a photo full of a class's color."""
    file = io.BytesIO()
    Image.new("RGB", sides, COLORS[label]).save(file, kind)
    return file.getvalue()


def photo_of_noise() -> bytes:
    """The bytes of a photo that shows nothing."""
    pixels = np.random.default_rng(1).integers(0, 2, (64, 64, 1)).repeat(3, axis=2) * 255
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class ServedPhotos:
    """A server that runs, and its service."""

    address: str
    service: PhotoService

    def send(
        self, path: str, body: Any = None, kind: str = "image/png", method: str = "", **query: Any
    ) -> tuple[int, Any]:
        """Status and JSON of a response; a body that is not bytes is sent as JSON."""
        is_raw = body is None or isinstance(body, bytes)
        data = body if is_raw else json.dumps(body).encode()
        headers = {"Content-Type": kind if is_raw else "application/json"}
        where = f"{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(where, data, headers)
        request.method = method or request.get_method()
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@contextmanager
def serving(
    model: PatternModel, home: Path, keys: Sequence[str] = (), **settings: Any
) -> Iterator[ServedPhotos]:
    chosen = ServeSettings(**{"max_body_bytes": LIMIT_BYTES, **settings})
    kept = Corrections(home, model.folder, model.classes, most=chosen.max_corrections)
    service = PhotoService(model, kept, chosen, name="colors")
    access = Address(port=0, keys=ApiKeys(keys)).access(service.metrics)
    limits = connection_limits(chosen.max_body_bytes, CONNECTIONS)
    app, ending = build_app(service), service.lifecycle
    with open_api(app, access, host="127.0.0.1", port=0, limits=limits, ending=ending) as server:
        running = threading.Thread(target=server.run)
        running.start()
        try:
            yield ServedPhotos(address=server.address, service=service)
        finally:
            ending.begin()
            running.join(timeout=60)
            service.close()
            assert not running.is_alive()
