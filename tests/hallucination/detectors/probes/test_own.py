"""A method from outside clew: what it may be called, what it sees, and what it may return."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import clew
from clew.base.errors import InputError, MethodError
from clew.hallucination.detectors.probes import registry
from clew.hallucination.detectors.probes.own import OwnMethod
from tests.hallucination.detectors.probes.features import MemoryFeatures, telling_states


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_REGISTERED", {})


@pytest.fixture(scope="module")
def data() -> MemoryFeatures:
    labels, states = telling_states(100, layers=2, dim=4)
    return MemoryFeatures(labels, {"sequence": states})


def read_first(features: Any, split: str) -> Any:
    return features.read("sequence", split, layer=1)[:, 0]


def fit(features: Any) -> Any:  # noqa: ARG001 - a method's shape
    return read_first


def own(fit: Any = fit, **changes: Any) -> OwnMethod:
    options = {"name": "mine", "needs": ["sequence"], **changes}
    return OwnMethod.of(clew.DetectionMethod(fit=fit, **options), package="acme 1.0")


def test_a_function_is_enough_to_score(data: MemoryFeatures) -> None:
    outcome = own().run(data, seed=0)
    np.testing.assert_array_equal(outcome.test, read_first(data, "test"))
    assert outcome.parameters == 0 and outcome.chosen == {} and outcome.validation.shape == (20,)


def test_parameters_and_choices_are_shown(data: MemoryFeatures) -> None:
    class Scorer:
        parameters = np.int64(3)
        chosen = {"layer": np.int64(1), "weights": np.ones(2)}

        def score(self, features: Any, split: str) -> Any:
            return read_first(features, split)

    fitted = own(lambda _: Scorer()).fit(data, seed=0)
    assert fitted.parameters == 3 and fitted.chosen == {"layer": 1, "weights": [1.0, 1.0]}


def test_only_a_seeded_method_gets_the_seed(data: MemoryFeatures) -> None:
    seen = []

    def fit_seeded(features: Any, *, seed: int) -> Any:  # noqa: ARG001
        seen.append(seed)
        return read_first

    own(fit_seeded, is_seeded=True).fit(data, seed=7)
    assert seen == [7]


def test_test_answers_are_not_visible_while_a_method_learns(data: MemoryFeatures) -> None:
    def peek(features: Any) -> Any:
        assert {*features.labels} == {"train", "validation"}
        return features.read("sequence", "test")

    with pytest.raises(MethodError, match='acme 1.0 failed in fit .*split is "test": here a m'):
        own(peek).fit(data, seed=0)


def test_labels_are_not_visible_while_a_method_scores(data: MemoryFeatures) -> None:
    def copy_labels(features: Any, split: str) -> Any:
        return features.labels[split]

    outcome = own(lambda _: copy_labels).run(data, seed=0)
    assert not outcome.test.any() and not outcome.validation.any()


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda *_: [1.0, 2.0], r"shape \(2,\) for 20 answers"),
        (lambda *_: ["high"] * 20, "it returned <U4"),
        (lambda *_: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_scores_that_cannot_be_used_are_reported_with_method_and_package(
    data: MemoryFeatures, returned: Any, told: str
) -> None:
    fitted = own(lambda _: returned).fit(data, seed=0)
    with pytest.raises(MethodError, match=f'"mine" of the package acme 1.0 failed in .*{told}'):
        fitted.score(data, "test")


@pytest.mark.parametrize(
    ("returned", "told"), [(None, "TypeError"), (3, "int"), (OSError("no such file"), "OSError")]
)
def test_a_fit_that_fails_is_reported_with_method_and_package(
    data: MemoryFeatures, returned: Any, told: str
) -> None:
    def fail(features: Any) -> Any:  # noqa: ARG001
        if isinstance(returned, Exception):
            raise returned
        return returned

    with pytest.raises(MethodError, match=f"acme 1.0 failed in fit .*{told}"):
        own(fail).fit(data, seed=0)


@dataclass(frozen=True)
class WithoutFields:
    weights: np.ndarray

    def score(self, features: Any, split: str) -> Any: ...


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "My method"}, 'name is "My method": use up to 60 lowercase letters'),
        ({"name": "../x"}, "start with a letter"),
        ({"fit": "fit"}, 'fit is "fit": give a function'),
        ({"needs": "sequence"}, r'give a list of one or more fields, such as \["sequence"\]'),
        ({"needs": []}, "give a list of one or more fields"),
        ({"family": "network"}, 'family is "network": choose from: baseline, no training, probe'),
        ({"scorer": WithoutFields}, "give a dataclass with a method score, and with fields"),
    ],
)
def test_a_method_that_cannot_be_used_is_rejected(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        clew.DetectionMethod(**{"name": "mine", "fit": fit, "needs": ["sequence"], **changes})


def test_the_same_function_may_be_registered_again() -> None:
    for title in ("First", "Second"):
        made = clew.DetectionMethod(name="mine", fit=fit, needs=["sequence"], title=title)
        assert clew.register_method(made) is made
    assert [one.title for one in registry.find_own_methods().values()] == ["Second"]


def test_names_that_collide_are_refused() -> None:
    clew.register_method(clew.DetectionMethod(name="mine", fit=fit, needs=["sequence"]))
    other = clew.DetectionMethod(name="mine", fit=read_first, needs=["sequence"])
    for name, method in (
        ("mine", other),
        ("fusion", clew.DetectionMethod(name="fusion", fit=fit, needs=["sequence"])),
        ("lstm", clew.DetectionMethod(name="lstm", fit=fit, needs=["sequence"])),
    ):
        with pytest.raises(InputError, match=f'there is a method "{name}" already'):
            clew.register_method(method)
    with pytest.raises(InputError, match="give a clew.DetectionMethod"):
        clew.register_method(fit)  # type: ignore[arg-type]


def test_a_changed_method_has_another_identity() -> None:
    assert own().identify() == own(title="Other").identify()
    assert own().identify() != own(read_first).identify()
