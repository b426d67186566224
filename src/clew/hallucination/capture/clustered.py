"""Capture on a cluster: workers that join the store, started and watched by Ray."""

import functools
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter, log_event
from clew.base.urls import resolved
from clew.cluster.connection import Cluster, WorkerPlan, connected, plan_workers
from clew.cluster.workers import run_workers
from clew.hallucination.capture.config import ExtractConfig, ExtractResult
from clew.hallucination.llm.embedded import EMBEDDED_NAME, embedded_model_folder
from clew.hallucination.questions import QuestionSet
from clew.hallucination.questions.given import load_rows
from clew.storage.leases import WORK_FOLDER, Heartbeat, Leases
from clew.storage.manifest import has_manifest, read_manifest
from clew.storage.places import open_place

# Memory of a worker besides the weights: the libraries, and a batch of answers.
_OTHER_BYTES = 1 << 30
# Weights are usually stored with 16 bits; a CPU computes with 32.
_CPU_FACTOR = 2
_WEIGHTS = (".safetensors", ".bin", ".gguf")


def extract_on_cluster(
    config: ExtractConfig,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    questions: QuestionSet | None = None,
    *,
    cluster: str,
    workers: int | None = None,
) -> ExtractResult:
    """As `extract`, by several workers: "ray" or "ray://host:port". The store is the one that a
    single process makes. Raises ClewError."""
    reporter = reporter or log_event
    _refuse_unfit(config)
    questions = questions or load_rows(config.questions, config.num_samples, config.answers)
    config = _with_full_paths(config)
    count_done = functools.partial(_count_done, config.out)
    with connected(cluster) as found, _run_lease(config.out) as run:
        plan = _plan(config, found, len(questions.questions), workers)
        reporter(Note(str(plan)))
        worker = replace(config, join=True, threads=plan.threads)
        work = functools.partial(_work, worker, questions, run)
        outcomes = run_workers(found, plan, work, reporter, should_stop, count_done)
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    manifest = read_manifest(config.out) if has_manifest(config.out) else None
    return ExtractResult(
        store=config.out,
        finished=any(result.finished for result in results),
        traces_made=sum(result.traces_made for result in results),
        traces_stored=manifest.rows if manifest else 0,
        skipped=len(manifest.skipped) if manifest else 0,
    )


@contextmanager
def _run_lease(out: Path) -> Iterator[str]:
    """The name of a lease that all workers must see: on a machine where `out` is another folder,
    they do not."""
    name, leases = f"run-{secrets.token_hex(8)}", Leases(open_place(out).child(WORK_FOLDER))
    leases.claim(name)
    try:
        with Heartbeat(leases):
            yield name
    finally:
        leases.release_all()
        leases.tidy()


def _count_done(out: Path) -> int:
    return read_manifest(out).rows if has_manifest(out) else 0


def _work(
    config: ExtractConfig,
    questions: QuestionSet,
    run: str,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> ExtractResult:
    """In a worker, which alone loads PyTorch."""
    from clew.hallucination.capture.extracting import extract

    if run not in Leases(open_place(config.out).child(WORK_FOLDER)).names():
        raise InputError(
            f"on {socket.gethostname()} this is another folder: use a URL, or a folder that all "
            "machines have mounted under the same path.",
            setting="out",
            value=config.out,
        )
    return extract(config, reporter, should_stop, questions=questions)


def _refuse_unfit(config: ExtractConfig) -> None:
    if config.join or config.part.count > 1:
        name = "join" if config.join else "part"
        raise InputError(f"the workers of a cluster share all shards: omit `{name}`.")
    if config.device not in ("auto", "cpu", "cuda"):
        raise InputError(
            "choose from: auto, cpu, cuda. Each worker gets a GPU of its own.",
            setting="device",
            value=config.device,
        )


def _with_full_paths(config: ExtractConfig) -> ExtractConfig:
    """The settings for a process in another folder."""
    model = Path(config.model)
    return replace(
        config,
        out=resolved(config.out),
        model=str(model.resolve()) if model.exists() else config.model,
        basis=None if config.basis is None else resolved(config.basis),
    )


def _plan(
    config: ExtractConfig, cluster: Cluster, questions: int, workers: int | None
) -> WorkerPlan:
    use_gpus = config.device != "cpu" and cluster.gpus > 0
    if config.device == "cuda" and not cluster.gpus:
        raise InputError("the cluster has no GPU.", setting="device", value=config.device)
    done = len(read_manifest(config.out).shards) if has_manifest(config.out) else 0
    return plan_workers(
        cluster,
        units=-(-questions // config.shard_size) - done,
        workers=workers,
        threads=config.threads,
        use_gpus=use_gpus,
        free_bytes=psutil.virtual_memory().available if cluster.nodes == 1 else None,
        worker_bytes=_CPU_FACTOR * _weights_bytes(config.model) + _OTHER_BYTES,
    )


def _weights_bytes(name: str) -> int:
    """The size of a model's weights on this machine's disk; 0 if they are not here."""
    folder = embedded_model_folder() if name == EMBEDDED_NAME else Path(name).expanduser()
    files = [folder] if folder.is_file() else [*folder.glob("*")] if folder.is_dir() else []
    return sum(file.stat().st_size for file in files if file.suffix in _WEIGHTS)
