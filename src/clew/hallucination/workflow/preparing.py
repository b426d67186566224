"""From questions to a store of traces, and from traces to labels and training samples."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from clew.base import urls
from clew.base.commands import Cached, Watched, select, takes
from clew.base.errors import InputError, StoppedError
from clew.base.progress import (
    Reporter,
    WorkAdvanced,
    WorkEnded,
    WorkStarted,
    load_modules,
    log_event,
)
from clew.base.settings import (
    as_path,
    check_folders,
    check_least,
    check_numbers,
    check_writable,
    read_size,
)
from clew.base.texts import counted
from clew.storage.run_file import NeverFromFile, UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    import pandas
    import polars

    from clew.cluster.workers import Spread
    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.traces import TraceBatchLoader

    DataFrame: TypeAlias = "pandas.DataFrame | polars.DataFrame"
    from clew.hallucination.labels.chat import ChatConfig
    from clew.hallucination.labels.label import LabelResult
    from clew.hallucination.questions import RowFormat
    from clew.hallucination.samples.preprocess import PreprocessResult


@dataclass(frozen=True, kw_only=True)
class ModelPlacement:
    """Where a language model is loaded, and in which precision.

    Args:
        device: auto, cpu, cuda or cuda:1. auto is the first GPU if there is one.
        dtype: auto, float32, float16 or bfloat16.
        device_map: Where the layers of a model go that is larger than one GPU: auto spreads them
            over GPUs, CPU memory and disk; or a JSON file that maps modules to devices.
            [default: all on `device`]
        offload_folder: Folder for weights on disk, where the model's own files cannot be read in
            place.
    """

    device: str = "auto"
    dtype: str = "auto"
    device_map: str | Path | Mapping[str, int | str] | None = None
    offload_folder: str | Path | None = None

    def __post_init__(self) -> None:
        from clew.hallucination.llm.placement import check_model, check_placement

        check_placement(self.device, self.dtype, self.device_map)
        model = getattr(self, "model", None)
        if isinstance(model, str | Path):
            check_model(str(model))

    @property
    def placement(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(ModelPlacement)}

    def place_reader(self) -> str:
        """The device for a reader. Raises InputError for a setting that readers do not have."""
        for name in ("dtype", "device_map", "offload_folder"):
            value = getattr(self, name)
            if value != getattr(ModelPlacement, name):
                raise InputError(
                    "a reader is loaded on one device, in the precision that it was trained for: "
                    "omit it.",
                    setting=name,
                    value=value,
                )
        return self.device


@dataclass(frozen=True, kw_only=True)
class ModelSettings(ModelPlacement):
    """Which language model is loaded, and how.

    Args:
        model: A Hugging Face model ID, a local folder, a .gguf file, or smollm2 (built in).
        dtype: auto, float32, float16 or bfloat16. auto is float32 on a CPU and the model's own
            type on a GPU.
        quantize: Load the weights in 4 or 8 bits. Requires "clew[quantize]".
    """

    model: str | Path = field(default="smollm2", kw_only=False)
    quantize: Literal["4bit", "8bit"] | None = None


@takes(ModelSettings)
def load_model(given: ModelSettings) -> "LoadedModel":
    """Load a language model and its tokenizer.

    `extract` accepts the result as its `model`, so that several runs load it once.

    Returns:
        The model and its tokenizer: `model, tokenizer = clew.load_model()`.

    Raises:
        InputError: The model is not available, or a setting cannot be used.

    Examples:
        >>> model, tokenizer = clew.load_model("smollm2")
    """
    from clew.hallucination.capture import load_model as load

    return load(str(given.model), quantize=given.quantize, **given.placement)


def load_libraries(reporter: Reporter, *modules: str, model: object = None) -> None:
    """Import PyTorch, transformers and `modules`. Raises InputError if `model`, the name of one to
    load, would have to be downloaded and cannot be."""
    from clew.hallucination.llm.placement import check_reachable

    check_reachable(model)
    load_modules(reporter, "torch", "transformers", *modules)


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """Where a command spreads its work.

    Args:
        workers: Number of workers on the cluster. [default: one per GPU or core]
    """

    cluster: Annotated[str | None, NeverFromFile] = None
    workers: int | None = None

    def refuse_without_cluster(self) -> None:
        """Raises InputError for workers without a cluster."""
        if self.cluster is None and self.workers is not None:
            raise InputError(
                'workers are processes of a cluster: give `cluster="ray"` too.',
                setting="workers",
                value=self.workers,
            )

    def spread(self, *, threads: int | None = None, device: str | None = None) -> "Spread | None":
        """None without a cluster. Raises InputError for workers without one."""
        from clew.cluster.workers import Spread

        self.refuse_without_cluster()
        if self.cluster is None:
            return None
        return select(Spread, self, threads=threads, device=device)


@dataclass(frozen=True, kw_only=True)
class OnRisk:
    """What becomes of answers that have no low risk.

    Args:
        on_risk: What happens to an answer whose risk is high, or that has none because it is not
            familiar or could not be checked: flag delivers it with its risk, withhold delivers
            nothing of it, replace delivers `replacement` instead.
        replacement: Text in place of an answer with `on_risk` replace.
    """

    on_risk: Literal["flag", "withhold", "replace"] = "flag"
    replacement: str | None = None


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """How a file of questions or answers is read.

    Args:
        columns: Which column is what, where the names do not say it: question=Frage,answer=Antwort.
            The roles are question, answer, context, id, label, spans, group, category, accepted
            (accepted answers) and messages; label= uses none. [default: by their names]
        label_values: What the labels mean: hallucinated=wrong,correct=right; none=unclear for no
            label. [default: as their words say]
        encoding: Encoding of a text file, such as latin-1. [default: recognized]
    """

    columns: str | Mapping[str, str | None] | None = None
    label_values: str | Mapping[str, str | Sequence[str]] | None = None
    encoding: str | None = None

    @property
    def row_format(self) -> "RowFormat":
        """Raises InputError for settings that cannot be used."""
        from clew.hallucination.questions.columns import parse_format

        keep = getattr(self, "keep_columns", None)
        return parse_format(self.columns, self.label_values, self.encoding, keep)


@dataclass(frozen=True, kw_only=True)
class ExtractSettings(ModelPlacement, OnCluster, RowSettings, Watched):
    """What `extract` takes.

    Args:
        model: A Hugging Face model ID, a local folder, a .gguf file, or smollm2 (built in).
        questions: A local file (.jsonl, .json, .csv, .tsv, .parquet, .arrow), a folder, a Hugging
            Face dataset as name:config:split, or a built-in set: facts, elements, arithmetic,
            languages, abbreviations, everyday, reading, statements, words, culture, facts-spans,
            or all; or small, or one of the small sets, such as units, rivers or code, which the
            shell completes.
        answers: given: the file has an answer to each question, and the model only reads it, in one
            pass; they may be any model's, and their labels and spans are kept. generate: the model
            answers. [default: generate; a file with answers and labels needs a choice]
        out: Folder of the store, or a URL: s3://bucket/prefix, gs:// or az://. It is created if
            it does not exist.
        num_samples: Use only the first N questions. [default: all]
        shard_size: Number of traces per shard.
        generation_batch: Number of questions to answer at once. [default: as many as fit in memory]
        max_new_tokens: Maximum length of an answer, in tokens.
        num_beams: Number of beams; 1 is greedy decoding.
        prompt: Prompt template that contains {question}, and {context} for questions that have one.
            [default: depends on the model, and on whether the accepted answers are short or
            sentences]
        chat: Use the tokenizer's chat template. [default: yes, if it has one]
        cut: Where to cut the answer: after its first sentence, after its first line, or not at
            all (none). [default: its first sentence; its first line where the accepted answers are
            sentences]
        keep: compact stores what detectors need; full also stores every hidden state and attention
            map.
        state_bits: Bits per value of the states that compact stores: 8 takes 0.6 times the space,
            and rounds them.
        node_dim: Number of principal components of the hidden state to keep per token and layer.
        edges_per_token: Number of strongest attention edges to keep per token and layer.
        basis: Store of traces whose principal components to use, so that methods on them compare
            across both stores. [default: fit new ones on the first questions]
        quantize: Load the weights in 4 or 8 bits. Requires "clew[quantize]".
        engine: What runs the model: clew's own engine, or vLLM. Traces by vLLM have no attention,
            so they are for methods on states and token probabilities. Requires "clew[vllm]".
        draws: Number of additional answers to sample per question, for semantic entropy. Only their
            text is stored.
        draw_temperature: Sampling temperature for these answers.
        self_evaluation: Ask the model whether each answer is true, for P(True) and CCS. Its
            probabilities are stored, and its states after either reply.
        entailment: Ask the model for every two drawn answers whether one entails the other, for
            the entropy over meanings. Requires two or more draws.
        part: Create only every Nth shard, starting with the Ith, so that several processes, each
            with its own I, can fill one store.
        join: Work on a store that other processes are filling: take one pending shard after
            another until none is left. Processes on any machine that sees the store may join at any
            time; the shard of one that dies is taken over.
        cluster: Run several workers on Ray: ray (the cluster of RAY_ADDRESS, one that runs here, or
            a new one on this machine) or ray://host:port. A worker that dies is replaced. Requires
            "clew[ray]".
        workers: Number of workers on the cluster, or to plan for. [default: one per GPU, or as many
            as the cores and the memory allow]
        dry_run: Capture nothing: predict tokens, bytes, memory and time from 50 questions, which
            are captured into a temporary folder.
        gpu: With a dry run, the GPU of each worker: t4, v100, a10, a100, a100-40gb, l4, l40s,
            rtx4090, h100, h100-pcie, h200 or b200. [default: this machine]
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
        should_stop: Called after loading the model, before the first batch and after every batch;
            when it returns True, the run saves its progress and stops.
    """

    model: "str | Path | LoadedModel" = "smollm2"
    questions: "str | Path | Sequence[str | Mapping[str, Any]] | DataFrame" = "facts"
    answers: Literal["generate", "given"] | None = None
    out: Annotated[str | Path, UrlNeverFromFile] = "traces_data"
    num_samples: int | None = None
    shard_size: int = 500
    generation_batch: int | None = None
    max_new_tokens: int = 32
    num_beams: int = 1
    prompt: str | None = None
    chat: bool | None = None
    cut: Literal["sentence", "line", "none"] | None = None
    keep: Literal["compact", "full"] = "compact"
    state_bits: int = 16
    node_dim: int = 64
    edges_per_token: int = 16
    basis: str | Path | None = None
    quantize: Literal["4bit", "8bit"] | None = None
    engine: Literal["clew", "vllm"] = "clew"
    draws: int = 0
    draw_temperature: float = 1.0
    self_evaluation: bool = False
    entailment: bool = False
    part: str = "1/1"
    join: bool = False
    dry_run: bool = False
    gpu: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self)
        for name in ("num_samples", "shard_size", "generation_batch", "max_new_tokens", "threads"):
            check_least(name, getattr(self, name))


@repeatable(
    "extract",
    always=("model", "questions", "out"),
    unrecorded=("part", "join", "cluster", "workers", "threads"),
    growing=("num_samples",),
    unless="dry_run",
)
@takes(ExtractSettings)
def extract(given: ExtractSettings) -> "TraceBatchLoader | Any":
    """Run a language model over questions and record its hidden states and attention.

    The store contains one trace per answer, which the model generates, or reads if answers are
    given. Run the same command again to resume a run that was
    stopped, was killed, or ran out of disk space.

    Returns:
        The store, as a `TraceBatchLoader`; of a dry run, the prediction: `hours`, `bytes`,
        `tokens`, `memory_bytes`, `bottleneck`, ...

    Raises:
        InputError: The model, the questions or a setting cannot be used.
        SettingsMismatchError: The store was started with different settings.
        StoreError: The folder contains something else, another process is writing this part of the
            store, or the disk is full.
        StoppedError: `should_stop` returned True; everything so far is saved.

    Examples:
        >>> traces = clew.extract(questions="facts", num_samples=200, out="traces_data")
        >>> traces.num_traces
        200
    """
    from clew.hallucination.questions.given import load_rows

    report = given.reporter or log_event
    asked = load_rows(given.questions, given.num_samples, given.answers, given.row_format, report)
    from clew.hallucination.capture import ExtractConfig, extract_on_cluster
    from clew.hallucination.capture.gpus import find_gpu
    from clew.hallucination.traces import TraceBatchLoader
    from clew.storage.lock import Part

    model, questions = given.model, given.questions
    loaded = None if isinstance(model, str | Path) else model
    is_named = isinstance(questions, str | Path)
    config = select(
        ExtractConfig,
        given,
        model=str(model) if loaded is None else loaded.name or loaded.model.name_or_path,
        questions=str(questions) if is_named else "facts",
        out=urls.as_path(given.out),
        basis=as_path(given.basis),
        quantize=given.quantize if loaded is None else loaded.quantize,
        offload_folder=as_path(given.offload_folder),
        part=Part.parse(given.part),
        cut=given.cut or "sentence",
        suit_answers=given.cut is None and given.prompt is None,
    )
    watching = given.reporter, given.should_stop
    if not given.dry_run:
        given.refuse_without_cluster()
    if given.gpu is not None:
        find_gpu(given.gpu)
    if not given.dry_run and given.gpu is not None:
        raise InputError("it is for a dry run: add `dry_run=True`.", setting="gpu", value=given.gpu)
    if given.engine == "vllm":
        _check_vllm(given)
    check_folders(given.basis)
    check_writable("out", given.out)
    if given.cluster is None or given.dry_run:
        load_libraries(report, model=given.model)
    if given.dry_run:
        from clew.hallucination.capture.dry_run import predict_run

        return predict_run(
            config, *watching, loaded, asked, workers=given.workers or 1, gpu=given.gpu
        )
    if given.cluster is None:
        from clew.hallucination.capture import extract as run

        result = run(config, *watching, loaded=loaded, questions=asked)
    else:
        if loaded is not None:
            raise InputError("each worker of a cluster loads the model itself: give its name.")
        result = extract_on_cluster(
            config, *watching, asked, cluster=given.cluster, workers=given.workers
        )
    if not result.finished:
        raise StoppedError(f"stopped; {counted(result.traces_made, 'new trace')} saved.")
    return TraceBatchLoader(given.out)


def _check_vllm(given: ExtractSettings) -> None:
    """Raises InputError if vLLM is not installed, or cannot do this."""
    from clew.hallucination.llm.embedded import require_vllm

    if given.dry_run or given.cluster is not None:
        raise InputError(
            "a dry run and a cluster use clew's own engine: omit `dry_run` and `cluster`, or use "
            '`engine="clew"`.',
            setting="engine",
            value=given.engine,
        )
    require_vllm()


@dataclass(frozen=True, kw_only=True)
class LabelSettings(OnCluster, Cached):
    """What `label` takes.

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
        next: Choose 20 answers without a label by hand to label next, to adapt `detector` to these
            answers: they are spread evenly over the risks that it gives. The review shows these.
            Each answer passes through its model.
        detector: The detector to adapt, for `next`.
        port: Port for the page; 0 picks any free port.
        browser: Open the page in the browser.
        reporter: Called with progress events. [default: the log]
    """

    store: str | Path = field(kw_only=False)
    out: Annotated[str | Path, UrlNeverFromFile] = "ground_truth_scores.csv"
    method: Literal["alias", "exact", "token-f1", "rouge-l"] | None = None
    score_threshold: float = 0.5
    overwrite: bool = False
    judge_url: Annotated[str | None, NeverFromFile] = None
    judge_model: str | None = None
    judge_key_env: Annotated[str, NeverFromFile] = "OPENAI_API_KEY"
    review: bool = False
    next: bool = False
    detector: str | Path | None = None
    port: int = 0
    browser: bool = True
    reporter: Reporter | None = None


@takes(LabelSettings)
def label(given: LabelSettings) -> "LabelResult":
    """Score each answer in a store against its accepted answers: 0 (hallucinated) to 1 (correct).

    Given answers keep the labels and spans of their file; only those without a label are scored.
    Answers in which the model declines to answer are refused: they have no score. The scores
    compare wording only, so check the doubtful examples that are printed; the column "correction"
    of the file is yours, wins, and is kept when you label again. A judge's replies are saved as
    they arrive, so an interrupted run pays only for the remaining answers.

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
    from clew.hallucination.detectors.folder import check_detector
    from clew.hallucination.hub import fetch_detector
    from clew.hallucination.labels.label import apply_corrections, label_store
    from clew.hallucination.labels.review import run_review
    from clew.pages.server import require_web
    from clew.storage.mirror import open_folder

    if given.review:
        require_web()
    given = replace(given, detector=fetch_detector(given.detector, given.reporter))
    check_detector(given.detector)
    check_writable("out", given.out, is_file=True)
    if given.next != (given.detector is not None):
        raise InputError("`next` and `detector` go together: give both, or neither.")
    judge, report = _read_judge(given), given.reporter or log_event
    where = given.spread(threads=1, device="cpu")
    if where is not None and judge is None:
        raise InputError("only a judge is asked on a cluster: give `judge_url` and `judge_model`.")
    done = 0

    def on_judged(judged: int, total: int) -> None:
        nonlocal done
        if not done:
            report(WorkStarted(noun="answers", verb="judged", planned=total))
        report(WorkAdvanced(count=judged - done))
        done = judged

    try:
        store = open_folder(given.store, cache_dir=given.cache_dir, cache_size=given.cache_size)
        result = label_store(
            store,
            given.out,
            method=given.method or "alias",
            judge=judge,
            score_threshold=given.score_threshold,
            overwrite=given.overwrite,
            keep_unlabeled=given.next,
            on_judged=on_judged,
            where=where,
            reporter=report,
        )
    finally:
        if done:
            report(WorkEnded())
    if given.detector is not None:
        load_libraries(report)
        from clew.hallucination.detectors import load_detector
        from clew.hallucination.live.existing import choose_to_label

        detector = load_detector(given.detector)
        result = replace(
            result, next=choose_to_label(urls.as_path(store), detector, result, report)
        )
    if not given.review:
        return result
    run_review(
        result.path,
        score_threshold=given.score_threshold,
        only=result.next,
        port=given.port,
        browser=given.browser,
    )
    return apply_corrections(result)


