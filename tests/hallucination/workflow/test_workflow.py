"""The whole flow from Python, on a tiny model: extract, label, preprocess, train, compare, show."""

import builtins
import inspect
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import clew
from clew.hallucination.capture import ExtractConfig, LoadedModel
from tests.builders import write_questions
from tests.stores import after_one_batch, one_thread

pytestmark = pytest.mark.slow
QUICK = {"epochs": 1, "device": "cpu", "num_workers": 0, "batch_size": 16}


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory, loaded: LoadedModel) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("flow")
    questions = [
        {"question": f"What is {i} plus {i}?", "answer": str(2 * i), "category": "sums"}
        for i in range(60)
    ]
    with one_thread():
        traces = clew.extract(
            model=loaded, questions=questions, out=folder / "traces", max_new_tokens=4, node_dim=4
        )
        scores = clew.label(traces.traces_dir, out=folder / "scores.csv", method="token-f1")
        lines = (folder / "scores.csv").read_text().splitlines(keepends=True)
        header = lines[0].split(",").index("score")
        rows = [line.split(",") for line in lines[1:]]
        for number, row in enumerate(rows):
            row[header] = str(number % 2)
        (folder / "labels.csv").write_text(lines[0] + "".join(",".join(row) for row in rows))
        samples = clew.preprocess(
            folder / "traces", scores_file=folder / "labels.csv", out=folder / "samples"
        )
        results = clew.train(
            preprocessed_dir=samples.path, out=folder / "results", networks=["lstm"], **QUICK
        )
        comparison = clew.compare(
            preprocessed_dir=samples.path,
            out=folder / "comparison",
            methods=["perplexity", "linear-probe"],
        )
        page = clew.show(folder / "traces", id=3, out=folder / "page.html")
    return locals()


def test_store_counts_its_traces_and_repr_describes_it(flow: dict[str, Any]) -> None:
    traces = flow["traces"]
    assert (traces.num_traces, len(traces), len(list(traces))) == (60, 1, 60)
    assert " on the list of questions, 60 traces in 1 shard, " in repr(traces)
    assert next(iter(traces))["question"] == "What is 0 plus 0?"
    assert clew.verify(traces.traces_dir).is_intact
    assert clew.inspect(traces.traces_dir).rows == 60


def test_repr_of_results_is_one_readable_line(flow: dict[str, Any]) -> None:
    traces, samples = flow["traces"].traces_dir, flow["samples"].path
    assert repr(clew.verify(traces)) == f"Verification({traces}: intact)"
    assert repr(clew.inspect(traces)).startswith("StoreSummary(60 traces in 1 shard, ")
    assert repr(clew.inspect(samples)).startswith("SamplesSummary(train ")
    plans = repr(clew.plan(device="cpu"))
    assert re.fullmatch(r"Plans\(\d+ CPU cores?.*; all networks: cpu, \w+, batch size \d+\)", plans)
    detector = repr(flow["results"].detector("lstm"))
    assert re.fullmatch(
        r"Detector\(lstm: [\d,]+ parameters, validation AUROC [\d.]+, threshold [\d.]+\)", detector
    )


def test_results_are_tables(flow: dict[str, Any]) -> None:
    assert flow["scores"].table.num_rows == 60 and "60 answers" in repr(flow["scores"])
    comparison = flow["comparison"]
    assert set(comparison.table["method"].to_pylist()) == {"perplexity", "linear_probe"}
    frame = comparison.to_pandas()
    assert comparison.best in frame.method.tolist()
    assert frame.test_auroc_std.dtype == "float64"
    assert pa.table(comparison).equals(comparison.table)
    assert "<td>perplexity</td>" in comparison._repr_html_()
    assert repr(comparison).startswith("ComparisonResult(2 methods; best: ")
    assert comparison.report.read_text().startswith("<!doctype html>")


def test_samples_and_networks_report_counts_and_metrics(flow: dict[str, Any]) -> None:
    assert sum(sum(counts.values()) for counts in flow["samples"].splits.values()) == 60
    results = flow["results"]
    assert results.detector("lstm").name == "lstm"
    assert set(results.metrics) == {"lstm"} and "LSTM: test AUROC " in repr(results)


def test_page_is_shown_in_a_notebook(flow: dict[str, Any]) -> None:
    assert flow["page"].path.exists()
    assert flow["page"]._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')


def test_every_output_folder_has_its_run_file(flow: dict[str, Any]) -> None:
    for name in ("traces", "samples", "results", "comparison"):
        text = (flow["folder"] / name / "run.toml").read_text()
        assert text.startswith("# Settings of a run of ")
    text = (flow["folder"] / "traces" / "run.toml").read_text()
    assert 'not_recorded = ["model", "questions"]' in text


def test_missing_polars_says_what_to_install(
    flow: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name == "polars":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(clew.InputError, match="requires polars. Install it with pip install"):
        flow["comparison"].to_polars()


def test_unusable_questions_are_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(clew.InputError, match="the list of questions"):
        clew.extract(model=loaded, questions=[{"text": "?"}], out=tmp_path / "no")


def test_store_of_a_loaded_model_is_resumed_by_its_name(model_folder: Path, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "q.jsonl", 8)
    settings: dict[str, Any] = {"questions": questions, "out": tmp_path / "new", "node_dim": 4}
    with one_thread():
        model = clew.load_model(model_folder, device="cpu")
        clew.extract(model=model, num_samples=4, **settings)
        assert clew.extract(model=model_folder, device="cpu", **settings).num_traces == 8


def test_stopped_run_raises_stopped_error_and_resumes(loaded: LoadedModel, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "q.jsonl", 8)
    settings: dict[str, Any] = {"questions": questions, "out": tmp_path / "new", "node_dim": 4}
    with one_thread():
        with pytest.raises(clew.StoppedError, match="[1-9] new traces? saved"):
            stop = after_one_batch()
            clew.extract(model=loaded, generation_batch=2, should_stop=stop, **settings)
        assert clew.extract(model=loaded, generation_batch=2, **settings).num_traces == 8


def test_missing_and_unknown_arguments_are_those_of_the_function() -> None:
    call: Any = clew.score
    with pytest.raises(TypeError, match=r"^score\(\) missing a required argument: 'detector'$"):
        call(questions=[])
    with pytest.raises(TypeError, match=r"^extract\(\) got an unexpected keyword argument 'qs'$"):
        clew.extract(qs="facts")  # type: ignore[call-arg]


def test_defaults_are_those_of_the_config() -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(clew.extract).parameters.items()
    }
    config = ExtractConfig()
    assert defaults["cut"] is None  # chosen by what the accepted answers look like
    for name in {*defaults} & {*vars(config)} - {"part", "out", "cut"}:
        assert getattr(config, name) == defaults[name], name
