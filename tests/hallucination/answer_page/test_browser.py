"""The page of an answer in a real browser: its layers, its folded prompt, its layout."""

import re
from pathlib import Path

import pytest

from tests.hallucination.answer_page.making import make_picture, write_scores
from tests.pages.driving import Browser, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

# What a person would do: move the slider, unfold the prompt, hover over a token.
ACTIONS = """
<script>
  const all = (selector) => [...document.querySelectorAll(selector)];
  const seen = () => all("figure.graph").filter((one) => one.offsetHeight).length;
  const slider = document.getElementById("layer"), whole = document.getElementById("whole");
  const before = seen();
  slider.value = 0;
  slider.dispatchEvent(new Event("input"));
  const told = document.querySelector(".shares").textContent.includes("in layer 0:");
  whole.click();
  const rows = all(".graph.whole .row").length > all(".graph.short .row").length;
  const hidden = all(".graph.short").every((one) => !one.offsetHeight);
  const token = all(".graph.whole .row.answer").pop();
  token.dispatchEvent(new MouseEvent("mouseenter"));
  const focus = all(".focus").some((one) => one.textContent.includes("attends to"));
  document.body.dataset.outcome = [before, seen(), told, rows, hidden, focus].join(" ");
</script>
"""


@pytest.fixture
def page(compact_store: Path, tmp_path: Path) -> Path:
    write_scores(compact_store, tmp_path / "scores.csv")
    make_picture(compact_store, tmp_path / "a.html", scores_file=tmp_path / "scores.csv")
    return tmp_path / "a.html"


def test_layers_and_the_folded_prompt_can_be_opened(browser: Browser, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"{ACTIONS}</body>"), encoding="utf-8")
    document = browser.read_page(page)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert browser.complaints == [] and outcome
    assert outcome[1] == "2 2 true true true true"


def test_without_the_script_the_arcs_of_the_first_layer_are_drawn(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count('class="to-prompt"') > 0 and "in layer 1: " in text


@pytest.mark.parametrize("width", [1400, 800, 500])
def test_nothing_crosses_the_left_margin_or_the_window(
    browser: Browser, page: Path, width: int
) -> None:
    layout = browser.measure_layout(page, width=width)
    assert layout.fits, layout
