"""The ready detector: what its script makes, right on this machine, and used when none is given."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors import load_detector
from clew.hallucination.detectors.detector_folder import FILES
from clew.hallucination.hub import fetch_detector, refuse_change

READY = Path(fetch_detector("ready"))
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MADE = json.loads((READY / "made.json").read_text(encoding="utf-8"))
# Of float32 on other CPUs, threads and batches, and of a GPU.
TOLERANCE = 0.01


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        specification = importlib.util.spec_from_file_location("ready", BENCHMARKS / "ready.py")
        assert specification and specification.loader
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_detector_was_made_with_the_settings_of_its_script(script: ModuleType) -> None:
    again = "run benchmarks/ready.py again"
    assert MADE["recipe"] == json.loads(json.dumps(script.RECIPE)), again
    asked = script.collect(script.RECIPE["sets"], script.RECIPE["questions"])
    assert MADE["questions_sha256"] == asked.sha256, again


@pytest.mark.slow
def test_sealed_sets_and_the_questions_of_the_demo_are_not_trained_on(script: ModuleType) -> None:
    names = script.RECIPE["sets"]
    assert not {*names} & {*script.built_in_names("sealed")}
    asked = {one.id for one in script.collect(["facts"]).questions}
    demo = [f"facts/{one.id}" for one in script.load_questions("facts", 400).questions]
    assert asked and not asked & {*demo}


def test_files_are_all_there_and_small(script: ModuleType) -> None:
    names = {*FILES, script.TABLE, script.CARD, script.FIGURES, script.EXAMPLES}
    found = {path.name: path.stat().st_size for path in READY.iterdir() if path.is_file()}
    assert {*found} - {"__init__.py"} == names
    assert sum(found.values()) < 10 << 20
    card = (READY / script.CARD).read_text(encoding="utf-8")
    assert card == script.describe(MADE, READY)


def test_detector_is_calibrated_and_better_than_chance() -> None:
    detector = load_detector("ready")
    assert detector.warning is None and detector.fallback and detector.distance
    assert detector.model["dtype"] == "float32" and detector.prompt.template == "{question}"
    unseen = MADE["figures"]["unseen"]
    assert unseen["ece"] < 0.05 and unseen["auroc_ci"][0] > 0.6


@pytest.mark.slow
def test_stored_answers_get_their_risks_on_this_machine(embedded_folder: Path) -> None:
    lines = (READY / "examples.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    asked = [
        {k: v for k, v in row.items() if k in ("question", "answer", "context")} for row in rows
    ]
    scored = clew.score(questions=asked, detector="ready", model=str(embedded_folder))
    found = scored.table.to_pylist()
    assert [one["state"] for one in found] == [row["state"] for row in rows]
    for one, row in zip(found, rows, strict=True):
        assert one["risk"] == pytest.approx(row["risk"], abs=TOLERANCE)
    assert sum(one["risk"] is not None for one in found) > len(found) / 2


def test_ready_detector_stays_as_it_is() -> None:
    with pytest.raises(InputError, match="ready stays as it is"):
        refuse_change(READY)


def test_another_model_has_no_ready_detector(live_model: LoadedModel) -> None:
    for model in (live_model, "gpt2"):
        with pytest.raises(InputError, match="ready detector for smollm2 only"):
            clew.ask("who is here?", model=model)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": -0.5}, "top_p"),
        ({}, "there is no question"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any], named: str) -> None:
    question = () if not settings else "who?"
    with pytest.raises(InputError, match=named):
        clew.ask(question, **settings)
