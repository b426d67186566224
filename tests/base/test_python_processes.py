"""Other Python processes: nothing that lies in the current folder runs in them."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clew.base.python_processes import Copy, run_module, start_copy, start_function
from tests.test_architecture import SOURCE

pytestmark = pytest.mark.slow

# Modules that Python, pip and clew import.
IMPORTED = ("queue", "socket", "pip", "clew", "numpy", "sitecustomize")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with files that are named as modules. The one that runs leaves `ran`."""
    for name in IMPORTED:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ran"


def report_modules(path: str) -> None:
    """What the other process does."""
    import queue

    import clew

    Path(path).write_text(f"{queue.__file__}\n{clew.__file__}\n{os.environ['MARK']}")


def test_a_function_finds_the_modules_of_this_process(
    trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", "mine")
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in an interactive session
    start_function(report_modules, str(tmp_path / "modules")).wait()
    modules = (tmp_path / "modules").read_text().splitlines()
    assert modules == [sys.modules["queue"].__file__, str(SOURCE / "__init__.py"), "mine"]
    assert not trap.exists()


def answer(number: int) -> None:
    """What a copy does: says what it was given, and ends, fails, dies or never ends."""
    sys.stdout.write(sys.stdin.read())
    if number < 0:
        os.kill(os.getpid(), -number)
    while number > 1:
        time.sleep(0.01)
    assert not number


def call(number: int, out: Path) -> Copy:
    out.with_suffix(".in").write_text(f"given {number}")
    with out.with_suffix(".in").open() as stdin, out.open("w") as stdout:
        files = {"stdin": stdin.fileno(), "stdout": stdout.fileno(), "stderr": stdout.fileno()}
        return start_copy(answer, number, **files)


def test_copies_of_one_process_read_what_they_get_and_end_alone(tmp_path: Path) -> None:
    outs = [tmp_path / str(number) for number in range(4)]
    copies = [call(number, out) for number, out in zip((0, 1, -9, 2), outs, strict=True)]
    assert [copy.wait() for copy in copies[:3]] == [0, 1, -9]
    with pytest.raises(TimeoutError):
        copies[3].wait(0.2)
    for copy in copies:
        copy.end()
    assert outs[0].read_text() == "given 0"
    assert "AssertionError" in outs[1].read_text()


def test_a_module_is_not_taken_from_the_current_folder(trap: Path) -> None:
    done = run_module("pip", "--version", variables={})
    assert done.returncode == 0 and done.stdout.startswith("pip ")
    assert not trap.exists()


def test_packages_of_pythonpath_are_found(tmp_path: Path) -> None:
    (tmp_path / "my_package.py").write_text("print('found')")
    done = run_module("my_package", variables={"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "found\n"


def test_python_is_started_in_one_place_only() -> None:
    starts = re.compile(r"sys\.executable|get_context|set_start_method|ProcessPool|\bmp\.")
    found = [path.name for path in SOURCE.rglob("*.py") if starts.search(path.read_text())]
    assert found == ["python_processes.py"]


_ASK_RAY = """
import sys
from pathlib import Path
from clew.cluster.connection import connected

def find_modules():
    import queue, clew
    return [queue.__file__, clew.__file__, *sys.path]

with connected("ray", cores=1) as cluster:
    print(*cluster.ray.get(cluster.ray.remote(find_modules).remote()), sep="\\n")
"""


@pytest.mark.sweep
def test_a_worker_of_ray_does_not_search_the_current_folder(
    trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    command = [sys.executable, "-P", "-c", _ASK_RAY]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    assert modules[:2] == [sys.modules["queue"].__file__, str(SOURCE / "__init__.py")]
    assert str(trap.parent) not in modules and "" not in modules[:-1]
    assert not trap.exists()


_DRAW = """
import sys
from pathlib import Path
from clew.engine.folders import draw_curves
rows = [{"epoch": 1, "train_loss": 1.0, "val_loss": 0.5, "val_auroc": 0.5}]
draw_curves(Path(sys.argv[1]), rows, title="curves", best_epoch=1)
"""


def test_matplotlib_takes_no_settings_from_the_current_folder(tmp_path: Path) -> None:
    plain, strange = tmp_path / "plain", tmp_path / "strange"
    for folder in (plain, strange):
        folder.mkdir()
    (strange / "matplotlibrc").write_text("text.usetex: True\nlines.linewidth: 30\n")
    for folder in (plain, strange):
        command = [sys.executable, "-P", "-c", _DRAW, "curves.png"]
        subprocess.run(command, cwd=folder, check=True)
    assert (plain / "curves.png").read_bytes() == (strange / "curves.png").read_bytes()
