"""Ask a model, and see how far each answer can be trusted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Note, Reporter, StepStarted, log_event, report_work
from clew.base.settings import check_exists

if TYPE_CHECKING:
    from pandas import DataFrame

    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.hallucination.live.asking import Asker, AskResult
    from clew.hallucination.questions import Question


def ask(
    question: str | Sequence[str] = (),
    *,
    questions: "str | Path | Sequence[str | Mapping[str, Any]] | DataFrame | None" = None,
    context: str | None = None,
    num_samples: int | None = None,
    detector: "str | Path | Detector | None" = None,
    model: "str | Path | LoadedModel | None" = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: "str | Path | Mapping[str, int | str] | None" = None,
    offload_folder: str | Path | None = None,
    threads: int | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "AskResult":
    """Ask a language model, and estimate for each answer the probability that it is hallucinated.

    Without a detector, the built-in model is asked. A detector for it is built on first use, which
    takes a few minutes, and is kept in the user's cache.

    Args:
        question: The question, or several.
        questions: A file of questions (.jsonl, .json, .csv, .tsv, .parquet, .arrow), a folder, a
            Hugging Face dataset as name:config:split, or a built-in set such as facts or culture.
        context: Text to answer from; for all questions that do not have their own.
        num_samples: Use only the first N questions of `questions`. [default: all]
        detector: Folder of a detector, such as the one that "clew compare" keeps. [default: the
            ready one for the built-in model]
        model: The model that the detector was trained for, if it is now elsewhere: a Hugging Face
            model ID, a local folder or a .gguf file. [default: the one that the detector names]
        max_new_tokens: Maximum length of an answer, in tokens. [default: as in training]
        temperature: Sampling temperature; 0 always takes the most likely token.
        top_p: Sample only from the most likely tokens that have this probability together.
        seed: Seed of the sampling. [default: a random one]
        device: auto, cpu, cuda or cuda:1.
        dtype: auto, float32, float16 or bfloat16.
        device_map: Where the layers of a model go that is larger than one GPU: auto spreads them
            over GPUs, CPU memory and disk; or a JSON file that maps modules to devices.
            [default: all on `device`]
        offload_folder: Folder for weights on disk, where the model's own files cannot be read in
            place.
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
        reporter: Called with progress events. [default: the log]
        should_stop: Called between answers, and while a detector is built; when it returns True,
            the call stops.

    Returns:
        The answers: a sequence, in which each has `text`, `risk`, `verdict`, `state` and `tokens`,
        and a table with one row per answer.

    Raises:
        InputError: There is no question, or a setting, the model or the detector cannot be used.
        StoreError: The detector is damaged.
        StoppedError: `should_stop` returned True.

    Examples:
        >>> answers = clew.ask("In which country is Tartu?")
        >>> answers[0].text, answers[0].risk
    """
    from clew.hallucination.live.asking import AskResult

    report = reporter or log_event
    asked = read_questions(question, questions, context, num_samples, report)
    answers = []
    with open_asker(
        detector=detector,
        model=model,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        device=device,
        dtype=dtype,
        device_map=device_map,
        offload_folder=offload_folder,
        threads=threads,
        reporter=report,
        should_stop=should_stop,
    ) as asker:
        for answer in asker.ask(asked):
            answers.append(answer)
            if should_stop():
                raise StoppedError(f"stopped after {len(answers):,} of {len(asked):,} answers.")
    return AskResult(answers=tuple(answers))


def read_questions(
    question: str | Iterable[str],
    questions: Any,
    context: str | None,
    num_samples: int | None,
    reporter: Reporter,
) -> "list[Question]":
    """The questions given one by one, then those of a file or a table. Raises InputError if there
    is none."""
    from dataclasses import replace

    from clew.hallucination.questions import collect_questions, load_questions

    if not isinstance(question, Iterable):
        raise InputError(f"the question is {question!r:.100}: give a text, or a list of texts.")
    single = [question] if isinstance(question, str) else list(question)
    if single and all(isinstance(one, str) and not one.strip() for one in single):
        raise InputError('the question is empty. Give one, such as "In which country is Tartu?".')
    sets = [collect_questions(single)] if single else []
    if isinstance(questions, str | Path):
        sets.append(load_questions(str(questions), num_samples))
    elif questions is not None:
        sets.append(collect_questions(questions, num_samples))
    if not sets:
        raise InputError('there is no question. Give one, such as "In which country is Tartu?".')
    for skipped in (one for some in sets for one in some.skipped):
        reporter(Note(f"excluded: {skipped.where}: {skipped.reason}"))
    given = (one for some in sets for one in some.questions)
    return [replace(one, context=one.context or context) for one in given]


def open_asker(
    *,
    detector: "str | Path | Detector | None",
    model: "str | Path | LoadedModel | None",
    max_new_tokens: int | None,
    temperature: float,
    top_p: float,
    seed: int | None,
    device: str,
    dtype: str,
    device_map: "str | Path | Mapping[str, int | str] | None",
    offload_folder: str | Path | None,
    threads: int | None,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> "Asker":
    """Load the detector and its model, and get ready to answer. Raises as `ask` does."""
    from clew.hallucination.llm.requests import Sampling

    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError("it must be 1 or more.", setting="max_new_tokens", value=max_new_tokens)
    check_exists("detector", detector)
    # Before the imports, which take seconds.
    with report_work(reporter, StepStarted(name="loading the model and its detector")):
        from clew.base.cpu import Threads
        from clew.hallucination.capture import LoadedModel, load_model
        from clew.hallucination.live.asking import Asker
        from clew.hallucination.live.ready import ready_detector
        from clew.hallucination.live.session import Session
        from clew.hallucination.llm.embedded import EMBEDDED_NAME

        chosen = Threads(threads, reporter)
        placed: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "device_map": device_map,
            "offload_folder": offload_folder,
        }
        given = str(model) if isinstance(model, Path) else model
        if detector is None:
            if not isinstance(given, LoadedModel):
                given = load_model(given or EMBEDDED_NAME, **placed)
            detector = ready_detector(given, reporter, should_stop)
        session = Session.open(detector, model=given, **placed, reporter=reporter, threads=chosen)
        return Asker(session=session, max_new_tokens=max_new_tokens, sampling=sampling)
