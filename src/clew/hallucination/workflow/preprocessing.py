"""From traces and scores to training samples."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base import urls
from clew.base.progress import Reporter
from clew.base.settings import as_path, read_size
from clew.storage.run_file import NeverFromFile, UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.hallucination.samples.preprocess import PreprocessResult


@repeatable("preprocess", always=("store", "scores_file", "out"), unrecorded=("workers", "cluster"))
def preprocess(
    store: str | Path,
    *,
    scores_file: str | Path = "ground_truth_scores.csv",
    score_threshold: float = 0.5,
    score_column: str | None = None,
    higher_is: Literal["correct", "hallucinated"] | None = None,
    skip_unlabeled: bool = False,
    refused: Literal["exclude", "correct", "hallucinated"] = "exclude",
    spans_file: str | Path | None = None,
    out: Annotated[str | Path, UrlNeverFromFile] = "preprocessed_data",
    attn_threshold: float = 0.0,
    top_k: int | None = None,
    node_dim: int | None = None,
    split: str = "70/15/15",
    split_by: Literal["question", "file"] = "question",
    sequences: bool = True,
    graphs: bool = True,
    answers: bool = True,
    heads: bool = True,
    workers: int | None = None,
    cluster: Annotated[str | None, NeverFromFile] = None,
    cache_dir: str | Path | None = None,
    cache_size: str | int | None = None,
    reporter: Reporter | None = None,
) -> "PreprocessResult":
    """Turn traces and their scores into samples for detectors, split by question.

    Run the same command again to resume an interrupted run, or to add new traces from a store that
    has grown; existing samples keep their split.

    Args:
        store: Folder or URL of a trace store.
        scores_file: CSV file with question_id and score, as "clew label" writes it.
        score_threshold: Answers that score below this count as hallucinated.
        score_column: Column with the scores. [default: score, or the only numeric column]
        higher_is: Meaning of a high score. [default: inferred from the column name]
        skip_unlabeled: Skip answers without a score instead of stopping with an error.
        refused: Class of answers in which the model declined to answer. By default they are in
            neither.
        spans_file: CSV file with the labels of spans of answers, as "clew label" writes it for
            questions that ask for several facts. [default: the one beside the scores file]
        out: Output folder or URL. It is created if it does not exist.
        attn_threshold: Drop attention edges weaker than this.
        top_k: Number of strongest edges to keep per token and layer. [default: all]
        node_dim: Number of principal components to keep per node. [default: all]
        split: Percentages for training, validation and test.
        split_by: question: stratified by label, and stable when data is added. file: whole shards.
        sequences: Write the last token's hidden states of all layers.
        graphs: Write the attention graphs of all layers.
        answers: Write the features that probes are fitted on.
        heads: Write graphs over all attention heads (requires traces with `keep="full"`).
        workers: Number of shards to process at once. [default: one per core]
        cluster: Process them on Ray: ray (the cluster of RAY_ADDRESS, one that runs here, or a new
            one on this machine) or ray://host:port. Requires "clew[ray]".
        cache_dir: Folder for what is downloaded from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB". [default: what was set last,
            or 64 GB, at most half of the free space]
        reporter: Called with progress events. [default: the log]

    Returns:
        The contents of the folder: `path`, and the number of samples per split.

    Raises:
        InputError: The scores do not belong to the store, or a setting cannot be used.
        StoreError: There is no trace store, another process is writing into the folder, or the disk
            is full.
        SettingsMismatchError: The folder contains samples made with different settings.

    Examples:
        >>> clew.preprocess("traces_data", scores_file="ground_truth_scores.csv")
    """
    from clew.hallucination.samples.preprocess import preprocess_store
    from clew.hallucination.samples.source import PreprocessConfig
    from clew.hallucination.workflow.spreading import choose_spread
    from clew.loading.splits import parse_split

    wanted = {"sequences": sequences, "graphs": graphs, "answers": answers, "heads": heads}
    config = PreprocessConfig(
        store=urls.as_path(store),
        scores_file=Path(scores_file),
        out=urls.as_path(out),
        score_threshold=score_threshold,
        attn_threshold=attn_threshold,
        top_k=top_k,
        node_dim=node_dim,
        shares=parse_split(split),
        split_by=split_by,
        kinds=tuple(kind for kind, is_wanted in wanted.items() if is_wanted),  # type: ignore[misc]
        workers=workers,
        skip_unlabeled=skip_unlabeled,
        refused=refused,
        score_column=score_column,
        higher_is=higher_is,
        spans_file=as_path(spans_file),
        cache_dir=as_path(cache_dir),
        cache_size=None if cache_size is None else read_size("cache_size", cache_size),
    )
    where = None if cluster is None else choose_spread(cluster, workers, threads=1, device="cpu")
    return preprocess_store(config, reporter, where)
