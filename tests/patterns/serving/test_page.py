"""The page in a real browser: photos from a file and from the camera, a correction, and its end."""

import base64
import json
from pathlib import Path

import pytest

from clew.patterns.trained.model import PatternModel
from tests.pages.driving import Browser, needs_chromium
from tests.patterns.serving.serving import ServedPhotos, photo_of, photo_of_noise, serving

pytestmark = [pytest.mark.slow, needs_chromium]
KEY = "sk-a-key-of-a-test"
READY = 'document.querySelectorAll("#classes option").length === 3'
_DROP = """(() => {
  const bytes = Uint8Array.from(atob(%s), (sign) => sign.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], %s, { type: "image/png" }));
  const options = { dataTransfer: carried, bubbles: true, cancelable: true };
  document.querySelector("#drop").dispatchEvent(new DragEvent("drop", options));
})()"""


@pytest.fixture
def opened(browser: Browser, served: ServedPhotos) -> ServedPhotos:
    browser.complaints.clear()
    browser.size(1100, 800)
    browser.open(served.address, READY)
    return served


def drop(browser: Browser, photo: bytes, name: str) -> None:
    browser.run(_DROP % (json.dumps(base64.b64encode(photo).decode()), json.dumps(name)))


def finished(count: int) -> str:
    return f'document.querySelectorAll(".result:not(.waiting)").length === {count}'


def click(browser: Browser, selector: str) -> None:
    browser.run(f"document.querySelector({json.dumps(selector)}).click()")


def test_a_dropped_photo_is_identified_and_corrected(
    browser: Browser, opened: ServedPhotos
) -> None:
    drop(browser, photo_of("red"), "<b>red</b>.png")
    browser.wait(finished(1))
    assert browser.text(".verdict").startswith("red ")
    assert browser.text("figcaption") == "<b>red</b>.png"
    plain = browser.run('document.querySelector(".result img").src')
    click(browser, "#heat")
    browser.wait(f'document.querySelector(".result img").src !== {json.dumps(plain)}')
    click(browser, '[data-label="green"]')
    browser.wait('document.querySelector(".note.good")')
    assert browser.text(".note") == "Kept for review as green (1 photo kept). Undo"
    assert opened.service.corrections.count() == 1
    click(browser, ".note .link")
    browser.wait('!document.querySelector(".note.good")')
    assert opened.service.corrections.count() == 0 and browser.complaints == []


def test_a_damaged_photo_is_explained_and_the_next_one_identified(
    browser: Browser, opened: ServedPhotos
) -> None:
    del opened
    drop(browser, b"no photo", "bad.png")
    drop(browser, photo_of("green"), "good.png")
    browser.wait(finished(2))
    assert browser.text(".result:last-child .note").startswith("The photo cannot be used")
    assert browser.text(".result:first-child .verdict").startswith("green ")


def test_a_photo_of_none_of_the_classes_is_said_to_be_unknown(
    browser: Browser, opened: ServedPhotos
) -> None:
    assert opened.service.describe()["unknown"] == 0.05
    drop(browser, photo_of_noise(), "noise.png")
    browser.wait(finished(1))
    assert browser.text(".verdict") == "None of these"
    assert browser.text(".note").startswith("Unknown: ")


def test_the_camera_takes_photos(browser: Browser, opened: ServedPhotos) -> None:
    click(browser, "#open-camera")
    browser.wait('document.querySelector("#video").videoWidth > 0')
    click(browser, "#shoot")
    browser.wait(finished(1))
    assert browser.text("figcaption").startswith("camera-")
    click(browser, "#close-camera")
    assert browser.run('document.querySelector("#camera").hidden') and browser.complaints == []
    assert opened.service.corrections.count() == 0


def test_a_server_with_keys_asks_for_one(
    browser: Browser, color_model: PatternModel, tmp_path: Path
) -> None:
    with serving(color_model, tmp_path, keys=[KEY]) as served:
        browser.open(served.address, '!document.querySelector("#key-form").hidden')
        click(browser, "#key")
        browser.run(f'document.querySelector("#key").value = "{KEY}"')
        click(browser, "#key-form button")
        browser.wait(READY)
        drop(browser, photo_of("red"), "a.png")
        browser.wait(finished(1))
        assert browser.text(".verdict").startswith("red ")
    browser.run("sessionStorage.clear()")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone(browser: Browser, opened: ServedPhotos, dark: bool) -> None:
    browser.size(390, 800, is_phone=True, dark=dark)
    drop(browser, photo_of("red"), "a very long name of a photo that does not end.png" * 3)
    browser.wait(finished(1))
    root = "document.documentElement"
    assert browser.run(f"{root}.scrollWidth <= {root}.clientWidth")
    assert opened.service.waiting == 0
