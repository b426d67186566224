"""Draw one captured answer as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clew.base.settings import as_path
from clew.storage.run_file import UrlNeverFromFile

if TYPE_CHECKING:
    from clew.hallucination.answer_page import ShowResult


def show(
    store: str | Path,
    *,
    id: int | str,
    layer: int | None = None,
    out: Annotated[str | Path | Sequence[str | Path] | None, UrlNeverFromFile] = None,
    beside: int | str | None = None,
    scores_file: str | Path | None = None,
    score_threshold: float = 0.5,
    tokenizer: str | None = None,
    comparison: str | Path | None = None,
    cache_dir: str | Path | None = None,
    cache_size: str | int | None = None,
) -> "ShowResult":
    """Draw one answer: its attention, hidden states by layer, and the probability of each token.

    The page is one file that works offline. With scores, a correct and a hallucinated answer are
    shown side by side.

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
        cache_dir: Folder for what is downloaded from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB". [default: what was set last,
            or 64 GB, at most half of the free space]

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

    files = [out] if isinstance(out, str | Path) else out or ()
    config = ShowConfig(
        store=open_folder(store, cache_dir=cache_dir, cache_size=cache_size),
        answer=str(id),
        out=tuple(Path(file) for file in files),
        layer=layer,
        beside=None if beside is None else str(beside),
        scores_file=as_path(scores_file),
        score_threshold=score_threshold,
        tokenizer=tokenizer,
        comparison=as_path(comparison),
    )
    return show_answer(config)
