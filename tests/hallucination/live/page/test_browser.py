"""The page in a real browser, on a real server with a tiny model: what a person sees and does."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.hallucination.capture import LoadedModel
from clew.hallucination.live.feedback import Feedback
from clew.hallucination.live.page.stored import BrowsedStore, PageFiles
from clew.hallucination.live.session import Session
from clew.storage.journal import Journal
from tests.hallucination.grounded.test_reader import make_reader
from tests.hallucination.live.service.serving import Served, serving
from tests.pages.driving import Browser, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

READY = 'document.querySelector("#served")?.textContent'
ANSWERED = 'document.querySelector(".asked .foot") && !document.querySelector(".pending")'
TRACED = '!document.querySelector("#trace").hidden && document.querySelector(".graph .arcs path")'
LISTED = 'document.querySelectorAll("#found li").length'
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
FIGURE = 'document.querySelector(".asked .figure").textContent'
DIAL = 'document.querySelector(".asked .dial").getAttribute("aria-label")'
VERDICTS = ("High risk", "Low risk")
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def page_server(session: Session, page_files: PageFiles, model_folder: Path) -> Iterator[Served]:
    """Its reader flags every answer."""
    reader = make_reader(model_folder, threshold=0.0)
    with serving(session, page_files, reader=lambda: reader) as opened:
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
    page.wait(ANSWERED)


def question_of(store: BrowsedStore, stop_reason: str) -> str:
    """One whose answer ends for this reason, after a few tokens."""
    traces = store.loader.iter_traces()
    return next(
        trace["question"]
        for trace in traces
        if trace["stop_reason"] == stop_reason and len(trace["tokens"]) > trace["prompt_length"] + 3
    )


def click(page: Browser, selector: str, until: str) -> None:
    page.run(f"document.querySelector('{selector}').click()")
    page.wait(until)


def test_an_answer_comes_with_shades_a_gauge_and_its_trace(
    page: Browser, trace_store: BrowsedStore
) -> None:
    question = question_of(trace_store, "end")
    ask(page, question)
    assert page.text(".asked h2") == question
    shades = page.run(
        "[...document.querySelectorAll('.asked .token')]"
        ".map((token) => Number(token.style.getPropertyValue('--shade')))"
    )
    assert shades and all(0 <= shade <= 1 for shade in shades)
    verdict = page.text(".verdict")
    assert verdict in VERDICTS and f"Risk {page.run(FIGURE)}" in page.run(DIAL)
    assert page.run("document.querySelectorAll('.asked .fill, .asked .mark').length") == 2
    click(page, ".asked .open", TRACED)
    assert page.text("#trace .verdict") == verdict
    assert page.run('document.querySelectorAll("#trace .near li").length') == 8
    assert "AUROC" in page.text(".course .shares")


def test_an_answer_that_was_cut_off_is_not_shown_as_a_low_risk(
    page: Browser, trace_store: BrowsedStore
) -> None:
    ask(page, question_of(trace_store, "length"))
    assert page.text(".verdict") == "Not checked" and page.run(FIGURE) == "?"
    assert "cut off" in page.text(".gauge .quiet")
    assert page.run("document.querySelector('.dial .fill')") is None


def test_an_answer_that_is_not_familiar_has_no_verdict(page: Browser) -> None:
    clew = {"risk": None, "state": "out_of_distribution", "reason": "its features are unlike"}
    clew |= {"risk_level": None, "threshold": None, "token_probability_risk": 0.62}
    page.run(
        "import('./page/parts.js').then((parts) => document.querySelector('#answers-list')"
        f".replaceChildren(parts.gauge({json.dumps(clew)}, false)))"
    )
    page.wait("document.querySelector('.gauge') !== null")
    assert page.text(".verdict") == "Not familiar: no verdict"
    assert page.run("document.querySelector('.dial .fill')") is None
    words = page.text(".gauge")
    assert "label answers of this kind" in words and "token-probability risk" in words
    assert "62%" in words and "Low risk" not in words


def check(page: Browser, source: str, answer: str) -> None:
    page.run("location.hash = '#check'")
    for name, text in (("source", source), ("answer", answer)):
        page.run(f'document.querySelector("#check-{name}").focus()')
        page.run(f'document.querySelector("#check-{name}").value = ""')
        page.call("Input.insertText", text=text)
    page.run("document.querySelector('#checked').replaceChildren()")
    click(page, "#check-send", "document.querySelector('#checked .card, #alert:not([hidden])')")


def test_unsupported_spans_are_marked_beside_their_source(page: Browser) -> None:
    source = f"{'Nothing. ' * 400}Items \U0001f381 can be returned within 30 days of delivery."
    answer = "You can return items \U0001f381 within 60 days."
    check(page, source, answer)
    assert page.text("#checked .answer-text") == answer
    marks = page.run("[...document.querySelectorAll('mark')].map((mark) => mark.textContent)")
    assert marks and f"{len(marks)} unsupported span" in page.text("#check-spoken")
    page.run("document.querySelector('mark').focus()")
    told = page.text("#checked .token-words")
    assert told.startswith(f"\u201c{marks[0].strip()}") and "30 days of delivery" in told
    now = page.run("document.querySelector('.passage.now').textContent")
    assert now == "Items \U0001f381 can be returned within 30 days of delivery."
    assert page.run("document.querySelector('.source-text').scrollTop > 0")
    page.size(400, 800, is_phone=True)
    assert page.run(FITS)


def test_a_hostile_source_and_answer_stay_text(page: Browser) -> None:
    check(page, f"Nothing. {HOSTILE}", f"{HOSTILE} Nothing.")
    assert page.text("#checked .answer-text") == f"{HOSTILE} Nothing."
    assert HOSTILE in page.text(".source-text") and page.run("window.hacked") is None


def test_an_answer_that_cannot_be_read_has_no_marks_and_no_risk(page: Browser) -> None:
    check(page, "Nothing.", "word " * 10_000)
    assert page.text("#checked .verdict") == "Not checked"
    assert "at most 40,000 are read" in page.text("#checked .gauge")
    assert page.run("document.querySelector('mark')") is None


def test_another_layer_redraws_the_attention(page: Browser) -> None:
    ask(page, "Who wrote it?")
    click(page, ".asked .open", TRACED)
    page.run('document.querySelector("#layer").focus()')
    page.press("Home")
    first = page.run('document.querySelector(".arcs").innerHTML')
    assert page.text("#layer-number") == "0"
    page.press("ArrowRight")
    assert page.text("#layer-number") == "1" and "Layer 1:" in page.text(".course .shares")
    assert page.run('document.querySelector(".arcs").innerHTML') != first


def test_explorer_finds_the_worst_mistakes_and_opens_them(page: Browser) -> None:
    click(page, 'a[href="#answers"]', LISTED)
    assert "70 answers" in page.text("#store-words") and "LSTM" in page.text("#store-words")
    worst = page.text("#found .row-number")
    click(page, "#after", 'document.querySelector("#page-words").textContent === "Page 2 of 3"')
    page.run('document.querySelector("#search").focus()')
    page.call("Input.insertText", text=f"#{worst}")
    page.wait('document.querySelector("#found-words").textContent === "1 answer found."')
    click(page, "#found a", TRACED)
    assert f"answer {worst} " in page.text("#trace .card .quiet")
    click(page, ".near a", f'{TRACED} && location.hash !== "#answers/{worst}"')
    page.run("history.go(-2)")
    page.wait(f'!document.querySelector("#answers").hidden && {LISTED} === 1')


def test_comparisons_link_their_report(page: Browser) -> None:
    click(page, 'a[href="#comparisons"]', 'document.querySelector(".comparison")')
    assert "LSTM" in page.text("tbody th") and "best on validation" in page.text("tbody")
    address = page.run('document.querySelector(".comparison .open").href')
    page.open(address, "document.body.innerText === 'A report'")
    assert page.run("self.origin") == "null"


def test_the_whole_page_works_with_the_keyboard_alone(page: Browser) -> None:
    page.press(*["Tab"] * 6)  # skip link, four views, question
    page.call("Input.insertText", text="What is the capital of France?")
    page.press("Enter")
    page.wait(ANSWERED)
    page.run('document.querySelector(".asked .answer-text").focus()')
    page.press("ArrowRight", "ArrowRight")
    assert "probability" in page.text(".asked .token-words")
    page.press("Tab")
    assert page.run("document.activeElement.textContent") == "Open the trace"
    page.press("Enter")
    page.wait(TRACED)
    assert page.run("document.activeElement.id") == "trace-title"


@pytest.mark.parametrize("dark", [False, True])
def test_every_view_fits_a_phone_in_both_color_schemes(page: Browser, dark: bool) -> None:
    page.size(380, 800, is_phone=True, dark=dark)
    ask(page, "What is the capital of France?")
    assert page.run(FITS)
    click(page, ".asked .open", TRACED)
    assert page.run(FITS)
    for view, ready in (("answers", LISTED), ("comparisons", 'document.querySelector("table")')):
        click(page, f'a[href="#{view}"]', ready)
        assert page.run(FITS)
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 300) == dark


def test_html_in_a_question_is_shown_as_text(page: Browser) -> None:
    page.run('document.querySelector("#context-box").open = true')
    page.run('document.querySelector("#context").focus()')
    page.call("Input.insertText", text=HOSTILE)
    ask(page, HOSTILE)
    assert page.text(".asked h2") == HOSTILE
    click(page, ".asked .open", TRACED)
    assert page.text("#trace-title") == HOSTILE and page.run("window.hacked") is None
    assert page.run('document.querySelectorAll("main img, main script").length') == 0


def test_a_server_with_keys_asks_for_one(browser: Browser, session: Session) -> None:
    with serving(session, keys=["a-long-secret-key-of-the-test"]) as server:
        browser.open(server.address, '!document.querySelector("#alert").hidden')
        assert "API key" in browser.text("#alert") and "API key" in browser.text("#key-form")
        browser.run('document.querySelector("#key").focus()')
        browser.call("Input.insertText", text="a-long-secret-key-of-the-test")
        browser.press("Enter")
        browser.wait(READY)
        ask(browser, "What is the capital of France?")
        assert browser.run('document.querySelector("#alert").hidden')
        browser.run("sessionStorage.clear()")


def test_a_lost_connection_is_said_and_no_risk_is_shown(browser: Browser, session: Session) -> None:
    with serving(session) as server:
        browser.open(server.address, READY)
    ask(browser, "What is the capital of France?")
    assert "cannot be reached" in browser.text("#alert")
    assert browser.text(".verdict") == "Not checked"


@pytest.fixture(scope="module")
def vector_session(detector_folder: Path, ending_model: LoadedModel) -> Iterator[Session]:
    with Session.open(detector_folder, model=ending_model, vectors=True) as opened:
        yield opened


SAID = "document.querySelector('.feedback [role=status]').textContent"
PRESSED = "[...document.querySelectorAll('.thumb')].map((one) => one.ariaPressed).join()"


def test_thumbs_and_a_correction_are_given_with_the_keyboard_and_kept(
    browser: Browser, vector_session: Session, trace_store: BrowsedStore, tmp_path: Path
) -> None:
    feedback = Feedback(tmp_path / "feedback.jsonl", detector="a", keeps_answers=True)
    with serving(vector_session, feedback=feedback) as served:
        browser.size(1200, 900)
        browser.open(served.address, READY)
        ask(browser, question_of(trace_store, "end"))
        assert browser.run(PRESSED) == "false,false"
        browser.run("document.querySelector('.thumb.hallucinated').focus()")
        browser.press("Enter")
        browser.wait(f"{SAID} === 'Saved as hallucinated.'")
        assert browser.run(PRESSED) == "false,true"
        browser.press("Tab")
        browser.call("Input.insertText", text=HOSTILE)
        browser.press("Tab")
        browser.press("Enter")
        browser.wait(f"{SAID}.includes('with the correct answer')")
        assert browser.run(FITS) and browser.run("window.hacked") is None
        click(browser, ".thumb.correct", f"{SAID} === 'Saved as correct.'")
        assert browser.run(PRESSED) == "true,false"
        assert browser.run("document.querySelector('.correction').hidden")
    lines = list(Journal(tmp_path / "feedback.jsonl").read_on())
    said = [(line["label"], line["corrected_answer"]) for line in lines]
    assert said == [("hallucinated", None), ("hallucinated", HOSTILE), ("correct", None)]
    assert lines[0]["answer"]
    click(browser, ".thumb.hallucinated", f"{SAID}.includes('cannot be reached')")
    assert browser.run(PRESSED) == "true,false", "what was not saved is not shown as said"
    browser.complaints.clear()


def test_without_texts_there_are_thumbs_alone_and_a_refusal_is_shown(
    browser: Browser, vector_session: Session, trace_store: BrowsedStore, tmp_path: Path
) -> None:
    feedback = Feedback(tmp_path / "feedback.jsonl", detector="a", most_labels=1)
    with serving(vector_session, feedback=feedback) as served:
        browser.open(served.address, READY)
        ask(browser, question_of(trace_store, "end"))
        click(browser, ".thumb.hallucinated", f"{SAID} === 'Saved as hallucinated.'")
        assert browser.run("document.querySelector('.correction').hidden")
        click(browser, ".thumb.correct", f"{SAID}.startsWith('Not saved. 1 labels are kept')")
        assert browser.run(PRESSED) == "false,true"
    browser.complaints.clear()
