"""The texts of tokens, without downloads."""

from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.hallucination.llm.embedded import embedded_model_folder
from clew.hallucination.traces.token_texts import (
    embedded_tokenizer_file,
    read_token_texts,
    split_texts,
    visible_text,
)
from tests.builders import tiny_tokenizer


def test_each_token_shows_what_it_adds_to_the_text(model_folder: Path) -> None:
    text = "What is the capital?\nIt is Paris."
    tokens = tiny_tokenizer()(text)["input_ids"]
    texts, note = read_token_texts(tokens, None, str(model_folder), None)
    assert "".join(texts) == text and note is None
    assert " capital" in texts


def test_character_of_several_tokens_appears_with_the_last() -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer("a é 日")["input_ids"]
    texts = split_texts(tokenizer.decode, tokens)
    assert "é" in texts and "日" in texts
    assert "".join(texts).replace("\ufffd", "") == "a é 日"


def test_decoded_tokens_of_the_store_are_used_unchanged() -> None:
    assert read_token_texts([7, 8], [" a", "b"], None, None) == ([" a", "b"], None)


@pytest.mark.parametrize("model", ["/gone/model", "nobody/nothing", "gone.gguf", "a/b/c", "x y"])
def test_without_a_tokenizer_tokens_are_numbers_with_a_note(model: str) -> None:
    texts, note = read_token_texts([7, 8], None, model, None)
    assert texts == ["#7", "#8"]
    assert note and model in note and "`tokenizer`" in note


def test_damaged_tokenizer_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{cut", encoding="utf-8")
    assert read_token_texts([7], None, str(tmp_path), None)[0] == ["#7"]
    with pytest.raises(InputError, match="cannot be loaded. Give a folder with tokenizer.json"):
        read_token_texts([7], None, None, str(tmp_path))


def test_embedded_tokenizer_is_found_where_capture_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = embedded_tokenizer_file().parent
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    assert embedded_model_folder() == folder


def test_invisible_characters_are_marked() -> None:
    assert visible_text(" Paris") == "Paris"
    assert visible_text("\n") == "↵" and visible_text("  ") == "␣"
    assert visible_text("\x1b[2J\u202e") == "\\u001b[2J\\u202e"
