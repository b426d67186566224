"""A named set from Python: trained from its last weights, and the whole flow in one call."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError
from clew.engine import PlanRequest
from clew.patterns.augment import AugmentConfig
from clew.patterns.flow import FlowSteps, plan_training, run_flow
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.settings import FlowSettings, ReviewSettings
from clew.patterns.training import PatternsConfig
from tests.patterns.library.making import contents, draw, make_photos, pretend_trained

QUICK: dict[str, Any] = {
    "network": "tiny",
    "image_size": 16,
    "epochs": 1,
    "augment": AugmentConfig.nothing(),
    "request": PlanRequest(device="cpu", amp=False, compile=False, batch_size=8, num_workers=0),
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tmp_path / "patterns"


@pytest.fixture
def animals(library: Path) -> PatternSet:
    made = PatternSet.create("animals", library)
    make_photos(made.photos, {"cats": 4, "dogs": 4})
    return made


class QuickSteps(FlowSteps):
    """The real steps with a tiny network; the review is only recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def import_photos(self, pattern_set: PatternSet, sources: Sequence[Path]) -> None:
        super().import_photos(pattern_set, sources)
        self.done.append("import")

    def train(self, pattern_set: PatternSet, config: PatternsConfig) -> dict[str, Any]:
        self.done.append(f"train {config.out.name} from {config.start_from}")
        return super().train(pattern_set, replace(config, **QUICK))

    def keep_model(self, pattern_set: PatternSet, results: dict[str, Any]) -> None:
        super().keep_model(pattern_set, results)
        self.done.append("keep")

    def review(self, given: ReviewSettings) -> None:
        self.done.append(f"review {given.identified and Path(given.identified).name}")


def test_next_training_starts_from_the_last_weights(animals: PatternSet) -> None:
    names = [photo.name for photo in animals.find_photos()]
    pretend_trained(animals.runs / "001", names)
    assert animals.unchanged_model() == animals.runs / "001"
    draw(animals.photos / "cats/new.png", 99)
    assert animals.unchanged_model() is None
    planned = plan_training(animals)
    assert (planned.out, planned.start_from) == (animals.runs / "002", animals.runs / "001")
    assert (planned.data, planned.images_dir) == (animals.photos, animals.cache)
    anew = plan_training(animals, replace(planned, overwrite=True, start_from=None))
    assert anew.start_from is None


def test_set_without_photos_is_refused(library: Path) -> None:
    empty = PatternSet.create("empty", library)
    with pytest.raises(
        InputError, match="has no photos yet: add some with clew.patterns.import_photos"
    ):
        plan_training(empty)


@pytest.mark.slow
def test_flow_does_what_is_requested_and_then_only_what_is_new(
    tmp_path: Path, library: Path
) -> None:
    make_photos(tmp_path / "mine", {"cats": 4, "dogs": 4})
    make_photos(tmp_path, {"new": 2}, first_seed=50)
    where = {"library": library, "sources": [tmp_path / "mine"]}
    settings: dict[str, Any] = {**where, "review": True, "device": "cpu"}
    first, again = QuickSteps(), QuickSteps()
    result = run_flow(FlowSettings("animals", **settings, identify=tmp_path / "new"), first)
    assert first.done == ["import", "train 001 from None", "review new"]
    assert result.identified is not None and result.identified.counts["photos"] == 2
    assert result.results["test_photos"] > 0
    assert run_flow(FlowSettings("animals", **settings), again).results == result.results
    assert again.done == ["import", "keep", "review None"]


def test_flow_refuses_foreseeable_errors_before_doing_anything(
    tmp_path: Path, library: Path
) -> None:
    make_photos(tmp_path / "mine", {"cats": 3})
    before = contents(tmp_path)
    with pytest.raises(InputError, match="give the photos to import with `sources`"):
        run_flow(FlowSettings("new", library=library))
    with pytest.raises(InputError, match="give the photos to identify with `identify`"):
        run_flow(FlowSettings("new", library=library, sources=[tmp_path / "mine"], review=True))
    assert contents(tmp_path) == before
