"""Label answers: from answers to scores."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from clew.base.errors import InputError
from clew.base.progress import Reporter, WorkAdvanced, WorkEnded, WorkStarted
from clew.storage.run_file import NeverFromFile, UrlNeverFromFile

if TYPE_CHECKING:
    from clew.hallucination.labels.chat import ChatConfig
    from clew.hallucination.labels.label import LabelResult


def label(
    store: str | Path,
    *,
    out: Annotated[str | Path, UrlNeverFromFile] = "ground_truth_scores.csv",
    method: Literal["alias", "exact", "token-f1", "rouge-l"] | None = None,
    score_threshold: float = 0.5,
    overwrite: bool = False,
    judge_url: Annotated[str | None, NeverFromFile] = None,
    judge_model: str | None = None,
    judge_key_env: Annotated[str, NeverFromFile] = "OPENAI_API_KEY",
    cluster: Annotated[str | None, NeverFromFile] = None,
    workers: int | None = None,
    review: bool = False,
    port: int = 0,
    browser: bool = True,
    cache_dir: str | Path | None = None,
    cache_size: str | int | None = None,
    reporter: Reporter | None = None,
) -> "LabelResult":
    """Score each answer in a store against its accepted answers: 0 (hallucinated) to 1 (correct).

    Answers in which the model declines to answer are refused: they have no score. The scores
    compare wording only, so check the borderline examples that are printed; the column
    "correction" of the file is yours, wins, and is kept when you label again. A judge's replies are
    saved as they arrive, so an interrupted run pays only for the remaining answers.

    Args:
        store: Folder of a trace store, or its URL.
        out: CSV file to write.
        method: alias: the answer states an accepted answer, and not as one of several. exact: it
            equals one. token-f1, rouge-l: word overlap with the accepted answers. [default: alias]
        score_threshold: Answers that score below this count as hallucinated in the summary.
        overwrite: Overwrite a file that contains different scores.
        judge_url: Use an LLM judge at this OpenAI-compatible URL, such as http://host/v1.
        judge_model: Name of the judge model.
        judge_key_env: Environment variable that contains the API key, if one is required.
        cluster: Ask the judge from several workers on Ray: ray (the cluster of RAY_ADDRESS, one
            that runs here, or a new one on this machine) or ray://host:port. Requires "clew[ray]".
        workers: Number of workers on the cluster. [default: one per core]
        review: Then correct labels on a page in the browser, the most doubtful first.
        port: Port for the page; 0 picks any free port.
        browser: Open the page in the browser.
        cache_dir: Folder for what is downloaded from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB". [default: what was set last,
            or 64 GB, at most half of the free space]
        reporter: Called with progress events. [default: the log]

    Returns:
        The scores: `table` is an Arrow table; `to_pandas()` and `to_polars()` convert it.

    Raises:
        InputError: No answer can be scored, or the file contains different scores.
        StoreLockedError: Another review of the same file is running.
        StoreError: There is no trace store in this folder.

    Examples:
        >>> scores = clew.label("traces_data", out="ground_truth_scores.csv")
        >>> scores.to_pandas().score.mean()
    """
    from clew.base.progress import log_event
    from clew.hallucination.labels.label import apply_corrections, label_store
    from clew.hallucination.labels.review import run_review
    from clew.hallucination.workflow.spreading import choose_spread
    from clew.pages.server import require_web
    from clew.storage.mirror import open_folder

    if review:
        require_web()
    judge = _read_judge(method, judge_url, judge_model, judge_key_env)
    where = choose_spread(cluster, workers, threads=1, device="cpu")
    if where is not None and judge is None:
        raise InputError("only a judge is asked on a cluster: give `judge_url` and `judge_model`.")
    with _JudgeReport(reporter or log_event) as report:
        result = label_store(
            open_folder(store, cache_dir=cache_dir, cache_size=cache_size),
            out,
            method=method or "alias",
            judge=judge,
            score_threshold=score_threshold,
            overwrite=overwrite,
            on_judged=report,
            where=where,
            reporter=reporter or log_event,
        )
    if not review:
        return result
    run_review(result.path, score_threshold=score_threshold, port=port, browser=browser)
    return apply_corrections(result)


class _JudgeReport:
    """Reports how many answers the judge has scored; without a judge, nothing is reported."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        if not self._done:
            self._reporter(WorkStarted(noun="answers", verb="judged", planned=total))
        self._reporter(WorkAdvanced(count=done - self._done))
        self._done = done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._done:
            self._reporter(WorkEnded())


def _read_judge(
    method: str | None, url: str | None, model: str | None, key_env: str
) -> "ChatConfig | None":
    from clew.hallucination.labels.chat import ChatConfig

    if url is None and model is None:
        return None
    if url is None or model is None:
        missing = "`judge_url`" if url is None else "`judge_model`"
        raise InputError(f"a judge requires `judge_url` and `judge_model`. Give {missing} as well.")
    if method is not None:
        raise InputError(f'the judge replaces `method="{method}"`. Give only one of the two.')
    key = os.environ.get(key_env, "").strip() or None
    return ChatConfig(url=url, model=model, key=key, key_name=key_env)
