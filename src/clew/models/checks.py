"""Checks of the networks' settings."""

import math
from typing import Any

from clew.errors import InputError


def check_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value < 1:
            raise InputError(f"{name} is {value}: give 1 or more.")


def check_fraction(config: Any, name: str) -> None:
    value = getattr(config, name)
    if not 0 <= value < 1:
        raise InputError(f"{name} is {value}: give a number from 0 to below 1.")


def check_weight(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < math.inf:
            raise InputError(f"{name} is {value}: give 0 or more.")
