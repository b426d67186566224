"""The page in a real browser, on a real server with a tiny model: what a person sees and does."""

from collections.abc import Iterator

import pytest

from clew.hallucination.live.page.files import PageFiles
from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import Served, serving
from tests.pages.driving import CHROMIUM, Browser, open_browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: install the package chromium"),
]

READY = 'document.querySelector("#served")?.textContent'
ANSWERED = 'document.querySelector(".asked") && !document.querySelector(".asked.pending")'
TRACED = '!document.querySelector("#trace").hidden && document.querySelector(".graph .arcs path")'
LISTED = 'document.querySelectorAll("#found li").length'
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page_server(session: Session, page_files: PageFiles) -> Iterator[Served]:
    with serving(session, page_files) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, page_server: Served) -> Iterator[Browser]:
    browser.complaints.clear()
    browser.size(1200, 900)
    browser.open("about:blank", "true")
    browser.open(page_server.address, READY)
    yield browser
    assert browser.complaints == []


def ask(page: Browser, question: str) -> None:
    page.run('document.querySelector("#question").focus()')
    page.call("Input.insertText", text=question)
    page.press("Enter")
    page.wait(f"({ANSWERED}) && document.querySelector('.asked .foot')")


def test_an_answer_comes_with_shades_a_gauge_and_its_trace(page: Browser) -> None:
    ask(page, "What is the capital of France?")
    assert page.text(".asked h2") == "What is the capital of France?"
    shades = page.run(
        '[...document.querySelectorAll(".asked .token")].map(t => t.style.getPropertyValue("--shade"))'
    )
    assert shades and all(0 <= float(shade) <= 1 for shade in shades)
    assert page.text(".gauge .verdict") in ("Likely hallucinated", "Likely correct", "Not checked", "Out of distribution")
    page.run('document.querySelector(".asked .open").click()')
    page.wait(TRACED)
    assert page.run('document.querySelectorAll("#trace .near li").length') == 8
    assert "risk" in page.text(".course .shares") and "AUROC" in page.text(".course .shares")


def test_another_layer_redraws_the_attention(page: Browser) -> None:
    ask(page, "Who wrote it?")
    page.run('document.querySelector(".asked .open").click()')
    page.wait(TRACED)
    page.run('document.querySelector("#layer").focus()')
    page.press("Home")
    first = page.run('document.querySelector(".arcs").innerHTML')
    assert page.text("#layer-number") == "0"
    page.press("ArrowRight")
    assert page.text("#layer-number") == "1" and "Layer 1:" in page.text(".course .shares")
    assert page.run('document.querySelector(".arcs").innerHTML') != first
