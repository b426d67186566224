"""clew compare: its options, the table on the terminal, its exit codes."""

import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clew.cli.compare import make_table, print_comparison
from clew.hallucination.comparison import CompareConfig, compare_methods
from tests.cli.test_train import call, read
from tests.engine.children import start, wait, wait_until
from tests.hallucination.comparison.making import compare_config, describe_capture, write_data

pytestmark = pytest.mark.slow

QUICK = ("--methods", "length,perplexity,lookback,linear-probe")
FIGURE = r"\d\.\d{3}"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("samples") / "preprocessed_data", rows=120)


@pytest.fixture
def folder(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user, with samples where `clew preprocess` puts them."""
    (tmp_path / "preprocessed_data").symlink_to(samples)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_comparison_prints_table_and_findings_and_writes_report(run: Any, folder: Path) -> None:
    ended = run("compare", "--preprocessed-dir", "preprocessed_data", *QUICK)
    assert ended.code == 0, ended.err
    results = json.loads((folder / "comparison" / "results.json").read_text())
    assert {row["method"] for row in results["methods"]} == {
        *("length", "perplexity", "lookback", "linear_probe")
    }
    progress = rf"1/4 Answer length: validation AUROC {FIGURE}, test {FIGURE} \[{FIGURE}, .*\], in "
    assert re.search(progress, ended.out)
    best = results["methods"][0]
    assert re.search(rf"^> {re.escape(best['title'])} +{FIGURE} +{FIGURE} \[", ended.out, re.M)
    assert f"The best method on validation, {best['title']}, reaches a test AUROC" in ended.out
    assert ended.out.endswith("report: comparison/report.html\n")
    assert (folder / "comparison" / "report.html").exists()
    again = run("compare", "--preprocessed-dir", "preprocessed_data", *QUICK)
    assert again.out.count(", already done") == 4
    quiet = run("compare", "--preprocessed-dir", "preprocessed_data", *QUICK, "--quiet")
    assert quiet.out.startswith(f"{results['data']['name']}: ")
    assert quiet.out.endswith("\nreport: comparison/report.html\n")


def test_terminal_shows_the_current_method(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    ended = run("compare", "--methods", "perplexity", "--output-dir", folder / "seen")
    assert ended.code == 0 and "1/1 Perplexity" in ended.out


@pytest.fixture(scope="module")
def results(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    methods = ("length", "perplexity", "lookback", "linear_probe")
    out = tmp_path_factory.mktemp("results")
    return compare_methods(compare_config(samples, out, methods=methods)).results


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_table_fits_the_terminal(results: dict[str, Any], width: int) -> None:
    table, hidden = make_table(results["methods"], best=results["best"]["method"], width=width)
    shown = [column.header for column in table.columns]
    assert "AUROC [95%]" in shown and len(shown) + len(hidden) == 14
    assert bool(hidden) == (width < 150)
    page = io.StringIO()
    console = Console(file=page, width=width, highlight=False, soft_wrap=True)
    print_comparison(console, Path("comparison"), results)
    text = page.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert all(name in text for name in hidden)


@pytest.mark.parametrize("title", ["LSTM", ""], ids=["short titles", "usual titles"])
def test_table_cuts_no_value_at_any_width(results: dict[str, Any], title: str) -> None:
    rows = [{**row, "title": title or row["title"]} for row in results["methods"]]
    for width in range(60, 141, 3):
        page = io.StringIO()
        table, _ = make_table(rows, best=rows[0]["method"], width=width)
        Console(file=page, width=width, highlight=False).print(table)
        assert "…" not in page.getvalue(), width


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--methods", "magic"], 'unknown method "magic": choose --methods from: length, '),
        (["--methods", ","], "no methods given"),
        (["--preprocessed-dir", "nowhere"], 'there is no folder "nowhere"'),
        (["--seeds", "0"], "--seeds is 0"),
        (["--epochs", "0"], "epochs is 0"),
        (["--device", "abacus"], "abacus"),
        (["--output-dir", "/dev/null/results"], "cannot be created"),
        (["--train-on", "preprocessed_data"], "--test-on is missing"),
        (["--stores", "preprocessed_data"], "give two or more"),
        (["preprocessed_data"], 'unexpected argument "preprocessed_data"'),
        (["--preprocessed-dir", "a", "--stores", "b", "c"], "cannot be combined"),
        (["--methods", "charm"], "--keep full"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_input_gets_one_message(
    run: Any, folder: Path, options: list[str], sentence: str
) -> None:
    ended = run("compare", *options)
    assert ended.code == 2, ended.err
    assert ended.err.startswith("clew: ") and sentence in ended.err
    assert not (folder / "comparison" / "results.json").exists()


def test_failing_method_exits_with_1_and_keeps_the_others(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise TypeError("oops")

    from clew.hallucination.detectors.probes.registry import PROBES

    monkeypatch.setattr(type(PROBES["lookback"]), "fit", _only("lookback", broken))
    ended = run("compare", "--methods", "perplexity,lookback")
    assert ended.code == 1
    assert "Lookback Lens: it failed because of a bug in clew (TypeError: oops)" in ended.err
    assert (folder / "comparison" / "report.html").exists()


def _only(name: str, broken: Any) -> Any:
    """The `fit` of all methods, broken for one of them."""

    from clew.hallucination.detectors.probes.method import Method

    whole = Method.fit
    return lambda self, data, *, seed: (
        broken() if self.name == name else whole(self, data, seed=seed)
    )


def test_transfer_prints_sets_not_trained_on_and_the_matrix_of_the_best(
    run: Any, tmp_path: Path
) -> None:
    folders = [write_data(tmp_path / name, rows=rows) for name, rows in (("a", 100), ("b", 120))]
    for one in folders:
        describe_capture(one, model={"id": "tiny", "fingerprint": "abc"})
    out = tmp_path / "out"
    ended = run(
        *("compare", "--stores", *folders, "--output-dir", out),
        *("--methods", "perplexity,lookback"),
    )
    assert ended.code == 0, ended.err
    interval = rf"{FIGURE} \[{FIGURE}, {FIGURE}\]"
    assert re.search(rf"^  Lookback Lens +{interval} +{interval}", ended.out, re.M), ended.out
    for name in "ab":
        assert re.search(rf"^  trained on {name} +{interval}", ended.out, re.M)
    pair = run(
        *("compare", "--train-on", folders[0], "--test-on", folders[1], "--output-dir", out / "p"),
        *("--methods", "perplexity"),
    )
    assert pair.code == 0 and "trained on a, tested on b" in pair.out


LONG = (
    *("compare", "--methods", "lstm", "--epochs", 5000, "--patience", 0, "--device", "cpu"),
    *("--no-amp", "--no-compile", "--batch-size", 16, "--num-workers", 0),
)


def test_signal_stops_comparison_and_says_how_to_resume(folder: Path) -> None:
    child = start(call, LONG, folder / "said.txt")
    log = folder / "comparison" / "networks" / "lstm" / "seed-0" / "log.csv"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 2, child)
    os.kill(child.pid, signal.SIGTERM)
    assert wait(child) == 128 + signal.SIGTERM
    said = read(folder / "said.txt")
    assert "stopping: finished methods are kept" in said and "Traceback" not in said
    assert "To resume: clew compare --methods lstm --epochs 5000" in said


def test_killed_comparison_resumes_with_identical_results(run: Any, folder: Path) -> None:
    child = start(call, ("compare", *QUICK), folder / "said.txt")
    wait_until((folder / "comparison" / "methods" / "perplexity.json").exists, child)
    os.kill(child.pid, signal.SIGKILL)
    wait(child)
    ended = run("compare", *QUICK)
    assert ended.code == 0 and ended.out.count(", already done") >= 2
    assert run("compare", *QUICK, "--output-dir", "whole").code == 0
    broken, whole = (
        [
            {name: row[name] for name in ("method", "val_auroc", "test_auroc", "threshold")}
            for row in json.loads(Path(place, "results.json").read_text())["methods"]
        ]
        for place in ("comparison", "whole")
    )
    assert broken == whole


@pytest.mark.usefixtures("folder")
def test_train_compares_all_methods_afterwards(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[CompareConfig] = []
    monkeypatch.setattr(
        "clew.hallucination.workflow.training.run_comparison",
        lambda config, *_: caught.append(config),
    )
    flags = "--epochs 1 --lstm-hidden 4 --num-lstm-layers 1 --device cpu --num-workers 0"
    only = "--run-lstm --no-run-gnn-det --no-run-gvae --compare"
    ended = run("train", *flags.split(), *only.split())
    assert ended.code == 0, ended.err
    [config] = caught
    assert config.out == Path("results/compare") and config.train.epochs == 1
    assert config.methods is not None
    assert "lstm" in config.methods and "perplexity" in config.methods
    assert "gvae" not in config.methods and config.network.lstm_hidden == 4


def test_train_refuses_impossible_comparison_before_training(run: Any, folder: Path) -> None:
    ended = run("train", "--data-pattern", "traces", "--scores-file", "s.csv", "--compare")
    assert ended.code == 2 and "--compare requires samples" in ended.err
    assert not (folder / "results").exists()
