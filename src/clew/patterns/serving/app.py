"""A served classifier: what it counts, what a request contains (a photo as its body, with options
in the URL, or both in JSON), and its routes."""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from PIL import Image, ImageOps

from clew.base.errors import ClewError, InputError, QueueFullError, describe_setting
from clew.base.typed_json import Bounds, read_as
from clew.pages.api import ApiError, Counter, Histogram, Lifecycle, RequestMetrics, busy, invalid
from clew.pages.service import StaticPage, add_state, new_app, reply
from clew.patterns.identification.recognize import Recognition, look_at_whole
from clew.patterns.photos.decode import PhotoError, open_photo, read_square
from clew.patterns.report.gallery import as_data_url, lay_over
from clew.patterns.serving.corrections import Correction, Corrections
from clew.patterns.settings import ServeSettings
from clew.patterns.trained.model import PatternModel, check_maps, heat_maps

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response


# A photo of 20 MB from each of them fits in memory, whatever they do.
CONNECTIONS = 64


_PATHS = ("/", "/identify", "/corrections", "/model", "/healthz", "/readyz", "/metrics")
_SHARES = tuple(place / 10 for place in range(1, 11))


class PhotoMetrics(RequestMetrics):
    """Everything that is counted."""

    def __init__(self) -> None:
        super().__init__(_PATHS)
        self.photos = Counter("clew_photos_total", "Identified photos by class and state.")
        self.corrections = Counter("clew_corrections_total", "Corrections that were kept.")
        self.confidence = Histogram(
            "clew_confidence", "Probability of the most likely class.", _SHARES
        )

    def count_photo(self, found: Recognition) -> None:
        label, confidence = found.best[0]
        doubt = "doubtful" if found.is_doubtful else "confident"
        self.photos.add(label=label, state="unknown" if found.is_unknown else doubt)
        self.confidence.observe(confidence)


_SIDE = 480
_TOLD = ("typicality", "best", "width", "height")


def describe(found: Recognition) -> dict[str, Any]:
    """The response to a request, as plain data."""
    record = found.to_record()
    label, confidence = found.best[0]
    answer = {"photo": record["photo"], "label": label, "confidence": round(confidence, 6)}
    answer |= {"doubtful": found.is_doubtful, "unknown": found.is_unknown}
    return answer | {name: record[name] for name in _TOLD}


def _unusable(error: PhotoError) -> ApiError:
    """A photo that cannot be read: too large, truncated, not an image, ..."""
    code = error.kind.replace(" ", "_")
    return ApiError(422, f"The photo cannot be used: {error.reason}.", param="image", code=code)


_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no", "")
_JSON, _FORM = "application/json", "multipart/form-data"
_IMAGE = "image"


@dataclass(frozen=True, kw_only=True)
class PhotoOptions:
    """What a request asks besides the photo. `name` is that of its file; `label` the class that a
    person gives it. `preview` and `heat_map` ask for pictures in the response."""

    name: Annotated[str, Bounds(most=255)] = "photo"
    label: Annotated[str, Bounds(most=200)] = ""
    top_k: Annotated[int, Bounds(least=1, most=1000)] | None = None
    heat_map: bool = False
    preview: bool = False


_NAMES = tuple(field.name for field in fields(PhotoOptions))
_SWITCHES = ("heat_map", "preview")
_WANTED = {
    "name": "a text of at most 255 characters",
    "label": "a text of at most 200 characters",
    "top_k": "a whole number from 1 to 1000",
    **dict.fromkeys(_SWITCHES, "true or false"),
}


async def read_photo_request(request: "Request") -> tuple[bytes, PhotoOptions]:
    """The photo and its options. Raises ApiError, which names what is wrong."""
    kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    body = await request.body()
    if kind == _FORM:
        raise ApiError(415, "Send the photo itself as the body of the request, not a form.")
    if kind != _JSON:
        given = _from_query(request.query_params)
    else:
        given = json.loads(body or b"null")
        if not isinstance(given, dict):
            raise invalid(_IMAGE, f'Send an object: {{"{_IMAGE}": "the photo in Base64"}}.')
        body = _decode(given.pop(_IMAGE, None))
    if not body:
        raise invalid(_IMAGE, "The request contains no photo.")
    return body, _read_options(given)


