"""What an object store's refusal means, in one sentence. Only the HTTP status and the provider's
own code are shown: the rest of an answer may contain signed URLs."""

import re

from obstore.exceptions import (
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from clew.base.errors import StoreError
from clew.storage.places.place import AccessDeniedError, UnreachableError

# obstore passes on the server's answer only as text. Both patterns are of the protocol, not of
# obstore's wording: the element of an XML error document, and a status line.
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"\b([45]\d\d) [A-Z][a-z]+")

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "RequestExpired"}
_CLOCK = {"RequestTimeTooSkewed"}
# Azure has one code for a wrong key and for an expired token.
_UNKNOWN_KEY = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed"),
}
_REDIRECTED = {"PermanentRedirect", "AuthorizationHeaderMalformed"}


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
    start = f'"{url}" cannot be {what}'
    shown = " ".join(filter(None, (status, code)))
    if code in _NO_BUCKET:
        return StoreError(f"{start}: the bucket does not exist. Check its name, or create it.")
    if code in _EXPIRED:
        return AccessDeniedError(
            f"{start}: the credentials have expired ({shown}). Renew them, then run the same "
            "command again to resume."
        )
    if code in _CLOCK:
        return AccessDeniedError(
            f"{start}: this machine's clock differs too much from the server's ({shown}). Set it, "
            "then run the same command again."
        )
    if code in _REDIRECTED:
        return StoreError(
            f"{start}: the bucket is in another region ({shown}). Set AWS_REGION to it."
        )
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
