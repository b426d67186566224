"""clew patterns export: the file, the output and wrong use."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.report.making import SIZE, make_run


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_run(tmp_path / "my model", classes=[f"class {n}" for n in range(8)], test=1)


@pytest.mark.slow
def test_export_writes_the_file_once_and_describes_it(run: Any, model: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    ended = run("patterns", "export", "--model", model)
    assert (ended.code, ended.err) == (0, "")
    path = model / "model.onnx"
    about = runtime.InferenceSession(path.read_bytes()).get_modelmeta().custom_metadata_map
    assert len(json.loads(about["classes"])) == 8
    assert f'input:    "image", uint8 [batch, {SIZE}, {SIZE}, 3]' in ended.out
    assert "class 0, class 1, class 2, class 3, class 4, class 5, ... (8 in total)" in ended.out
    assert "onnxruntime returns the same probabilities for 8 photos" in ended.out
    before = path.read_bytes()
    ended = run("patterns", "export", "--model", model)
    assert ended.code == 2 and path.read_bytes() == before
    assert 'model.onnx" already exists: give another --out, or --overwrite to' in ended.err


def test_missing_extra_is_named_with_the_command_to_install_it(
    run: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    ended = run("patterns", "export", "--model", model, "--out", "a.onnx")
    assert ended.code == 2 and 'pip install "clew[onnx]"' in ended.err
    assert not Path("a.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "nowhere"], 'there is no model at "nowhere"'),
        (["--model", "photos"], 'photos" contains no trained model'),
        (["--name", "cats"], "cats"),
        (["--model", "my model", "--out", "photos"], '"photos" is a folder: give the name of a'),
    ],
)
@pytest.mark.usefixtures("model")
def test_invalid_usage_prints_one_message_and_exits_with_2(
    run: Any, arguments: list[str], sentence: str
) -> None:
    ended = run("patterns", "export", *arguments)
    assert ended.code == 2 and sentence in ended.err and ended.err.count("\n") == 1
