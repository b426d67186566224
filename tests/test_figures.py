"""Every figure of the README is in a file that a benchmark wrote."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FILES = [
    *sorted((ROOT / "benchmarks/figures").glob("*.json")),
    ROOT / "src/clew/hallucination/detectors/ready/made.json",
]
READMES = ("README.md", "README.es.md")
# Versions and addresses are no figures.
OTHER = re.compile(r"127\.0\.0\.1|Apache-2\.0|Python 3\.11|Llama-3\.2|p < 0\.05|score < 0\.5")
DECIMAL = re.compile(r"[+-]?\d+[.,]\d+(?![\d.])(?: ?%)?")


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    else:
        yield value


def as_written(value: float) -> set[str]:
    """The ways in which a page may write a figure."""
    plain = {f"{value:.{digits}f}" for digits in (2, 3)}
    return {*plain, *(f"{value:+.{digits}f}" for digits in (2, 3)), f"{100 * value:.1f}%"}


@pytest.fixture(scope="module")
def published() -> set[str]:
    every = [one for path in FILES for one in leaves(json.loads(path.read_text("utf-8")))]
    numbers = [one for one in every if isinstance(one, int | float) and not isinstance(one, bool)]
    whole = {f"{one:,}" for one in numbers if isinstance(one, int)}
    return whole.union(*(as_written(float(one)) for one in numbers))


@pytest.mark.parametrize("name", READMES)
def test_decimals_of_the_readme_are_in_a_file_of_figures(name: str, published: set[str]) -> None:
    text = OTHER.sub("", (ROOT / name).read_text(encoding="utf-8"))
    found = [one.replace(" %", "%") for one in DECIMAL.findall(text)]
    if name == "README.es.md":
        found = [one.replace(",", ".") for one in found]
    assert len(found) > 20
    strange = [one for one in found if one not in published and one.lstrip("+") not in published]
    assert not strange, "write them from benchmarks/figures, or run the benchmark again"


@pytest.mark.parametrize("name", READMES)
def test_rows_of_the_detection_table_are_those_of_its_benchmark(name: str) -> None:
    found = json.loads((ROOT / "benchmarks/figures/demo.json").read_text("utf-8"))["methods"]
    rows = {describe_row(row).partition("|")[2]: row["title"] for row in found.values()}
    table = [
        line.removeprefix("| ").partition("|")[2]
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if re.match(r"\| .* \[0\.\d{3}, 0\.\d{3}\] \|", line)
    ]
    assert len(table) >= 4 and {*table} <= {*rows}
    best = next(iter(found.values()))  # on validation
    assert table[0] == describe_row(best).partition("|")[2]


def describe_row(row: dict[str, Any]) -> str:
    low, high = row["test_auroc_ci"]
    versus = row["versus_perplexity"]
    change = ""
    if versus is not None:
        change = f"{versus['difference']:+.3f}{'*' if versus['p_value'] < 0.05 else ''} "
    return f"{row['title']} | {row['test_auroc']:.3f} [{low:.3f}, {high:.3f}] | {change}|"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_of_figures_says_where_they_are_from(path: Path) -> None:
    about = json.loads(path.read_text("utf-8"))
    assert {"command", "machine", "date"} <= about.keys()
