"""The ready detector in a comparison."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clew.hallucination.capture import ExtractConfig, extract, load_model
from clew.hallucination.comparison import CompareConfig, compare_methods
from clew.hallucination.comparison.ready import READY_METHOD, explain_known
from clew.hallucination.labels.label import label_store
from clew.hallucination.questions import load_questions
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.source import PreprocessConfig
from tests.stores import one_thread

pytestmark = pytest.mark.slow


def test_answers_of_another_model_are_refused(live_samples: Path, tmp_path: Path) -> None:
    config = CompareConfig(
        train_on=(live_samples,),
        test_on=(live_samples,),
        out=tmp_path / "comparison",
        methods=("perplexity", "ready"),
        keep_at_chance=True,
    )
    [excluded] = compare_methods(config).results["excluded"]
    assert excluded["method"] == "ready" and "is for smollm2, not" in excluded["reason"]


@pytest.fixture(scope="module")
def samples(embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AnswerFeatures:
    """Answers to two questions that the detector was not trained on, and two that it was."""
    folder, found = tmp_path_factory.mktemp("facts"), load_questions("facts")
    questions = replace(found, questions=found.questions[398:402])
    config = ExtractConfig(out=folder / "traces", max_new_tokens=8, node_dim=4, edges_per_token=1)
    with one_thread():
        extract(config, loaded=load_model(str(embedded_folder)), questions=questions)
    label_store(config.out, folder / "scores.csv")
    preprocess_store(
        PreprocessConfig(
            store=config.out, scores_file=folder / "scores.csv", out=folder / "samples"
        )
    )
    return AnswerFeatures(folder / "samples")


def test_questions_that_it_was_trained_on_are_refused(samples: AnswerFeatures) -> None:
    assert "trained on 2 of these 4 questions" in (explain_known(samples) or "")


def test_it_scores_the_answers_of_its_model(samples: AnswerFeatures) -> None:
    fitted = READY_METHOD.learn(samples)
    assert np.isfinite(fitted.score(samples, "train")).all() and fitted.parameters > 100_000
