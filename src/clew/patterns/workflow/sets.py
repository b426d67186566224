"""Named sets: photos in classes, and the models trained on them."""

import logging
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clew.base.errors import InputError
from clew.base.progress import Reporter
from clew.base.settings import as_path
from clew.base.urls import local_path
from clew.patterns.library.folders import LIBRARY
from clew.storage.run_file import UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.patterns.cleaning.search import SimilarPhoto
    from clew.patterns.cleaning.session import CleanPlace, CleanResult
    from clew.patterns.flow import FlowResult
    from clew.patterns.library.importing import ImportResult
    from clew.patterns.library.pattern_set import PatternSet, SetSummary
    from clew.patterns.review.app import ReviewResult


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
    from clew.patterns.library.pattern_set import summarize_library

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
    from clew.patterns.library.pattern_set import summarize_set

    return summarize_set(_open(name, library))


def _open(name: "str | PatternSet | None", library: str | Path) -> "PatternSet":
    from clew.patterns.library.pattern_set import PatternSet

    return name if isinstance(name, PatternSet) else PatternSet.open(name, Path(library))


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
    from clew.patterns.cleaning.page import open_clean_page
    from clew.patterns.cleaning.session import open_cleaning, search_problems, undo_changes

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
    from clew.patterns.cleaning.session import CleanPlace
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
    from clew.patterns.cleaning.search import find_similar_photos

    place = choose_place(data, name=name, out=out, library=library)
    return find_similar_photos(
        Path(image),
        place.settings(device, num_workers),
        count=top_k,
        reporter=reporter,
        should_stop=should_stop,
    )


def review_photos(
    name: str | None = None,
    *,
    model: str | Path | None = None,
    web: bool = False,
    port: int = 0,
    browser: bool = True,
    move: bool = False,
    every: bool = False,
    identified: str | Path | None = None,
    data: str | Path | None = None,
    library: str | Path = LIBRARY,
) -> "ReviewResult":
    """Review doubtful photos, with one key press per photo.

    Approve, correct or skip each photo. Approved and corrected photos are added to their class
    immediately; skipped ones stay where they are and are shown again only with `every=True`.
    Stop at any time; your decisions are saved. Then train again, starting from the last weights.

    Args:
        name: Name of the set. [default: the only one]
        model: Folder or URL of a trained classifier, instead of a set.
        web: Review on a page in the browser instead of the terminal.
        port: Port for the page; 0 picks any free port.
        browser: Open the page in the browser.
        move: Move the photos into their classes instead of copying them.
        every: Also show confident predictions, and photos that were skipped before.
        identified: Folder written by "clew patterns identify". [default: the newest one with photos
            left to review]
        data: Folder to add the photos to, with one subfolder per class. [default: the set's, or the
            one that the classifier was trained on]
        library: Folder that contains your sets.

    Returns:
        How many photos were approved, corrected and skipped.

    Raises:
        InputError: Nothing was identified yet, or there is no such model.
        StoreLockedError: Another review of the same photos is running.

    Examples:
        >>> review_photos("animals", web=True).counts
    """
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review import ReviewConfig
    from clew.patterns.review.app import run_review

    config = ReviewConfig(
        identified=as_path(identified), data=as_path(data), every=every, move=move
    )
    chosen = choose_model(name, model=as_path(model), library=Path(library))
    return run_review(chosen, config, web=web, port=port, browser=browser)


def run_flow(
    name: str,
    *,
    sources: Sequence[str | Path] = (),
    identify: str | Path | None = None,
    review: bool = False,
    web: bool = False,
    epochs: int | None = None,
    library: str | Path = LIBRARY,
    device: str | None = None,
    threads: int | None = None,
) -> "FlowResult":
    """Run all steps at once: create a set, import photos, train, identify, review.

    Run the same command again to resume: photos are imported once, and the set is trained again
    only if its photos have changed.

    Args:
        name: Name of the set; it is created if it does not exist.
        sources: Folders to import, each with one subfolder per class.
        identify: Folder of photos to identify after training.
        review: Afterwards, review each doubtful photo.
        web: Review on a page in the browser instead of the terminal.
        epochs: Number of epochs. A new value alone does not train the set again. [default: 30, or
            more for few photos]
        library: Folder that contains your sets.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]

    Returns:
        The set, the metrics of its newest model, and what was identified.

    Raises:
        InputError: A folder is missing or a setting cannot be used; raised before anything is
            done.
        SettingsMismatchError: An unfinished training run of the set used different settings.
        StoreLockedError: Another process is working on the set.
        TrainingStoppedError: The training was stopped; everything so far is saved.
        DiskFullError: The disk is full.

    Examples:
        >>> run_flow("animals", sources=["my_photos"], identify="holiday_photos").results
    """
    from clew.patterns import flow

    return flow.run_flow(
        name,
        flow.LoggedSteps(web=web),
        sources=[Path(source) for source in sources],
        identify=as_path(identify),
        review=review or web,
        epochs=epochs,
        library=Path(library),
        device=device,
        threads=threads,
    )
