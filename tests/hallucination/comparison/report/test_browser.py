"""The page in a real browser: it opens without an error, fits, and its interactions work."""

import re
from pathlib import Path

import pytest

from tests.hallucination.comparison.report.making import make_comparison
from tests.hallucination.comparison.report.reading import read_page
from tests.hallucination.comparison.report.test_ugly import TEXTS
from tests.pages.driving import Browser, needs_chromium

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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: do not modify."""
    page = tmp_path_factory.mktemp("page") / "report.html"
    folder = make_comparison(page.with_name("out"), test=60, texts=TEXTS)
    page.write_text(read_page(folder).markup, encoding="utf-8")
    return page


def test_page_opens_without_console_messages(browser: Browser, page: Path) -> None:
    document = browser.read_page(page)
    assert browser.complaints == []
    assert re.search(r"<title>clew: .* on facts</title>", document)


def test_sorting_picking_and_hovering_work(browser: Browser, page: Path, tmp_path: Path) -> None:
    used = tmp_path / "used.html"
    used.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{ACTIONS}</body>"))
    document = browser.read_page(used)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert browser.complaints == [] and outcome
    dearest, cheapest, before, after, is_lit, hidden, picked = outcome[1].split()
    assert dearest in ("gnn_det", "lstm", "gvae", "act_vit") and cheapest not in ("gnn_det", "lstm")
    assert (int(before), int(after), is_lit) == (3, 0, "true")
    assert (hidden, picked) == ("none", "inline")


@pytest.mark.parametrize("width", [1400, 800, 500])
def test_nothing_crosses_the_left_margin_or_the_window(
    browser: Browser, page: Path, width: int
) -> None:
    layout = browser.measure_layout(page, width=width)
    assert layout.fits, layout
