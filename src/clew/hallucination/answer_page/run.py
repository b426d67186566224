"""Shows one answer, or the mistakes of a comparison: finds it, gathers what is drawn, writes the
pictures."""

import logging
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from clew.base.errors import ClewError, InputError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.base.texts import counted
from clew.hallucination.answer_page.latent import describe_latent
from clew.hallucination.answer_page.picture import Picture, ShownAnswer, read_answer
from clew.hallucination.answer_page.store import (
    Judged,
    find_answer,
    find_scores,
    find_traces,
    judge_answers,
    open_traces,
)
from clew.hallucination.traces import Trace, TraceBatchLoader
from clew.hallucination.traces.token_texts import read_token_texts
from clew.storage.writing import replace_file

if TYPE_CHECKING:
    from clew.hallucination.answer_page.verdict import Verdicts

GENERATOR = "clew show"
NOBODY = "none"
_ENDINGS = (".html", ".png")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ShowConfig:
    """`answer` and `beside` are a global_example_id or a question_id; `beside` "none" shows the
    answer alone, None lets the scores choose. Every path in `out` ends in .html or .png.
    `comparison` is the folder of a comparison, whose best method judges the answers."""

    store: Path
    answer: str
    out: tuple[Path, ...] = ()
    layer: int | None = None
    beside: str | None = None
    scores_file: Path | None = None
    score_threshold: float = 0.5
    tokenizer: str | None = None
    comparison: Path | None = None

    def __post_init__(self) -> None:
        for path in self.out:
            if path.suffix.lower() not in _ENDINGS:
                raise InputError(
                    f"it must end in {' or '.join(_ENDINGS)}, which determines the format.",
                    setting="out",
                    value=path,
                )


@dataclass(frozen=True, kw_only=True, repr=False)
class ShowResult:
    """What was drawn, and where."""

    picture: Picture
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The first file that was written."""
        return self.paths[0]

    def __repr__(self) -> str:
        numbers = " and ".join(str(answer.number) for answer in self.picture.answers)
        return f"ShowResult(answer {numbers}; {self.path})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame of its own."""
        page = escape(_render(self.picture, ".html").decode())
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 900px; border: 0"></iframe>'


def show_answer(config: ShowConfig) -> ShowResult:
    """Draw an answer; raises InputError or StoreError when there is nothing to draw."""
    loader = open_traces(config.store)
    trace = find_answer(loader, config.answer)
    paths = config.out or (Path(f"answer-{trace['global_example_id']}.html"),)
    for path in paths:
        refuse_foreign(path, GENERATOR, "out")
    picture = _gather(config, loader, trace)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _render(picture, path.suffix.lower()))
    return ShowResult(picture=picture, paths=tuple(paths))


def show_mistakes(
    folder: Path, preprocessed_dir: Path, reporter: Reporter | None = None
) -> list[Path]:
    """Write a page per mistake into the comparison's folder; call it before `write_report`, which
    links the pages that exist.

    `preprocessed_dir` holds the samples that were tested on. The traces they were made from are
    looked for nearby; without them, there are no pages. An answer that cannot be drawn is logged
    and skipped. Raises StoreError when the folder holds no finished comparison."""
    from clew.hallucination.comparison.report.answers import (
        ANSWERS_FOLDER,
        answer_page_path,
        listed_mistakes,
    )
    from clew.hallucination.comparison.report.comparison import read_comparison

    for page in (folder / ANSWERS_FOLDER).glob("answer-*.html"):
        if GENERATOR.encode() in page.read_bytes()[:2048]:
            page.unlink()  # of an earlier comparison, with other risks
    numbers = listed_mistakes(read_comparison(folder))
    traces, scores = find_traces(preprocessed_dir), find_scores(preprocessed_dir)
    if traces is None or not numbers:
        return []
    reporter = reporter or log_event
    drawn: list[Path] = []
    with report_work(reporter, WorkStarted(noun="answer pages", planned=len(numbers))):
        for number in numbers:
            config = ShowConfig(
                store=traces,
                answer=str(number),
                out=(folder / answer_page_path(number),),
                scores_file=scores,
                comparison=folder,
            )
            try:
                drawn += show_answer(config).paths
            except ClewError as error:
                logger.warning("answer %s has no page: %s", number, error)
            reporter(WorkAdvanced())
    return drawn


