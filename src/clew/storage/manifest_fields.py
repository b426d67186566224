"""What a manifest may contain: the type and the bounds of every member, checked when it is read.
Whoever reads a manifest later can rely on them."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from clew.foreign_text import shortened

MAX_ROWS = 10**12
MAX_BYTES = 1 << 60
_MAX_SIZE = 1 << 31
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN_NAME = re.compile(r"[\w][\w.-]*", re.ASCII)
_ENTRY_FIELDS = {"batch_number", "file", "rows", "bytes", "sha256"}

Check = Callable[[Any], bool]


def shard_name(batch_number: int) -> str:
    """The file name of a shard: four digits as in legacy files, more when needed."""
    return f"batch_{batch_number:04d}.arrow"


def check_manifest(raw: dict[str, Any]) -> None:
    """Raises ValueError with the first member that is missing, unknown, of another type or out of
    bounds. File names that point outside the store are: a repair renames files."""
    unknown = raw.keys() - _MEMBERS.keys()
    if unknown:
        raise ValueError(f"it has the unknown member {shortened(min(unknown))}")
    for name, (is_valid, required) in _MEMBERS.items():
        if name not in raw and required:
            raise ValueError(f'"{name}" is missing')
        if name in raw and not is_valid(raw[name]):
            raise _invalid(name, raw[name])
    _check_shards(raw.get("shards", ()), raw["rows_per_shard"])
    _check_settings(raw["settings"])
    for place, skip in enumerate(raw.get("skipped", ())):
        if not _is_skip(skip):
            raise _invalid(f"skipped[{place}]", skip)


def is_count(value: Any, most: int = MAX_ROWS) -> bool:
    """Whether a value is an integer from 0 to `most`; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _check_shards(shards: Iterable[Any], rows_per_shard: int) -> None:
    seen: set[int] = set()
    for place, shard in enumerate(shards):
        if not isinstance(shard, dict) or shard.keys() != _ENTRY_FIELDS or not _is_entry(shard):
            raise _invalid(f"shards[{place}]", shard)
        number = shard["batch_number"]
        if shard["file"] != shard_name(number):
            raise ValueError(
                f"shard {number} has the unexpected file name {shortened(shard['file'])}"
            )
        if number in seen:
            raise ValueError(f"shard {number} is listed twice")
        if number * rows_per_shard > 1 << 62:
            raise ValueError(f"shard {number} is out of range")
        seen.add(number)


def _is_entry(shard: dict[str, Any]) -> bool:
    counts = is_count(shard["batch_number"]) and is_count(shard["rows"])
    return counts and is_count(shard["bytes"], MAX_BYTES) and _is_sha256(shard["sha256"])


def _check_settings(settings: dict[str, Any]) -> None:
    """Checks the settings that are read back; others are only shown and compared."""
    for name, is_valid in _SETTINGS.items():
        value = find_setting(settings, name)
        if value is not None and not is_valid(value):
            raise _invalid(f"settings.{name}", value)
    sources = settings.get("sources", [])
    if not isinstance(sources, list):
        raise _invalid("settings.sources", sources)
    seen: set[int] = set()
    for place, source in enumerate(sources):
        if not _is_source(source) or source["batch_number"] in seen:
            raise _invalid(f"settings.sources[{place}]", source)
        seen.add(source["batch_number"])


def find_setting(settings: dict[str, Any], name: str) -> Any:
    """The setting called "model.id", None if there is none."""
    found: Any = settings
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _is_source(source: Any) -> bool:
    if not isinstance(source, dict):
        return False
    named = isinstance(source.get("file"), str) and _is_sha256(source.get("sha256"))
    return named and is_count(source.get("batch_number")) and is_count(source.get("records", 0))


def _is_skip(skip: Any) -> bool:
    """Whether this is an excluded question, file or record of a file, with the reason."""
    if not isinstance(skip, dict) or not isinstance(skip.get("reason"), str):
        return False
    record = skip.get("record")
    where = skip["where"] if "where" in skip else skip.get("file")
    plain = all(isinstance(value, str | int | None) for value in skip.values())
    return isinstance(where, str) and (record is None or is_count(record)) and plain


def _are_files(files: Any) -> bool:
    return isinstance(files, dict) and all(
        _PLAIN_NAME.fullmatch(name) and _is_sha256(sha256) for name, sha256 in files.items()
    )


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_group(value: Any) -> bool:
    return isinstance(value, dict)


def _is_shape(value: Any) -> bool:
    return isinstance(value, dict) and all(is_count(size, _MAX_SIZE) for size in value.values())


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _invalid(name: str, value: Any) -> ValueError:
    return ValueError(f'"{name}" is {shortened(value)}')


# The check of each member, and whether it is required.
_MEMBERS: dict[str, tuple[Check, bool]] = {
    "kind": (_is_text, True),
    "settings": (_is_group, True),
    "rows_per_shard": (lambda value: is_count(value) and value > 0, True),
    "planned_rows": (lambda value: value is None or is_count(value), True),
    "shards": (lambda value: isinstance(value, list), False),
    "files": (_are_files, False),
    "skipped": (lambda value: isinstance(value, list), False),
    "notes": (_is_texts, False),
    "clew_version": (_is_text, False),
    "created": (_is_text, False),
    "format": (_is_text, False),
    "schema_version": (is_count, False),
}
_GROUPS = ("model", "prompt", "generation", "questions", "machine", "source", "scores")
_CAPTURE = ("source.capture", "source.capture.model", "source.capture.questions")
_TEXTS = (
    *("command", "keep", "method", "model.id", "questions.name", "questions.sha256"),
    *("source.store", "source.model", "source.sha256"),
)
_COUNTS = ("node_dim", "edges_per_token", "top_k", "machine.generation_batch")
# The settings that are read back, outer ones first.
_SETTINGS: dict[str, Check] = {
    **dict.fromkeys((*_GROUPS, *_CAPTURE), _is_group),
    **dict.fromkeys(_TEXTS, _is_text),
    **dict.fromkeys((*_COUNTS, "machine.generation_tokens", "size"), is_count),
    "shape": _is_shape,
    "answer_hidden": lambda value: isinstance(value, bool),
}
