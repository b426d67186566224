"""Fields missing in old records are recovered, or reported as missing."""

from typing import Any

import numpy as np
import pytest

from clew.hallucination.legacy.records import (
    MalformedRecordError,
    find_prompt_length,
    parse_trace,
    recover_question,
)
from tests.hallucination.legacy.old_files import make_record


@pytest.mark.parametrize(
    ("decoded", "answer", "expected"),
    [
        (["Q", ":", " A", ":", " 2", "0"], " 20", 4),
        (["A", ":", " 2", "<|im_end|>"], " 2", 2),
        (["A", ":", " 2", "<|im_end|>", "</s>"], " 2", 2),
        (["A", ":", "<|im_end|>"], "<|im_end|>", 2),
        (["A", ":", " ", "2", "\n"], "2", 2),
        (["A", ":"], "", 2),
        (["A", ":", " 2"], " 3", None),
        (["A", ":", " \ufffd", "\ufffd"], " é", None),
    ],
)
def test_prompt_length_is_recovered(decoded: list[str], answer: str, expected: int | None) -> None:
    assert find_prompt_length(decoded, answer) == expected


@pytest.mark.parametrize(
    ("text", "prompt", "expected"),
    [
        (["Be brief. Q: who sang it A:", " Abba"], 1, "who sang it"),
        (["Q: one A: 1\nQ: two\nA:", " 2 Q: three A:"], 1, "two"),
        (["Q: what is a FAQ: page A:", " text"], 1, "what is a FAQ: page"),
        (["Q: is plan A: good A:", " yes"], 1, "is plan A: good"),
        (["Be brief. Q: who sang it A:", " Abba A: x"], None, "who sang it"),
        (["Q: one A: 1 Q: two A:", " 2"], None, None),
        (["Who sang it?", " Abba"], 1, None),
        (["Q: A:", " Abba"], 1, None),
        ([], None, None),
    ],
)
def test_question_is_recovered(text: list[str], prompt: int | None, expected: str | None) -> None:
    assert recover_question(text, prompt) == expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hidden_states": None}, "it has no hidden_states"),
        ({"attentions": None}, "it has no attentions"),
        ({"tokens": None}, "it has no tokens"),
        ({"tokens": [[1], [2, 3]]}, "tokens is not a list of integers"),
        ({"tokens": np.arange(0)}, "it has 0 tokens"),
        ({"tokens": np.full(10, 2**40)}, "too large"),
        ({"tokens": np.arange(4)}, "tokens_decoded has 10 strings for 4 tokens"),
        ({"tokens": np.arange(4), "tokens_decoded": None}, r"shape \[10, 8\], expected \[4, 8\]"),
        ({"hidden_states": [np.zeros((10, 8))]}, "has 1 layers, attentions has 3"),
        ({"hidden_states": np.zeros(())}, "hidden_states is not a list with one array per layer"),
        ({"hidden_states": [[1.0]] * 3}, "hidden_states of layer 0 is list, not an array"),
        ({"attentions": [np.zeros((2, 10, 9))] * 3}, r"shape \[2, 10, 9\], expected \[2, 10, 10\]"),
        ({"prompt_length": 11}, "prompt_length is 11, but it has 10 tokens"),
        ({"answer": {"value": "x"}}, "answer is not a list of strings"),
        ({"generated_answer_clean": "\ud800"}, "generated_answer_clean is .*, not text"),
    ],
)
def test_malformed_records_are_rejected(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedRecordError, match=reason):
        parse_trace(make_record(**fields))


def test_records_that_are_not_dicts_are_rejected() -> None:
    with pytest.raises(MalformedRecordError, match="it is a int, not a dict"):
        parse_trace(3)
