"""What a request contains: a photo as its body, with options in the URL, or both in JSON."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from clew.base.typed_json import Bounds, read_as
from clew.pages.api import ApiError, invalid

if TYPE_CHECKING:
    from fastapi import Request

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
        text = str(error)  # it begins with the name
        sentence = f"{text[:1].upper()}{text[1:]}".rstrip(".")
        raise invalid(text.partition(" ")[0], f"{sentence}.") from None
    return options
