"""Work on stores: inspect one, verify it, convert legacy files into one, or draw an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base import urls
from clew.base.commands import Cached, select, takes
from clew.base.errors import InputError
from clew.base.progress import Note, Reporter, log_event
from clew.base.settings import as_path
from clew.hallucination.hub import fetch_detector
from clew.storage.run_file import UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.hallucination.answer_page import ShowResult
    from clew.hallucination.detectors import Detector
    from clew.hallucination.grounded.reader import ReaderSettings
    from clew.hallucination.legacy import ConvertResult
    from clew.hallucination.samples.summary import SamplesSummary
    from clew.hallucination.traces.summary import StoreSummary
    from clew.hallucination.workflow.verification import Verification


@dataclass(frozen=True, kw_only=True)
class InspectSettings:
    """What `inspect` takes.

    Args:
        store: Folder or URL of a store, or of samples written by "clew preprocess"; or the folder
            of a detector or a reader, or hf://owner/name of one on the Hub. grounded is the
            built-in reader.
        compare_with: Legacy .pkl or .pkl.gz file to compare its traces with, field by field.
    """

    store: str | Path = field(kw_only=False)
    compare_with: str | Path | None = None


@takes(InspectSettings)
def inspect(given: InspectSettings) -> "SamplesSummary | StoreSummary | Detector | ReaderSettings":
    """Show the contents of a store: totals, shards, lengths, sample answers, settings; or what a
    detector or a reader is, and how good.

    Returns:
        The summary; `as_dict()` is what the command prints as JSON.

    Raises:
        InputError: The file to compare with cannot be read.
        StoreError: There is no store in this folder, or its detector or reader is damaged.

    Examples:
        >>> clew.inspect("traces_data").rows
    """
    from clew.hallucination.grounded.folder import BUILT_IN_READER, READER_JSON, reader_folder
    from clew.hallucination.samples.index import open_samples
    from clew.hallucination.samples.summary import summarize

    given = replace(given, store=fetch_detector(given.store, setting=None))
    place = urls.as_path(given.store)
    is_built_in = str(given.store) == BUILT_IN_READER and not place.exists()
    if is_built_in or (place / READER_JSON).exists():
        from clew.hallucination.grounded.reader import read_settings

        return read_settings(reader_folder(given.store) if is_built_in else place)
    if (urls.as_path(given.store) / "detector.json").exists():
        from clew.hallucination.detectors import load_detector  # loads torch, unlike the others

        return load_detector(given.store)
    folder = open_samples(given.store)
    if given.compare_with is None:
        return summarize(folder)
    from clew.hallucination.legacy import compare_pickle
    from clew.hallucination.traces.summary import summarize_store

    compared = compare_pickle(Path(given.compare_with), folder)
    return replace(summarize_store(folder), compared=compared)


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """What `verify` takes.

    Args:
        store: Folder or URL of a store, or a folder that contains several stores.
        repair: Keep intact data and remove damaged data.
        reporter: Called with progress events. [default: the log]
    """

    store: Annotated[str | Path, UrlNeverFromFile] = field(kw_only=False)
    repair: bool = False
    reporter: Reporter | None = None


@takes(VerifySettings)
def verify(given: VerifySettings) -> "Verification":
    """Check whether a store is intact: hashes, row counts, gaps, half-written files.

    After a repair, rerun the command that wrote the store to re-create the lost rows.

    Returns:
        The problems that were found, and what was repaired.

    Raises:
        StoreError: There is no store in this folder, or it cannot be repaired.

    Examples:
        >>> clew.verify("traces_data").is_intact
        True
    """
    from clew.hallucination.workflow.verification import check_folder

    return check_folder(urls.as_path(given.store), given.repair, given.reporter or log_event)


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """What `convert` takes.

    Args:
        source: Folder of .pkl, .pkl.gz or .pt files.
        out: Folder or URL of the store. It is created if it does not exist.
        keep: full keeps everything in the files; compact keeps only what detectors need.
        max_memory: Memory that one file may take, such as 4GB; a file that takes more is excluded.
            [default: 32 times the file's size, at least 256 MB and at most the free memory]
        reporter: Called with progress events. [default: the log]
    """

    source: str | Path = field(kw_only=False)
    out: Annotated[str | Path, UrlNeverFromFile]
    keep: Literal["full", "compact"] = "full"
    max_memory: str | int | None = None
    reporter: Reporter | None = None


@repeatable("convert", always=("source", "out"))
@takes(ConvertSettings)
def convert(given: ConvertSettings) -> "ConvertResult":
    """Convert legacy .pkl and .pt files into a store.

    No code in the files is executed; files that contain anything other than plain data are
    rejected. Run the same command again to resume an interrupted run.

    Returns:
        The stores, and how many rows and files they contain.

    Raises:
        InputError: There is nothing to convert.
        SettingsMismatchError: The store was made from other files.

    Examples:
        >>> clew.convert("old_traces", out="traces_data")
    """
    if not Path(given.source).is_dir():
        raise InputError(
            f'"{given.source}" is not a folder: give the folder that contains the files.'
        )
    from clew.hallucination.legacy import convert_folder

    report = given.reporter or log_event

    def show_file(path: Path, number: int, total: int) -> None:
        report(Note(f"{number}/{total}  {path.name}"))

    return convert_folder(
        Path(given.source),
        urls.as_path(given.out),
        keep=given.keep,
        max_memory=given.max_memory,
        on_file=show_file,
    )


@dataclass(frozen=True, kw_only=True)
class ShowSettings(Cached):
    """What `show` takes.

    Args:
        store: Folder of a trace store, or its URL.
        id: ID of the answer: its global_example_id or its question_id.
        layer: Layer to show first, counting from 0. [default: the middle one]
        out: File to write: .html shows all layers, .png one layer. [default: answer-ID.html]
        beside: ID of another answer to show next to it, or "none". [default: if scores are
            given, the answer with the other label whose question is most similar]
        scores_file: Scores, as "clew label" writes them.
        score_threshold: Answers that score below this count as hallucinated.
        tokenizer: Folder of the tokenizer, if the store's model has been moved.
        comparison: Folder of a comparison: the risk from its best detector is shown next to the
            answer, and tokens are shaded by their own risk.
    """

    store: str | Path = field(kw_only=False)
    id: int | str
    layer: int | None = None
    out: Annotated[str | Path | Sequence[str | Path] | None, UrlNeverFromFile] = None
    beside: int | str | None = None
    scores_file: str | Path | None = None
    score_threshold: float = 0.5
    tokenizer: str | None = None
    comparison: str | Path | None = None


@takes(ShowSettings)
def show(given: ShowSettings) -> "ShowResult":
    """Draw one answer: its attention, hidden states by layer, and the probability of each token.

    The page is one file that works offline. With scores, a correct and a hallucinated answer are
    shown side by side.

    Returns:
        The result: `path` of the first file, and the answers in it. Notebooks display the page.

    Raises:
        InputError: The store has no such answer, or a setting cannot be used.
        StoreError: There is no trace store, or no finished comparison in `comparison`.

    Examples:
        >>> clew.show("traces_data", id=5, scores_file="ground_truth_scores.csv")
    """
    from clew.hallucination.answer_page import ShowConfig, show_answer
    from clew.storage.mirror import open_folder

    files = [given.out] if isinstance(given.out, str | Path) else given.out or ()
    config = select(
        ShowConfig,
        given,
        store=open_folder(given.store, cache_dir=given.cache_dir, cache_size=given.cache_size),
        answer=str(given.id),
        out=tuple(Path(file) for file in files),
        beside=None if given.beside is None else str(given.beside),
        scores_file=as_path(given.scores_file),
        comparison=as_path(given.comparison),
    )
    return show_answer(config)
