"""The page in a real browser: it opens without an error, and its few interactions work."""

import re
from pathlib import Path

import pytest

from tests.hallucination.comparison.report.making import make_comparison
from tests.hallucination.comparison.report.reading import read_page
from tests.hallucination.comparison.report.test_ugly import TEXTS
from tests.pages.browser import needs_chromium, open_page

pytestmark = [pytest.mark.slow, needs_chromium]

# What a person would do: sort by training seconds twice, hide a method's curves, point at a row.
ACTIONS = """
<script>
  const all = (selector) => [...document.querySelectorAll(selector)];
  const seconds = all("th button").find((button) => button.textContent === "training, s");
  const order = () => all(".sortable tbody tr").map((row) => row.dataset.key);
  const shown = () => all('.curve.shown[data-key="perplexity"]').length;
  seconds.click();
  const dearest = order()[0];
  seconds.click();
  const cheapest = order()[0];
  const before = shown();
  document.querySelector('.chip[data-key="perplexity"]').click();
  const row = document.querySelector('tr[data-key="lstm"]');
  row.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
  const lit = all('.hot[data-key="lstm"]').length;
  document.body.dataset.outcome = [dearest, cheapest, before, shown(), lit > 3].join(" ");
</script>
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "report.html"
    folder = make_comparison(tmp_path / "out", test=60, texts=TEXTS)
    page.write_text(read_page(folder).markup, encoding="utf-8")
    return page


def test_it_opens_without_a_complaint(page: Path) -> None:
    document, complaints = open_page(page)
    assert complaints == ""
    assert re.search(r"<title>clew: .* on facts</title>", document)


def test_sorting_picking_and_pointing_work(page: Path) -> None:
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{ACTIONS}</body>"))
    document, complaints = open_page(page)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert complaints == "" and outcome
    dearest, cheapest, before, after, is_lit = outcome[1].split()
    assert dearest in ("gnn_det", "lstm", "gvae", "act_vit") and cheapest not in ("gnn_det", "lstm")
    assert (int(before), int(after), is_lit) == (3, 0, "true")
