"""Label a store: a score for every answer that can be scored, how doubtful each is, so that a
person looks at the doubtful ones first, and examples to check by hand."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pyarrow as pa
from rapidfuzz import fuzz

from clew.base.errors import InputError
from clew.base.progress import Reporter, ignore_event
from clew.base.tables import Tabular
from clew.base.urls import as_path, local_path
from clew.cluster.workers import Spread
from clew.hallucination.labels.answers import (
    JUDGED,
    REFUSED,
    UNLABELED,
    Label,
    LabeledAnswer,
    StoredAnswer,
    open_traces,
    read_answers,
)
from clew.hallucination.labels.chat import ChatConfig
from clew.hallucination.labels.judge import OnJudged, judge_answers
from clew.hallucination.labels.methods import Method, match_answer, match_tokens
from clew.hallucination.labels.normalize import answer_words, normalize_answer
from clew.hallucination.labels.spans import Span, SpanLabeler, given_spans, score_spans
from clew.hallucination.labels.table import (
    OWN_COLUMNS,
    SPAN_COLUMNS,
    read_corrections,
    spans_beside,
    write_table,
)
from clew.hallucination.traces.schema import ANSWERS_KEY, GIVEN
from clew.storage.manifest import Manifest

DEFAULT_THRESHOLD = 0.5
# From 0 to 1, by what stands between an answer and its label.
_DOUBTS = {
    "one of several": (0.9, "it names several"),
    "hedged": (0.9, "it hedges"),
    "contradicted": (0.85, "it contradicts or corrects itself"),
    "aside": (0.8, "it mentions an accepted answer beside another"),
    "other name": (0.8, "a longer name contains an accepted answer"),
    "denied": (0.75, "it denies an accepted answer"),
    "repeats the question": (0.7, "it repeats words of the question"),
    REFUSED: (0.6, "it declines to answer"),
    "same value": (0.5, "the same value in other words"),
    "same list": (0.5, "the same list in another order"),
    "declines": (0.4, "it declines to answer, which is accepted"),
}
# Whose labels are compared with the words, by the reason of a score.
_LABELED_BY = {"the judge": JUDGED, "its label in the file": GIVEN}
# The similarity, 0 to 100, from which a text may be a spelling of an accepted answer.
_SIMILAR = 75
_LEAST_LETTERS = 4  # a shorter text is in many others by chance
_LARGE = 0.4
_EACH = 4  # examples of a kind
_MANY_WORDS = 40
_MOST_BY_LENGTH = 0.65


@dataclass(frozen=True, kw_only=True)
class CategoryShare:
    """The number of answers of a category, and how many of them are hallucinated or refused."""

    category: str
    answers: int
    hallucinated: int
    refused: int = 0


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A few answers of each kind; the doubtful ones are not among the others."""

    correct: list[LabeledAnswer]
    hallucinated: list[LabeledAnswer]
    doubtful: list[LabeledAnswer]
    refused: list[LabeledAnswer] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelResult(Tabular):
    """The rows of the scores file in the order of `global_example_id`, and a summary. `excluded`
    are the question ids of answers without accepted answers, and without a label if they were
    given. `written` is False if the file already
    had exactly these rows. If questions ask for several facts, `spans` say where the answers state
    them, in `spans_path`; `unclear` are the question ids of answers that state none of them
    clearly. `lost_corrections` is the number of corrections in the file before that are of other
    answers. `next` are the numbers (`global_example_id`) of the answers to label next,
    if they were asked for.
    """

    path: Path
    rows: list[LabeledAnswer]
    excluded: list[str]
    score_threshold: float
    categories: list[CategoryShare]
    examples: Examples
    planned_rows: int | None
    written: bool
    spans: list[Span] = field(default_factory=list)
    spans_path: Path | None = None
    unclear: list[str] = field(default_factory=list)
    lost_corrections: int = 0
    next: list[int] | None = None

    @property
    def table(self) -> pa.Table:
        """The rows of the scores file."""
        return pa.Table.from_pylist([asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        refused = f", {self.refused:,} refused" if self.refused else ""
        return (
            f"LabelResult({len(self.rows):,} answers, {self.hallucinated:,} hallucinated at "
            f"score < {self.score_threshold:g}{refused}; {self.path})"
        )

    def count(self, label: Label) -> int:
        """The number of answers of a class; corrections win over scores."""
        return sum(row.label(self.score_threshold) == label for row in self.rows)

    @property
    def correct(self) -> int:
        return self.count("correct")

    @property
    def hallucinated(self) -> int:
        return self.count("hallucinated")

    @property
    def refused(self) -> int:
        """Answers that the model refused: in neither class."""
        return self.count("refused")

    @property
    def corrected(self) -> int:
        """Answers that a person has labeled."""
        return sum(row.correction is not None for row in self.rows)

    @property
    def doubtful(self) -> int:
        """Answers that a person should look at."""
        doubts = (find_doubt(row, self.score_threshold) for row in self.rows)
        return sum(doubt.is_large for doubt in doubts)

    @property
    def hallucinated_share(self) -> float:
        """Of the answers that are correct or hallucinated."""
        return self.hallucinated / max(1, self.hallucinated + self.correct)


def label_store(
    store: str | Path,
    out: str | Path,
    *,
    method: Method = "alias",
    judge: ChatConfig | None = None,
    score_threshold: float = DEFAULT_THRESHOLD,
    overwrite: bool = False,
    keep_unlabeled: bool = False,
    on_judged: OnJudged | None = None,
    where: Spread | None = None,
    reporter: Reporter = ignore_event,
) -> LabelResult:
    """Score the answers of a trace store and write the scores file. Labels and spans of given
    answers are those of their file. With `judge`, a model behind a
    chat endpoint scores instead of `method`, asked by the workers of a cluster if `where` is given.
    `reporter` is told about these. With `keep_unlabeled`, answers that cannot be scored have a row
    without a score, for a person to label; a row that was labeled so stays. Raises
    InputError if no answer can be scored, or if `out` has other contents and `overwrite` is not
    given.
    """
    out = local_path(out)
    _check_settings(out, method, score_threshold)
    reader = open_traces(as_path(store))
    is_given = reader.manifest.settings.get(ANSWERS_KEY) == GIVEN
    answers = list(read_answers(reader, contexts=is_given and judge is not None))
    labeled = [answer for answer in answers if answer.given_score is not None]
    others = [answer for answer in answers if answer.given_score is None]
    # A judge can read a given answer and its source without an accepted answer.
    usable = [one for one in others if one.accepted or (is_given and judge)]
    left = [one for one in others if not (one.accepted or (is_given and judge))]
    by_hand = {*read_corrections(out)}
    waits = [keep_unlabeled or (a.question_id, a.global_example_id) in by_hand for a in left]
    waiting = [one for one, is_kept in zip(left, waits, strict=True) if is_kept]
    excluded = [one.question_id for one, kept in zip(left, waits, strict=True) if not kept]
    spans = _label_spans(answers)
    rows = (
        _judge(usable, judge, out, on_judged, where, reporter)
        if judge
        else _score(usable, method, spans)
    )
    rows += map(_label_given, labeled)
    rows += [LabeledAnswer.of(one, None, UNLABELED, "", UNLABELED) for one in waiting]
    if not rows:
        raise InputError(_why_none(store, reader.manifest, len(excluded)))
    rows.sort(key=lambda row: row.global_example_id)
    rows, lost = _keep_corrections(out, rows)
    scored = {row.global_example_id for row in rows}
    written = write_table(out, rows, OWN_COLUMNS, overwrite=overwrite)
    found = [span for number in sorted(spans) for span in spans[number]]
    if spans:
        write_table(spans_beside(out), found, SPAN_COLUMNS, overwrite=overwrite)
    return LabelResult(
        path=out,
        rows=rows,
        excluded=excluded,
        score_threshold=score_threshold,
        categories=_count_categories(rows, score_threshold),
        examples=choose_examples(rows, score_threshold),
        planned_rows=reader.manifest.planned_rows,
        written=written,
        spans=found,
        spans_path=spans_beside(out) if spans else None,
        unclear=[a.question_id for a in usable if a.global_example_id not in scored],
        lost_corrections=lost,
    )


def apply_corrections(result: LabelResult) -> LabelResult:
    """The result with what the scores file says by now, after a review."""
    rows, _ = _keep_corrections(result.path, result.rows)
    return replace(
        result,
        rows=rows,
        written=result.written or rows != result.rows,
        categories=_count_categories(rows, result.score_threshold),
        examples=choose_examples(rows, result.score_threshold),
    )


def _keep_corrections(out: Path, rows: Sequence[LabeledAnswer]) -> tuple[list[LabeledAnswer], int]:
    """The rows with what a person corrected in the file before, if it is of the same answers; and
    the number of other corrections."""
    before = read_corrections(out)
    kept = []
    for row in rows:
        answer, label = before.get((row.question_id, row.global_example_id), (None, None))
        kept.append(replace(row, correction=label) if answer == row.answer else row)
    return kept, len(before) - sum(row.correction is not None for row in kept)


def _check_settings(out: Path, method: str, score_threshold: float) -> None:
    if method not in get_args(Method):
        known = ", ".join(get_args(Method))
        raise InputError(f"choose from: {known}.", setting="method", value=method)
    if out.is_dir():
        raise InputError("this is a folder. Give the file to write.", setting="out", value=out)
    if not 0 < score_threshold <= 1:
        raise InputError(
            "it must be greater than 0 and at most 1. Answers with a lower score count as "
            "hallucinated; 0.5 is typical.",
            setting="score_threshold",
            value=score_threshold,
        )


def _why_none(store: str | Path, manifest: Manifest, answers: int) -> str:
    if not manifest.rows:
        return f'"{store}" has no finished shard yet: run "clew extract" first.'
    if manifest.settings.get(ANSWERS_KEY) == GIVEN:
        return (
            f'none of the {answers:,} answers in "{store}" has a label or accepted answers: add a '
            "column to their file, such as hallucinated or correct, and read them again, or use a "
            "judge (`judge_url`, `judge_model`)."
        )
    return (
        f'none of the {answers:,} answers in "{store}" has accepted answers to compare with: '
        'run "clew extract" on questions that have an answer column, or provide a file with the '
        "columns question_id and score (1 = correct, 0 = hallucinated)."
    )


def _label_spans(answers: Sequence[StoredAnswer]) -> dict[int, list[Span]]:
    """The spans of answers to questions that ask for several facts, and of given answers if their
    file has spans."""
    asked = [answer for answer in answers if answer.accepted and answer.parts]
    labeler = SpanLabeler(name for answer in asked for name in answer.accepted)
    found = {answer.global_example_id: labeler.label(answer) for answer in asked}
    if any(answer.given_spans is not None for answer in answers):
        found |= {one.global_example_id: given_spans(one) for one in answers}
    return found


def _score(
    answers: Iterable[StoredAnswer], method: Method, spans: Mapping[int, Sequence[Span]]
) -> list[LabeledAnswer]:
    """The alias method scores answers of several parts by their spans; those that are not clear are
    omitted."""
    rows = []
    for answer in answers:
        whole = answer.in_one_text
        if answer.parts and method == "alias":
            score = score_spans(spans[answer.global_example_id])
            if score is not None:
                reason = "all parts" if score else "a part is hallucinated"
                rows.append(LabeledAnswer.of(whole, score, method, whole.accepted[0], reason))
            continue
        match = match_answer(method, whole.text, whole.accepted, whole.question)
        score = None if match.is_refused else match.score
        rows.append(LabeledAnswer.of(whole, score, method, match.accepted, match.reason))
    return rows


def _judge(
    usable: Iterable[StoredAnswer],
    judge: ChatConfig,
    out: Path,
    on_judged: OnJudged | None,
    where: Spread | None,
    reporter: Reporter,
) -> list[LabeledAnswer]:
    """The judge does not say which accepted answer it matched: the one with the most words in
    common is recorded. What it finds wrong may be refused; the reason says where words and judge
    disagree."""
    answers = [answer.in_one_text for answer in usable]
    if not answers:
        return []
    out.parent.mkdir(parents=True, exist_ok=True)
    side_file = out.with_name(f"{out.name}.judged.jsonl")
    scores = judge_answers(answers, judge, side_file, on_judged, where, reporter)
    return [_label_judged(*one, judge.model) for one in zip(answers, scores, strict=True)]


def _label_given(answer: StoredAnswer) -> LabeledAnswer:
    """The label of the file wins; the reason says where the accepted answers disagree."""
    assert answer.given_score is not None
    accepted, reason = "", GIVEN
    if answer.accepted:
        accepted = match_tokens(answer.text, answer.accepted).accepted
        words = match_answer("alias", answer.text, answer.accepted, answer.question)
        if (words.score >= DEFAULT_THRESHOLD) != (answer.given_score >= DEFAULT_THRESHOLD):
            reason = f"{GIVEN}; the words: {words.reason}"
    return LabeledAnswer.of(answer, answer.given_score, GIVEN, accepted, reason)


def _label_judged(answer: StoredAnswer, score: float, model: str) -> LabeledAnswer:
    if not answer.accepted:
        return LabeledAnswer.of(answer, score, f"judge {model}", "", JUDGED)
    closest = match_tokens(answer.text, answer.accepted).accepted
    words = match_answer("alias", answer.text, answer.accepted, answer.question)
    if words.is_refused and score < DEFAULT_THRESHOLD:
        return LabeledAnswer.of(answer, None, f"judge {model}", closest, REFUSED)
    agree = (words.score >= DEFAULT_THRESHOLD) == (score >= DEFAULT_THRESHOLD)
    reason = JUDGED if agree else f"{JUDGED}; the words: {words.reason}"
    return LabeledAnswer.of(answer, score, f"judge {model}", closest, reason)


def _count_categories(rows: Iterable[LabeledAnswer], threshold: float) -> list[CategoryShare]:
    """The share of hallucinated answers per category, by name; empty if the store has no
    categories."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row.category or ""][row.label(threshold)] += 1
    if set(counts) == {""}:
        return []
    return [
        CategoryShare(
            category=name or "(none)",
            answers=count["correct"] + count["hallucinated"],
            hallucinated=count["hallucinated"],
            refused=count["refused"],
        )
        for name, count in sorted(counts.items())
    ]


class Doubt(NamedTuple):
    """From 0 (none) to 1, and what it is about."""

    value: float
    about: str = ""

    @property
    def is_large(self) -> bool:
        """Whether a person should look at the answer."""
        return self.value >= _LARGE


def find_doubt(row: LabeledAnswer, threshold: float) -> Doubt:
    """The doubt about an answer's label; none if a person has corrected it."""
    if row.correction is not None:
        return Doubt(0.0)
    for whose, reason in _LABELED_BY.items():
        if row.reason.startswith(reason):
            is_agreed = row.reason == reason
            return Doubt(0.0) if is_agreed else Doubt(1.0, f"{whose} and the words disagree")
    if row.reason in _DOUBTS:
        return Doubt(*_DOUBTS[row.reason])
    if row.score is not None and 0 < row.score < 1:
        near = 1 - min(1.0, abs(row.score - threshold))
        return Doubt(near, f"its score of {row.score:.2f} is near {threshold:g}")
    return _doubt_length(row) if row.score else _doubt_similarity(row)


def _doubt_length(row: LabeledAnswer) -> Doubt:
    extra = len(answer_words(row.answer)) - len(answer_words(row.accepted_answer))
    if extra <= 0:
        return Doubt(0.0)
    return Doubt(min(_MOST_BY_LENGTH, extra / _MANY_WORDS), f"it has {extra} more words")


def _doubt_similarity(row: LabeledAnswer) -> Doubt:
    """A near miss has words in common with an accepted answer, or is spelled almost like it."""
    said, mine = normalize_answer(row.answer), {*answer_words(row.answer)}
    asked = {*answer_words(row.question)}
    best = Doubt(0.0)
    for alias in row.accepted_answers or (row.accepted_answer,):
        theirs = {*answer_words(alias)} - asked
        shared = len(theirs & mine) / max(1, len(theirs))
        likeness = fuzz.partial_ratio(normalize_answer(alias), said) if said else 0.0
        if shared:
            best = max(best, Doubt(0.5 + 0.4 * shared, f'it shares words with "{alias}"'))
        elif likeness >= _SIMILAR and len(alias) >= _LEAST_LETTERS:
            best = max(best, Doubt(likeness / 120, f'it is spelled almost like "{alias}"'))
    return best


def choose_examples(rows: Sequence[LabeledAnswer], threshold: float) -> Examples:
    """Correct and hallucinated answers from all over the store, and the doubtful ones."""
    correct, hallucinated, refused = (
        [row for row in rows if row.label(threshold) == label]
        for label in ("correct", "hallucinated", "refused")
    )
    doubtful = [*_doubtful(correct, threshold), *_doubtful(hallucinated, threshold)]
    shown = {row.global_example_id for row in doubtful}
    return Examples(
        correct=_spread([row for row in correct if row.global_example_id not in shown]),
        hallucinated=_spread([row for row in hallucinated if row.global_example_id not in shown]),
        doubtful=doubtful,
        refused=_spread(refused)[: _EACH // 2],
    )


def _spread(rows: Sequence[LabeledAnswer]) -> list[LabeledAnswer]:
    places = np.linspace(0, len(rows) - 1, min(_EACH, len(rows))).round().astype(int)
    return [rows[place] for place in places]


def _doubtful(rows: Sequence[LabeledAnswer], threshold: float) -> list[LabeledAnswer]:
    doubts = [find_doubt(row, threshold).value for row in rows]
    order = sorted(range(len(rows)), key=lambda place: -doubts[place])[: _EACH // 2]
    return [rows[place] for place in order if doubts[place] > 0]
