"""Find what is wrong with the photos themselves, before any training; find similar photos."""

import logging
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clew.base.errors import InputError
from clew.base.progress import Reporter
from clew.base.urls import local_path
from clew.patterns.library.folders import LIBRARY
from clew.storage.run_file import UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.patterns.cleaning.preparing import CleanPlace, CleanResult
    from clew.patterns.cleaning.similar import SimilarPhoto

logger = logging.getLogger(__name__)


@repeatable(
    "patterns clean",
    folder=lambda result: result.folder,
    unrecorded=("web", "port", "browser"),
    unless="undo",
)
def clean_photos(
    data: str | Path | None = None,
    *,
    name: str | None = None,
    out: Annotated[str | Path | None, UrlNeverFromFile] = None,
    web: bool = False,
    port: int = 0,
    browser: bool = True,
    undo: int = 0,
    library: str | Path = LIBRARY,
    device: str | None = None,
    num_workers: int | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "CleanResult":
    """Find wrong labels, near duplicates, leaks between splits, overlapping classes, outliers, and
    photos of poor quality.

    Works before any training, with features of a pretrained network. Writes CSV, JSON and an HTML
    report. Nothing is changed, except by your decisions on the page (`web=True`): relabel, move,
    remove or keep each photo. Removed photos are moved beside the data, and every change can be
    undone.

    Args:
        data: Folder with one subfolder per class, with or without train and test folders above.
        name: Name of a set, instead of a folder. [default: the only set]
        out: Folder for the findings, the journal of changes and removed photos. [default:
            DATA-clean beside the data; for a set, "clean" in its folder]
        web: Decide about the findings on a page in the browser.
        port: Port for the page; 0 picks any free port.
        browser: Open the page in the browser.
        undo: Undo this many of the latest changes, and do nothing else.
        library: Folder that contains your sets.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        num_workers: Number of threads that read photos and compute features. [default: one per
            core]
        reporter: Called with progress events. [default: the log]
        should_stop: Called now and then; when it returns True, what was computed is saved, and the
            search stops.

    Returns:
        The findings (iterate over it), their counts, and the paths of the lists and the report.

    Raises:
        InputError: There are no photos in class folders, or the weights of the network cannot be
            downloaded.
        StoreLockedError: Another session is changing the same photos.
        TrainingStoppedError: `should_stop` returned True; run the same command again to resume.
        DiskFullError: The disk is full.

    Examples:
        >>> for finding in clean_photos("photos"):
        ...     print(finding.kind, finding.name, finding.reason)
    """
    from clew.pages.server import require_web
    from clew.patterns.cleaning.app import open_clean_page
    from clew.patterns.cleaning.preparing import open_cleaning, search_problems, undo_changes

    if web:
        require_web()
    place = choose_place(data, name=name, out=out, library=library)
    if undo:
        return undo_changes(place, undo)
    result = search_problems(
        place, device=device, threads=num_workers, reporter=reporter, should_stop=should_stop
    )
    if web and len(result):
        with (
            open_cleaning(place, result.findings) as cleaning,
            open_clean_page(cleaning, port) as server,
        ):
            logger.info("page: %s", server.address)
            if browser:
                webbrowser.open(server.address)
            server.run()
    return result


def choose_place(
    data: str | Path | None,
    *,
    name: str | None,
    out: str | Path | None,
    library: str | Path,
) -> "CleanPlace":
    """Whose photos, and where the findings go."""
    from clew.patterns.cleaning.preparing import CleanPlace
    from clew.patterns.library.pattern_set import PatternSet

    if data is not None and name is not None:
        raise InputError(
            f'the set "{name}" and `data` "{data}" cannot be combined: give only one of them.'
        )
    chosen = None if out is None else local_path(out)
    if data is not None:
        return CleanPlace.of_folder(Path(data), chosen)
    found = PatternSet.open(name, Path(library), otherwise="a folder of photos with `data`")
    return CleanPlace.of_set(found, chosen)


def find_similar(
    image: str | Path,
    *,
    data: str | Path | None = None,
    name: str | None = None,
    top_k: int = 10,
    out: Annotated[str | Path | None, UrlNeverFromFile] = None,
    library: str | Path = LIBRARY,
    device: str | None = None,
    num_workers: int | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "tuple[SimilarPhoto, ...]":
    """Find the photos that are most like a given one.

    The features of the photos are computed once and kept.

    Args:
        image: The photo to compare with; it need not be in the folder.
        data: Folder with one subfolder per class.
        name: Name of a set, instead of a folder. [default: the only set]
        top_k: Number of photos to list.
        out: Folder for the features. [default: that of "clew patterns clean"]
        library: Folder that contains your sets.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        num_workers: Number of threads that read photos and compute features. [default: one per
            core]
        reporter: Called with progress events. [default: the log]
        should_stop: Called now and then; when it returns True, what was computed is saved, and the
            search stops.

    Returns:
        The photos with their classes and similarity (1 for the same image, about 0 for any other
        photo), the most similar first.

    Raises:
        InputError: The photo cannot be read, there are no photos in class folders, or the weights
            of the network cannot be downloaded.
        TrainingStoppedError: `should_stop` returned True.

    Examples:
        >>> [(photo.name, photo.similarity) for photo in find_similar("cat.jpg", data="photos")]
    """
    from clew.patterns.cleaning.similar import find_similar_photos

    place = choose_place(data, name=name, out=out, library=library)
    return find_similar_photos(
        Path(image),
        place.settings(device, num_workers),
        count=top_k,
        reporter=reporter,
        should_stop=should_stop,
    )
