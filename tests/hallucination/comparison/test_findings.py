"""The sentences of a comparison: what is said about the best method, and what is not."""

from typing import Any

import numpy as np
import pytest

from clew.hallucination.comparison.findings import Labels, Measured, find_sentences
from clew.metrics.calibration import PlattScale

BOTH = np.tile([0, 1], 40)
LABELS = Labels(validation=BOTH, test=BOTH, kept=np.arange(80))
NONE = np.zeros(80)


def measure(method: str, family: str, validation: float, test: float, **more: Any) -> Measured:
    row = {
        "method": method,
        "title": method.title(),
        "family": family,
        "val_auroc": validation,
        "test_auroc": test,
        "test_auroc_ci": [test - 0.05, test + 0.05],
        "versus_best": {"difference": -0.1, "p_value": 0.001},
        "versus_perplexity": None,
        **more,
    }
    return Measured(
        row=row,
        place=0,
        calibration=PlattScale.fit(BOTH, BOTH.astype(float)),
        test_scores=NONE,
        seed_scores=(NONE,),
        validation_probabilities=NONE,
        test_probabilities=NONE,
        plan=None,
    )


def tell(best: Measured) -> dict[str, str]:
    others = [
        measure("perplexity", "no training", 0.7, 0.7),
        measure("length", "baseline", 0.6, 0.6),
    ]
    return find_sentences([best, *others], LABELS, graph_methods=())


@pytest.mark.parametrize(
    ("p_value", "words"),
    [
        (0.2, "It is not shown to differ from perplexity (+0.100, p = 0.200)."),
        (0.01, "It beats perplexity by 0.100 (p = 0.010)."),
        (None, "0.750]. That is +0.100 compared with perplexity."),
    ],
    ids=["not significant", "significant", "unknown"],
)
def test_difference_from_perplexity_is_called_what_it_is(p_value: float | None, words: str) -> None:
    versus = {"difference": 0.1, "p_value": p_value}
    told = tell(measure("lstm", "network", 0.9, 0.7, versus_perplexity=versus))
    assert told["best"].startswith("The best method on validation, Lstm, reaches a test AUROC of")
    assert words in told["best"]


def test_interval_that_includes_chance_shows_no_detection() -> None:
    told = tell(measure("lstm", "network", 0.9, 0.54))["best"]
    assert told.endswith(
        "0.540 [0.490, 0.590]. It is not shown to detect hallucinated answers better than chance."
    )


def test_best_method_that_does_not_read_the_model_is_not_praised() -> None:
    told = tell(measure("text", "baseline", 0.9, 0.8))
    assert "it does not detect hallucinations" in told["baselines"]


def test_baseline_that_the_best_does_not_beat_is_named() -> None:
    best = measure("lstm", "network", 0.9, 0.7)
    near = measure("text", "baseline", 0.8, 0.68, versus_best={"difference": -0.02, "p_value": 0.4})
    told = find_sentences([best, near], LABELS, graph_methods=())["baselines"]
    assert "not significantly better than Text, so it may not detect hallucinations" in told
