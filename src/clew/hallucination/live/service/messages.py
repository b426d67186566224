"""The messages of a conversation, as the model's chat template takes them."""

from typing import Any

from clew.hallucination.live.service.errors import unsupported
from clew.hallucination.live.service.fields import Fields, Wanted
from clew.pages.api import invalid

# OpenAI's newer name for a system message; chat templates know only the older one.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_MESSAGE = Fields(
    honored={
        "role": Wanted(str, "system, developer, user or assistant"),
        "content": Wanted(str | list[Any], "a text, or a list of parts of type text"),
    },
    refused={
        "name": (),
        "refusal": (),
        "audio": (),
        "annotations": ([],),
        "tool_calls": ([],),
        "function_call": (),
        "tool_call_id": (),
    },
)
_PART = Fields(
    honored={"type": Wanted(str, "text"), "text": Wanted(str, "a text")},
    refused={"image_url": (), "input_audio": (), "file": (), "refusal": ()},
)


def read_messages(given: list[Any], path: str = "messages") -> list[dict[str, str]]:
    """Role and text of every message. Raises ApiError, which names the part that cannot be used:
    what a model does with tools is not checked by any detector."""
    return [_read_message(one, f"{path}[{place}]") for place, one in enumerate(given)]


def only_question(messages: list[dict[str, str]]) -> str | None:
    """The question, if the conversation is nothing else: one message of the user."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    return None


def last_question(messages: list[dict[str, str]]) -> str:
    """What the user said last; "" if there is no such message."""
    asked = [one["content"] for one in messages if one["role"] == "user"]
    return asked[-1] if asked else ""


def _read_message(given: Any, path: str) -> dict[str, str]:
    found = _MESSAGE.read(given, f"{path}.")
    role = found["role"]
    if role in _TOOL_ROLES:
        raise unsupported(f"{path}.role", f"'{path}.role' is {role}: tools are not supported.")
    if role not in _ROLES:
        raise invalid(f"{path}.role", f"{path}.role: give system, developer, user or assistant.")
    content = found["content"]
    if content is None:
        raise invalid(f"{path}.content", f"{path}.content: give a text.")
    if isinstance(content, list):
        content = "".join(
            _read_part(part, f"{path}.content[{place}]") for place, part in enumerate(content)
        )
    return {"role": _ROLES[role], "content": content}


def _read_part(given: Any, path: str) -> str:
    found = _PART.read(given, f"{path}.")
    if found["type"] != "text":
        raise unsupported(f"{path}.type", f"'{path}.type': only parts of type text are supported.")
    if found["text"] is None:
        raise invalid(f"{path}.text", f"{path}.text: give a text.")
    return str(found["text"])
