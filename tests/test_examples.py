"""The examples run as they are."""

import ast
import json
import runpy
import sys
from pathlib import Path

import pytest

from clew.patterns.photos import find_classes
from tests.hallucination.detectors.training.making import write_learnable
from tests.stores import one_thread
from tests.workspace import inside

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLES / "detect_hallucinations.ipynb"


def run_example(name: str, *words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.slow
def test_custom_network_example_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The example does not seed its first weights: with so many samples any will do.
    samples = write_learnable(tmp_path / "preprocessed_data", rows=300)
    with one_thread():
        run_example("own_network.py", str(samples), str(tmp_path / "results_own"))
    metrics = ast.literal_eval(capsys.readouterr().out)
    assert metrics["auroc"] > 0.75
    assert (tmp_path / "results_own" / "best.safetensors").exists()
    assert (tmp_path / "results_own" / "log.csv").exists()


def test_custom_network_example_takes_ten_lines() -> None:
    text = (EXAMPLES / "own_network.py").read_text()
    code = text[text.index("class LastLayer") : text.index("# --8<-- [end")].splitlines()
    assert len([line for line in code if line.strip()]) <= 10


@pytest.mark.slow
def test_examples_run_in_a_workspace(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One test for all of them: making the workspace is what takes time."""
    with inside(workspace):
        run_example("own_model.py", "my-model", "traces_own")
        assert capsys.readouterr().out.count(" -> ") == 20
        run_example("own_questions.py", "smollm2", "traces_questions")
        assert capsys.readouterr().out.count("(hallucinated)") == 4
        run_example("own_probe.py", "preprocessed_data")
        assert "test AUROC 0." in capsys.readouterr().out
        run_example("polars_store.py", "traces_data")
        assert "logprob" in capsys.readouterr().out
        run_example("photo_classifier.py", "my_photos", "new_photos", "trained_example")
        assert "2 classes: blue, red" in capsys.readouterr().out


@pytest.mark.slow
def test_notebook_runs(workspace: Path, tmp_path: Path) -> None:
    """Cell by cell: the value of a cell's last line is drawn, as Jupyter does."""
    (tmp_path / "my-model").symlink_to(workspace / "my-model")
    # The tiny model answers no fact correctly.
    questions = str(workspace / "my_questions.csv")
    names: dict[str, object] = {}
    drawn = []
    with inside(tmp_path):
        for source in code_cells():
            tree = ast.parse(source.replace("facts", questions))
            last = tree.body.pop()
            exec(compile(tree, NOTEBOOK.name, "exec"), names)
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
            drawn.append(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
    assert all(drawn)


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_notebook_holds_no_stale_output() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(not cell["outputs"] and not cell["execution_count"] for cell in code)


@pytest.mark.slow
def test_digits_become_photos_in_class_folders(tmp_path: Path) -> None:
    run_example("digit_photos.py", str(tmp_path / "digits"))
    found = find_classes(tmp_path / "digits")
    assert found.classes == tuple("0123456789")
    assert len(found.photos) == 1797 and not found.faults
