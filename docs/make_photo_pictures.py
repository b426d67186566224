"""Draws docs/images of the pages for photos from runs of the product on photos of
docs/draw_photos.py, in headless Chromium: `make pictures`."""

import base64
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draw_photos import draw_photo, draw_set
from PIL import Image
from tests.pages.driving import Browser, open_browser

IMAGES = Path(__file__).with_name("images")
WIDTH, HEIGHT, SERVED_HEIGHT = 1100, 800, 1046
_CLEW = (sys.executable, "-m", "clew", "patterns")
_IS_SHOWN = '[...document.querySelectorAll("img")].every((one) => one.complete && one.naturalWidth)'
_DROP = """(() => {
  const carried = new DataTransfer();
  const bytes = Uint8Array.from(atob(%s), (sign) => sign.charCodeAt(0));
  carried.items.add(new File([bytes], %s));
  const options = { dataTransfer: carried, bubbles: true, cancelable: true };
  document.querySelector("#drop").dispatchEvent(new DragEvent("drop", options));
})()"""
# Where the map shows a photo with a wrong label.
_POINT = """(() => {
  const data = JSON.parse(document.querySelector(".map-data").textContent);
  const box = document.querySelector(".photo-map canvas").getBoundingClientRect();
  const chosen = data.names.indexOf("leaf/img_33.jpg");
  const at = (start, side, place) => start + 14 + (place[chosen] / data.steps) * (side - 28);
  return [at(box.left, box.width, data.x), at(box.top, box.height, data.y)];
})()"""
# What the page of the classifier is asked about; no class has mushrooms.
_ASKED = (("mushroom", 20_100), ("pear", 20_102))


def draw_clean(browser: Browser, data: Path) -> None:
    """The page with the wrong labels."""
    with page_of("clean", str(data), "--web", "--no-browser") as address:
        browser.open(f"{address}#label", f"document.images.length > 3 && {_IS_SHOWN}")
        save(browser, "clean.webp")


def draw_map(browser: Browser, report: Path) -> None:
    """The map of the photos, with the pointer at one of them."""
    browser.open(f"{report.as_uri()}#map", 'document.querySelector(".photo-map canvas")')
    x, y = browser.run(_POINT)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.wait('!document.querySelector(".map-tip").hidden')
    save(browser, "map.webp")


def draw_serve(browser: Browser, model: Path) -> None:
    """The page of the classifier with an unknown and a known photo, the last one first."""
    with page_of("serve", "--model", str(model), "--port", "0") as address:
        browser.open(address, 'document.querySelector("#classes option")')
        browser.size(WIDTH, SERVED_HEIGHT)
        browser.run('document.querySelector("#heat").click()')
        for count, (kind, seed) in enumerate(_ASKED, 1):
            file = io.BytesIO()
            draw_photo(kind, seed).save(file, "JPEG", quality=90)
            sent = base64.b64encode(file.getvalue()).decode()
            browser.run(_DROP % (json.dumps(sent), json.dumps(f"photo_{count}.jpg")))
            done = f'document.querySelectorAll(".result:not(.waiting)").length === {count}'
            browser.wait(f"{done} && {_IS_SHOWN}")
        save(browser, "serve_photos.webp")


@contextmanager
def page_of(*command: str) -> Iterator[str]:
    """The address of a running command's page."""
    started = subprocess.Popen([*_CLEW, *command], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        yield next(filter(None, (re.search(r"page: (\S+)", line) for line in started.stdout)))[1]
    finally:
        started.terminate()
        started.communicate()


def save(browser: Browser, name: str) -> None:
    """What the browser shows, in a format that keeps both letters and photos sharp."""
    shot = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
    with Image.open(io.BytesIO(shot)) as image:
        image.convert("RGB").save(IMAGES / name, quality=88, method=6)


def main(folder: Path) -> None:
    data, trained = folder / "photos", folder / "trained"
    if not trained.exists():
        draw_set(data)
        train = ("train", "--data", str(data), "--out", str(trained), "--minutes", "1")
        subprocess.run([*_CLEW, *train], check=True)
    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        browser.size(WIDTH, HEIGHT)
        draw_clean(browser, data)
        draw_map(browser, trained / "report.html")
        draw_serve(browser, trained)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo/photo_pages").absolute())
