"""Commands that require an extra, in an installation without it."""

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
@pytest.mark.parametrize("command", ["review", "identify photos", "flow animals --from photos"])
def test_page_without_its_packages_is_refused_before_any_work(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, package: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    (tmp_path / "photos").mkdir()
    ended = run("patterns", *command.split(), "--web")
    assert ended.code == 2
    assert package in ended.err and "pip install 'clew[web]'" in ended.err
    assert [*tmp_path.rglob("*")] == [tmp_path / "photos"]


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
@pytest.mark.parametrize("command", ["train", "patterns train --data photos"])
def test_tracker_that_is_not_installed_is_refused_before_any_work(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, package: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("photos", "preprocessed_data"):
        (tmp_path / name).mkdir()
    ended = run(*command.split(), "--log-to", package)
    assert ended.code == 2
    assert f"requires the package {package}" in ended.err and f"clew[{package}]" in ended.err
    assert {*tmp_path.rglob("*")} == {tmp_path / "photos", tmp_path / "preprocessed_data"}
