"""A place under a prefix of an object store: S3 and what speaks its protocol, Google Cloud Storage,
Azure Blob Storage. All of it through obstore. Of a refusal, only the HTTP status and the provider's
own code are shown: the rest of an answer may contain signed URLs."""

import mmap
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError, StoreError, without_settings
from clew.base.texts import bytes_text
from clew.storage.place import (
    PART_BYTES,
    AccessDeniedError,
    ChangedError,
    Content,
    Entry,
    Place,
    Range,
    UnreachableError,
    download,
)
from clew.storage.reading import open_regular
from clew.storage.writing import create_file

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion


try:
    import botocore.session
    import obstore
    from botocore.exceptions import BotoCoreError
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        GenericError,
        NotSupportedError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
        UnknownConfigurationKeyError,
    )
except ImportError as error:
    raise InputError(
        f"stores at URLs need the package {error.name}, which is not installed. Install it with: "
        'pip install "clew[cloud]"'
    ) from None


# How long a request is tried again: longer than a server needs to restart, shorter than the five
# minutes after which a signed request is refused.
_RETRY_SECONDS = 120
_MAX_RETRIES = 60
_MAX_PAUSE_SECONDS = 5
# For requests with small answers. A large upload gets a second more per mebibyte.
_TIMEOUT_SECONDS = 60
_SLOWEST_BYTES_PER_SECOND = 1 << 20
# S3 refuses more in one request; what is larger goes up in parts, which has no conditional form.
_MAX_PUT_BYTES = 4 << 30
_PART_BYTES = 64 << 20
_TRIES = 3
# Each write carries a random mark, which tells the answer to our own repeated request from
# another writer's success.
_MARK = "clewmark"


# obstore passes on the server's answer only as text. Both patterns are of the protocol, not of
# obstore's wording: the element of an XML error document, and a status line.
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"\b([45]\d\d) [A-Z][a-z]+")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
# Codes that say what is wrong, and what to do.
_MEANINGS: tuple[tuple[set[str], type[StoreError], str], ...] = (
    (_NO_BUCKET, StoreError, "the bucket does not exist. Check its name, or create it."),
    (
        {"ExpiredToken", "TokenRefreshRequired", "RequestExpired"},
        AccessDeniedError,
        "the credentials have expired ({shown}). Renew them, then run the same command again to "
        "resume.",
    ),
    (
        {"RequestTimeTooSkewed"},
        AccessDeniedError,
        "this machine's clock differs too much from the server's ({shown}). Set it, then run the "
        "same command again.",
    ),
    (
        {"PermanentRedirect", "AuthorizationHeaderMalformed"},
        StoreError,
        "the bucket is in another region ({shown}). Set AWS_REGION to it.",
    ),
)
# Azure has one code for a wrong key and for an expired token.
_UNKNOWN_KEY = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed"),
}
# botocore renews credentials that expire; asking again is cheap.
_ASK_AGAIN = timedelta(minutes=1)


