"""The page in a real browser, with real keys: what a person sees, and what happens."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.review import Review
from tests.pages.driving import Browser, needs_chromium
from tests.patterns.review.making import NAMES, identify, list_photos, make_set, reviewing
from tests.patterns.review.serving import Served, serve

pytestmark = [pytest.mark.slow, needs_chromium]

ASKING = '!document.querySelector("#asking").hidden && !document.querySelector(".waiting")'
DONE = '!document.querySelector("#done").hidden'


@pytest.fixture
def review(animals: PatternSet) -> Iterator[Review]:
    with reviewing(animals) as opened:
        yield opened


@pytest.fixture
def served(review: Review, browser: Browser) -> Iterator[Served]:
    browser.complaints.clear()
    with serve(review) as server:
        browser.size(1200, 800)
        browser.open(server.address, ASKING)
        yield server


def place(number: int) -> str:
    return f"state && state.place === {number} && ({ASKING} || {DONE})"


@pytest.mark.slow
def test_whole_review_works_by_keyboard(
    browser: Browser, served: Served, animals: PatternSet
) -> None:
    assert browser.text("#question") == "Is this cat?" and browser.text("#count") == "1 of 4"
    guesses = browser.text("#guesses").split("\n")
    assert guesses == ["1", "cat", "30%", "2", "dog", "20%", "3", "fox", "10%"]
    browser.press("Enter")
    browser.wait(place(1))
    assert browser.text("#name") == NAMES[1] and "cat/a.png" in browser.text("#toast")
    browser.press("3")
    browser.wait(place(2))
    browser.press("u")
    browser.wait(place(1))
    browser.press("/", "w", "o", "l", "f", "Enter")
    browser.wait(place(2))
    browser.press("s")
    browser.wait(place(3))
    browser.press("a")
    browser.wait(f"{place(4)} && {DONE}")
    assert browser.text("#done-title") == "All 4 photos reviewed"
    assert browser.text("#tiles").split() == ["approved", "2", "corrected", "1", "skipped", "1"]
    assert 'clew.patterns.train(name="animals"' in browser.text("#command")
    assert "wolf (1)" in browser.text("#new-classes")
    added = {"cat/a.png", f"wolf/{NAMES[1]}", "cat/d.png"}
    assert added < set(list_photos(animals.photos))
    browser.press("Enter")
    browser.wait('!document.querySelector("#closed").hidden')
    assert served.has_ended() and browser.complaints == []


def test_whole_review_works_with_the_mouse(
    browser: Browser, served: Served, review: Review
) -> None:
    def click(selector: str) -> None:
        browser.run(f"document.querySelector('{selector}').click()")

    click("#approve")
    browser.wait(place(1))
    click("#guesses li:nth-child(2) button")
    browser.wait(place(2))
    click("#skip")
    browser.wait(place(3))
    click("#undo")
    browser.wait(place(2))
    click("#leave")
    browser.wait(DONE)
    assert browser.text("#done-title") == "2 photos left for next time"
    click("#back")
    browser.wait(place(2))
    click("#leave")
    click("#close")
    assert served.has_ended() and review.counts() == {"approved": 1, "corrected": 1}


@pytest.mark.usefixtures("served")
def test_search_finds_classes_before_it_creates_new_ones(browser: Browser, review: Review) -> None:
    browser.press("/", "o")
    assert browser.text("#found").split("\n") == ["dog", "fox", "Create the class “o”"]
    browser.press("ArrowDown", "Enter")
    browser.wait(place(1))
    assert review.counts() == {"corrected": 1} and review.new_classes() == {}
    browser.press("/", "x", "Escape")
    assert browser.run("document.activeElement === document.body")
    browser.press("/", "a", "/", "b", "Enter")
    browser.wait('document.querySelector("#toast.wrong.shown") !== null')
    assert "cannot be the name of a class" in browser.text("#toast") and review.place == 1
    browser.run('correct("x".repeat(2_000_000))')
    assert "larger than 1 MB. Nothing was changed." in browser.text("#toast") and review.place == 1


def test_names_are_text_whatever_they_contain(browser: Browser, tmp_path: Path) -> None:
    nasty = ("<img src=x onerror=alert(1)>", "__proto__", "10", "9")
    made = make_set(tmp_path, classes=nasty[1:])
    identify(made.folder, tmp_path / "photos", nasty[1:], names=(f"{nasty[0][:-1]}.png", "b.png"))
    browser.complaints.clear()
    with reviewing(made) as review, serve(review) as server:
        browser.open(server.address, ASKING)
        assert browser.text("#name") == "<img src=x onerror=alert(1).png"
        assert browser.text("#question") == "Is this __proto__?"
        browser.press("9")  # a class of that name: not the ninth
        browser.wait(place(1))
        assert review.counts() == {"corrected": 1}
    assert any(name.startswith("9/") and "img" in name for name in list_photos(made.photos))
    assert browser.complaints == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (740, 360), (320, 568)])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.usefixtures("served")
def test_page_fits_every_screen(browser: Browser, width: int, height: int, dark: bool) -> None:
    browser.size(width, height, is_phone=width < 800, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") == width
    sides = "const {width, height} = document.querySelector('.stage').getBoundingClientRect();"
    assert browser.run(f"{{{sides} Math.min(width, height)}}") >= 150
    named = "[...document.querySelectorAll('button')].every((one) => one.innerText || one.hidden)"
    assert browser.run(named) is True


def test_lost_server_is_reported(browser: Browser, served: Served) -> None:
    served.server.stop()
    assert served.has_ended()
    browser.press("Enter")
    browser.wait('!document.querySelector("#lost").hidden')
    assert "Your decisions are saved" in browser.text("#lost")
