"""Samples to compare on, and methods with prescribed scores."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.engine import PlanRequest, TrainConfig
from clew.hallucination.comparison import CompareConfig
from clew.hallucination.detectors.probes.method import Outcome
from clew.hallucination.samples.answers import AnswerFeatures
from clew.storage.manifest import read_manifest
from tests import samples
from tests.samples import change_settings, write_samples

CAPTURE = {
    "model": {"id": "tiny", "fingerprint": "abc"},
    "prompt": {"template": "{question}", "chat": False},
}
PLAIN = PlanRequest(device="cpu", calibrate=False, batch_size=16, num_workers=0)


def write_data(folder: Path, **changes: Any) -> Path:
    """A folder of `clew preprocess` whose features often reveal hallucinated answers."""
    sizes: dict[str, Any] = {"shards": 2, "rows": 100, "answers": True, "signal": 0.7}
    return write_samples(folder, **sizes | changes)


def write_set(
    folder: Path,
    write: Callable[..., Path] = write_data,
    *,
    basis: str | None = None,
    **changes: Any,
) -> Path:
    """A question set with the name of its folder: its questions are in no other set."""
    plain = samples.answer_of

    def own(number: int, sizes: Any) -> dict[str, Any]:
        return {**plain(number, sizes), "question": f"Which {folder.name} is {number}?"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "answer_of", own)
        write(folder, **changes)
    questions = {"name": f"{folder.name} (generated 1.0)"}
    describe_capture(folder, basis=basis, questions=questions, **CAPTURE)
    return folder


def describe_capture(folder: Path, *, basis: str | None = None, **capture: Any) -> None:
    """Record in the samples how their traces were made; `basis` is the hash of theirs."""
    for store in folder.iterdir():
        if store.is_dir():
            manifest = read_manifest(store)
            source = {"store": "traces", "sha256": folder.name, "capture": capture}
            source |= {"basis": basis} if basis else {}
            settings = {**manifest.settings, "source": source}
            change_settings(store, settings)


def compare_config(data: Path, out: Path, **changes: Any) -> CompareConfig:
    options: dict[str, Any] = {
        "train_on": (data,),
        "test_on": (data,),
        "seeds": 3,
        "train": TrainConfig(epochs=2, lr=0.01),
        "request": PLAIN,
        "keep_at_chance": True,  # few answers
    }
    return CompareConfig(out=out, **options | changes)


@dataclass(kw_only=True)
class Told:
    """A method whose scores are the labels plus noise. It counts how often it was fitted, and fails
    on request."""

    name: str
    noise: float = 1.0
    title: str = ""
    family: str = "probe"
    needs: tuple[str, ...] = ("token_logprobs",)
    is_seeded: bool = False
    also_reads: tuple[str, ...] = ()
    learns_from: tuple[str, ...] = ()
    noises: tuple[float, ...] = ()
    breaks: Exception | None = None
    change: Callable[[np.ndarray], np.ndarray] = field(default=lambda scores: scores)
    fitted: int = 0
    parameters: int = 7
    shared_seconds: float = 0.0
    chosen: dict[str, Any] = field(default_factory=lambda: {"layer": 1})
    scorer: None = None

    def __post_init__(self) -> None:
        self.title = self.title or self.name.replace("_", " ").capitalize()

    def run(self, data: AnswerFeatures, tests: dict[str, Any], *, seed: int) -> Outcome:
        fitted = self.fit(data, seed=seed)
        is_alone = [*tests.values()] == [data]
        return Outcome(
            validation=fitted.score(data, "validation"),
            tests={name: fitted.score(one, "test") for name, one in tests.items()},
            parameters=self.parameters,
            chosen=self.chosen,
            by_layer={"validation": [0.5, 0.6], "test": [0.5, 0.6]} if is_alone else None,
            train_seconds=0.25,
            ms_per_answer=0.1,
        )

    def fit(self, data: AnswerFeatures, *, seed: int) -> "Told":  # noqa: ARG002 - a method's shape
        self.fitted += 1
        if self.breaks is not None:
            raise self.breaks
        noise = self.noises[seed] if self.noises else self.noise
        return replace(self, noise=noise)

    def score(self, data: AnswerFeatures, split: str) -> np.ndarray:
        random = np.random.default_rng(len(split))
        ids = getattr(data, "data", data).ids  # behind the fields in common
        truth = (ids[split] % 3 == 0).astype(float)  # as tests.samples labels them
        return self.change(truth + self.noise * random.standard_normal(len(truth)))
