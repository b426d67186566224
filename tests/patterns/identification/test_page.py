"""identified.html and the contact sheets: complete, safe, and working in a real browser."""

import re
from pathlib import Path

import pytest
from PIL import Image

from clew.patterns.identification.identify import IdentifyResult, identify_photos
from clew.patterns.identification.page import describe_counts
from clew.patterns.identification.results import Identified
from clew.patterns.identification.sheets import ContactSheets
from clew.patterns.settings import IdentifySettings
from clew.patterns.trained.model import PatternModel
from tests.pages.driving import Browser, needs_chromium
from tests.patterns.identification.making import draw_doubtful, make_folder

# What a person would do: type part of a name, look at what is left, clear it.
ACTIONS = """
<script>
  const left = () => [...document.querySelectorAll("figure")].filter((one) => !one.hidden).length;
  const type = (text) => { field.value = text; field.dispatchEvent(new Event("input")); };
  const all = left();
  type("DÍA 1  azul");
  const one = left();
  const sections = document.querySelectorAll("main section:not([hidden])").length;
  type("");
  const wide = document.documentElement.scrollWidth <= innerWidth;
  document.body.dataset.outcome = [all, one, sections, left(), wide].join(" ");
</script>
"""


@pytest.fixture
def result(tmp_path: Path, colors: PatternModel) -> IdentifyResult:
    photos = make_folder(tmp_path / "fotos ñ <script>alert(1)")
    draw_doubtful(photos / "mixed.png")
    config = IdentifySettings(photos=photos, model=colors, out=tmp_path / "out", threshold=0.9)
    return identify_photos(config)


def test_page_is_self_contained_and_names_never_become_markup(result: IdentifyResult) -> None:
    page = result.page.read_text(encoding="utf-8")
    assert page.count("<figure") == 11 and page.count("data:image/jpeg;base64,") == 11
    assert "<script>alert" not in page and "foto 0 &lt;b&gt;&amp;amp;.png" in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "the file is empty (0 bytes)" in page
    ids = set(re.findall(r'<section class="[a-z]+" id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= ids


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [1200, 420])
def test_page_opens_without_console_messages_and_finds_photos(
    browser: Browser, result: IdentifyResult, width: int
) -> None:
    text = result.page.read_text(encoding="utf-8").replace("</body>", f"{ACTIONS}</body>")
    result.page.write_text(text, encoding="utf-8")
    document = browser.read_page(result.page, width=width)
    outcome = re.search(r'data-outcome="([^"]*)"', document)
    assert browser.complaints == [] and outcome is not None
    # The list of unreadable files stays: it has no photos.
    assert outcome[1] == "11 1 2 11 true"


def test_small_sheets_are_narrow_and_long_texts_are_cut(tmp_path: Path) -> None:
    photo = Identified(
        name=f"{'x' * 300} 鳥 \udce9.jpg",
        path=tmp_path / "a",
        best=((f"{'class ' * 50}\n", 0.0),),
        doubtful=True,
    )
    sheets = ContactSheets(tmp_path, title="t" * 500, photos=65)
    for _ in range(65):
        sheets.add(photo, Image.new("RGB", (3, 500)))
    sheets.end()
    first, second = (
        _sides(tmp_path / name) for name in ("contact_sheet.jpg", "contact_sheet_2.jpg")
    )
    assert first[0] == second[0] and first[1] > 2 * second[1]


def _sides(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((5, 5, 0, 0, 0), "5 photos identified, none doubtful"),
        ((1, 1, 0, 0, 0), "1 photo identified, not doubtful"),
        ((1204, 1200, 3, 0, 1), "1,200 of 1,203 photos identified, 3 doubtful, 1 cannot be read"),
        ((9, 6, 3, 2, 0), "6 of 9 photos identified, 3 doubtful (2 of them unknown)"),
        ((9, 7, 2, 2, 0), "7 of 9 photos identified, 2 doubtful and unknown"),
        ((2, 0, 0, 0, 2), "None of the 2 photos can be read"),
        ((1, 0, 0, 0, 1), "The photo cannot be read"),
    ],
)
def test_headline_counts_photos(counts: tuple[int, ...], text: str) -> None:
    names = ("photos", "identified", "doubtful", "unknown", "faulty")
    assert describe_counts(dict(zip(names, counts, strict=True))) == text
