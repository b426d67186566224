"""From questions to a store of traces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from clew.base import urls
from clew.base.commands import Watched, select, takes
from clew.base.errors import InputError, StoppedError
from clew.base.settings import as_path
from clew.base.texts import counted
from clew.storage.run_file import NeverFromFile, UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    import pandas
    import polars

    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.traces import TraceBatchLoader

    DataFrame: TypeAlias = "pandas.DataFrame | polars.DataFrame"


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

    @property
    def placement(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(ModelPlacement)}


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


@dataclass(frozen=True, kw_only=True)
class ExtractSettings(ModelPlacement, Watched):
    """What `extract` takes.

    Args:
        model: A Hugging Face model ID, a local folder, a .gguf file, or smollm2 (built in).
        questions: A local file (.jsonl, .json, .csv, .tsv, .parquet, .arrow), a folder, a Hugging
            Face dataset as name:config:split, or a built-in set: facts, elements, arithmetic,
            languages, abbreviations, everyday, reading, statements, words, culture, facts-spans,
            or all.
        out: Folder of the store, or a URL: s3://bucket/prefix, gs:// or az://. It is created if
            it does not exist.
        num_samples: Use only the first N questions. [default: all]
        shard_size: Number of traces per shard.
        generation_batch: Number of questions to answer at once. [default: as many as fit in memory]
        max_new_tokens: Maximum length of an answer, in tokens.
        num_beams: Number of beams; 1 is greedy decoding.
        prompt: Prompt template that contains {question}, and {context} for questions that have one.
            [default: depends on the model]
        chat: Use the tokenizer's chat template. [default: yes, if it has one]
        cut: Where to cut the answer: after its first sentence, after its first line, or not at
            all (none).
        keep: compact stores what detectors need; full also stores every hidden state and attention
            map.
        node_dim: Number of principal components of the hidden state to keep per token and layer.
        edges_per_token: Number of strongest attention edges to keep per token and layer.
        basis: Store of traces whose principal components to use, so that methods on them compare
            across both stores. [default: fit new ones on the first questions]
        quantize: Load the weights in 4 or 8 bits. Requires "clew[quantize]".
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
    out: Annotated[str | Path, UrlNeverFromFile] = "traces_data"
    num_samples: int | None = None
    shard_size: int = 500
    generation_batch: int | None = None
    max_new_tokens: int = 32
    num_beams: int = 1
    prompt: str | None = None
    chat: bool | None = None
    cut: Literal["sentence", "line", "none"] = "sentence"
    keep: Literal["compact", "full"] = "compact"
    node_dim: int = 64
    edges_per_token: int = 16
    basis: str | Path | None = None
    quantize: Literal["4bit", "8bit"] | None = None
    draws: int = 0
    draw_temperature: float = 1.0
    self_evaluation: bool = False
    entailment: bool = False
    part: str = "1/1"
    join: bool = False
    cluster: Annotated[str | None, NeverFromFile] = None
    workers: int | None = None
    dry_run: bool = False
    gpu: str | None = None
    threads: int | None = None


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

    The store contains one trace per answer. Run the same command again to resume a run that was
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
    from clew.hallucination.capture import ExtractConfig, extract_on_cluster
    from clew.hallucination.questions import collect_questions
    from clew.hallucination.traces import TraceBatchLoader
    from clew.hallucination.workflow.spreading import refuse_workers
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
    )
    watching = given.reporter, given.should_stop
    asked = None if is_named else collect_questions(questions, given.num_samples)
    if given.dry_run:
        from clew.hallucination.capture.dry_run import predict_run

        return predict_run(
            config, *watching, loaded, asked, workers=given.workers or 1, gpu=given.gpu
        )
    if given.gpu is not None:
        raise InputError("it is for a dry run: add `dry_run=True`.", setting="gpu", value=given.gpu)
    if given.cluster is None:
        from clew.hallucination.capture import extract as run

        refuse_workers(given.workers)
        result = run(config, *watching, loaded=loaded, questions=asked)
    else:
        _refuse_loaded(loaded)
        result = extract_on_cluster(
            config, *watching, asked, cluster=given.cluster, workers=given.workers
        )
    if not result.finished:
        raise StoppedError(f"stopped; {counted(result.traces_made, 'new trace')} saved.")
    return TraceBatchLoader(given.out)


def _refuse_loaded(loaded: "LoadedModel | None") -> None:
    if loaded is not None:
        raise InputError("each worker of a cluster loads the model itself: give its name.")
