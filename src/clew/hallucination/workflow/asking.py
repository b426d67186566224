"""Ask a model, and see how far each answer can be trusted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.commands import Watched, select, takes
from clew.base.errors import InputError, StoppedError
from clew.base.progress import Note, StepStarted, log_event, report_work
from clew.base.settings import check_exists
from clew.hallucination.workflow.extracting import ModelPlacement

if TYPE_CHECKING:
    from pandas import DataFrame

    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.hallucination.live.asking import Asker, AskResult
    from clew.hallucination.questions import Question


@dataclass(frozen=True, kw_only=True)
class AskSettings(ModelPlacement, Watched):
    """What `ask` takes.

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
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
        should_stop: Called between answers, and while a detector is built; when it returns True,
            the call stops.
    """

    question: str | Sequence[str] = field(default=(), kw_only=False)
    questions: "str | Path | Sequence[str | Mapping[str, Any]] | DataFrame | None" = None
    context: str | None = None
    num_samples: int | None = None
    detector: "str | Path | Detector | None" = None
    model: "str | Path | LoadedModel | None" = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    threads: int | None = None


@takes(AskSettings)
def ask(given: AskSettings) -> "AskResult":
    """Ask a language model, and estimate for each answer the probability that it is hallucinated.

    Without a detector, the built-in model is asked. A detector for it is built on first use, which
    takes a few minutes, and is kept in the user's cache.

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

    asked = read_questions(given)
    answers = []
    with open_asker(given) as asker:
        for answer in asker.ask(asked):
            answers.append(answer)
            if given.should_stop():
                raise StoppedError(f"stopped after {len(answers):,} of {len(asked):,} answers.")
    return AskResult(answers=tuple(answers))


def read_questions(given: AskSettings) -> "list[Question]":
    """The questions given one by one, then those of a file or a table. Raises InputError if there
    is none."""
    from clew.hallucination.questions import collect_questions, load_questions

    question, questions, most = given.question, given.questions, given.num_samples
    if not isinstance(question, Iterable):
        raise InputError(f"the question is {question!r:.100}: give a text, or a list of texts.")
    single = [question] if isinstance(question, str) else list(question)
    if single and all(isinstance(one, str) and not one.strip() for one in single):
        raise InputError('the question is empty. Give one, such as "In which country is Tartu?".')
    sets = [collect_questions(single)] if single else []
    if isinstance(questions, str | Path):
        sets.append(load_questions(str(questions), most))
    elif questions is not None:
        sets.append(collect_questions(questions, most))
    if not sets:
        raise InputError('there is no question. Give one, such as "In which country is Tartu?".')
    report = given.reporter or log_event
    for skipped in (one for some in sets for one in some.skipped):
        report(Note(f"excluded: {skipped.where}: {skipped.reason}"))
    found = (one for some in sets for one in some.questions)
    return [replace(one, context=one.context or given.context) for one in found]


def open_asker(given: AskSettings) -> "Asker":
    """Load the detector and its model, and get ready to answer. Raises as `ask` does."""
    from clew.hallucination.llm.requests import Sampling

    reporter = given.reporter or log_event
    sampling = select(Sampling, given)
    if given.max_new_tokens is not None and given.max_new_tokens < 1:
        raise InputError(
            "it must be 1 or more.", setting="max_new_tokens", value=given.max_new_tokens
        )
    check_exists("detector", given.detector)
    # Before the imports, which take seconds.
    with report_work(reporter, StepStarted(name="loading the model and its detector")):
        from clew.base.cpu import Threads
        from clew.hallucination.capture import LoadedModel, load_model
        from clew.hallucination.live.asking import Asker
        from clew.hallucination.live.built_in_detector import ready_detector
        from clew.hallucination.live.session import Session
        from clew.hallucination.llm.embedded import EMBEDDED_NAME

        threads = Threads(given.threads, reporter)
        detector, placed = given.detector, given.placement
        model = str(given.model) if isinstance(given.model, Path) else given.model
        if detector is None:
            if not isinstance(model, LoadedModel):
                model = load_model(model or EMBEDDED_NAME, **placed)
            detector = ready_detector(model, reporter, given.should_stop)
        session = Session.open(detector, model=model, **placed, reporter=reporter, threads=threads)
        return Asker(session=session, max_new_tokens=given.max_new_tokens, sampling=sampling)
