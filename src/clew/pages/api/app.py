"""The parts of an API's app that do not depend on what it answers."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError
from clew.base.typed_json import compact_json
from clew.pages.api.errors import ApiError, failed, invalid, of_status, out_of_memory
from clew.pages.api.front import Watch
from clew.pages.api.lifecycle import Lifecycle
from clew.pages.api.metrics import CONTENT_TYPE, RequestMetrics

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

Gauges = Mapping[str, tuple[str, float]]


def new_app(lifecycle: Lifecycle, metrics: RequestMetrics) -> "FastAPI":
    """An app without routes: every request is counted, every error has the API's shape."""
    from fastapi import FastAPI

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(Watch, metrics=metrics, lifecycle=lifecycle)
    _add_errors(app)
    return app


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> "Response":
    """JSON, escaped: texts may hold characters that UTF-8 cannot."""
    from fastapi import Response

    text = compact_json(content)
    return Response(text, status_code=status, media_type="application/json", headers=headers)


async def read_json(request: "Request") -> Any:
    """The guard has checked that a body of this type is valid JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise ApiError(415, 'Send JSON, with the header "Content-Type: application/json".')
    return json.loads(await request.body() or b"null")


def add_state(
    app: "FastAPI",
    lifecycle: Lifecycle,
    metrics: RequestMetrics,
    *,
    is_running: Callable[[], bool],
    gauges: Callable[[], Gauges],
) -> None:
    """Add /healthz, /readyz and /metrics."""
    from fastapi import Response

    @app.get("/healthz")
    async def health() -> "Response":
        return reply({"status": "ok"})

    @app.get("/readyz")
    async def readiness() -> "Response":
        lifecycle.check()
        if not is_running():
            raise failed()
        return reply({"status": "ready"})

    @app.get("/metrics")
    async def show_metrics() -> "Response":
        active = {"clew_requests_active": ("HTTP requests in progress.", lifecycle.active)}
        return Response(metrics.render({**active, **gauges()}), media_type=CONTENT_TYPE)


def _add_errors(app: "FastAPI") -> None:
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    @app.exception_handler(ApiError)
    async def explain(_: object, error: ApiError) -> "Response":
        return reply(error.body(), error.status, error.headers)

    @app.exception_handler(InputError)
    async def explain_input(_: object, error: InputError) -> "Response":
        return reply(ApiError(400, str(error), code="invalid_value").body(), 400)

    @app.exception_handler(HTTPException)
    async def explain_status(_: object, error: HTTPException) -> "Response":
        return reply(of_status(error.status_code).body(), error.status_code)

    @app.exception_handler(RequestValidationError)
    async def explain_value(_: object, error: RequestValidationError) -> "Response":
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return reply(invalid(where, f"{where}: {first['msg']}.").body(), 400)

    @app.exception_handler(Exception)
    async def apologize(_: object, error: Exception) -> "Response":
        from clew.base.memory import is_out_of_memory

        told = out_of_memory() if is_out_of_memory(error) else failed()
        return reply(told.body(), told.status, told.headers)
