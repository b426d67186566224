"""The exported page classifies in a real browser, as the classifier does."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.patterns.serving.demo import export_demo, fetch_runtime
from clew.patterns.trained.model import PatternModel
from tests.pages.driving import Browser, needs_chromium
from tests.patterns.identification.making import draw_doubtful, draw_photo
from tests.patterns.serving.serving import photo_of_noise
from tests.patterns.serving.test_page import READY, drop, finished

pytest.importorskip("onnxruntime", reason='no onnxruntime: pip install "clew[onnx]"')
pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[3] / "examples/classify_onnx.py"
# The example requires neither of these.
_WITHOUT = """
import runpy, sys
sys.modules.update(clew=None, torch=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class QuietHandler(SimpleHTTPRequestHandler):
    """What `python -m http.server` answers with, without its log."""

    def log_message(self, *_: object) -> None: ...


@contextmanager
def http_server(folder: Path) -> Iterator[str]:
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        running = threading.Thread(target=server.serve_forever)
        running.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            running.join()


@pytest.fixture(scope="module")
def demo(color_model: PatternModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        fetch_runtime()
    except InputError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("a b") / "demo"
    assert export_demo(color_model, folder, name="colors").page == folder / "index.html"
    return folder


@needs_chromium
def test_the_browser_gives_the_probabilities_of_the_classifier(
    demo: Path, color_model: PatternModel, browser: Browser, tmp_path: Path
) -> None:
    photos = [
        draw_photo(tmp_path / "a.png", "red", sides=(300, 77)),
        draw_doubtful(tmp_path / "b.png"),
    ]
    expected = color_model.predict(photos)
    with http_server(demo) as address:
        browser.open(address, READY)
        for number, (photo, wanted) in enumerate(zip(photos, expected, strict=True), 1):
            drop(browser, photo.read_bytes(), photo.name)
            browser.wait(finished(number))
            best = browser.run(
                'document.querySelector(".result").card.found.best.map((one) => Object.values(one))'
            )
            for (label, share), (name, probability) in zip(best, wanted.top_k(3), strict=True):
                assert label == name and share == pytest.approx(probability, abs=0.01)
        drop(browser, photo_of_noise(), "noise.png")
        browser.wait(finished(3))
        assert browser.text(".result .verdict") == "None of these"
        drop(browser, b"no photo", "c.png")
        browser.wait(finished(4))
        assert "cannot read the photo" in browser.text(".result .note")
        assert browser.complaints == []
        assert browser.run('document.querySelectorAll("button.guess").length') == 0


def test_the_example_requires_neither_clew_nor_torch(
    demo: Path, color_model: PatternModel, tmp_path: Path
) -> None:
    photo = draw_photo(tmp_path / "a.png", "red", sides=(300, 77))
    [wanted] = color_model.predict(photo)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, EXAMPLE, demo / "model.onnx", photo],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{photo}: red ({wanted.confidence:.1%})\n"


def test_the_example_takes_ten_lines() -> None:
    lines = EXAMPLE.read_text().partition("\nsession")[2].splitlines()
    assert len(lines) <= 10


def test_a_page_is_replaced_only_if_asked_for(demo: Path, color_model: PatternModel) -> None:
    with pytest.raises(InputError, match="there is a page already"):
        export_demo(color_model, demo, name="colors")
    with pytest.raises(InputError, match="it is a file"):
        export_demo(color_model, demo / "index.html", name="colors")


def test_a_page_of_somebody_else_is_never_replaced(
    color_model: PatternModel, tmp_path: Path
) -> None:
    page = tmp_path / "index.html"
    page.write_text("mine")
    with pytest.raises(InputError, match=r'index.html" was not written by clew'):
        export_demo(color_model, tmp_path, name="colors", overwrite=True)
    assert page.read_text() == "mine" and [*tmp_path.iterdir()] == [page]
