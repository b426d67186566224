"""The page in a real browser: it opens without an error, fits, and its interactions work."""

import re
from pathlib import Path

import pytest

from tests.hallucination.comparison.report.making import make_comparison
from tests.hallucination.comparison.report.reading import read_page
from tests.hallucination.comparison.report.test_ugly import TEXTS
from tests.pages.browser import measure_layout, needs_chromium, open_page

pytestmark = [pytest.mark.slow, needs_chromium]

# What a person would do: sort by training time twice, show and hide curves, hover over a row.
ACTIONS = """
<script>
  const all = (selector) => [...document.querySelectorAll(selector)];
  const seconds = all("th button").find((button) => button.textContent === "training");
  const order = () => all(".sortable tbody tr").map((row) => row.dataset.key);
  const shown = () => all('.curve.shown[data-key="perplexity"]').length;
  seconds.click();
  const dearest = order()[0];
  seconds.click();
  const cheapest = order()[0];
  const before = shown();
  const curve = document.querySelector('.sparse [data-key="saplma"]');
  const hidden = getComputedStyle(curve).display;
  document.querySelector('.chip[data-key="saplma"]').click();
  const picked = getComputedStyle(curve).display;
  document.querySelector('.chip[data-key="perplexity"]').click();
  const row = document.querySelector('tr[data-key="lstm"]');
  row.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
  const lit = all('.hot[data-key="lstm"]').length;
  const outcome = [dearest, cheapest, before, shown(), lit > 3, hidden, picked];
  document.body.dataset.outcome = outcome.join(" ");
</script>
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "report.html"
    folder = make_comparison(tmp_path / "out", test=60, texts=TEXTS)
    page.write_text(read_page(folder).markup, encoding="utf-8")
    return page


def test_page_opens_without_console_messages(page: Path) -> None:
    document, complaints = open_page(page)
    assert complaints == ""
    assert re.search(r"<title>clew: .* on facts</title>", document)


def test_sorting_picking_and_hovering_work(page: Path) -> None:
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{ACTIONS}</body>"))
    document, complaints = open_page(page)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert complaints == "" and outcome
    dearest, cheapest, before, after, is_lit, hidden, picked = outcome[1].split()
    assert dearest in ("gnn_det", "lstm", "gvae", "act_vit") and cheapest not in ("gnn_det", "lstm")
    assert (int(before), int(after), is_lit) == (3, 0, "true")
    assert (hidden, picked) == ("none", "inline")


@pytest.mark.parametrize("width", [1400, 800, 500])
def test_nothing_crosses_the_left_margin_or_the_window(page: Path, width: int) -> None:
    layout = measure_layout(page, width=width)
    assert layout.fits, layout
