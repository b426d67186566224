"""Work on stores: inspect one, verify it, or convert legacy files into one."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base.progress import Note, Reporter, log_event
from clew.base.urls import as_path
from clew.storage.run_file import UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.hallucination.legacy import ConvertResult
    from clew.hallucination.samples.summary import SamplesSummary
    from clew.hallucination.traces.summary import StoreSummary
    from clew.hallucination.workflow.results import Verification


def inspect(
    store: str | Path, *, compare_with: str | Path | None = None
) -> "SamplesSummary | StoreSummary":
    """Show the contents of a store: totals, shards, lengths, sample answers, settings.

    Args:
        store: Folder or URL of a store, or of samples written by "clew preprocess".
        compare_with: Legacy .pkl or .pkl.gz file to compare its traces with, field by field.

    Returns:
        The summary; `as_dict()` is what the command prints as JSON.

    Raises:
        InputError: The file to compare with cannot be read.
        StoreError: There is no store in this folder.

    Examples:
        >>> clew.inspect("traces_data").rows
    """
    from clew.hallucination.samples.index import open_samples
    from clew.hallucination.samples.summary import summarize

    folder = open_samples(store)
    if compare_with is None:
        return summarize(folder)
    from clew.hallucination.legacy import compare_pickle
    from clew.hallucination.traces.summary import summarize_store

    compared = compare_pickle(Path(compare_with), folder)
    return replace(summarize_store(folder), compared=compared)


def verify(
    store: Annotated[str | Path, UrlNeverFromFile],
    *,
    repair: bool = False,
    reporter: Reporter | None = None,
) -> "Verification":
    """Check whether a store is intact: hashes, row counts, gaps, half-written files.

    After a repair, rerun the command that wrote the store to re-create the lost rows.

    Args:
        store: Folder or URL of a store, or a folder that contains several stores.
        repair: Keep intact data and remove damaged data.
        reporter: Called with progress events. [default: the log]

    Returns:
        The problems that were found, and what was repaired.

    Raises:
        StoreError: There is no store in this folder, or it cannot be repaired.

    Examples:
        >>> clew.verify("traces_data").is_intact
        True
    """
    from clew.hallucination.workflow.results import check_folder

    return check_folder(as_path(store), repair, reporter or log_event)


@repeatable("convert", always=("source", "out"))
def convert(
    source: str | Path,
    *,
    out: Annotated[str | Path, UrlNeverFromFile],
    keep: Literal["full", "compact"] = "full",
    max_memory: str | int | None = None,
    reporter: Reporter | None = None,
) -> "ConvertResult":
    """Convert legacy .pkl and .pt files into a store.

    No code in the files is executed; files that contain anything other than plain data are
    rejected. Run the same command again to resume an interrupted run.

    Args:
        source: Folder of .pkl, .pkl.gz or .pt files.
        out: Folder or URL of the store. It is created if it does not exist.
        keep: full keeps everything in the files; compact keeps only what detectors need.
        max_memory: Memory that one file may take, such as 4GB; a file that takes more is excluded.
            [default: 32 times the file's size, at least 256 MB and at most the free memory]
        reporter: Called with progress events. [default: the log]

    Returns:
        The stores, and how many rows and files they contain.

    Raises:
        InputError: There is nothing to convert.
        SettingsMismatchError: The store was made from other files.

    Examples:
        >>> clew.convert("old_traces", out="traces_data")
    """
    from clew.hallucination.legacy import convert_folder

    report = reporter or log_event

    def show_file(path: Path, number: int, total: int) -> None:
        report(Note(f"{number}/{total}  {path.name}"))

    return convert_folder(
        Path(source), as_path(out), keep=keep, max_memory=max_memory, on_file=show_file
    )
