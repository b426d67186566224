"""The documentation says what the program does."""

import functools
import importlib.util
import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clew.cli import build_app
from clew.hallucination.comparison.methods import list_methods
from clew.hallucination.detectors.probes import registry
from clew.hallucination.grounded import folder
from tests.workspace import inside

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
BLOCK = re.compile(r"(<!-- not run: .+ -->\n)?```python\n(.*?)```", re.DOTALL)
OUTSIDE = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^\"'>]+")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow
def test_command_reference_matches_help_output() -> None:
    specification = importlib.util.spec_from_file_location("m", DOCS / "make_commands.py")
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    written = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert written == module.render(), 'run "make docs"'
    assert max(map(len, written.splitlines())) <= 80


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"


@functools.cache
def help_of(command: str) -> str:
    environment = {"COLUMNS": "200", "TERM": "dumb"}
    result = CliRunner().invoke(build_app(), [*command.split(), "--help"], env=environment)
    assert result.exit_code == 0, f"there is no clew {command}"
    return result.output


@pytest.mark.slow
def test_options_in_shell_blocks_exist() -> None:
    words = r"^(?:\$ )?(?:torchrun .* -m )?clew ((?:patterns )?[a-z]+)(.*)$"
    for page in PAGES:
        blocks = "\n".join(page.read_text(encoding="utf-8").split("```")[1::2])
        for command, rest in re.findall(words, blocks, re.MULTILINE):
            for option in re.findall(r"(--[a-z][a-z-]+)", rest):
                found = option in re.findall(r"--[a-z][a-z-]+", help_of(command))
                assert found, f"{name_of(page)}: clew {command} has no {option}"


@pytest.mark.slow
def test_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    py_compile.compile(str(DOCS / "make_commands.py"))  # as importing it does
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert not [*tmp_path.rglob("__pycache__"), *tmp_path.rglob("*.py*")]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(list(DOCS.rglob("*.md")))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not OUTSIDE.findall(text), page
        assert '<details class="example"' not in text, f'{page}: write "Examples:", a section'


@pytest.mark.slow
def test_python_blocks_run(
    workspace: Path, reader_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a page one after another, as somebody would paste them. The built-in model and the
    built-in reader are tiny ones."""
    monkeypatch.setattr(registry, "_REGISTERED", {})
    monkeypatch.setattr(folder, "_BUILT_IN", reader_folder)
    with inside(workspace):
        for page in PAGES:
            if page.name == "README.es.md":  # the same block as the English one
                continue
            text = page.read_text(encoding="utf-8")
            names: dict[str, object] = {"__name__": "__main__"}
            for block in BLOCK.finditer(text):
                if not block[1]:
                    line = text.count("\n", 0, block.start(2))
                    code = compile("\n" * line + block[2], name_of(page), "exec")
                    exec(code, names)


def test_almost_all_python_blocks_are_run() -> None:
    blocks = [block for page in PAGES for block in BLOCK.findall(page.read_text(encoding="utf-8"))]
    assert sum(bool(mark) for mark, _ in blocks) <= 3 < 12 < len(blocks)


def test_whole_flow_takes_15_lines_of_python() -> None:
    page = (DOCS / "guides/python.md").read_text(encoding="utf-8")
    _, block = BLOCK.findall(page)[0]
    steps = ("extract", "label", "preprocess", "compare", "train", "detector")
    assert all(f".{step}(" in block for step in steps)
    assert len([line for line in block.splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("name", list_methods())
def test_every_method_is_defined(name: str) -> None:
    assert re.search(rf"^\|? ?`{name}`", (DOCS / "methods.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "README.es.md"])
def test_readme_is_short_and_current(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    assert "LLM" in text.split("\n\n")[1] and "docs/images/comparison.png" in text


def test_pictures_are_small() -> None:
    pictures = list((DOCS / "images").iterdir())
    assert len(pictures) >= 3 and all(picture.stat().st_size < 200_000 for picture in pictures)