def _read_judge(given: LabelSettings) -> "ChatConfig | None":
    from clew.hallucination.labels.chat import ChatConfig

    url, model, method = given.judge_url, given.judge_model, given.method
    if url is None and model is None:
        return None
    if url is None or model is None:
        missing = "`judge_url`" if url is None else "`judge_model`"
        raise InputError(f"a judge requires `judge_url` and `judge_model`. Give {missing} as well.")
    if method is not None:
        raise InputError(f'the judge replaces `method="{method}"`. Give only one of the two.')
    key = os.environ.get(given.judge_key_env, "").strip() or None
    return ChatConfig(url=url, model=model, key=key, key_name=given.judge_key_env)


@dataclass(frozen=True, kw_only=True)
class PreprocessSettings(OnCluster, Cached):
    """What `preprocess` takes.

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
        reporter: Called with progress events. [default: the log]
    """

    store: str | Path = field(kw_only=False)
    scores_file: str | Path = "ground_truth_scores.csv"
    score_threshold: float = 0.5
    score_column: str | None = None
    higher_is: Literal["correct", "hallucinated"] | None = None
    skip_unlabeled: bool = False
    refused: Literal["exclude", "correct", "hallucinated"] = "exclude"
    spans_file: str | Path | None = None
    out: Annotated[str | Path, UrlNeverFromFile] = "preprocessed_data"
    attn_threshold: float = 0.0
    top_k: int | None = None
    node_dim: int | None = None
    split: str = "70/15/15"
    split_by: Literal["question", "file"] = "question"
    sequences: bool = True
    graphs: bool = True
    answers: bool = True
    heads: bool = True
    reporter: Reporter | None = None


@repeatable("preprocess", always=("store", "scores_file", "out"), unrecorded=("workers", "cluster"))
@takes(PreprocessSettings)
def preprocess(given: PreprocessSettings) -> "PreprocessResult":
    """Turn traces and their scores into samples for detectors, split by question.

    Run the same command again to resume an interrupted run, or to add new traces from a store that
    has grown; existing samples keep their split.

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
    from clew.hallucination.samples.source import Kind, PreprocessConfig
    from clew.loading.splits import parse_split

    kinds: tuple[Kind, ...] = ("sequences", "graphs", "answers", "heads")
    config = select(
        PreprocessConfig,
        given,
        store=urls.as_path(given.store),
        scores_file=Path(given.scores_file),
        out=urls.as_path(given.out),
        shares=parse_split(given.split),
        kinds=tuple(kind for kind in kinds if getattr(given, kind)),
        spans_file=as_path(given.spans_file),
        cache_dir=as_path(given.cache_dir),
        cache_size=None if (size := given.cache_size) is None else read_size("cache_size", size),
    )
    where = None if given.cluster is None else given.spread(threads=1, device="cpu")
    return preprocess_store(config, given.reporter, where)
