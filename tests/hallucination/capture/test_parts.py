"""Questions that ask for several facts: their parts, and where tokens end, are stored per trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import TraceBatchLoader
from clew.base.progress import ignore_event
from clew.hallucination.labels import spans_beside
from clew.hallucination.llm.prompts import find_token_ends
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.source import PreprocessConfig
from tests.builders import ask, tiny_tokenizer, write_lines


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    questions: list[dict[str, Any]] = ask(30)
    for question in questions[::2]:
        question["answer_parts"] = {"capital": "Lima", "currency": ["sol", "Peruvian sol"]}
    return write_lines(tmp_path / "asked.jsonl", questions)


@pytest.mark.slow
def test_parts_and_token_ends_are_stored(capture: Any, asked: Path, tmp_path: Path) -> None:
    capture(questions=asked)
    traces = list(TraceBatchLoader(tmp_path / "new"))
    assert list(traces[0]["answer_parts"]) == ["capital", "currency", "currency"]
    assert list(traces[0]["accepted_answers"]) == ["Lima", "sol", "Peruvian sol"]
    assert list(traces[1]["answer_parts"]) == []
    for trace in traces:
        ends = trace["token_ends"].tolist()
        assert len(ends) == len(trace["tokens"]) - trace["prompt_length"]
        assert ends == sorted(ends) and (not ends or ends[-1] == len(trace["answer"]))


@pytest.mark.parametrize(
    "text", [" The capital of France is Paris.", "Zürich 東京 is\n", "", "🙂 ok"]
)
def test_tokens_end_where_their_text_ends(text: str) -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    ends = find_token_ends(tokenizer, tokens)
    whole = tokenizer.decode(tokens).strip()
    assert len(ends) == len(tokens) and (not ends or ends[-1] == len(whole))
    pieces = [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert "".join(pieces) == whole
    for token, piece in zip(tokens, pieces, strict=True):
        alone = tokenizer.decode([token])
        assert "\ufffd" in alone or alone.strip() == piece.strip()


@pytest.mark.slow
def test_span_labels_become_labels_of_tokens(capture: Any, asked: Path, tmp_path: Path) -> None:
    capture(questions=asked)
    traces = {t["global_example_id"]: t for t in TraceBatchLoader(tmp_path / "new")}
    scores, numbers = tmp_path / "scores.csv", sorted(traces)
    lines = [f"{traces[n]['question_id']},{n},{n % 3 > 0:d}" for n in numbers]
    scores.write_text("\n".join(["question_id,global_example_id,score", *lines]))
    spans = [f"{traces[n]['question_id']},{n},0,3,{n % 2}" for n in numbers]
    header = "question_id,global_example_id,start,end,label"
    spans_beside(scores).write_text("\n".join([header, *spans]))
    out = tmp_path / "samples"
    preprocess_store(
        PreprocessConfig(store=tmp_path / "new", scores_file=scores, out=out, workers=1),
        ignore_event,
    )
    data = AnswerFeatures(out)
    for number, labels in zip(data.ids["train"], data.read("token_labels", "train"), strict=True):
        ends = np.array(traces[number]["token_ends"])
        starts = np.concatenate([[0], ends])[: len(ends)]
        expected = np.where((starts < 3) & (ends > 0), number % 2, -2)
        np.testing.assert_array_equal(labels, expected)
    places = zip(data.ids["train"], data.read("answer_spans", "train"), strict=True)
    assert all(spans.tolist() == [[0, 3, number % 2]] for number, spans in places)
    for number, ends in zip(data.ids["train"], data.read("token_ends", "train"), strict=True):
        assert ends.tolist() == list(traces[number]["token_ends"])
