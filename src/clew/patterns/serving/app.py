"""The routes of a served classifier."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from clew.base.errors import ClewError, InputError, QueueFullError
from clew.pages.api.app import add_state, new_app, reply
from clew.pages.api.errors import ApiError, busy, invalid
from clew.pages.api.lifecycle import Lifecycle
from clew.pages.api.static import StaticPage
from clew.patterns.serving.classify import PhotoClassifier, describe
from clew.patterns.serving.corrections import Correction, Corrections
from clew.patterns.serving.metrics import PhotoMetrics
from clew.patterns.serving.requests import PhotoOptions, read_photo_request
from clew.patterns.serving.settings import PhotoServiceSettings
from clew.patterns.trained.model import PatternModel

if TYPE_CHECKING:
    from fastapi import FastAPI, Response

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
        settings: PhotoServiceSettings,
        *,
        name: str,
        lifecycle: Lifecycle | None = None,
        metrics: PhotoMetrics | None = None,
    ) -> None:
        self.name, self.settings, self.corrections = name, settings, corrections
        self.classifier = PhotoClassifier(model, settings)
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
        found = self.classifier.identify(photo, options)
        drawn = self.classifier.draw(photo, found.best[0][0], options)
        self.metrics.count_photo(found)
        return {**describe(found), "model": self.name, **drawn}

    def correct(self, photo: bytes, options: PhotoOptions) -> Correction:
        """Keep a photo for review. Raises ApiError."""
        if not options.label.strip():
            raise invalid("label", "Give the correct class in 'label'.")
        found = self.classifier.identify(photo, options)
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
        model = self.classifier.model
        return {
            "model": self.name,
            "classes": list(model.classes),
            "image_size": model.image_size,
            "top_k": min(self.settings.top_k, len(model.classes)),
            "threshold": self.settings.threshold,
            "unknown": self.settings.unknown if model.unknown is not None else None,
            "heat_maps": self.classifier.has_heat_maps,
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
