"""API keys: read from a file or the environment, compared in constant time, shown to nobody."""

import hmac
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from clew.base.errors import InputError
from clew.base.texts import is_sendable
from clew.pages.guard import RefusedError, Scope, find_header
from clew.storage.reading import read_bounded

_MAX_BYTES = 1 << 20
_LEAST_CHARACTERS = 8
# What load balancers and browsers ask for, and they have no key: the page itself holds no data.
_OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
_OPEN_FOLDER = "/page/"


class ApiKeys:
    """The keys that a client may send. Only their hashes are kept."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def knows(self, key: str) -> bool:
        """All keys are compared, whichever it is."""
        given = sha256(key.encode()).digest()
        return sum(hmac.compare_digest(given, known) for known in self._hashes) > 0

    def has_sent(self, scope: Scope) -> bool:
        """Whether one of these is in the head of a request."""
        for value in find_header(scope["headers"], b"authorization"):
            scheme, _, key = value.partition(" ")
            if scheme.lower() == "bearer" and self.knows(key.strip()):
                return True
        return False

    def admit(self, scope: Scope) -> str:
        """For the server's guard: raises RefusedError if the request needs a key and has none of
        these."""
        path: str = scope["path"]
        is_open = path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER)
        if not self or is_open or self.has_sent(scope):
            return ""
        raise RefusedError(
            401,
            'give a valid API key in the header "Authorization: Bearer KEY"',
            headers=[(b"www-authenticate", b"Bearer")],
        )


def read_keys(file: Path | None, variable: str | None) -> ApiKeys:
    """The keys in a file, one per line ("#" starts a comment), and in the environment variable of
    that name, separated by commas or white space. Raises InputError; no key is ever in its text."""
    found = _split(_read_variable(variable).replace(",", "\n").replace(" ", "\n"), "api_keys_env")
    if file is not None:
        try:
            text = read_bounded(file, _MAX_BYTES).decode()
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})."
            raise InputError(reason, setting="api_keys_file", value=file) from None
        except ValueError:
            reason = "it is not a text file with one key per line."
            raise InputError(reason, setting="api_keys_file", value=file) from None
        found += _split(text, "api_keys_file", file)
        if not found:
            raise InputError("it contains no key.", setting="api_keys_file", value=file)
    return ApiKeys(found)


def _read_variable(name: str | None) -> str:
    """An environment variable that is named contains a key: a server that is meant to require keys
    does not run without."""
    value = os.environ.get(name, "") if name is not None else ""
    if name is not None and not value.strip():
        raise InputError(
            "this environment variable contains no API key.", setting="api_keys_env", value=name
        )
    return value


def _split(text: str, setting: str, value: object = None) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    for number, key in enumerate(keys, 1):
        if len(key) < _LEAST_CHARACTERS or not is_sendable(key):
            raise InputError(
                f"key {number} is not usable: a key has at least {_LEAST_CHARACTERS} printable "
                f"ASCII characters and no spaces.",
                setting=setting,
                value=value,
            )
    return keys
