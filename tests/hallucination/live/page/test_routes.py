"""The page's JSON and files over the guarded server: what can be read, and what cannot."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from clew.hallucination.live.page.routes import Page, add_page
from clew.hallucination.live.page.stored import BrowsedStore, PageFiles, Search, open_page_files
from clew.pages.server import open_server
from tests.hallucination.answer_page.making import THRESHOLD, write_comparison
from tests.hallucination.live.page.conftest import REPORT, Folders


@pytest.fixture(scope="module")
def address(page_files: PageFiles) -> Iterator[str]:
    """A server without a model: stored answers and comparisons only."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    add_page(app, Page(files=page_files))
    with open_server(lambda _stop: app) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        yield server.address
        server.stop()
        thread.join(timeout=60)


def fetch(address: str, path: str) -> tuple[int, str, str]:
    """Status, content and policy."""
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=60) as reply:
            policy = reply.headers["Content-Security-Policy"]
            return reply.status, reply.read().decode(), policy
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), ""


def read(address: str, path: str) -> Any:
    status, content, _ = fetch(address, path)
    assert status == 200, content
    return json.loads(content)


def test_the_trace_of_a_stored_answer_has_all_that_is_drawn(address: str) -> None:
    trace = read(address, "clew/answers/4")
    assert trace["clew"] == {
        "risk": 0.9,
        "threshold": THRESHOLD,
        "verdict": "hallucinated",
        "risk_level": "high",
        "state": "checked",
        "method": "LSTM",
        "reason": None,
    }
    assert len(trace["course"]["risks"]) == trace["layers"] == 3
    assert len(trace["graphs"][0]["edges"]) == 3 and trace["label"] in ("hallucinated", "correct")
    near = trace["near"]["items"]
    assert len(near) == 8 and all(item["number"] != 4 and item["label"] for item in near)
    assert "".join(token["token"] for token in trace["tokens"]).strip() == trace["answer"].strip()
    assert read(address, "clew/answers/0")["clew"] is None


def test_stored_answers_that_are_cut_off_have_no_risk(
    folders: Folders, trace_store: BrowsedStore, tmp_path: Path
) -> None:
    ends = trace_store.index.texts.column("stop_reason").to_pylist()
    number = int(trace_store.index.numbers[ends.index("length")])
    comparison = write_comparison(tmp_path / "comparison", answers=[(number, "test", 1, 0.9)])
    page = Page(files=open_page_files(folders.traces, folders.scores, (comparison,)))
    trace, listed = page.stored_trace(number), page.search(Search(text=f"#{number}"))
    assert trace is not None and trace["clew"]["state"] == "unavailable" and listed is not None
    row = next(row for row in listed["rows"] if row["number"] == number)
    for risk in (trace["clew"], row):
        assert risk["risk"] is None and "cut off" in risk["reason"]
    found = page.search(Search(outcome="mistakes"))
    assert found is not None and found["found"] == 0


def test_answers_come_in_pages(address: str) -> None:
    pages = [read(address, f"clew/answers?at={at}") for at in range(4)]
    assert [len(page["rows"]) for page in pages] == [25, 25, 20, 0]
    assert pages[0]["found"] == 70 and pages[0]["pages"] == 3


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("clew/answers/70", 404),
        ("clew/answers/-1", 422),
        ("clew/answers/99999999999999999999", 422),
        ("clew/answers?order=quickly", 422),
        ("clew/answers?least_risk=nan", 422),
        (f"clew/answers?text={'a' * 201}", 422),
        ("page/routes.py", 404),
        ("page/..%2froutes.py", 404),
        ("page/reports/guess/0/report.html", 404),
    ],
)
def test_what_is_not_there_cannot_be_read(address: str, path: str, status: int) -> None:
    assert fetch(address, path)[0] == status


def test_reports_run_in_a_sandbox_and_reach_no_other_file(address: str) -> None:
    comparison = read(address, "clew/comparisons")[0]
    assert comparison["best"] == "lstm" and comparison["methods"][0]["title"] == "LSTM"
    status, content, policy = fetch(address, comparison["report"])
    assert (status, content) == (200, REPORT)
    assert policy.startswith("sandbox allow-scripts;") and "connect-src" not in policy
    folder = comparison["report"].removesuffix("report.html")
    for name in ("scores.arrow", "results.json", "../scores.csv", "..%2f..%2fscores.csv", ""):
        assert fetch(address, folder + name)[0] == 404
    assert fetch(address, comparison["report"].replace("/0/", "/7/"))[0] == 404


def test_the_page_loads_nothing_from_elsewhere(address: str) -> None:
    status, content, policy = fetch(address, "")
    assert status == 200 and "script-src 'self'" in policy and "unsafe" not in policy
    assert "http" not in content and "<style" not in content and "style=" not in content
    for name in ("page.css", "page.js", "ask.js", "trace.js", "graph.js", "browse.js", "parts.js"):
        status, text, _ = fetch(address, f"page/{name}")
        links = text.replace("http://www.w3.org/2000/svg", "")
        assert status == 200 and "http" not in links and "innerHTML" not in text
