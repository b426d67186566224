"""The token probe: which tokens it finds, what it is trained on, and what its risks mean."""

from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.tokens import (
    Tokens,
    find_token_probe,
    fit_token_probe,
    learn_token_probe,
    read_inputs,
)
from clew.hallucination.detectors.tokens import TokenProbe
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.ranking import auroc

LAYERS, DIM = 4, 6


class TokenFeatures:
    """Ragged fields in memory, by split."""

    layers = LAYERS

    def __init__(self, labels: dict[str, np.ndarray], values: dict[str, dict[str, Any]]) -> None:
        self.labels, self.values = labels, values
        self.fields = frozenset(values)

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        found = self.values[field][split]
        return found if layer is None else [answer[:, layer] for answer in found]


def tell_one_token(count: int = 240, *, spans: bool = False) -> TokenFeatures:
    """Answers of 3 to 9 tokens; one token of each hallucinated answer differs, in layer 2."""
    random = np.random.default_rng(0)
    labels = {name: (np.arange(n) % 2) for name, n in _sizes(count).items()}
    fields: dict[str, Any] = {}
    for split, truth in labels.items():
        sizes = random.integers(3, 10, len(truth))
        nodes = [random.standard_normal((n, LAYERS, DIM)).astype(np.float32) for n in sizes]
        marks = [np.zeros(n, np.float32) for n in sizes]
        for answer, mark, label in zip(nodes, marks, truth, strict=True):
            if label:
                at = random.integers(len(mark))
                answer[at, 2, :2] += 4
                mark[at] = 1
        fields.setdefault("node_tokens", {})[split] = nodes
        fields.setdefault("token_labels", {})[split] = marks
        for name in ("token_logprobs", "token_entropies"):
            noise = [random.random(n).astype(np.float32) for n in sizes]
            fields.setdefault(name, {})[split] = noise
    if not spans:
        fields["hidden_labels"] = fields.pop("token_labels")
    return TokenFeatures(labels, fields)


def _sizes(count: int) -> dict[str, int]:
    return {"train": count, "validation": count // 2, "test": count // 2}


def token_risks(probe: TokenProbe, data: TokenFeatures) -> np.ndarray:
    logits = [probe.logits(answer) for answer in read_inputs(probe, data, "test")]
    return np.concatenate(logits)


@pytest.mark.slow
@pytest.mark.parametrize("spans", [False, True])
def test_token_that_gives_the_answer_away_is_found(spans: bool) -> None:
    data = tell_one_token(spans=spans)
    fitted = learn_token_probe(data)
    assert fitted.chosen["trained_on"] == ("spans" if spans else "answers")
    assert 2 in fitted.chosen["layers"]
    assert auroc(data.labels["test"], fitted.score(data, "test")) > 0.9
    marks = np.concatenate(data.read("token_labels" if spans else "hidden_labels", "test"))
    probe = find_token_probe(data)
    assert probe is not None
    assert auroc(marks, token_risks(probe, data)) > 0.95


def test_risks_are_probabilities_of_the_labels_trained_on() -> None:
    data = tell_one_token(spans=True)
    for spans in (False, True):
        fitted = fit_token_probe(data, spans=spans)
        probe = fitted.scorer.probe
        risks = 1 / (1 + np.exp(-token_risks(probe, data)))
        if spans:  # about one token in twelve is hallucinated
            assert risks.mean() == pytest.approx(1 / 12, abs=0.03)
        else:  # every other answer is
            pooled = 1 / (1 + np.exp(-fitted.score(data, "test")))
            assert pooled.mean() == pytest.approx(0.5, abs=0.08)


def test_inherited_risks_are_calibrated_per_token() -> None:
    data = tell_one_token()
    probe = find_token_probe(data)
    assert probe is not None
    risks = 1 / (1 + np.exp(-token_risks(probe, data).astype(float)))
    sizes = [len(answer) for answer in data.read("token_logprobs", "test")]
    inherited = np.repeat(data.labels["test"], sizes)
    assert expected_calibration_error(inherited, risks) < 0.15


def test_tokens_of_unknown_label_are_not_trained_on() -> None:
    data = tell_one_token(spans=True)
    before = fit_token_probe(data, spans=True).scorer.probe
    for split in ("train", "validation"):
        fields = data.values
        for mark, nodes in zip(
            fields["token_labels"][split], fields["node_tokens"][split], strict=True
        ):
            ordinary = np.flatnonzero(mark == 0)[0]
            mark[ordinary] = -1
            nodes[ordinary] = 50
    after = fit_token_probe(data, spans=True).scorer.probe
    assert 2 in before.layers and 2 in after.layers
    marks = np.concatenate(data.read("token_labels", "test"))
    assert auroc(marks, token_risks(after, data)) > 0.9


def test_tokens_outside_of_spans_have_a_low_risk() -> None:
    data = tell_one_token(spans=True)
    for split, answers in data.values["token_labels"].items():
        for marks, nodes in zip(answers, data.values["node_tokens"][split], strict=True):
            marks[0] = -2
            nodes[0, 2] -= 4
    fitted = fit_token_probe(data, spans=True)
    probe = fitted.scorer.probe
    risks = 1 / (1 + np.exp(-token_risks(probe, data)))
    marks = np.concatenate(data.read("token_labels", "test"))
    assert probe.is_gated and len(probe.attention) == len(probe.weights) + 1
    assert risks[marks == -2].mean() < 0.05 < risks[marks == 1].mean()
    assert risks.mean() == pytest.approx((marks == 1).mean(), abs=0.02)
    assert auroc(marks[marks >= 0], risks[marks >= 0]) > 0.9


def test_scores_of_arrays_and_tensors_agree() -> None:
    data = tell_one_token(spans=True)
    probe = find_token_probe(data)
    assert probe is not None
    nodes = data.read("node_tokens", "test")[0][:, list(probe.layers)]
    beside = [data.read(name, "test")[0] for name in ("token_logprobs", "token_entropies")]
    risks = probe.score(nodes, *beside)
    parts = {name: torch.from_numpy(getattr(probe, name)) for name in ("weights", "attention")}
    on_torch = TokenProbe(**{**probe.__dict__, **parts})
    found = on_torch.score(*map(torch.from_numpy, (nodes, *beside)))
    np.testing.assert_allclose(found.numpy(), risks, rtol=1e-5)
    assert ((risks > 0) & (risks < 1)).all()
    with pytest.raises(InputError, match="use answers of the same model"):
        probe.score(nodes[:, :, :3], *beside)


def test_answers_without_tokens_get_an_ordinary_score() -> None:
    data = tell_one_token()
    fitted = learn_token_probe(data)
    for name in ("node_tokens", "token_logprobs", "token_entropies"):
        data.values[name]["test"][0] = data.values[name]["test"][0][:0]
    scores = fitted.score(data, "test")
    assert scores.min() < scores[0] < scores.max()
    assert len(Tokens(data, "test").labels) == len(scores) - 1


def test_large_sets_are_fitted_on_some_answers() -> None:
    data = tell_one_token(60)
    few = Tokens(data, "train", most=50)
    assert 30 < len(few) <= 50 and len(few.labels) == len(few.counts)
