"""The page in a real browser, with real keys: what a person sees, and what happens."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.patterns.cleaning.findings import CleanPlace
from clew.patterns.cleaning.session import Cleaning, open_cleaning
from tests.pages.driving import Browser, needs_chromium
from tests.patterns.cleaning.making import list_files, make_finding, make_findings, write_set
from tests.patterns.cleaning.test_session import serve

pytestmark = [pytest.mark.slow, needs_chromium]
ASKING = '!document.querySelector("#asking").hidden'


@pytest.fixture
def cleaning(tmp_path: Path) -> Iterator[Cleaning]:
    place = CleanPlace.of_folder(write_set(tmp_path / "photos", per_class=3))
    findings = make_findings(
        place.data,
        make_finding("temple/0.png", suggestion="flower", reason="it looks like <b>a flower</b>"),
        make_finding("temple/1.png", "duplicate", other="temple/2.png", other_digest="two"),
        make_finding("flower/0.png", "outlier"),
    )
    with open_cleaning(place, findings) as opened:
        yield opened


def text(selector: str) -> str:
    return f'document.querySelector("{selector}").textContent'


def test_a_whole_session_with_the_keyboard(cleaning: Cleaning, browser: Browser) -> None:
    before = list_files(cleaning.data)
    browser.complaints.clear()
    with serve(cleaning) as address:
        browser.size(1200, 800)
        browser.open(address, ASKING)
        assert browser.run(text("#question")) == "Is this flower, not temple?"
        assert browser.run(text("#reason")) == "It looks like <b>a flower</b>."
        browser.press("Enter")
        browser.wait(f'{text("#question")} === "Is this the same photo twice?"')
        assert (cleaning.data / "flower/0-2.png").is_file()
        browser.press("r")
        browser.wait(f'{text("#question")} === "Does this photo belong here?"')
        assert list_files(cleaning.decisions.removed) == ["temple/1.png"]
        browser.press("k")
        browser.wait('!document.querySelector("#done").hidden')
        assert browser.run(text("#done-title")) == "All 3 findings decided"
        for _ in range(3):
            place = cleaning.place
            browser.press("u")
            browser.wait(f"state.place === {place - 1}")
    assert list_files(cleaning.data) == before and not browser.complaints
