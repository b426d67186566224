"""The page in a real browser: it opens without an error, fits, shows its pictures and sorts."""

import re
from pathlib import Path

import pytest

from clew.patterns.report.page import write_report
from tests.pages.driving import Browser, needs_chromium
from tests.patterns.report.making import make_run

pytestmark = [
    pytest.mark.slow,
    needs_chromium,
]

# What a person would do: look at every picture, sort by recall, hover over a cell of the matrix.
# The page is loaded when all pictures are.
ACTIONS = """
<script>
  const all = (selector) => [...document.querySelectorAll(selector)];
  const first = () => document.querySelector(".classes tbody th").textContent;
  const recall = all(".classes th button").find((one) => one.textContent === "recall");
  recall.click();
  const best = first();
  recall.click();
  const worst = first();
  const cell = document.querySelector(".matrix .wrong");
  const at = cell.getBoundingClientRect();
  const place = { bubbles: true, clientX: at.x + at.width / 2, clientY: at.y + at.height / 2 };
  cell.dispatchEvent(new PointerEvent("pointermove", place));
  const marked = all(".matrix .name.on").map((one) => one.textContent).join("/");
  const shown = document.getElementById("tip").textContent.includes("predicted as");
  const pictures = all("img");
  pictures.forEach((one) => { one.loading = "eager"; });
  window.addEventListener("load", () => {
    const isDrawn = pictures.every((one) => one.naturalWidth > 30);
    const outcome = [best, worst, marked, shown, isDrawn, pictures.length];
    document.body.dataset.outcome = outcome.join(" ");
  });
</script>
"""


def test_page_opens_sorts_and_explains_its_cells(browser: Browser, tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "out"), device="cpu")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"{ACTIONS}</body>"), encoding="utf-8")
    document = browser.read_page(page)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert browser.complaints == [] and outcome
    assert outcome[1] == "dog cat dog/cat true true 31"


@pytest.fixture(scope="module")
def wide_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = [f"a class with a long name {number}" for number in range(45)]
    run = make_run(tmp_path_factory.mktemp("run") / "out", classes=classes, test=1)
    return write_report(run, device="cpu")


@pytest.mark.parametrize("width", [1400, 800, 500])
def test_nothing_crosses_the_left_margin_or_the_window(
    browser: Browser, wide_page: Path, width: int
) -> None:
    layout = browser.measure_layout(wide_page, width=width)
    assert layout.fits, layout
