"""The numbers of the READMEs are those that a benchmark wrote: benchmarks/figures/readme.toml."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.comparison.methods import list_methods

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "benchmarks/figures"
FILES = sorted(FIGURES.glob("*.json"))
TABLE = tomllib.loads((FIGURES / "readme.toml").read_text(encoding="utf-8"))
READMES = ("README.md", "README.es.md")
WORD = re.compile(r"\b[^\W\d_][\w.-]*")  # or a name with digits in it, such as H200 or Apache-2.0


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
    methods = found["demo"]["methods"]
    found |= {"count": len(methods), "all": len(list_methods())}
    methods = {**methods, "best": methods[found["demo"]["best"]]}
    return found | {"methods": {name: row | {"cells": cells(row)} for name, row in methods.items()}}


def cells(row: dict[str, Any]) -> str:
    low, high = row["test_auroc_ci"]
    text = f"{row['test_auroc']:.3f} [{low:.3f}, {high:.3f}]"
    if (versus := row["versus_perplexity"]) is None:
        return text
    return f"{text} {versus['difference']:+.3f}{'*' if versus['p_value'] < 0.05 else ''}"


def plain(text: str) -> str:
    return " ".join(text.replace("|", " ").split()).replace(" %", "%")


def read_page(name: str) -> str:
    return plain((ROOT / name).read_text(encoding="utf-8"))


def list_lines(name: str, figures: dict[str, Any]) -> list[str]:
    lines = TABLE["lines"][name] + (TABLE["lines"]["both"] if name in READMES else [])
    return [plain(line.format(**figures)) for line in lines]


@pytest.mark.parametrize("name", [name for name in TABLE["lines"] if name != "both"])
def test_page_shows_the_figures_that_were_measured(name: str, figures: dict[str, Any]) -> None:
    page = read_page(name)
    assert not [line for line in list_lines(name, figures) if line not in page]


@pytest.mark.parametrize("name", READMES)
def test_every_number_of_the_readme_has_a_source(name: str, figures: dict[str, Any]) -> None:
    rest = read_page(name)
    for text in [*list_lines(name, figures), *TABLE["exceptions"]]:
        rest = rest.replace(text, " ")
    assert not re.findall(r"\S*\d\S*", WORD.sub("", rest)), "not in benchmarks/figures/readme.toml"


def test_exceptions_are_needed() -> None:
    pages = "".join(map(read_page, READMES))
    assert not [text for text in TABLE["exceptions"] if text not in pages]


@pytest.mark.parametrize(
    "path",
    [*FILES, ROOT / "src/clew/hallucination/detectors/ready/made.json"],
    ids=lambda path: path.name,
)
def test_file_of_figures_says_where_they_are_from(path: Path) -> None:
    about = json.loads(path.read_text(encoding="utf-8"))
    assert {"command", "machine", "date"} <= about.keys()
