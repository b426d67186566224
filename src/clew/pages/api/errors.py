"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from clew.pages.guard import RefusedError

# Codes for errors that no code of OpenAI's describes better.
_CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    431: "headers_too_large",
}


class ApiError(Exception):
    """An answer other than 200. `param` is the field of the request that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code = code or _CODES.get(status)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        inner = {
            "message": self.message,
            "type": _type(self.status),
            "param": self.param,
            "code": self.code,
        }
        return {"error": inner}


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A field whose value cannot be used."""
    return ApiError(400, message, param=param, code=code)


def busy(waiting: int) -> ApiError:
    """The queue is full."""
    return ApiError(
        429,
        f"The server is busy: {waiting:,} requests are waiting. Try again in a moment.",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


def loading() -> ApiError:
    return ApiError(
        503,
        "The model is still loading. Try again in a moment.",
        code="loading",
        headers={"Retry-After": "2"},
    )


def shutting_down() -> ApiError:
    return ApiError(
        503,
        "The server is shutting down.",
        code="shutting_down",
        headers={"Retry-After": "5", "Connection": "close"},
    )


def failed() -> ApiError:
    return ApiError(
        500, "The server has failed to answer. Its log says why.", code="internal_error"
    )


def out_of_memory() -> ApiError:
    return ApiError(
        503,
        "Memory ran out while this request was answered. Try again later, or with a smaller "
        "request.",
        code="out_of_memory",
        headers={"Retry-After": "5"},
    )


def describe_refusal(refusal: RefusedError) -> tuple[bytes, bytes]:
    """What the guard refuses: its content type and its body."""
    error = ApiError(refusal.status, f"{refusal.reason[:1].upper()}{refusal.reason[1:]}.")
    return b"application/json", json.dumps(error.body()).encode()


def of_status(status: int) -> ApiError:
    """An error of the router: no such path, or another method."""
    return ApiError(status, f"{HTTPStatus(status).phrase}.")


def _type(status: int) -> str:
    """OpenAI's type of error."""
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