def _from_query(query: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = dict(query)
    if "top_k" in given and given["top_k"].isascii() and given["top_k"].isdigit():
        given["top_k"] = int(given["top_k"][:10])
    for name in _SWITCHES:
        if given.get(name, "-").lower() in (*_TRUE, *_FALSE):
            given[name] = given[name].lower() in _TRUE
    return given


def _decode(text: Any) -> bytes:
    """The photo in Base64, or as a "data:" address."""
    if not isinstance(text, str):
        raise invalid(_IMAGE, f"'{_IMAGE}' must be a text: the photo in Base64.")
    try:
        return base64.b64decode(text.rpartition("base64,")[2], validate=True)
    except (binascii.Error, ValueError):
        raise invalid(_IMAGE, f"'{_IMAGE}' is not valid Base64.") from None


def _read_options(given: dict[str, Any]) -> PhotoOptions:
    unknown = next((name for name in given if name not in _NAMES), None)
    if unknown is not None:
        known = ", ".join(_NAMES)
        raise invalid(unknown[:100], f"'{unknown[:100]}' is unknown: choose from: {known}.")
    try:
        options: PhotoOptions = read_as(PhotoOptions, given)
    except ValueError as error:
        name = str(error).partition(" ")[0]
        about = describe_setting(name, given[name])
        raise invalid(name, f"{about}: give {_WANTED[name]}.") from None
    return options


logger = logging.getLogger(__name__)

PAGE = StaticPage("clew.patterns.serving", ("page.css", "page.js", "backend.js", "camera.js"))
# One photo is read while the network looks at another.
_THREADS = 2
_Result = TypeVar("_Result")


class PhotoService:
    """A model behind an API: `name` is what clients know it by."""

    def __init__(
        self,
        model: PatternModel,
        corrections: Corrections,
        settings: ServeSettings,
        *,
        name: str,
        lifecycle: Lifecycle | None = None,
        metrics: PhotoMetrics | None = None,
    ) -> None:
        self.name, self.settings, self.corrections = name, settings, corrections
        self.model = model
        self.has_heat_maps = True
        try:
            check_maps(model)
        except InputError:
            self.has_heat_maps = False
        self.lifecycle = lifecycle or Lifecycle(settings.drain_seconds)
        self.metrics = metrics or PhotoMetrics()
        self._pool = ThreadPoolExecutor(_THREADS, "clew-photos")
        self.waiting = 0

    def close(self) -> None:
        self._pool.shutdown()

    async def work(self, function: Callable[[], _Result]) -> _Result:
        """Call the function in a thread. Raises ApiError if too many wait."""
        self.lifecycle.check()
        if self.waiting >= self.settings.max_waiting:
            raise busy(self.waiting)
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        finally:
            self.waiting -= 1

    def identify(self, photo: bytes, options: PhotoOptions) -> dict[str, Any]:
        """The response to a request. Raises ApiError."""
        found = self.recognize(photo, options)
        drawn = self._draw(photo, found.best[0][0], options)
        self.metrics.count_photo(found)
        return {**describe(found), "model": self.name, **drawn}

    def recognize(self, photo: bytes, options: PhotoOptions) -> Recognition:
        """What the photo shows, read exactly as `identify` reads files. Raises ApiError if that is
        impossible."""
        top_k = options.top_k or self.settings.top_k
        try:
            found = look_at_whole(self.model, photo, Path(options.name), top_k)
        except PhotoError as error:
            raise _unusable(error) from None
        return replace(found, threshold=self.settings.threshold, unknown=self.settings.unknown)

    def _draw(self, photo: bytes, label: str, options: PhotoOptions) -> dict[str, str]:
        """The photo as people see it, and under the heat map of a class, as "data:" addresses.
        Raises ApiError."""
        if options.heat_map and not self.has_heat_maps:
            raise invalid("heat_map", "This network has no heat maps.")
        if not (options.heat_map or options.preview):
            return {}
        try:
            shown = open_photo(photo, at_least=_SIDE)
            small = ImageOps.contain(shown, (_SIDE, _SIDE), Image.Resampling.LANCZOS)
            drawn = {"preview": as_data_url(small)} if options.preview else {}
            if options.heat_map:
                square = read_square(photo, self.model.image_size)[None]
                place = np.array([self.model.classes.index(label)])
                drawn["heat_map"] = as_data_url(
                    lay_over(small, heat_maps(self.model, square, place)[0])
                )
        except PhotoError as error:
            raise _unusable(error) from None
        return drawn

    def correct(self, photo: bytes, options: PhotoOptions) -> Correction:
        """Keep a photo for review. Raises ApiError."""
        if not options.label.strip():
            raise invalid("label", "Give the correct class in 'label'.")
        found = self.recognize(photo, options)
        try:
            kept = self.corrections.add(photo, found, options.label)
        except QueueFullError as error:
            raise ApiError(
                429,
                f"{error.waiting:,} corrected photos wait for review already: no more are kept.",
                code="queue_full",
            ) from None
        except InputError as error:
            raise invalid("label", str(error)) from None
        except (ClewError, OSError) as error:
            raise _not_saved(error) from None
        self.metrics.corrections.add()
        return kept

    def take_back(self, number: str) -> int:
        """The number of corrections left. Raises ApiError."""
        try:
            left = self.corrections.remove(number)
        except (ClewError, OSError) as error:
            raise _not_saved(error) from None
        if left is None:
            raise ApiError(404, "There is no such correction: it was taken back before.")
        return left

    def describe(self) -> dict[str, Any]:
        """What a client needs to know of the model."""
        model = self.model
        return {
            "model": self.name,
            "classes": list(model.classes),
            "image_size": model.image_size,
            "top_k": min(self.settings.top_k, len(model.classes)),
            "threshold": self.settings.threshold,
            "unknown": self.settings.unknown if model.unknown is not None else None,
            "heat_maps": self.has_heat_maps,
            "max_bytes": self.settings.max_body_bytes,
        }


def build_app(service: PhotoService) -> "FastAPI":
    """The application around a model."""
    from fastapi import Request

    service.lifecycle.become_ready()
    app = new_app(service.lifecycle, service.metrics)

    @app.get("/model")
    async def model() -> "Response":
        return reply(service.describe())

    @app.post("/identify")
    async def identify(request: Request) -> "Response":
        photo, options = await read_photo_request(request)
        return reply(await service.work(lambda: service.identify(photo, options)))

    @app.post("/corrections")
    async def correct(request: Request) -> "Response":
        photo, options = await read_photo_request(request)
        kept = await service.work(lambda: service.correct(photo, options))
        return reply({"id": kept.id, "label": kept.label, "waiting": kept.waiting})

    @app.delete("/corrections/{number}")
    async def take_back(number: str) -> "Response":
        return reply({"waiting": await service.work(lambda: service.take_back(number))})

    add_state(
        app,
        service.lifecycle,
        service.metrics,
        is_running=lambda: True,
        gauges=lambda: {"clew_photos_waiting": ("Photos at work or waiting.", service.waiting)},
    )
    PAGE.add_to(app)
    return app


def _not_saved(error: Exception) -> ApiError:
    logger.error("a correction could not be saved: %s", error)
    return ApiError(
        507, "The correction could not be saved. The server's log says why.", code="not_saved"
    )
