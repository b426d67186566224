"""The page in a real browser: it opens without an error, pictures are drawn, the table sorts."""

import re
from pathlib import Path

import pytest

from clew.patterns.report import write_report
from tests.pages.browser import needs_chromium, open_page
from tests.patterns.report.making import make_run

pytestmark = [
    pytest.mark.slow,
    needs_chromium,
]

# What a person would do: look at every picture, sort by the share of recognised photos, point at a
# cell of the matrix. The page is loaded when all pictures are.
ACTIONS = """
<script>
  const all = (selector) => [...document.querySelectorAll(selector)];
  const first = () => document.querySelector(".classes tbody th").textContent;
  const recognised = all(".classes th button").find((one) => one.textContent === "recognised");
  recognised.click();
  const best = first();
  recognised.click();
  const worst = first();
  const cell = document.querySelector(".matrix .wrong");
  cell.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
  const told = document.getElementById("tip").textContent.includes("taken for");
  const pictures = all("img");
  pictures.forEach((one) => { one.loading = "eager"; });
  window.addEventListener("load", () => {
    const isDrawn = pictures.every((one) => one.naturalWidth > 30);
    document.body.dataset.outcome = [best, worst, told, isDrawn, pictures.length].join(" ");
  });
</script>
"""


@pytest.mark.slow
def test_it_opens_sorts_and_tells(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "out"), device="cpu")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"{ACTIONS}</body>"), encoding="utf-8")
    document, complaints = open_page(page)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert complaints == "" and outcome
    assert outcome[1] == "dog cat true true 31"
