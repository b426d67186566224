"""How well single tokens are told apart, against span labels: their risks, and the spans that are
made of them, in characters of the answer as RAGTruth measures them."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from clew.base.progress import Reporter, StepStarted, ignore_event, report_work
from clew.base.texts import counted
from clew.hallucination.comparison.evaluation import (
    Evaluation,
    Part,
    join_clusters,
    rank_scores,
)
from clew.hallucination.detectors.probes.baselines import find_new_words
from clew.hallucination.detectors.probes.method import Features
from clew.hallucination.detectors.probes.tokens import (
    NEEDS,
    SPANS,
    PooledTokens,
    fit_token_probe,
    has_spans,
    learn_token_probe,
    read_inputs,
)
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.samples.source import ANSWER_SPANS, PLACES
from clew.hallucination.traces.schema import CONTEXT, TOKEN_ENDS
from clew.metrics.measures import measure_groups
from clew.metrics.spans import Place, bootstrap_span_f1, join_tokens, span_f1

_FALSE_POSITIVE_RATE = 0.05
_PROBE, _READER, _WORDS = "token_probe", "reader", "source_words"
_TITLES = {
    "spans": "Token probe, from span labels",
    "answers": "Token probe, from answer labels",
}
# The shares of validation tokens above the thresholds that are tried.
_SHARES = np.geomspace(0.002, 0.6, 24)
_WORD = re.compile(r"\w+(?:[.,'’-]\w+)*")
# The places `[tokens, 2]` of the tokens of an answer, and their scores.
_Scored = tuple[Int[np.ndarray, "tokens 2"], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class _TokenMethod:
    """`score` gives the scores of the tokens of each answer of a split: as captured, or with places
    of their own. Of answers that are not `flagged`, test or validation, nothing is marked."""

    name: str
    title: str
    score: Callable[[Features, str], list[np.ndarray]] | None = None
    place: Callable[[Features, str], list[_Scored]] | None = None
    flagged: dict[str, Bool[np.ndarray, " answers"]] | None = None
    mark: Callable[[Int[np.ndarray, "tokens 2"], np.ndarray, float], list[Place]] | None = None


def measure_tokens(
    evaluation: Evaluation, reporter: Reporter = ignore_event
) -> dict[str, Any] | None:
    """The "tokens" of results.json; None for a table over question sets, if the test answers have
    no span labels of both classes, or if their probabilities were not captured. The token probe and
    the reader are measured if they are among the methods. Samples of earlier versions do not have
    places in characters: their `span_f1` is None."""
    parts = evaluation.parts
    needs = {SPANS, *NEEDS[1:]}
    if evaluation.plan.kind == "sets" or not all(needs <= p.store.data.fields for p in parts):
        return None
    labels = _TokenLabels(parts)
    if len(np.unique(labels.known)) < 2:
        return None
    found: list[dict[tuple[str, str], _TokenScores]] = []
    for number, part in enumerate(parts, start=1):
        of = f" of fold {number} of {len(parts)}" if len(parts) > 1 else ""
        found.append(
            {
                (one.name, one.title): _measure_part(part, one, labels.has_places)
                for one in _find_methods(part, labels.has_places, of, reporter)
            }
        )
    whole = [key for key in found[0] if all(key in one for one in found)]
    with report_work(reporter, StepStarted(name="computing intervals of tokens and spans")):
        rows = [labels.measure(*key, [one[key] for one in found]) for key in whole]
    return {
        "answers": int(len(np.unique(labels.answers))),
        "tokens": int(len(labels.known)),
        "hallucinated": int(labels.known.sum()),
        "false_positive_rate": _FALSE_POSITIVE_RATE,
        "resampled": "answers" if parts[0].labels.clusters is None else "groups of answers",
        **labels.count_characters(),
        "rows": rows,
    }


def _find_methods(
    part: Part, has_places: bool, of: str, reporter: Reporter
) -> Iterator[_TokenMethod]:
    train = part.trial.train
    if _PROBE in part.measured and part.store is train:
        count = counted(len(train.data.labels["train"]), "answer")
        step = StepStarted(name=f"fitting token probes on {count}{of}, for the table of tokens")
        with report_work(reporter, step):
            probes = list(_fit_probes(train.data))
        for probe in probes:
            yield _TokenMethod(
                name=_PROBE, title=_TITLES[probe.trained_on], score=_scores_of(probe)
            )
    if has_places and _READER in part.measured:
        with report_work(reporter, StepStarted(name=f"reading the tokens{of} for spans")):
            yield _find_reader(part)
    if has_places and _WORDS in part.measured:
        title = part.measured[_WORDS].row["title"]
        yield _TokenMethod(name=_WORDS, title=title, place=_place_words)
    yield _TokenMethod(name="token_logprob", title="Token log-probability", score=_surprise)
    yield _TokenMethod(name="token_entropy", title="Token entropy", score=_entropy)


def _fit_probes(data: Features) -> Iterator[TokenProbe]:
    """From span labels if there are enough, and from answer labels: what the others would gain."""
    fitted = [learn_token_probe(data)]
    if has_spans(data):
        fitted.append(fit_token_probe(data, spans=False))
    for one in fitted:
        assert isinstance(one.scorer, PooledTokens)
        yield one.scorer.probe


def _scores_of(probe: TokenProbe) -> Callable[[Features, str], list[np.ndarray]]:
    return lambda data, split: [probe.logits(one) for one in read_inputs(probe, data, split)]


def _surprise(data: Features, split: str) -> list[np.ndarray]:
    return [-values for values in data.read(NEEDS[1], split)]


def _entropy(data: Features, split: str) -> list[np.ndarray]:
    return list(data.read(NEEDS[2], split))


def _find_reader(part: Part) -> _TokenMethod:
    """It marks spans where `clew check` does: in answers above the threshold only."""
    from clew.hallucination.grounded.method import read_tokens  # loads transformers
    from clew.hallucination.grounded.reader import find_spans

    measured = part.measured[_READER]
    threshold, test = measured.row["threshold"], np.zeros(len(part.store.data.labels["test"]), bool)
    test[part.labels.kept] = measured.test_probabilities > threshold
    return _TokenMethod(
        name=_READER,
        title=measured.row["title"],
        place=read_tokens,
        flagged={"validation": measured.validation_probabilities > threshold, "test": test},
        mark=find_spans,
    )


def _place_words(data: Features, split: str) -> list[_Scored]:
    """Whether each word of an answer is in neither source nor question."""
    names = ("question", CONTEXT, "answer")
    rows = zip(*(data.read(name, split) for name in names), strict=True)
    return [_place_new(*(text or "" for text in row)) for row in rows]


def _place_new(question: str, context: str, answer: str) -> _Scored:
    words = list(_WORD.finditer(answer))
    places = np.array([word.span() for word in words], np.int64).reshape(-1, 2)
    return places, find_new_words(question, context, [word[0] for word in words])


@dataclass(frozen=True, kw_only=True)
class _TokenScores:
    """Of the test answers of one part: the scores of their tokens as captured; of each answer the
    characters in spans that were marked, that are labeled, and in both; and the threshold."""

    scores: list[np.ndarray]
    counts: list[tuple[int, int, int]]
    threshold: float | None


def _measure_part(part: Part, method: _TokenMethod, has_places: bool) -> _TokenScores:
    kept = part.labels.kept.tolist()
    if not has_places:
        assert method.score is not None
        every = method.score(part.store.data, "test")
        return _TokenScores(scores=[every[row] for row in kept], counts=[], threshold=None)
    test, validation = (
        _SplitSpans(method, data, split)
        for data, split in ((part.store.data, "test"), (part.trial.train.data, "validation"))
    )
    threshold = validation.choose_threshold()
    counts = test.count(threshold)
    return _TokenScores(
        scores=[test.scores[row] for row in kept],
        counts=[counts[row] for row in kept],
        threshold=threshold,
    )


class _SplitSpans:
    """The tokens of a split as a method scores them, and the spans that they make."""

    def __init__(self, method: _TokenMethod, data: Features, split: str) -> None:
        self._labels = [_LabeledCharacters(spans) for spans in data.read(ANSWER_SPANS, split)]
        captured = _place_tokens(data, split)
        if method.place is not None:
            self._placed = method.place(data, split)
            pairs = zip(captured, self._placed, strict=True)
            self.scores = [_spread(places, *own) for places, own in pairs]
        else:
            assert method.score is not None
            self.scores = method.score(data, split)
            self._placed = list(zip(captured, self.scores, strict=True))
        self._mark = method.mark or (
            lambda places, scores, threshold: join_tokens(places, scores > threshold)
        )
        flagged = None if method.flagged is None else method.flagged[split]
        self._flagged = np.ones(len(captured), bool) if flagged is None else flagged

    def choose_threshold(self) -> float:
        """The one with the best span F1."""
        every = np.concatenate([scores for _, scores in self._placed])
        tried = np.unique(np.quantile(every, 1 - _SHARES)) if len(every) else np.zeros(1)
        tried = np.nextafter(tried, -np.inf)  # a score that many tokens have is above it
        return float(tried[np.argmax([span_f1(self.count(one)) for one in tried.tolist()])])

    def count(self, threshold: float) -> list[tuple[int, int, int]]:
        rows = zip(self._placed, self._labels, self._flagged.tolist(), strict=True)
        return [
            labels.count(self._mark(*placed, threshold) if is_flagged else [])
            for placed, labels, is_flagged in rows
        ]


class _LabeledCharacters:
    """The characters of an answer whose label is known, and those that are hallucinated."""

    def __init__(self, spans: np.ndarray) -> None:
        triples = [tuple(map(int, one)) for one in spans]
        size = max((end for _, end, _ in triples), default=0)
        self.known, self.hallucinated = np.zeros(size, bool), np.zeros(size, bool)
        for start, end, label in triples:
            if label >= 0:
                self.known[start:end] = True
                self.hallucinated[start:end] |= label == 1

    def count(self, marked: Sequence[Place]) -> tuple[int, int, int]:
        inside = np.zeros(len(self.known), bool)
        for start, end in marked:
            inside[start:end] = True
        inside &= self.known
        both = int((inside & self.hallucinated).sum())
        return int(inside.sum()), int(self.hallucinated.sum()), both


def _place_tokens(data: Features, split: str) -> list[Int[np.ndarray, "tokens 2"]]:
    """Where captured tokens are in their answer, without the white space before them."""
    found = []
    for text, ends in zip(data.read("answer", split), data.read(TOKEN_ENDS, split), strict=True):
        stops = np.asarray(ends, np.int64)
        starts = np.concatenate([[0], stops])[:-1]
        blank = [_count_blank((text or "")[a:b]) for a, b in zip(starts, stops, strict=True)]
        found.append(np.stack([starts + np.array(blank, np.int64), stops], axis=1))
    return found


def _count_blank(text: str) -> int:
    return (len(text) - len(text.lstrip())) % max(1, len(text))


def _spread(
    captured: Int[np.ndarray, "tokens 2"], places: Int[np.ndarray, "own 2"], scores: np.ndarray
) -> np.ndarray:
    """For each captured token, the highest score of those that share a character with it."""
    lowest = float(scores.min(initial=0.0)) - 1
    found = np.full(len(captured), lowest, np.float32)
    shared = (places[:, 0] < captured[:, 1:]) & (places[:, 1] > captured[:, :1])
    rows, columns = np.nonzero(shared)
    np.maximum.at(found, rows, np.asarray(scores, np.float32)[columns])
    return found


class _TokenLabels:
    """The tokens of the test answers whose label is known, the answers that they are in, and what
    intervals draw: these, or the groups of given answers."""

    def __init__(self, parts: Sequence[Part]) -> None:
        kept = [part.labels.kept.tolist() for part in parts]

        def read(name: str) -> list[np.ndarray]:
            every = [part.store.data.read(name, "test") for part in parts]
            return [of[row] for of, rows in zip(every, kept, strict=True) for row in rows]

        spans = read(SPANS)
        flat = np.concatenate(spans)
        self._places = np.flatnonzero(flat >= 0)
        self.known = flat[self._places].astype(np.int8)
        self.answers = np.repeat(np.arange(len(spans)), [len(one) for one in spans])[self._places]
        clusters = join_clusters(parts)
        self._clusters = np.arange(len(spans)) if clusters is None else clusters
        self.has_places = all(
            data.fields.issuperset(PLACES)
            for part in parts
            for data in (part.store.data, part.trial.train.data)
        )
        labeled = read(ANSWER_SPANS) if self.has_places else None
        self._characters = None if labeled is None else [*map(_LabeledCharacters, labeled)]

    def count_characters(self) -> dict[str, int | None]:
        if self._characters is None:
            return {"characters": None, "hallucinated_characters": None}
        return {
            "characters": sum(int(one.known.sum()) for one in self._characters),
            "hallucinated_characters": sum(int(one.hallucinated.sum()) for one in self._characters),
        }

    def measure(self, method: str, title: str, found: Sequence[_TokenScores]) -> dict[str, Any]:
        """By part; tokens are ranked within their fold, as answers are."""
        flat = [np.concatenate(one.scores) for one in found]
        ranked = flat if len(flat) == 1 else [rank_scores(one) for one in flat]
        measured = measure_groups(
            self.known,
            np.concatenate(ranked)[self._places],
            self._clusters[self.answers],
            false_positive_rate=_FALSE_POSITIVE_RATE,
        )
        row = {"method": method, "title": title, **asdict(measured)}
        counts = [one for part in found for one in part.counts]
        if not counts:
            return {**row, "span_f1": None, "span_f1_ci": None, "span_thresholds": None}
        return {
            **row,
            "span_f1": span_f1(counts),
            "span_f1_ci": list(bootstrap_span_f1(counts, self._clusters)),
            "span_thresholds": [part.threshold for part in found],
        }
