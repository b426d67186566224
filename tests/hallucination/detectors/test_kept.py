"""Detectors that a comparison keeps: the same risks after loading, whatever the folder went
through."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import clew
from clew.base.errors import InputError, StoreError
from clew.engine import TrainConfig
from clew.hallucination.comparison import compare_methods
from clew.hallucination.comparison.methods import list_methods
from clew.hallucination.detectors.calibration import measure_chance
from clew.hallucination.detectors.data import LIVE, StoredAnswers
from clew.hallucination.detectors.detector_folder import change_detector
from clew.hallucination.detectors.folder import DETECTOR_JSON, WEIGHTS
from clew.hallucination.detectors.probes.gated import FIELDS, Distance
from clew.hallucination.detectors.similar_answers import KNOWN_FILE
from clew.hallucination.detectors.training.samples import PreprocessedData
from clew.hallucination.detectors.training.settings import TrainRunConfig
from clew.hallucination.detectors.training.train import train_detectors
from clew.hallucination.llm.prompts import Prompt
from clew.hallucination.samples.answers import AnswerFeatures
from clew.loading.loader import Loader
from tests.hallucination.comparison.making import PLAIN, compare_config
from tests.hallucination.detectors.keeping import MODEL, compare_all, write_captured

pytestmark = pytest.mark.slow

KEPT = [name for name, one in list_methods().items() if one.family != "baseline"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_captured(tmp_path_factory.mktemp("kept") / "pre")


@pytest.fixture(scope="module")
def comparison(data: Path) -> Path:
    return compare_all(data, data.parent / "out")


@pytest.fixture
def folder(comparison: Path, tmp_path: Path) -> Path:
    """A copy of one detector, to damage."""
    return Path(shutil.copytree(comparison / "detectors/fusion", tmp_path / "fusion"))


class Stored(StoredAnswers):
    """A test split with the batches of networks."""

    def batch(self, kind: Any) -> Any:
        samples = PreprocessedData(folder=self.data.folder).open(kind, self.split)
        return next(iter(Loader(samples, len(samples))))


def read_scores(comparison: Path) -> pa.Table:
    with pa.memory_map(str(comparison / "scores.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
        return table.filter(pa.compute.equal(table["split"], "test"))


@pytest.mark.parametrize("name", KEPT)
def test_a_loaded_detector_gives_the_risks_of_the_comparison(
    data: Path, comparison: Path, name: str
) -> None:
    detector = clew.load_detector(comparison / "detectors" / name)
    answers = Stored(AnswerFeatures(data), "test")
    found = detector._risks(answers)
    expected = read_scores(comparison)[f"risk_{name}"].to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert detector.fields <= answers.fields | {"question"}
    assert name in repr(detector)
    checked = [risk for risk in detector.assess(answers) if risk.state == "checked"]
    assert checked and {risk.threshold for risk in checked} == {detector.threshold}


def test_the_best_detector_lies_beside_the_report(comparison: Path) -> None:
    results = json.loads((comparison / "results.json").read_text())
    best = clew.load_detector(comparison)
    assert results["detectors"][best.name] == "detector"
    assert best.metrics["test_auroc"] > 0.5
    assert best.tokens is not None and best.basis is not None


def test_a_resumed_comparison_keeps_what_it_did_not_fit_again(data: Path, tmp_path: Path) -> None:
    config = compare_config(data, tmp_path / "out", methods=("perplexity", "lookback"))
    compare_methods(config)
    before = clew.load_detector(config.out)
    shutil.rmtree(config.out / "detector")
    compare_methods(config)
    assert clew.load_detector(config.out).calibration == before.calibration


@pytest.fixture(scope="module")
def compared(data: Path) -> Path:
    """A comparison that is finished, with one detector."""
    config = compare_config(data, data.parent / "compared", methods=("perplexity", "lookback"))
    return compare_methods(config).folder


@pytest.fixture
def out(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "out"))


def test_a_calibrated_detector_survives_the_next_comparison(data: Path, out: Path) -> None:
    changed = replace(clew.load_detector(out), threshold=0.123)
    calibrated = replace(changed, origin=replace(changed.kept, calibrated={"answers": 200}))
    change_detector(out / "detector", calibrated)
    events: list[Any] = []
    config = compare_config(data, out, methods=("perplexity", "lookback"))
    result = compare_methods(config, events.append)
    assert result.results["detectors"] == {"lookback": "detector"}
    assert clew.load_detector(out).threshold == 0.123
    assert any("was calibrated and stays as it is" in str(event) for event in events)
    compare_methods(replace(config, overwrite=True))
    assert clew.load_detector(out).threshold != 0.123


@pytest.mark.parametrize("changes", [{"methods": ("length",)}, {"keep_detectors": "none"}])
def test_a_detector_that_was_not_kept_this_time_is_removed(
    data: Path, out: Path, changes: dict[str, Any]
) -> None:
    config = compare_config(data, out, **{"methods": ("perplexity", "lookback"), **changes})
    compare_methods(config)
    with pytest.raises(StoreError, match="there is no detector"):
        clew.load_detector(out)
    assert not any((out / "detector").iterdir())


def test_a_detector_that_may_be_guessing_is_kept_only_on_request(
    data: Path, tmp_path: Path
) -> None:
    config = compare_config(data, tmp_path / "few", methods=("perplexity",))
    refused = compare_methods(replace(config, keep_at_chance=False)).results
    assert refused["detectors"] == {} and not (config.out / "detector/detector.json").exists()
    told = refused["findings"]["detector"]
    assert told.startswith("No detector was kept: Perplexity is not shown to be better than chance")
    assert "Label more answers" in told and "`keep_at_chance=True`" in told
    assert "on request" in compare_methods(config).results["findings"]["detector"]
    warning = clew.load_detector(config.out).warning
    assert warning is not None and "validation answers are" in warning
    assert clew.inspect(config.out / "detector").as_dict()["warning"] == warning
    enough = write_captured(tmp_path / "enough", shards=6, graphs=False)
    better = compare_config(enough, tmp_path / "out", methods=("lookback",), keep_at_chance=False)
    assert "detector" not in compare_methods(better).results["findings"]
    assert clew.load_detector(better.out).warning is None


def test_chance_is_few_answers_or_an_interval_that_reaches_it() -> None:
    labels = np.tile([0, 1], 50)
    guesses = np.random.default_rng(0).random(100)
    assert "AUROC on validation answers" in measure_chance(labels, labels, guesses)["at_chance"]
    known = measure_chance(labels, labels, labels + guesses)
    assert known["at_chance"] is None and known["val_auroc_ci"][0] > 0.9
    rare = np.repeat([0, 1], [91, 9])
    for train, validation, name in ((rare, labels, "training"), (labels, rare, "validation")):
        found = measure_chance(train, validation, validation + guesses)["at_chance"]
        assert found == f"only 9 of its 100 {name} answers are hallucinated"


@pytest.mark.parametrize("content", [b"damaged", None])
def test_a_detector_that_cannot_be_kept_does_not_cost_the_report(
    data: Path, out: Path, content: bytes | None
) -> None:
    (out / "results.json").unlink()
    (out / "methods/lookback.safetensors").unlink()
    if content is not None:
        (out / "methods/lookback.safetensors").write_bytes(content)
    events: list[Any] = []
    config = compare_config(data, out, methods=("perplexity", "lookback"))
    result = compare_methods(config, events.append)
    assert result.results["detectors"] == {} and (out / "results.json").exists()
    advice = "overwrite=True" if content is None else "delete lookback.json"
    assert any("not kept as a detector" in str(e) and advice in str(e) for e in events)


class Spoiled(StoredAnswers):
    """Answers of which some have states that are not finite."""

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        values = self.data.read(field, split, layer=layer)
        if field in FIELDS:
            values = values.copy()
            values[:3] = np.nan
        return values


def test_states_that_are_not_finite_do_not_decide_what_is_out_of_distribution(data: Path) -> None:
    features = AnswerFeatures(data)
    spoiled, plain = Distance.fit(Spoiled(features, "")), Distance.fit(features)
    assert spoiled is not None and plain is not None
    assert spoiled.limit == pytest.approx(plain.limit, rel=0.2)
    assert np.isfinite(spoiled.directions).all()


def test_empty_and_unfinished_answers_are_not_checked(data: Path, comparison: Path) -> None:
    detector = clew.load_detector(comparison)
    answers = StoredAnswers(AnswerFeatures(data), "test")
    answers.stop_reasons[0] = "length"
    risks = detector.assess(answers)
    assert risks[0].state == "unavailable" and "cut off" in str(risks[0].reason)
    training = StoredAnswers(answers.data, "train")
    lengths = [len(tokens) for tokens in training.read("token_logprobs", LIVE)]
    assessed = zip(detector.assess(training), lengths, strict=True)
    empty = [risk for risk, length in assessed if not length]
    assert empty and all(risk.risk is None and risk.reason for risk in empty)


class Strange(StoredAnswers):
    """Answers whose states are unlike all others, or not finite."""

    value = 1e4

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        values = super().read(field, split, layer=layer)
        return torch.full_like(values, self.value) if torch.is_tensor(values) else values


@pytest.mark.parametrize("value", [1e4, float("nan")])
def test_answers_unlike_the_training_data_get_no_verdict_but_a_token_probability_risk(
    data: Path, comparison: Path, value: float
) -> None:
    detector = clew.load_detector(comparison / "detectors/linear_probe")
    answers = Strange(AnswerFeatures(data), "test")
    answers.value = value
    risks = [risk for risk in detector.assess(answers) if risk.state != "unavailable"]
    assert risks and {risk.state for risk in risks} == {"out_of_distribution"}
    assert detector.fallback is not None
    assert {risk.method for risk in risks} == {detector.fallback.scorer.statistic}
    assert {(risk.risk, risk.verdict, risk.risk_level) for risk in risks} == {(None,) * 3}
    assert all(risk.reason and 0 <= risk.token_probability_risk <= 1 for risk in risks)


def test_a_detector_of_another_model_or_prompt_is_refused(comparison: Path) -> None:
    detector = clew.load_detector(comparison)
    detector.refuse_other(MODEL, detector.prompt)
    detector.refuse_other({**MODEL, "id": "the same elsewhere"})
    with pytest.raises(InputError, match="fingerprint: 'ab12', not 'cd34'"):
        detector.refuse_other({**MODEL, "fingerprint": "cd34"})
    with pytest.raises(InputError, match=r"template: 'Q: \{question\} A:', not '\{question\}'"):
        detector.refuse_other(MODEL, Prompt(template="{question}", chat=False))


@pytest.mark.parametrize(
    ("entry", "ours", "theirs"),
    [("revision", "abc123", "def456"), ("quantize", None, "4bit"), ("quantize", "8bit", None)],
)
def test_another_revision_or_quantization_is_refused_with_both_values(
    comparison: Path, entry: str, ours: str | None, theirs: str | None
) -> None:
    detector = clew.load_detector(comparison)
    detector = replace(detector, origin=replace(detector.kept, model={**MODEL, entry: ours}))
    detector.refuse_other({**MODEL, entry: ours})
    with pytest.raises(InputError, match=f"{entry}: {ours!r}, not {theirs!r}"):
        detector.refuse_other({**MODEL, entry: theirs})


def test_a_folder_of_the_same_weights_has_no_revision_to_compare(comparison: Path) -> None:
    detector = clew.load_detector(comparison)
    pinned = replace(detector, origin=replace(detector.kept, model={**MODEL, "revision": "a1"}))
    pinned.refuse_other(MODEL)


def test_moving_a_detector_leaves_the_original_where_it_is(comparison: Path) -> None:
    detector = clew.load_detector(comparison / "detectors/lstm")
    moved = detector.to("meta")
    devices = [next(one.network.parameters()).device.type for one in (detector, moved)]
    assert devices == ["cpu", "meta"]


def flipped(data: bytes) -> Iterator[bytes]:
    random = np.random.default_rng(0)
    for place in random.integers(0, len(data), 12):
        yield data[:place] + bytes([data[place] ^ 1 << int(random.integers(8))]) + data[place + 1 :]


def test_another_chat_template_is_refused_with_both_values(comparison: Path) -> None:
    detector = clew.load_detector(comparison)
    ours = replace(detector.prompt, chat=True, chat_template_sha256="ab" * 32)
    detector = replace(detector, origin=replace(detector.kept, prompt=ours))
    detector.refuse_other(MODEL, ours)
    detector.refuse_other(MODEL, replace(ours, chat_template_sha256=None))  # not recorded
    with pytest.raises(InputError, match="chat_template_sha256: 'abab.*, not 'cdcd"):
        detector.refuse_other(MODEL, replace(ours, chat_template_sha256="cd" * 32))


def test_the_known_answers_belong_to_their_detector(comparison: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(comparison / "detector", tmp_path / "detector"))
    known = folder / KNOWN_FILE
    known.write_bytes(known.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreError, match=f"{KNOWN_FILE} is not the file that was written with it"):
        clew.load_detector(folder)
    rewrite(folder, lambda about: about.pop("known_sha256"))  # as earlier versions of clew wrote it
    clew.load_detector(folder)
    known.unlink()
    clew.load_detector(folder)


@pytest.mark.parametrize("name", [DETECTOR_JSON, WEIGHTS])
def test_a_flipped_bit_is_refused(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for edited in flipped(content):
        (folder / name).write_bytes(edited)
        with pytest.raises(StoreError, match="cannot be used"):
            clew.load_detector(folder)


def rewrite(folder: Path, change: Any) -> None:
    """Edit detector.json as somebody would who knows the format."""
    from clew.hallucination.detectors.detector_folder import _write_json

    about = json.loads((folder / DETECTOR_JSON).read_text())
    del about["sha256"]
    change(about)
    _write_json(folder, about)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda about: about.update(threshold="high"), "threshold is 'high'"),
        (lambda about: about.update(threshold=-1), "threshold is -1"),
        (lambda about: about["fallback"].update(threshold=1.5), "threshold is 1.5"),
        (lambda about: about["results"].update(test_auroc=7), "results.test_auroc is 7"),
        (lambda about: about["results"].update(parameters="x"), "results.parameters is 'x'"),
        (lambda about: about.update(format=2), "format 2, not 1"),
        (lambda about: about["method"].update(kind="pickle"), "method.kind is 'pickle'"),
        (lambda about: about["method"].update(kind="layer"), "unknown"),
        (lambda about: about["method"]["fitted"].update(projections=[]), "unexpected"),
        (lambda about: about["shape"].update(dim=7), "basis has another shape"),
        (lambda about: about["shape"].update(layers=10**9), "shape.layers is 1000000000"),
        (lambda about: about["calibration"].update(slope=None), "slope is None"),
        (lambda about: about["prompt"].update(template="no place"), r"\{question\}"),
        (lambda about: about.update(extra=1), "extra is unknown"),
        (lambda about: about.pop("fallback"), "fallback is missing"),
        (lambda about: about["distance"].update(layer=-1), "layer -1"),
        (lambda about: about["distance"].update(limit=-1.0), "distance.limit is -1.0"),
        (lambda about: about["calibration"].update(spread=0.0), "calibration.spread is 0.0"),
        (lambda about: about["model"].clear(), "model.id is missing"),
        (lambda about: about["preprocess"].update(top_k="x"), "preprocess.top_k is 'x'"),
        (lambda about: about["shape"].update(layers=1024, dim=2**20), "1,024 layers of up to"),
        (lambda about: about["preprocess"].update(node_dim=10**12), "layers of up to 1,000,000,0"),
    ],
)
def test_an_edited_folder_gets_one_message(folder: Path, change: Any, reason: str) -> None:
    rewrite(folder, change)
    with pytest.raises(StoreError, match=reason) as error:
        clew.load_detector(folder)
    assert len(str(error.value)) < 800


def test_a_title_cannot_reorder_what_stands_beside_it(folder: Path) -> None:
    rewrite(folder, lambda about: about["method"].update(title="\u202eprobe\x1b[2J"))
    assert clew.load_detector(folder).title == r"\u202eprobe\u001b[2J"


def test_a_probe_that_reads_texts_is_refused(out: Path) -> None:
    rewrite(out / "detector", lambda about: about["method"]["fitted"].update(field="question"))
    with pytest.raises(StoreError, match="cannot be used"):
        clew.load_detector(out)


def test_weights_that_are_not_finite_are_refused(folder: Path) -> None:
    from clew.engine.model_files import read_model, write_model
    from clew.storage.reading import hash_file

    saved = read_model(folder / WEIGHTS)
    tensors = saved.read(saved.kinds)
    tensors["fitted.machine.weights"] = tensors["fitted.machine.weights"] * float("nan")
    write_model(folder / WEIGHTS, tensors, saved.about)
    rewrite(folder, lambda about: about.update(weights_sha256=hash_file(folder / WEIGHTS)))
    with pytest.raises(StoreError, match="machine.weights contains NaN"):
        clew.load_detector(folder)


def test_samples_without_basis_keep_only_methods_that_do_not_read_nodes(tmp_path: Path) -> None:
    data = write_captured(tmp_path / "pre")
    (data / "basis.arrow").unlink()
    events: list[Any] = []
    config = compare_config(
        data, tmp_path / "out", methods=("lookback", "token_probe"), keep_detectors="all"
    )
    result = compare_methods(config, events.append)
    assert [*result.results["detectors"]] == ["lookback"]
    assert any('the same "clew preprocess" command' in str(event) for event in events)


def test_a_trained_network_is_kept_as_a_detector(data: Path, tmp_path: Path) -> None:
    config = TrainRunConfig(
        networks=("lstm",),
        preprocessed_dir=data,
        out=tmp_path,
        train=TrainConfig(epochs=1),
        request=PLAIN,
        keep_at_chance=True,
    )
    events: list[Any] = []
    train_detectors(replace(config, keep_at_chance=False), events.append)
    assert not (tmp_path / "lstm/detector").exists()
    assert any(
        "is not kept as a detector: the detector lstm is not shown" in str(e) for e in events
    )
    train_detectors(config)
    shutil.rmtree(tmp_path / "lstm/detector")  # as after a kill, or with an earlier version
    train_detectors(config)
    detector, network = (
        clew.load_detector(folder) for folder in (tmp_path / "lstm/detector", tmp_path / "lstm")
    )
    assert detector.model["id"] == "tiny" and network.origin is None
    answers = Stored(AnswerFeatures(data), "test")
    batch = answers.batch("sequences")
    raw, risks = network.score(batch), detector.score(batch)
    assert torch.equal(raw.argsort(), risks.argsort())
    with pytest.raises(InputError, match="best.safetensors, which does not say which model"):
        _ = network.model
