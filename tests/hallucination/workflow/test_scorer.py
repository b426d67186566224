"""Batches of answers get their risk: in a dataset's map, and in an evaluation with inspect_ai."""

import math
import pickle
from pathlib import Path

import pytest

import clew
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors.detector_folder import save_detector
from tests.hallucination.conftest import FitDetector

ROWS = {
    "question": ["When can items be returned?", "When can items be returned?", "Why?"],
    "answer": ["Within 30 days of delivery.", "Within 90 days, even used ones.", ""],
    "source": ["Items can be returned within 30 days of delivery."] * 3,
}


def test_a_dataset_gets_the_risks_of_score(reader_folder: Path, tmp_path: Path) -> None:
    import datasets

    dataset = datasets.Dataset.from_dict(ROWS)
    mapped = dataset.map(
        clew.scorer(reader_folder),
        batched=True,
        batch_size=2,
        cache_file_name=str(tmp_path / "mapped.arrow"),
    )
    scored = clew.score(questions=dataset, detector=reader_folder).to_pandas()
    assert list(mapped["risk"][:2]) == pytest.approx(list(scored.risk[:2]), abs=1e-4)
    assert list(mapped["state"]) == list(scored.state) and math.isnan(mapped["risk"][2])
    assert mapped["risk_level"][2] == "" and "empty" in mapped["reason"][2]
    assert mapped.column_names == [*ROWS, "risk", "risk_level", "state", "reason"]


@pytest.mark.slow
def test_a_detector_scores_batches_with_its_own_model(
    fit: FitDetector, live_model: LoadedModel, tmp_path: Path
) -> None:
    folder = save_detector(fit("linear_probe"), tmp_path / "detector")
    made = clew.scorer(folder, device="cpu")
    batch = {"question": ["Who is 1?"], "answer": ["The capital of France"]}
    rows = [{name: values[0] for name, values in batch.items()}]
    scored = clew.score(questions=rows, detector=folder, model=live_model)
    risk = scored.to_pandas().risk[0]
    expected = math.nan if risk is None else risk
    for _ in range(2):
        assert made(batch)["risk"] == pytest.approx([expected], abs=1e-4, nan_ok=True)


def test_a_pickled_scorer_is_its_settings(reader_folder: Path) -> None:
    made = clew.scorer(reader_folder)
    before = pickle.dumps(made)
    made({name: values[:1] for name, values in ROWS.items()})
    assert pickle.dumps(made) == before and len(before) < 1000


# inspect_ai leaves streams of its own open.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_inspect_ai_scores_samples(
    reader_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("inspect_ai", reason="requires inspect_ai: make test-integrations")
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from clew.inspect_ai import hallucination_risk

    monkeypatch.chdir(tmp_path)
    samples = [
        Sample(input=question, metadata={"source": source})
        for question, source in zip(ROWS["question"], ROWS["source"], strict=True)
    ]
    # Without a usage, inspect_ai would count tokens with a vocabulary that it downloads.
    usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    told = [ModelOutput.from_content("mockllm/model", answer) for answer in ROWS["answer"]]
    told = [one.model_copy(update={"usage": usage}) for one in told]
    task = Task(dataset=samples, scorer=hallucination_risk(reader_folder))
    [log] = eval(
        task,
        model=get_model("mockllm/model", custom_outputs=told),
        max_samples=1,
        display="none",
        log_dir=str(tmp_path),
    )
    assert log.status == "success", log.error
    scores = [one.scores["hallucination_risk"] for one in log.samples or [] if one.scores]
    expected = clew.scorer(reader_folder)(ROWS)["risk"]
    assert [one.value for one in scores[:2]] == pytest.approx(expected[:2], abs=1e-4)
    assert math.isnan(scores[2].as_float()) and scores[2].reason == "unavailable"
    assert log.results is not None
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(sum(expected[:2]) / 2)
