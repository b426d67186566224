"""The documents say what the program does."""

import importlib.util
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clew.cli import build_app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.slow
def test_the_command_reference_is_what_help_prints() -> None:
    specification = importlib.util.spec_from_file_location("m", ROOT / "docs/make_commands.py")
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    written = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert written == module.render(), 'run "make docs"'


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_options_in_the_pages_exist(page: Path) -> None:
    helps: dict[str, str] = {}
    blocks = "\n".join(page.read_text(encoding="utf-8").split("```")[1::2])
    words = r"^(?:\$ )?clew ((?:patterns )?\w+)(.*)$"
    for command, rest in re.findall(words, blocks, re.MULTILINE):
        if command not in helps:
            environment = {"COLUMNS": "200", "TERM": "dumb"}
            result = CliRunner().invoke(build_app(), [*command.split(), "--help"], env=environment)
            assert result.exit_code == 0, f"{page.name} names clew {command}, which is not there"
            helps[command] = result.output
        for option in re.findall(r"(--[a-z][a-z-]+)", rest):
            assert option in helps[command], f"{page.name}: clew {command} has no {option}"
