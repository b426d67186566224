"""run.toml: what is recorded, and that it reads back as it was."""

import os
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError, StoppedError
from clew.storage.run_file import describe_run, read_run_file, repeatable, write_run_file
from clew.version import __version__


@repeatable("step", always=("source",), unrecorded=("part",), growing=("count",))
def step(
    source: Any,
    *,
    out: Path,
    size: int = 3,
    count: int | None = None,
    part: str = "1/1",
    reporter: Any = None,
) -> str:
    out.mkdir(exist_ok=True)
    if source == "stop at once":
        raise StoppedError("stopped.")
    (out / "result").touch()
    if source == "stop":
        raise StoppedError("stopped.")
    if source == "fail":
        raise InputError("no.")
    return f"{source} {size} {part} {reporter} {count}"


@pytest.mark.parametrize(
    "value",
    ["plain", 'a "quote" and \\', "línea\nnueva\t\x7f\x01", 3, -0.5, 1e-9, True, ["a", "b"]],
)
def test_values_read_back_as_they_were(tmp_path: Path, value: Any) -> None:
    write_run_file(tmp_path, "step", {"value": value})
    run = read_run_file(tmp_path / "run.toml")
    assert (run.command, run.settings, run.not_recorded) == ("step", {"value": value}, ())


def test_only_inputs_and_changed_settings_are_recorded(tmp_path: Path) -> None:
    assert step("a", out=tmp_path / "new", part="2/3", reporter=print).startswith("a 3 2/3")
    run = read_run_file(tmp_path / "new" / "run.toml")
    assert run.settings == {"source": "a", "out": str(tmp_path / "new")}
    step("a", out=tmp_path / "new", size=4)
    assert read_run_file(tmp_path / "new" / "run.toml").settings["size"] == 4
    assert f'version = "{__version__}"' in (tmp_path / "new" / "run.toml").read_text()


@pytest.mark.parametrize(
    ("counts", "kept"), [((60, 30), 60), ((30, 60), 60), ((None, 30), None), ((30, None), None)]
)
def test_smaller_count_than_the_folder_holds_is_not_recorded(
    tmp_path: Path, counts: tuple[int | None, ...], kept: int | None
) -> None:
    for count in counts:
        step("a", out=tmp_path / "new", count=count)
    assert read_run_file(tmp_path / "new" / "run.toml").settings.get("count") == kept


def test_stopped_run_is_recorded_and_refused_run_is_not(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        step("stop", out=tmp_path / "stopped")
    assert (tmp_path / "stopped" / "run.toml").exists()
    with pytest.raises(StoppedError):
        step("stop at once", out=tmp_path / "empty")
    assert not (tmp_path / "empty" / "run.toml").exists()
    with pytest.raises(InputError):
        step("fail", out=tmp_path / "refused")
    assert not (tmp_path / "refused" / "run.toml").exists()


def test_python_objects_are_named_instead_of_recorded(tmp_path: Path) -> None:
    step(object(), out=tmp_path / "new")
    run = read_run_file(tmp_path / "new" / "run.toml")
    assert run.not_recorded == ("source",) and "source" not in run.settings


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("RANK", "1")
    write_run_file(tmp_path, "step", {})
    assert not (tmp_path / "run.toml").exists()


def test_none_is_not_recorded() -> None:
    assert "size" not in describe_run("step", {"size": None})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a = " + "[" * 5_000, "nested too deeply"),
        ("a" + ".a" * 50_000 + " = 1", "more than 64 parts"),
        ("[a" + ".a" * 50_000 + "]", "more than 64 parts"),
        ("x = {a" + ".a" * 50_000 + " = 1}", "more than 64 parts"),
        ("a = " + "1" * 5_000, r"contains a number of more than 4,300 digits\.$"),
        ("a = '" + "x" * (1 << 20) + "'", "larger than"),
        ("command = [1]", r"command is \[1\]"),
        ("not_recorded = 5", "not_recorded is 5"),
    ],
)
def test_hostile_file_is_refused_in_bounded_time(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "run.toml").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=reason):
        read_run_file(tmp_path / "run.toml")


def test_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.toml")
    with pytest.raises(InputError, match="it is a pipe"):
        read_run_file(tmp_path / "run.toml")


def test_a_run_file_of_somebody_else_is_not_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []
    path = tmp_path / "run.toml"
    path.write_text("[other-tool]\nmine = 1\n")

    @repeatable("tests")
    def run(*, out: Path) -> None:
        ran.append(out)

    with pytest.raises(InputError, match=r'run.toml" was not written by clew, so it is not repl'):
        run(out=tmp_path)
    write_run_file(tmp_path, "tests", {})
    assert "the settings of this run are not recorded" in caplog.text
    assert not ran and path.read_text() == "[other-tool]\nmine = 1\n"
    path.unlink()
    run(out=tmp_path)
    run(out=tmp_path)
    assert read_run_file(path).command == "tests" and len(ran) == 2