def _gather(config: ShowConfig, loader: TraceBatchLoader, trace: Trace) -> Picture:
    judged = None
    if config.scores_file is not None:
        judged = judge_answers(loader, config.scores_file, config.score_threshold)
    verdicts = None
    if config.comparison is not None:
        # It loads torch, which no other part of the picture needs.
        from clew.hallucination.answer_page.verdict import read_verdicts

        verdicts = read_verdicts(config.comparison)
    other, notes = _find_other(config, loader, trace, judged)
    notes += [verdicts.warning] if verdicts and verdicts.warning else []
    traces = [trace] if other is None else [trace, other]
    model = (loader.manifest.settings.get("model") or {}).get("id")
    answers = [_read(one, judged, verdicts, model, config.tokenizer, notes) for one in traces]
    layers = max(answer.layers for answer in answers)
    if not layers and all(answer.logprobs is None for answer in answers):
        raise InputError(
            f'answer {answers[0].number} of "{config.store}" has nothing to draw: its store has '
            "neither hidden states nor attention. Extract or convert the traces again with this "
            "version of clew."
        )
    latent = describe_latent(
        loader, judged, [a.states for a in answers], [a.number for a in answers]
    )
    if latent is not None and latent.excluded:
        verb = "is" if latent.excluded == 1 else "are"
        without = f"{counted(latent.excluded, 'answer')} without usable hidden states"
        notes.append(f"{without} {verb} excluded from the averages")
    return Picture(
        store=f"{config.store}",
        model=model,
        answers=tuple(answers),
        layer=_check_layer(config.layer, layers, trace.with_attention),
        layers=layers,
        latent=latent,
        notes=(*(judged.notes if judged else ()), *dict.fromkeys(notes)),
    )


def _find_other(
    config: ShowConfig, loader: TraceBatchLoader, trace: Trace, judged: Judged | None
) -> tuple[Trace | None, list[str]]:
    """The answer to show beside it, and a note when there is none."""
    number = trace["global_example_id"]
    if config.beside == NOBODY:
        return None, []
    if config.beside is not None:
        other = find_answer(loader, config.beside, "beside")
        if other["global_example_id"] == number:
            raise InputError(
                "that is the same answer. Give another one, or omit it.",
                setting="beside",
                value=config.beside,
            )
        return other, []
    if judged is None:
        return None, []
    chosen = judged.find_counterpart(number)
    if chosen is not None:
        return loader.get_trace_by_global_id(chosen), []
    kind, _ = judged.of(number)
    why = "it has no score" if kind is None else f"all answers with a score are {kind}"
    return None, [f"answer {number} is shown alone: {why}"]


def _read(
    trace: Trace,
    judged: Judged | None,
    verdicts: "Verdicts | None",
    model: str | None,
    tokenizer: str | None,
    notes: list[str],
) -> ShownAnswer:
    """The answer with its label, from the scores file or the comparison, and its verdict."""
    number = trace["global_example_id"]
    tokens = trace["tokens"]
    if tokens is None or not len(tokens):
        raise InputError(f"answer {number} has no tokens: there is nothing to draw.")
    texts, note = read_token_texts(tokens, trace.get("tokens_decoded"), model, tokenizer)
    notes += [note] if note else []
    kind, score = judged.of(number) if judged else (None, None)
    if verdicts is None:
        return read_answer(trace, texts, kind, score)
    verdict, label = verdicts.of(trace)
    if verdict is None:
        notes.append(
            f"answer {number} has no risk: it is not in the validation or test split of the "
            "comparison, or the comparison is of several stores"
        )
    risks = verdicts.risks_of(trace)
    return read_answer(trace, texts, kind or label, score, verdict, risks)


def _check_layer(layer: int | None, layers: int, attending: tuple[int, ...]) -> int:
    """By default the middle one, or the next that has attention."""
    if layer is None:
        return next((one for one in attending if layers > one >= layers // 2), layers // 2)
    if not layers:
        raise InputError("the traces have no layers; omit it.", setting="layer", value=layer)
    if not 0 <= layer < layers:
        raise InputError(f"the traces have layers 0 to {layers - 1}.", setting="layer", value=layer)
    return layer


def refuse_foreign(path: Path, generator: str, setting: str) -> None:
    """Raise InputError for a file that `generator` did not write; earlier pages are replaced."""
    if path.is_dir():
        raise InputError("this is a folder. Give a file in it.", setting=setting, value=path)
    if path.exists() and generator.encode() not in path.read_bytes()[:2048]:
        raise InputError(
            f'"{path}" was not written by "{generator}", so it is not replaced: choose another '
            f"`{setting}`, or delete the file first."
        )


def _render(picture: Picture, ending: str) -> bytes:
    from clew.hallucination.answer_page.page import render_page, render_png

    if ending == ".png":
        return render_png(picture, GENERATOR)
    return render_page(picture, GENERATOR).encode()
