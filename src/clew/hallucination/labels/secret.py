"""An API key, and how it is kept out of every text that a server sends back."""

import logging
import re
from base64 import b64encode, urlsafe_b64encode

from clew.base.errors import without_settings
from clew.base.texts import for_terminal

_HIDDEN = "***"
# A key may be broken over lines, or escaped.
_BETWEEN = r"[\s\\\u200b]*"
# More than is ever shown, so that no part of a key remains at the cut.
_LONGEST_TEXT = 20_000


class Secret:
    """Hides a key as it is, URL-encoded, escaped as in JSON, HTML or Python, broken over lines, and
    in Base64."""

    def __init__(self, key: str | None) -> None:
        self._pattern = _compile(key) if key else None

    def hide(self, text: str, most: int = 200) -> str:
        """A server's text for errors, logs and files: one line of at most `most` characters,
        without the key, and with nothing that a terminal or an error would interpret."""
        text = text[:_LONGEST_TEXT]
        if self._pattern is not None:
            text = self._pattern.sub(_HIDDEN, text)
        return for_terminal(without_settings(" ".join(text.split())))[:most]

    def filter(self, record: logging.LogRecord) -> bool:
        """As a filter of a logger: the HTTP client logs what a server sends."""
        record.msg, record.args = self.hide(record.getMessage(), _LONGEST_TEXT), ()
        return True


def _compile(key: str) -> re.Pattern[str]:
    plain = _BETWEEN.join(map(_spellings, key))
    coded = {
        encode(text.encode()).decode().rstrip("=")
        for encode in (b64encode, urlsafe_b64encode)
        for text in (key, f"Bearer {key}")
    }
    wrapped = (
        r"\s*".join(map(re.escape, text)) + "=*" for text in sorted(coded, key=len, reverse=True)
    )
    return re.compile("|".join((plain, *wrapped)), re.IGNORECASE)


def _spellings(sign: str) -> str:
    """A character as itself and in the escapes of URLs, JSON, Python and HTML."""
    code = ord(sign)
    escapes = rf"%(?:25)*{code:02x}|\\+u00{code:02x}|\\+x{code:02x}|&#0*{code};|&#x0*{code:x};"
    named = {"&": "|&amp;", "<": "|&lt;", ">": "|&gt;", '"': "|&quot;", "'": "|&apos;"}
    return f"(?:{re.escape(sign)}|{escapes}{named.get(sign, '')})"
