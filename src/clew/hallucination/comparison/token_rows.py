"""Metrics per token, where answers have span labels: the token probe, trained from span labels and
from answer labels, beside each token's own probability."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Trial
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
from clew.hallucination.samples.answers import AnswerData
from clew.metrics import measure_groups

_METHOD = "token_probe"
_FALSE_POSITIVE_RATE = 0.05
_TITLES = {
    "spans": "Token probe, from span labels",
    "answers": "Token probe, from answer labels",
}


def measure_tokens(trial: Trial, test: Store, methods: Sequence[str]) -> dict[str, Any] | None:
    """The "tokens" of results.json; None if the test answers have no span labels of both classes,
    or their probabilities were not captured. The token probe is measured if it is one of the
    `methods`."""
    data, kept = test.data, trial.labels(test).kept
    if not data.fields.issuperset((SPANS, *NEEDS[1:])):
        return None
    labels = _Labels(data, kept)
    if len(np.unique(labels.known)) < 2:
        return None
    probes = _fit_probes(trial.train.data) if _METHOD in methods and test is trial.train else ()
    rows = [
        labels.measure(_METHOD, _TITLES[probe.trained_on], _logits(probe, data, kept))
        for probe in probes
    ]
    for name, title, sign in (
        ("token_logprob", "Token log-probability", -1),
        ("token_entropy", "Token entropy", 1),
    ):
        values = data.read(NEEDS[1] if sign < 0 else NEEDS[2], "test")
        scores = [sign * values[row] for row in kept.tolist()]
        rows.append(labels.measure(name, title, scores))
    return {
        "answers": int(len(np.unique(labels.answers))),
        "tokens": int(len(labels.known)),
        "hallucinated": int(labels.known.sum()),
        "false_positive_rate": _FALSE_POSITIVE_RATE,
        "rows": rows,
    }


class _Labels:
    """The tokens of the test split whose label is known, and the answers they are in."""

    def __init__(self, data: AnswerData, kept: np.ndarray) -> None:
        every = data.read(SPANS, "test")
        spans = [every[row] for row in kept.tolist()]
        flat = np.concatenate(spans)
        self._places = np.flatnonzero(flat >= 0)
        self.known = flat[self._places].astype(np.int8)
        self.answers = np.repeat(np.arange(len(spans)), [len(one) for one in spans])[self._places]

    def measure(self, method: str, title: str, scores: Sequence[np.ndarray]) -> dict[str, Any]:
        found = measure_groups(
            self.known,
            np.concatenate(scores)[self._places],
            self.answers,
            false_positive_rate=_FALSE_POSITIVE_RATE,
        )
        return {"method": method, "title": title, **asdict(found)}


def _fit_probes(data: AnswerData) -> Iterator[TokenProbe]:
    """From span labels if there are enough, and from answer labels: what the others would gain."""
    fitted = [learn_token_probe(data)]
    if has_spans(data):
        fitted.append(fit_token_probe(data, spans=False))
    for one in fitted:
        assert isinstance(one.scorer, PooledTokens)
        yield one.scorer.probe


def _logits(probe: TokenProbe, data: AnswerData, kept: np.ndarray) -> list[np.ndarray]:
    every = [probe.logits(inputs) for inputs in read_inputs(probe, data, "test")]
    return [every[row] for row in kept.tolist()]
