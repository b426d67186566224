"""Conversations in records: lists of messages, as OpenAI's API and ShareGPT write them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clew.hallucination.questions.columns import Fields
from clew.storage.reading import parse_json

_ROLE_KEYS, _TEXT_KEYS = ("role", "from"), ("content", "value", "text")
_SPEAKERS = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant"}
_INSTRUCTING = ("system", "developer")


class UnusableRecordError(ValueError):
    """A record that cannot become a question; the message is the reason."""


class Conversation(NamedTuple):
    """The last question of a conversation, the answer to it, and what the model saw besides: the
    messages before the answer, one paragraph each. All are "" without messages."""

    question: str = ""
    answer: str = ""
    context: str = ""


def read_conversation(fields: Fields, answer: str = "") -> Conversation:
    """The conversation of a record; `answer` is one that a column of its own has. The last
    assistant's message is the answer, the last user's message before it the question. Raises
    UnusableRecordError for messages that cannot be read."""
    messages = _find_messages(fields)
    if not messages:
        return Conversation()
    last = _find_last("assistant", messages)
    if last < 0 or (answer and messages[last][1] != answer):
        last = len(messages)  # all of them are the prompt
    said = messages[:last]
    if (asked := _find_last("user", said)) < 0:
        raise UnusableRecordError("its messages have no user's message before the answer")
    rest = (
        text if who in _INSTRUCTING else f"{who.capitalize()}: {text}"
        for number, (who, text) in enumerate(said)
        if number != asked and text
    )
    return Conversation(
        question=said[asked][1],
        answer=messages[last][1] if last < len(messages) else "",
        context="\n\n".join(rest),
    )


def _find_last(speaker: str, messages: Sequence[tuple[str, str]]) -> int:
    """The place of a speaker's last message that has a text, -1 if there is none."""
    places = range(len(messages) - 1, -1, -1)
    return next((n for n in places if messages[n][0] == speaker and messages[n][1]), -1)


def _find_messages(fields: Fields) -> list[tuple[str, str]]:
    """(who, text) of each message: of the column with messages, or of a question that is a list of
    them."""
    for value in fields.values("messages"):
        found = _unpack(value)
        if found is not None and found != "":
            if not _are_messages(found):
                raise UnusableRecordError("its messages are not a list of records with a role")
            return [_read_message(one) for one in found]
    question: Any = next(fields.values("question"), None)
    return [_read_message(one) for one in question] if _are_messages(question) else []


def _unpack(value: object) -> Any:
    """A list that a cell of a table has as JSON."""
    if isinstance(value, float) and value != value:  # NaN in a table
        return None
    if isinstance(value, Mapping) and "messages" in value:
        value = value["messages"]
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, finite=False, encodable=False) if value.strip() else None
    except ValueError as error:
        raise UnusableRecordError(f"its messages are not JSON ({error})") from None


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and len(value) > 0
        and all(isinstance(one, Mapping) and any(map(one.get, _ROLE_KEYS)) for one in value)
    )


def _read_message(message: Mapping[str, Any]) -> tuple[str, str]:
    who = str(next(filter(None, map(message.get, _ROLE_KEYS)))).strip().lower()[:40]
    content = next((message[key] for key in _TEXT_KEYS if key in message), None)
    parts = content if isinstance(content, list | tuple) else [content]
    return _SPEAKERS.get(who, who), "\n".join(filter(None, map(_part_text, parts))).strip()


def _part_text(part: object) -> str:
    """The text of a message or of a part of it; a part without any, such as a picture, has none."""
    if isinstance(part, Mapping):
        part = part.get("text")
    return part if isinstance(part, str) else ""
