"""The review page in a real browser, with real keys."""

from pathlib import Path

import pytest

from clew.hallucination.labels.review import LabelReview
from clew.storage.text_files import read_csv
from tests.hallucination.labels.review.conftest import NASTY, Served
from tests.pages.driving import Browser, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]
ASKING = '!document.querySelector("#asking").hidden'
DONE = '!document.querySelector("#done").hidden'


@pytest.fixture
def page(browser: Browser, served: Served) -> Browser:
    browser.complaints.clear()
    browser.size(1200, 800)
    browser.open(served.address, ASKING)
    return browser


def at(place: int) -> str:
    return f"state && state.place === {place} && ({ASKING} || {DONE})"


def test_whole_review_works_by_keyboard(page: Browser, scores: Path) -> None:
    assert page.text("#count") == "1 of 3 doubtful"
    assert page.text("#answer") == "Rome and Oslo" and page.text("#answer mark") == "Rome"
    assert page.text("#label") == "hallucinated" and "it names several" in page.text("#why")
    for place, key in enumerate(["c", "x", "u", "h", "Enter", "s"], 1):
        page.press(key)
        page.wait(at({1: 1, 2: 2, 3: 1, 4: 2, 5: 3, 6: 4}[place]))
    assert page.text("#question") == NASTY and page.text("#count") == "5 of 5"
    page.press("r")
    page.wait(f"{at(5)} && {DONE}")
    found = {row["question_id"]: row["correction"] for row in read_csv(scores)}
    assert found == {
        "q0": "",
        "q1": "correct",
        "q2": "refused",
        "q3": "hallucinated",
        "q4": "refused",
    }
    assert page.text("#done-title") == "All answers reviewed"
    page.press("Enter")
    page.wait('!document.querySelector("#closed").hidden')
    assert page.complaints == []


def test_one_click_labels_and_leaving_keeps_the_rest(page: Browser, review: LabelReview) -> None:
    for place, action in enumerate(["excluded", "keep"], 1):
        page.run(f"document.querySelector('[data-action={action}]').click()")
        page.wait(at(place))
    page.run("document.querySelector('#leave').click()")
    page.wait(DONE)
    assert page.text("#done-title") == "3 left for next time"
    assert review.counts() == {"excluded": 1, "hallucinated": 1}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True), (320, False)])
def test_page_fits_every_screen(page: Browser, width: int, dark: bool) -> None:
    page.size(width, 700, is_phone=width < 800, dark=dark)
    assert page.run("document.documentElement.scrollWidth") == width


def test_lost_server_is_reported(page: Browser, served: Served) -> None:
    served.stop()
    page.press("c")
    page.wait('!document.querySelector("#lost").hidden')
