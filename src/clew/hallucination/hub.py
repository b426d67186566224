"""The Hugging Face Hub: whether it can be reached, without retries and messages on the terminal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("huggingface_hub", "datasets", "transformers")


def why_unreachable() -> str:
    """Why the Hub cannot be reached; empty if it responds at all. Checked here because the
    libraries would retry for a minute."""
    from huggingface_hub import constants, is_offline_mode
    from huggingface_hub.utils import get_session

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # those of its HTTP client, whichever it is
        return f"{constants.ENDPOINT} cannot be reached ({str(error) or type(error).__name__})"
    return ""


def find_cached(name: str, revision: str | None = None) -> bool:
    """Whether a model of this name was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    except ValueError:  # not a name that the Hub could have
        return False


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silence what the libraries log about retries: the error that follows says the same."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