class _Bucket:
    """The connections to one bucket, which the places in it share."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._access = aws_access() if url.startswith("s3:") else {}
        self.store = self._connect(_TIMEOUT_SECONDS)

    def for_upload(self, size: int) -> Any:
        if size <= _SLOWEST_BYTES_PER_SECOND:
            return self.store
        return self._connect(_TIMEOUT_SECONDS + size // _SLOWEST_BYTES_PER_SECOND)

    def _connect(self, timeout_seconds: int) -> Any:
        retry: Any = {
            "max_retries": _MAX_RETRIES,
            "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
            "backoff": {"max_backoff": timedelta(seconds=_MAX_PAUSE_SECONDS)},
        }
        # An endpoint without TLS is only ever one that the user named.
        client: Any = {"allow_http": True, "timeout": timedelta(seconds=timeout_seconds)}
        try:
            return obstore.store.from_url(
                self.url, retry_config=retry, client_options=client, **self._access
            )
        except (BaseError, ValueError) as error:
            raise explain(error, self.url, "opened") from None


@cache
def open_bucket(url: str) -> _Bucket:
    return _Bucket(url)


# obstore does not work in a child of a process that has used it.
os.register_at_fork(after_in_child=open_bucket.cache_clear)


class ObjectPlace:
    """A prefix. `create` and `replace` are conditional puts: the server compares.

    Not for a process that was forked after its parent used one: obstore refuses to work there.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        scheme, _, rest = url.partition("://")
        name, _, self._prefix = rest.partition("/")
        self._bucket = open_bucket(f"{scheme}://{name}")
        self._store = self._bucket.store

    def __reduce__(self) -> tuple[type["ObjectPlace"], tuple[str]]:
        return ObjectPlace, (self.url,)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def child(self, name: str) -> Place:
        return ObjectPlace(f"{self.url}/{name}")

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.entries() if name.startswith(prefix))

    def entries(self) -> dict[str, Entry]:
        with self._explained("listed"):
            found = obstore.list_with_delimiter(self._store, self._prefix or None)
        return {
            one["path"].rpartition("/")[2]: Entry(size=one["size"], version=self._version(one))
            for one in found["objects"]
        }

    def folders(self) -> list[str]:
        with self._explained("listed"):
            found = obstore.list_with_delimiter(self._store, self._prefix or None)
        return sorted(one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"])

    def stat(self, name: str) -> Entry | None:
        with suppress(FileNotFoundError), self._explained("read"):
            found = obstore.head(self._store, self._key(name))
            return Entry(size=found["size"], version=self._version(found))
        return None

    def read(self, name: str, max_bytes: int) -> Content:
        with self._explained("read"):
            found = obstore.get(self._store, self._key(name))
            if found.meta["size"] > max_bytes:
                raise ValueError(f"it is larger than {bytes_text(max_bytes)}")
            return Content(data=found.bytes().to_bytes(), version=self._version(found.meta))

    def read_ranges(self, name: str, ranges: Sequence[Range]) -> list[memoryview]:
        if not ranges:
            return []
        starts, lengths = zip(*ranges, strict=True)
        with self._explained("read"):
            pieces = obstore.get_ranges(
                self._store, self._key(name), starts=starts, lengths=lengths
            )
        for piece, (start, length) in zip(pieces, ranges, strict=True):
            if len(piece) != length:
                raise EOFError(f"{name} ends before byte {start + length:,}")
        return [memoryview(piece) for piece in pieces]

    def fetch(self, name: str, path: Path) -> Entry:
        entry = self.stat(name)
        if entry is None:
            raise FileNotFoundError(f"{self.url} has no such file")
        is_whole = entry.size <= PART_BYTES
        try:
            with create_file(path) as file:
                download(self, name, entry.size, file.fileno())
        except EOFError:
            is_whole = False
        if not is_whole and self.stat(name) != entry:
            raise ChangedError(
                f"{name} in {self.url} was replaced while it was read: run the same command again."
            )
        return entry

    def create(self, name: str, content: bytes | Path) -> bool:
        with self._explained("written to"):
            return self._put(name, content, "create") is not None

    def replace(self, name: str, content: bytes | Path, version: str | None) -> str:
        with self._explained("written to"):
            mode: PutMode = "overwrite" if version is None else self._update(version)
            written = self._put(name, content, mode)
        if written is None:
            raise ChangedError(f"{name} in {self.url} was changed by another process.")
        return written

    def delete(self, *names: str) -> None:
        with suppress(FileNotFoundError), self._explained("deleted from"):
            obstore.delete(self._store, [self._key(name) for name in names])

    def _put(self, name: str, content: bytes | Path, mode: "PutMode") -> str | None:
        if isinstance(content, bytes):
            return self._put_bytes(name, content, mode)
        if content.stat().st_size <= _MAX_PUT_BYTES:
            with _mapped(content) as data:
                return self._put_bytes(name, data, mode)
        return self._put_parts(name, content, mode)

    def _put_parts(self, name: str, content: Path, mode: "PutMode") -> str | None:
        """There is no conditional form of this: the condition is checked before. Nobody else
        writes a shard whose lease is held."""
        found = self.stat(name)
        expected = {None if found is None else found.version}
        wanted = {*mode.values()} if isinstance(mode, dict) else {None}
        if mode != "overwrite" and expected != wanted:
            return None
        store = self._bucket.for_upload(_PART_BYTES)
        return self._version(obstore.put(store, self._key(name), content, chunk_size=_PART_BYTES))

    def _put_bytes(self, name: str, content: bytes | memoryview, mode: "PutMode") -> str | None:
        """The new version, None if the condition in `mode` does not hold. obstore does not repeat
        a conditional request whose answer was lost: with the mark, that is safe."""
        mark = secrets.token_hex(16)
        store, key = self._bucket.for_upload(len(content)), self._key(name)
        for left in reversed(range(_TRIES)):
            try:
                done = obstore.put(
                    store, key, content, mode=mode, attributes={_MARK: mark}, use_multipart=False
                )
                return self._version(done)
            except (AlreadyExistsError, PreconditionError):
                return self._find_own(name, mark)
            except GenericError as error:
                if not left or not is_transient(error):
                    raise
                time.sleep(1)
        return None

    def _find_own(self, name: str, mark: str) -> str | None:
        """The version of what is there if an earlier try of this very write put it there."""
        with suppress(FileNotFoundError):
            found = obstore.get(self._store, self._key(name), options={"head": True})
            if found.attributes.get(_MARK) == mark:
                return self._version(found.meta)
        return None

    def _version(self, found: Any) -> str:
        """Google Cloud Storage compares generations, the others ETags. Azure lists them without
        the quotes that its other answers have."""
        if self.url.startswith("gs:"):
            return str(found["version"])
        tag = str(found["e_tag"])
        return tag if tag.endswith('"') else f'"{tag}"'

    def _update(self, version: str) -> "UpdateVersion":
        return {"version": version} if self.url.startswith("gs:") else {"e_tag": version}

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if is_bucket_missing(error):
                raise explain(error, self.url, what) from None
            raise FileNotFoundError(f"{self.url} has no such file") from None
        except BaseError as error:
            raise explain(error, self.url, what) from None


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, read by the kernel as they are sent."""
    with open_regular(path) as file:
        if not path.stat().st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                yield view
            finally:
                view.release()


def is_bucket_missing(error: Exception) -> bool:
    return _code_of(error) in _NO_BUCKET


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later: the server did not answer, or not as it should.
    An answer of 4xx is about the request."""
    status = _status_of(error)
    return status is None or status.startswith("5")


def explain(error: Exception, url: str, what: str) -> StoreError:
    """The error to raise when `url` could not be `what` ("read", "written to")."""
    code, status = _code_of(error), _status_of(error)
    shown = " ".join(filter(None, (status, code)))
    start = f'"{url}" cannot be {what}'
    for codes, kind, sentence in _MEANINGS:
        if code in codes:
            return kind(f"{start}: {sentence.format(shown=shown)}")
    # When it lists, obstore has one kind of error for every answer.
    if code in _UNKNOWN_KEY or isinstance(error, UnauthenticatedError) or status == "401":
        return AccessDeniedError(
            f"{start}: the server does not accept these credentials ({shown or 'unauthorized'}). "
            "Check them in the environment or the provider's own files."
        )
    if isinstance(error, PermissionDeniedError) or status == "403":
        return AccessDeniedError(
            f"{start}: access is denied ({shown or 'forbidden'}). Check that there are credentials "
            "and that they allow it."
        )
    if isinstance(error, NotSupportedError | UnknownConfigurationKeyError | ValueError):
        return StoreError(f"{start}: the object store does not support it. Check the URL.")
    answer = f"it answers {shown}" if shown else "it does not answer"
    return UnreachableError(
        f"{start}: {answer}, also after repeated tries. Check the endpoint and the network, then "
        "run the same command again."
    )


def _code_of(error: Exception) -> str | None:
    match = _CODE.search(str(error))
    return match[1] if match else None


def _status_of(error: Exception) -> str | None:
    match = _STATUS.search(str(error))
    return match[1] if match else None


class _Provider:
    def __init__(self, found: Any, region: str | None) -> None:
        self._found = found
        self.config = {"region": region} if region else {}

    def __call__(self) -> dict[str, Any]:
        now = self._found.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _ASK_AGAIN,
        }


def aws_access() -> dict[str, Any]:
    """Keyword arguments for obstore's S3 store. Without credentials requests are not signed, as a
    public bucket needs."""
    session = botocore.session.get_session()
    try:
        found = session.get_credentials()
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    except BotoCoreError as error:
        raise AccessDeniedError(
            f"the AWS credentials cannot be read ({without_settings(str(error))}): check "
            "AWS_PROFILE and the files in ~/.aws."
        ) from None
    if found is None:
        return {"config": {"skip_signature": True, **({"region": region} if region else {})}}
    return {"credential_provider": _Provider(found, region)}
