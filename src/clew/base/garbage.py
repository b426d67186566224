"""The collection of garbage, which stops every thread."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_objects() -> bool:
    """Exclude all objects that exist from later collections of garbage, which stop every thread:
    for half a second each with the libraries that a model needs. False if most were excluded
    already; otherwise, `gc.unfreeze` undoes it."""
    if gc.get_freeze_count() > len(gc.get_objects()):
        return False
    gc.collect()
    gc.freeze()
    return True


@contextmanager
def collect_later() -> Iterator[None]:
    """Collect no garbage meanwhile: looking for it takes an eighth of the time that libraries take
    to be imported, whose objects stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
