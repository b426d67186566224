"""What /metrics says, read by the format's rules."""

import re

from clew.hallucination.detectors.data import Risk, unavailable
from clew.hallucination.live.service.service import Metrics

LINE = re.compile(
    r'[a-z_]+(\{[a-z_]+="([^"\\\n]|\\["\\n])*"(,[a-z_]+="([^"\\\n]|\\["\\n])*")*\})? [-+.\deInf]+'
)


def test_metrics_follow_the_text_format() -> None:
    metrics = Metrics()
    metrics.count_request("/v1/models", 200)
    metrics.count_request('/"made\nup\\', 404)
    metrics.seconds.observe(0.2)
    text = metrics.render({"clew_waiting": ("Answers that wait.", 3)})
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert 'clew_requests_total{path="other",status="404"} 1' in lines
    assert "clew_waiting 3" in lines
    assert 'clew_request_seconds_bucket{le="0.1"} 0' in lines
    assert 'clew_request_seconds_bucket{le="0.25"} 1' in lines
    assert text.endswith("\n")


def test_large_counts_keep_all_their_digits() -> None:
    metrics = Metrics()
    metrics.tokens.add(12_345_678)
    text = metrics.render({"clew_waiting": ("Answers that wait.", 7_654_321)})
    assert "clew_generated_tokens_total 12345678\n" in text and "clew_waiting 7654321\n" in text


def test_answers_are_counted_by_state_and_risk() -> None:
    metrics = Metrics()
    checked = {"verdict": "hallucinated", "threshold": 0.5, "state": "checked"}
    metrics.count_answer(Risk(risk=0.93, method="fusion", **checked), "chat")
    metrics.count_answer(unavailable("the answer is empty", method="fusion"), "chat")
    text = metrics.render({})
    assert 'clew_answers_total{endpoint="chat",state="unavailable",verdict="none"} 1' in text
    assert 'clew_answers_total{endpoint="chat",state="checked",verdict="hallucinated"} 1' in text
    assert "clew_risk_count 1" in text, "what was not checked has no risk"
    assert 'clew_risk_bucket{le="0.9"} 0' in text and 'clew_risk_bucket{le="1.0"} 1' in text
