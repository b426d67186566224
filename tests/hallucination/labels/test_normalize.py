"""Spellings of the same answer become equal; different answers stay different, in every script."""

import pytest

from clew.hallucination.labels import normalize_answer
from clew.hallucination.labels.normalize import answer_words


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("  The Café\tde_Flore! ", "cafe de flore"),
        ("the U.S.A.", "usa"),
        ("Łódź", "lodz"),
        ("Straße", "strasse"),
        ("İstanbul", "istanbul"),
        ("Hawaiʻi", "hawaii"),
        ("rock-and-roll", "rock and roll"),
        ("Vitamin A", "vitamin a"),
        ("12,500 people", "12500 people"),
        ("1,2,3", "1 2 3"),
        ("8.5.1945", "8 5 1945"),
        ("It is 3.5.", "it is 3.5"),
        ("ﬁve ²", "five 2"),
        ("مُحَمَّد", "محمد"),
        ("שָׁלוֹם", "שלום"),
        ("東京、日本。", "東京 日本"),
        ("हिन्दी में", "हिन्दी में"),
        ("한국", "한국"),
        ("A", "a"),
        ("The", "the"),
        ("?!", "?!"),
        ("", ""),
        ("\u200bParis\u200b", "paris"),
        ("Paris\x00\n", "paris"),
    ],
)
def test_spellings_are_normalized(text: str, plain: str) -> None:
    assert normalize_answer(text) == plain
    assert normalize_answer(plain) == plain


@pytest.mark.parametrize(
    ("one", "other"),
    [("パリ", "バリ"), ("Vitamin A", "Vitamin"), ("3.5", "35"), ("กรุงเทพ", "กรงเทพ"), ("कि", "की")],
)
def test_different_words_stay_different(one: str, other: str) -> None:
    assert normalize_answer(one) != normalize_answer(other)


def test_composed_and_decomposed_letters_are_the_same() -> None:
    assert normalize_answer("パリ") == normalize_answer("ハ\u309aリ")
    assert normalize_answer("한") == normalize_answer("\u1112\u1161\u11ab")


def test_words_of_a_script_without_spaces_are_its_characters() -> None:
    assert answer_words("The 東京 tower") == ["東", "京", "tower"]
