"""Answers in OpenAI's shape."""

from clew.hallucination.live.service.responses import Shape
from clew.hallucination.llm.requests import Token


def test_completions_report_the_chosen_token_too() -> None:
    shape = Shape(
        is_chat=False,
        is_only=True,
        model="m",
        fingerprint="f",
        detector="d",
        top_logprobs=2,
        token_text=lambda token: {1: "a", 2: "a", 3: "c"}[token],
    )
    drawn = Token(id=3, text="c", logprob=-4.0, entropy=1.0, top=((1, -0.5), (2, -1.0)))
    [choice] = shape.token(0, drawn, 0)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -0.5, "c": -4.0}]
