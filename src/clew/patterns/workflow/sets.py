"""Named sets: photos in classes, and the models trained on them."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clew.base.progress import Reporter
from clew.patterns.library.folders import LIBRARY

if TYPE_CHECKING:
    from clew.patterns.library.importing import ImportResult
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.library.summary import SetSummary

logger = logging.getLogger(__name__)


def create_set(name: str, *, library: str | Path = LIBRARY) -> "PatternSet":
    """Create an empty set: a named folder for photos, sorted by class, and the models trained on
    them.

    Args:
        name: Name of the set, which is also the name of its folder.
        library: Folder that contains your sets.

    Returns:
        The set, with the paths of its photos and runs.

    Raises:
        InputError: The name is taken, or cannot be the name of a folder.

    Examples:
        >>> create_set("animals").photos
    """
    from clew.patterns.library.pattern_set import PatternSet

    return PatternSet.create(name, Path(library))


def import_photos(
    name: "str | PatternSet",
    sources: str | Path | Sequence[str | Path],
    *,
    label: str | None = None,
    move: bool = False,
    library: str | Path = LIBRARY,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "ImportResult":
    """Add photos to a set, all classes at once.

    Damaged, empty, tiny and duplicate files are excluded, with the reason in import.csv. Nothing
    is overwritten. Run the same command again to resume an import that was stopped.

    Args:
        name: Name of the set.
        sources: Folders with one subfolder per class, with or without train, val and test folders.
        label: Assign all photos to this class, regardless of their folders.
        move: Move the photos instead of copying them.
        library: Folder that contains your sets.
        reporter: Called with progress events. [default: the log]
        should_stop: Called after every photo; when it returns True, the import stops and can be
            resumed.

    Returns:
        The result for every file, and the path of import.csv (`listing`); `is_finished` is False if
        it was stopped.

    Raises:
        InputError: There is no such set, or a folder contains no photos.
        StoreLockedError: Another process is adding photos to the set.

    Examples:
        >>> result = import_photos("animals", "my_photos")
        >>> [(source.source, source.reason) for source in result.excluded]
    """
    from clew.patterns.library.importing import import_photos as import_into

    folders = [sources] if isinstance(sources, str | Path) else sources
    return import_into(
        _open(name, library),
        [Path(folder) for folder in folders],
        label=label,
        move=move,
        reporter=reporter,
        should_stop=should_stop,
    )


def list_sets(*, library: str | Path = LIBRARY) -> "list[SetSummary]":
    """List the sets in a library: classes, photos, and the test accuracy of their models.

    Args:
        library: Folder that contains your sets.

    Returns:
        One summary per set, by name. Damaged sets are logged and skipped.

    Raises:
        OSError: The library cannot be read.

    Examples:
        >>> {one.name: one.photos for one in list_sets()}
    """
    from clew.patterns.library.summary import summarize_library

    summaries, damaged = summarize_library(Path(library))
    for error in damaged:
        logger.warning("%s", error)
    return summaries


def describe_set(name: str | None = None, *, library: str | Path = LIBRARY) -> "SetSummary":
    """Show a set: classes, training runs with their accuracy, folders, and the next step.

    Args:
        name: Name of the set. [default: the only one]
        library: Folder that contains your sets.

    Returns:
        Classes with their counts, training runs, and what has changed since the last one.

    Raises:
        InputError: There is no such set.
        StoreError: The set is damaged.

    Examples:
        >>> describe_set("animals").classes
    """
    from clew.patterns.library.summary import summarize_set

    return summarize_set(_open(name, library))


def _open(name: "str | PatternSet | None", library: str | Path) -> "PatternSet":
    from clew.patterns.library.pattern_set import PatternSet

    return name if isinstance(name, PatternSet) else PatternSet.open(name, Path(library))
