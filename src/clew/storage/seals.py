"""JSON files with a checksum over themselves as their last member, so that damage is noticed when
they are read. Files without one, such as those of earlier versions, are accepted."""

import hashlib
import re
from typing import Any

_MEMBER = "clew_checksum"
_SEAL = re.compile(rb',?\n "%b": "([0-9a-f]{64})"\n}\n\Z' % _MEMBER.encode())
_SEAL_BYTES = 100


def seal(text: str) -> bytes:
    """The JSON object in `text`, with a checksum."""
    body = text.rstrip().removesuffix("}").rstrip().encode()
    comma = "" if body == b"{" else ","
    return body + f'{comma}\n "{_MEMBER}": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def without_seal(value: Any, content: bytes) -> Any:
    """The value that was parsed from `content`, without its checksum; raises ValueError if that
    does not match."""
    if not isinstance(value, dict) or _MEMBER not in value:
        return value
    found = _SEAL.search(content, max(0, len(content) - _SEAL_BYTES))
    if found is None or hashlib.sha256(content[: found.start()]).hexdigest().encode() != found[1]:
        raise ValueError("it was changed after clew wrote it: its checksum does not match")
    del value[_MEMBER]
    return value
