"""Let a person review the photos that the classifier is unsure about; run all steps at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clew.base.settings import as_path
from clew.patterns.library.folders import LIBRARY

if TYPE_CHECKING:
    from clew.patterns.flow import FlowConfig, FlowResult
    from clew.patterns.review.asking import ReviewResult


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
    from clew.patterns.review.asking import run_review

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

    config = read_flow(
        name,
        sources=sources,
        identify=identify,
        review=review,
        web=web,
        epochs=epochs,
        library=library,
        device=device,
        threads=threads,
    )
    return flow.run_flow(config, flow.LoggedSteps(web=web))


def read_flow(
    name: str,
    *,
    sources: Sequence[str | Path],
    identify: str | Path | None,
    review: bool,
    web: bool,
    epochs: int | None,
    library: str | Path,
    device: str | None,
    threads: int | None,
) -> "FlowConfig":
    """The arguments of `run_flow` as its steps take them."""
    from clew.patterns.flow import FlowConfig

    return FlowConfig(
        name=name,
        library=Path(library),
        sources=[Path(source) for source in sources],
        identify=as_path(identify),
        review=review or web,
        epochs=epochs,
        device=device,
        threads=threads,
    )
