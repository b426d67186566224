"""Run a model over questions and write one trace per answer, shard by shard."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch

from clew.base.cores import count_cores
from clew.base.cpu import Threads
from clew.base.errors import StoppedError
from clew.base.progress import (
    Note,
    Reporter,
    StepStarted,
    WorkStarted,
    log_event,
    report_work,
)
from clew.base.urls import UrlPath
from clew.hallucination.capture.config import ExtractConfig, ExtractResult
from clew.hallucination.capture.job import (
    Job,
    estimate_run,
    explained_out_of_memory,
    prepare_job,
)
from clew.hallucination.capture.shard import Background, ShardCapture
from clew.hallucination.capture.store import MACHINE_KEY, TraceStore
from clew.hallucination.labels.normalize import answer_words
from clew.hallucination.llm.device_map import explain_spread, is_spread
from clew.hallucination.llm.models import LoadedModel, load_model, settle_threads
from clew.hallucination.llm.prompts import CHAT_PROMPT, SENTENCES, SHORT_ANSWERS, ends_sentence
from clew.hallucination.questions import QuestionSet
from clew.hallucination.questions.given import load_rows
from clew.storage.working_copy import scratch_root
from clew.storage.writing import refuse_full_disk

# What is timed to choose the number of threads.
_TIMED_PROMPTS = 8
# They are timed four times. Runs of fewer answers keep what was chosen when the model was loaded:
# preparing takes at most a tenth of a run.
_WORTH_TIMING = 10 * 4 * _TIMED_PROMPTS
# An accepted answer of more words is a sentence; of more than half as many, if it ends like one.
_FEW_WORDS = 6
# Questions whose accepted answers are looked at.
_LOOKED_AT = 1000
# The settings of a capture that say how its model is loaded.
_LOADING = ("dtype", "device", "quantize", "device_map", "offload_folder")


def extract(
    config: ExtractConfig,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    loaded: LoadedModel | None = None,
    questions: QuestionSet | None = None,
    on_ready: Callable[[Job], None] = lambda _: None,
) -> ExtractResult:
    """Capture a question set into `config.out`, or resume an earlier run. `loaded` is a model that
    is already in memory (from `load_model`); `config.model` is then only its name. `should_stop` is
    called after loading, before the first generation batch and after every batch; if it returns
    true, the run ends with everything captured so far on disk. `on_ready` is called before the
    first shard. Raises ClewError, StoppedError if nothing was started.
    """
    reporter = reporter or log_event
    questions = questions or load_rows(config.questions, config.num_samples, config.answers)
    store = TraceStore(
        config.out, rows_per_shard=config.shard_size, part=config.part, join=config.join
    )
    with store.writing(), Threads(_choose_threads(config, store), reporter) as threads:
        store.refuse_damaged_shards()
        if loaded is None:
            with report_work(reporter, StepStarted(name=f"loading {config.model}")):
                placed = {name: getattr(config, name) for name in _LOADING}
                if config.engine == "vllm":  # which has the device for itself
                    placed["device"] = "cpu"
                loaded = load_model(config.model, **placed)
            if should_stop():
                raise StoppedError("stopped; 0 new traces saved.")
        if is_spread(loaded.model):
            reporter(Note(explain_spread(loaded.model)))
        settle_threads(threads, loaded.model)
        with explained_out_of_memory("a batch of three prompts", loaded.device):
            if not config.is_given and _is_chat(config, loaded):
                recorded = store.recorded_settings
                config, questions = _suit_answers(config, questions, recorded, reporter)
            job = prepare_job(config, questions, loaded, store, reporter)
        on_ready(job)
        if (stored := store.manifest.rows) > store.rows:
            reporter(
                Note(
                    f"the store already has {stored:,} traces, more than the {store.rows:,} "
                    "requested; it keeps them all"
                )
            )
        pending = store.pending_shards()
        with closing(job.decoder):
            made = _capture_shards(job, pending, reporter, should_stop, threads) if pending else 0
        store.reload()
        store.refuse_damaged_shards()
        return ExtractResult(
            store=store.path,
            finished=not store.pending_shards(),
            traces_made=made,
            traces_stored=store.manifest.rows,
            skipped=len(store.manifest.skipped),
        )


def _is_chat(config: ExtractConfig, loaded: LoadedModel) -> bool:
    return config.chat is not False and bool(getattr(loaded.tokenizer, "chat_template", None))


def _suit_answers(
    config: ExtractConfig, questions: QuestionSet, recorded: Mapping[str, Any], reporter: Reporter
) -> tuple[ExtractConfig, QuestionSet]:
    """Ask a chat model for answers that look like the accepted ones, and cut them accordingly,
    unless the user or the set says how. A store that exists continues with its own prompt."""
    if config.prompt is not None or questions.instruction is not None:
        return config, questions
    instruction = _stored_instruction(recorded) if recorded else _choose_instruction(questions)
    cut = (recorded.get("generation") or {}).get("cut")
    if config.suit_answers and (cut or instruction == SENTENCES):
        config = replace(config, cut=cut or "line")
    if instruction:
        reporter(Note(f'the model is asked for answers like the accepted ones: "{instruction}"'))
    return config, replace(questions, instruction=instruction)


def _choose_instruction(questions: QuestionSet) -> str:
    """Empty where nothing is known about the answers, or where they have several parts."""
    every = (question.answers for question in islice(questions.questions, _LOOKED_AT))
    are_long = [all(map(_is_sentence, answers)) for answers in every if answers]
    if not are_long or questions.has_parts:
        return ""
    return SENTENCES if sum(are_long) > len(are_long) / 2 else SHORT_ANSWERS


def _is_sentence(text: str) -> bool:
    words = len(answer_words(text))
    return words > _FEW_WORDS or (words > _FEW_WORDS // 2 and ends_sentence(text))


def _stored_instruction(recorded: Mapping[str, Any]) -> str:
    template = (recorded.get("prompt") or {}).get("template", "")
    known = {f"{CHAT_PROMPT} {one}": one for one in (SHORT_ANSWERS, SENTENCES)}
    return known.get(template, "")


def _choose_threads(config: ExtractConfig, store: TraceStore) -> int | None:
    """A process that joins computes with as many threads as the store was started with, so that it
    rounds in the same way, unless it has fewer cores."""
    if config.threads is not None or not config.join:
        return config.threads
    recorded = store.recorded_settings.get(MACHINE_KEY, {}).get("threads")
    return min(recorded or torch.get_num_threads(), count_cores())


def _capture_shards(
    job: Job,
    pending: Sequence[int],
    reporter: Reporter,
    should_stop: Callable[[], bool],
    threads: Threads,
) -> int:
    """The number of captured traces."""
    store, config = job.store, job.config
    ids = array("q", chain.from_iterable(map(store.shard_rows, pending)))
    some = [job.rows.timed(i) for i in ids[:_TIMED_PROMPTS]]

    def settle(*, again: bool = False) -> None:
        if job.decoder.device.type == "cpu" and config.engine == "clew":
            threads.settle(lambda: job.decoder.time_batch(some), again=again)

    with (
        explained_out_of_memory("a single prompt", job.decoder.device),
        report_work(reporter, StepStarted(name="timing a batch of answers")),
    ):
        settle(again=len(ids) > _WORTH_TIMING)
        estimate, run_bytes = estimate_run(job, ids)
        _refuse_full_disk(store, run_bytes, pending)
    if config.draws:
        reporter(
            Note(
                f"sampling {config.draws} additional answers per question at temperature "
                f"{config.draw_temperature:g} (text only)"
            )
        )
    planned = store.rows_in(store.own_shards())
    started = WorkStarted(
        noun="traces",
        planned=planned,
        done=planned - len(ids),
        estimate=estimate,
        waiting=f"{'reading' if config.is_given else 'answering'} the first questions",
    )
    made = 0
    with report_work(reporter, started), closing(Background(reporter)) as background:
        for claim in store.claims(should_stop, background.wait, reporter):
            made += ShardCapture(job, claim, reporter, should_stop, background, settle).run()
        background.wait()
    return made


def _refuse_full_disk(store: TraceStore, run_bytes: int, pending: Sequence[int]) -> None:
    if isinstance(store.path, UrlPath):
        refuse_full_disk(
            scratch_root(),
            store.scratch_bytes(run_bytes, pending),
            what="on their way to a URL, shards may take up to",
            advice="Free some space, set TMPDIR to a folder on a larger disk, or make smaller "
            "shards (`shard_size`).",
        )
        return
    refuse_full_disk(
        store.path,
        # Space for unfinished shards of other parts is not available to this one.
        run_bytes - store.unfinished_bytes(pending),
        what="the run may write up to",
        advice="Free some space, choose another `out`, capture fewer questions (`num_samples`), or "
        'keep less (`keep="compact"`).',
    )
