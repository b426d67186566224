"""What `clew ask` prints: the answer, its risk and verdict, the state, and the tokens' risks."""

import io
from dataclasses import replace
from typing import Any

import pytest

from clew.base.terminal import TextConsole
from clew.cli.printing import has_shades, print_answer, print_legend, print_scale
from clew.hallucination.detectors.data import Risk, unavailable
from clew.hallucination.live.session import AskedAnswer, AskResult
from clew.hallucination.llm.requests import Token
from clew.hallucination.questions import Question

CHECKED = Risk(risk=0.83, verdict="hallucinated", threshold=0.62, state="checked", method="fusion")
FAR = Risk(
    risk=None,
    verdict=None,
    threshold=None,
    state="out_of_distribution",
    reason="its features are unlike the training data",
    method="perplexity",
    distance=2.3,
    token_probability_risk=0.4,
)


def answered(assessment: Risk = CHECKED, *tokens: tuple[str, float | None]) -> AskedAnswer:
    tokens = tokens or ((" It", 0.1), (" is", 0.25), (" Finland.", 0.9))
    return AskedAnswer(
        question=Question(id="q", question="Where is Tartu?", answers=()),
        text="".join(text for text, _ in tokens).strip(),
        tokens=tuple(Token(id=0, text=t, logprob=-0.5, entropy=0, risk=r) for t, r in tokens),
        ended="end",
        assessment=assessment,
        detector="fusion",
    )


def printed(asked: AskedAnswer, **options: Any) -> str:
    file = io.StringIO()
    console = TextConsole(file=file, width=100, **options)
    print_answer(console, asked)
    print_scale(console, asked)
    if has_shades(console, asked):
        print_legend(console)
    return file.getvalue()


def test_pipe_gets_plain_text_with_the_figures() -> None:
    assert printed(answered()).splitlines() == [
        "question: Where is Tartu?",
        "answer:   It is Finland.",
        "risk:     0.83 high risk (threshold 0.62, fusion)",
        "tokens:   It 0.10, is 0.25, Finland. 0.90",
    ]


def test_terminal_gets_tokens_shaded_by_their_risk() -> None:
    shown = printed(answered(), force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;255;255;255;48;2;192;24;43mFinland." in shown
    assert "answer:   It \x1b[" in shown
    assert "shaded by the risk" in shown
    assert (
        "risk: the probability that the answer is hallucinated, high above the threshold" in shown
    )
    assert "Fusion: one classifier on hidden states" in shown
    assert "tokens:" not in shown


def test_no_color_gets_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = printed(answered(), force_terminal=True)
    assert "tokens:   It 0.10" in shown
    assert "48;2;" not in shown


def test_state_that_is_not_checked_is_printed_with_its_reason() -> None:
    assert printed(answered(FAR)).splitlines()[2:4] == [
        "risk:     not familiar: no verdict",
        "state:    not familiar: its features are unlike the training data; token-probability risk "
        "0.40 (perplexity)",
    ]
    cut = unavailable("the answer is empty", method="fusion")
    assert printed(answered(cut, ("", None))).splitlines()[1:] == [
        "answer:   (empty)",
        "risk:     not checked",
        "state:    unavailable: the answer is empty",
    ]


def test_long_question_is_shortened_where_it_is_repeated() -> None:
    asked = replace(answered(), question=Question(id="q", question="a" * 102_000, answers=()))
    assert printed(asked).splitlines()[0] == f"question: {'a' * 1_000} ... (102,000 characters)"


def test_representation_has_the_state() -> None:
    assert repr(answered(FAR)).endswith(": not familiar)")
    assert repr(answered()).endswith(": risk 0.83 (high), checked)")


@pytest.mark.parametrize("options", [{}, {"force_terminal": True, "color_system": "standard"}])
def test_hostile_answer_cannot_act_on_the_terminal(options: dict[str, Any]) -> None:
    shown = printed(answered(CHECKED, ("\x1b[2J\x1b]0;owned\x07", 0.9), ("[red]", 0.1)), **options)
    assert "\\u001b[2J\\u001b]0;owned\\u0007" in shown
    assert "[red]" in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


def test_answers_are_a_sequence_and_a_table() -> None:
    result = AskResult(answers=(answered(), answered(FAR, ("No.", None))))
    assert [(one.risk, one.risk_level) for one in result] == [(0.83, "high"), (None, None)]
    assert result.table.column("answer").to_pylist() == ["It is Finland.", "No."]
    assert result.table.column("tokens").to_pylist()[1] == [
        {"token": "No.", "risk": None, "logprob": -0.5}
    ]
    assert result[1].to_dict().keys() == set(result.table.column_names)
