"""The text that a question is about: one passage, or several as datasets and retrievers give it."""

from collections.abc import Mapping
from typing import Any

from clew.storage.text_files import MAX_RECORD_CHARACTERS

CONTEXT_COLUMNS = (
    *("context", "contexts", "passage", "passages", "paragraph", "retrieved_contexts"),
    *("knowledge", "story"),
)
# Inside a context: HotpotQA's {"sentences": [[...]]}, PubMedQA's {"contexts": [...]}.
_TEXT_KEYS = ("text", "contexts", "sentences", "passage_text", "passage", "content")
_MAX_DEPTH = 8


def read_context(value: object) -> str | None:
    """The context as one text, None if it is empty. Passages are separated by a blank line, the
    sentences of one by a space. Raises ValueError for anything else than text."""
    text = "\n\n".join(filter(None, map(_join, _passages(value)))).strip()
    if len(text) > MAX_RECORD_CHARACTERS:
        raise ValueError(
            f"its context has {len(text):,} characters; at most {MAX_RECORD_CHARACTERS:,} are "
            "allowed"
        )
    return text or None


def _passages(value: object) -> list[Any]:
    value = _unwrap(value)
    if value is None or (isinstance(value, float) and value != value):  # NaN in a table
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _join(value: object, depth: int = 0) -> str:
    value = _unwrap(value)
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return " ".join(filter(None, (_join(inner, depth + 1) for inner in value)))
    raise ValueError(f"its context contains a {type(value).__name__}, not text")


def _unwrap(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    found = next((value[key] for key in _TEXT_KEYS if key in value), None)
    if found is None:
        raise ValueError(f"its context is a record without any of {', '.join(_TEXT_KEYS)}")
    return found
