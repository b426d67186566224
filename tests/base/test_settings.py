"""Settings and names from Python: wrong types and misspelled names give one message."""

from pathlib import Path
from typing import Any

import pytest

import clew
from clew.base.errors import InputError
from clew.base.texts import split_names, suggest


@pytest.mark.parametrize(
    ("call", "settings", "message"),
    [
        (clew.extract, {"num_samples": "60"}, 'num_samples is "60": it must be an integer.'),
        (clew.extract, {"node_dim": 6.5}, "node_dim is 6.5: it must be an integer."),
        (clew.extract, {"draws": True}, "draws is True: it must be an integer."),
        (clew.extract, {"draw_temperature": "1"}, 'draw_temperature is "1": it must be a number.'),
        (clew.train, {"epochs": "9"}, 'epochs is "9": it must be an integer.'),
        (clew.train, {"lstm_hidden": "9"}, 'lstm_hidden is "9": it must be an integer.'),
        (clew.train, {"label_smoothing": None}, "label_smoothing is None: it must be a number."),
        (clew.compare, {"batch_size": "9"}, 'batch_size is "9": it must be an integer.'),
        (clew.compare, {"seeds": "9"}, 'seeds is "9": it must be an integer.'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_value_of_wrong_type_is_named_with_its_setting(
    call: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        call(out=tmp_path / "new", **settings)
    assert str(error.value) == message


def test_count_is_checked_before_questions_from_python_are_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='num_samples is "60"'):
        clew.extract(questions=["Why?"], num_samples="60", out=tmp_path)  # type: ignore[arg-type]


def test_names_may_be_one_string_in_any_case() -> None:
    assert split_names("perplexity, LSTM,linear-probe,") == ("perplexity", "lstm", "linear_probe")
    assert split_names(["Lstm"]) == ("lstm",)


def test_misspelled_name_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'"lsmt" \(did you mean "lstm"\?\): choose from: lstm'):
        clew.train(networks="lsmt", out=tmp_path / "new")
    assert suggest("linearprobe", ["perplexity", "linear_probe"]) == (
        ' (did you mean "linear_probe"?)'
    )
    assert suggest("magic", ["perplexity", "linear_probe"]) == ""
