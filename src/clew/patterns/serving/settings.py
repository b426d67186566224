"""The settings of a served classifier."""

import math
from dataclasses import dataclass

from clew.base.errors import InputError
from clew.base.settings import check_numbers, check_positive
from clew.patterns.identification.config import (
    USUAL_UNKNOWN,
    check_threshold,
    check_top_k,
    check_unknown,
)

# A photo of 20 MB from each of them fits in memory, whatever they do.
CONNECTIONS = 64


@dataclass(frozen=True, kw_only=True)
class PhotoServiceSettings:
    """A response lists `top_k` classes unless the request says otherwise. It is doubtful below the
    confidence `threshold`, and unknown below the typicality `unknown`. More than `max_waiting`
    photos at a time are refused, larger ones than `max_body_bytes` too. At most `max_corrections`
    photos wait for review. After the signal to end, requests get `drain_seconds`."""

    top_k: int = 3
    threshold: float = 0.6
    unknown: float = USUAL_UNKNOWN
    max_waiting: int = 32
    max_body_bytes: int = 20_000_000
    max_corrections: int = 10_000
    drain_seconds: float = 20.0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_top_k(self.top_k)
        check_threshold(self.threshold)
        check_unknown(self.unknown)
        check_positive(self, "max_waiting", "max_body_bytes", "max_corrections")
        if not 0 <= self.drain_seconds < math.inf:
            raise InputError(
                "give a number of seconds, 0 or more.",
                setting="drain_seconds",
                value=self.drain_seconds,
            )
