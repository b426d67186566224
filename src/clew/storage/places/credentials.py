"""AWS credentials from where the AWS command line finds them: the environment, the profiles in
`~/.aws`, single sign-on, a web identity, the container or the instance."""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.session
from botocore.exceptions import BotoCoreError

from clew.base.errors import without_settings
from clew.storage.places.place import AccessDeniedError

# botocore renews credentials that expire; asking again is cheap.
_ASK_AGAIN = timedelta(minutes=1)


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
