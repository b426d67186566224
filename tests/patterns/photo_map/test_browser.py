"""The map in a real browser: it opens without an error, and shows the photo under the pointer."""

import re
from pathlib import Path

import numpy as np
import pytest

from clew.pages.markup import Html, Section, wrap_page
from clew.patterns.photo_map.block import Coloring, draw_map, draw_sheet, map_style
from tests.pages.driving import Browser, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

# Point at the photo in the middle, choose the other coloring, then its second group.
ACTIONS = """
<script>
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
  const place = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
  let chosen = -1;
  document.addEventListener("photochosen", (event) => { chosen = event.detail; });
  canvas.dispatchEvent(new PointerEvent("pointermove", place));
  canvas.dispatchEvent(new MouseEvent("click", place));
  const words = document.querySelector(".map-words").textContent;
  const has = document.querySelector(".map-picture").classList.contains("sheet");
  document.querySelectorAll(".map-choice")[1].click();
  document.querySelectorAll(".map-key")[1].click();
  const keys = [...document.querySelectorAll(".map-key")].map((one) => one.textContent).join(",");
  const pressed = document.querySelector('.map-key[aria-pressed="true"]').textContent;
  document.body.dataset.outcome = [words, has, chosen, keys, pressed].join(" | ");
</script>
"""


def test_the_photo_under_the_pointer_is_shown(browser: Browser, tmp_path: Path) -> None:
    content = draw_map(
        np.array([[0, 0], [0.5, 0.5], [1, 1]], np.float32),
        ["a.png", "<i>b</i>.png", "c.png"],
        [
            Coloring(name="class", groups=("cat", "dog"), of=[0, 1, 1]),
            Coloring(name="mistakes", groups=("correct", "wrong"), of=[0, 0, 1]),
        ],
        sheet=draw_sheet(np.zeros((3, 8, 8, 3), np.uint8), 3),
    )
    section = Section(name="map", short="Map", title="Map", lead="", content=content)
    page = tmp_path / "page.html"
    text = wrap_page(
        title="map", header=Html(), sections=[section], footer=Html(), style=map_style()
    )
    page.write_text(text.replace("</body>", f"{ACTIONS}</body>"), encoding="utf-8")
    document = browser.read_page(page)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert browser.complaints == [] and outcome
    words = "&lt;i&gt;b&lt;/i&gt;.pngclass: dogmistakes: correct"
    assert outcome[1] == f"{words} | true | 1 | correct2,wrong1 | wrong1"
