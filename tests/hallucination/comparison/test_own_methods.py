"""Methods of installed packages in a comparison: found by their entry points, and kept apart when
they fail."""

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import clew
from clew.base.errors import InputError, SettingsMismatchError, StoreError, TrainingStoppedError
from clew.hallucination.comparison import compare_methods
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.detectors.probes import registry
from clew.hallucination.samples.answers import AnswerFeatures
from tests.hallucination.comparison.making import compare_config
from tests.hallucination.detectors.keeping import write_captured

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_method"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_captured(tmp_path_factory.mktemp("own") / "pre", signal=1.5)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a package with entry points, as pip leaves it: modules and a dist-info folder."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(registry, "_REGISTERED", {})

    def put(project: dict[str, Any], **modules: str) -> Path:
        folder = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        folder.mkdir(parents=True)
        about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (folder / "METADATA").write_text(about)
        points = project["entry-points"]["clew.methods"]
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (folder / "entry_points.txt").write_text(f"[clew.methods]\n{lines}")
        for name, code in modules.items():
            (site / f"{name}.py").write_text(code)
            monkeypatch.delitem(sys.modules, name, raising=False)
        return folder

    return put


@pytest.fixture
def example(install: Any) -> Path:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    return install(project, own_method=(EXAMPLE / "own_method.py").read_text())


def test_an_installed_method_joins_the_table_and_is_kept(
    data: Path, example: Path, tmp_path: Path
) -> None:
    config = compare_config(
        data, tmp_path / "out", methods=("length", "class_means"), keep_detectors="all"
    )
    made = compare_methods(config)
    rows = {row["method"]: row for row in made.results["methods"]}
    assert made.results["excluded"] == []
    assert rows["class_means"]["parameters"] == 8 and "layer" in rows["class_means"]["chosen"]
    assert rows["class_means"]["test_auroc"] > 0.7
    detector = clew.load_detector(tmp_path / "out/detectors/class_means")
    risks = detector._risks(StoredAnswers(AnswerFeatures(data), "test"))
    table = pa.ipc.open_file(tmp_path / "out/scores.arrow").read_all()
    expected = table["risk_class_means"].to_numpy()[-len(risks) :]
    np.testing.assert_allclose(risks, expected, atol=1e-5)
    shutil.rmtree(example)
    with pytest.raises(StoreError, match="needs the method 'class_means', which no installed"):
        clew.load_detector(tmp_path / "out")


BROKEN = """
import clew
def fit(features):
    raise FileNotFoundError("weights.bin")
def fit_well(features):
    return lambda features, split: features.read("state_mean", split, layer=0).mean(1)
METHOD = clew.DetectionMethod(name="broken", fit=fit, needs=["state_mean"])
UNSAVED = clew.DetectionMethod(name="unsaved", fit=fit_well, needs=["state_mean"])
TAKEN = clew.DetectionMethod(name="perplexity", fit=fit, needs=["state_mean"])
NOTHING = 3
"""
POINTS = {
    "broken": "acme:METHOD",
    "unsaved": "acme:UNSAVED",
    "perplexity": "acme:TAKEN",
    "nothing": "acme:NOTHING",
    "absent": "acme_absent:METHOD",
    "renamed": "acme:UNSAVED",
}


@pytest.fixture
def acme(install: Any) -> Path:
    project = {"name": "acme", "version": "2.1", "entry-points": {"clew.methods": POINTS}}
    return install(project, acme=BROKEN)


@pytest.mark.usefixtures("acme")
def test_methods_that_fail_are_listed_with_their_package_and_the_others_continue(
    data: Path, tmp_path: Path
) -> None:
    names = ("perplexity", "unsaved", *list(POINTS), "perplexity (acme 2.1)")
    made = compare_methods(compare_config(data, tmp_path / "out", methods=names))
    assert {row["method"] for row in made.results["methods"]} == {"perplexity", "unsaved"}
    reasons = {one["method"]: one["reason"] for one in made.results["excluded"]}
    traceback = tmp_path / "out/methods/broken.fault.txt"
    assert reasons == {
        "broken": 'the method "broken" of the package acme 2.1 failed in fit (FileNotFoundError: '
        f'weights.bin); the traceback is in "{traceback}"',
        "nothing": 'acme 2.1 cannot be used: "acme:NOTHING" is not a clew.DetectionMethod, but int',
        "absent": "acme 2.1 cannot be loaded (ModuleNotFoundError: No module named 'acme_absent')",
        "perplexity (acme 2.1)": "there is another method of this name, so that of acme 2.1 is not "
        "run",
        "renamed": 'acme 2.1 cannot be used: its entry point is named "renamed", but its method '
        '"unsaved"',
    }
    assert "weights.bin" in traceback.read_text() and not made.faults


@pytest.mark.usefixtures("acme")
def test_a_package_is_imported_only_if_one_of_its_methods_is_named(
    data: Path, tmp_path: Path
) -> None:
    events: list[Any] = []
    compare_methods(compare_config(data, tmp_path / "out", methods=("perplexity",)), events.append)
    clew.load_detector(tmp_path / "out")
    assert "further methods" not in str(events)
    with pytest.raises(InputError, match='unknown method "unsave" .did you mean "unsaved"'):
        compare_methods(compare_config(data, tmp_path / "out", methods=("unsave",)))
    with pytest.raises(TrainingStoppedError):
        compare_methods(compare_config(data, tmp_path / "all"), events.append, lambda: True)
    assert "methods: absent, broken, nothing, perplexity (acme 2.1), renamed, un" in str(events)
    assert "acme" not in sys.modules


@pytest.mark.usefixtures("acme")
def test_the_next_best_detector_is_kept_if_a_method_does_not_say_how_to_save_it(
    data: Path, tmp_path: Path
) -> None:
    events: list[Any] = []
    config = compare_config(data, tmp_path / "out", methods=("perplexity", "unsaved"))
    made = compare_methods(config, events.append)
    assert made.best == "unsaved" and [*made.results["detectors"]] == ["perplexity"]
    assert any("Unsaved is not kept as a detector: its clew.Det" in str(one) for one in events)


@pytest.mark.usefixtures("install")
def test_a_registered_method_is_run_again_only_if_it_has_changed(
    data: Path, tmp_path: Path
) -> None:
    def fit(_: Any) -> Any:
        return lambda features, split: features.read("state_mean", split, layer=0).mean(1)

    def register(function: Any) -> None:
        registry._REGISTERED.clear()
        clew.register_method(clew.DetectionMethod(name="mine", fit=function, needs=["state_mean"]))

    register(fit)
    config = compare_config(data, tmp_path / "out", methods=("mine",))
    first = compare_methods(config).results["methods"]
    assert compare_methods(config).results["methods"] == first
    register(lambda features: fit(features))
    with pytest.raises(SettingsMismatchError, match="method.source: was"):
        compare_methods(config)
    with pytest.raises(InputError, match='unknown method "min"'):
        compare_methods(compare_config(data, tmp_path / "other", methods=("min",)))
