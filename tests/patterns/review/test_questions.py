"""Which key means which class."""

from pathlib import Path

from clew.patterns.identification.results import Identified
from clew.patterns.review.session import find_alike, find_label, list_choices


def question(*labels: str) -> Identified:
    best = tuple((label, 0.5) for label in labels)
    return Identified(path=Path("a.jpg"), name="a.jpg", best=best, doubtful=True)


def keys(classes: list[str], *guessed: str) -> dict[str, str]:
    return {choice.label: choice.key for choice in list_choices(classes, question(*guessed))}


def test_few_classes_keep_their_keys_from_photo_to_photo() -> None:
    classes = ["cat", "dog", "fox"]
    assert keys(classes, "fox") == keys(classes, "cat") == {"cat": "1", "dog": "2", "fox": "3"}


def test_guesses_have_the_first_keys_among_many_classes() -> None:
    classes = [f"kind {number}" for number in range(20)]
    found = keys(classes, "kind 17", "kind 5")
    assert (found["kind 17"], found["kind 5"], found["kind 0"]) == ("1", "2", "3")
    assert (found["kind 8"], found["kind 19"]) == ("10", "20")
    assert len(set(found.values())) == 20


def test_class_that_is_a_number_has_that_key() -> None:
    digits = [str(number) for number in range(10)]
    assert keys(digits, "7", "3") == {digit: digit for digit in digits}
    assert keys(["1", "fist", "2"], "fist") == {"1": "1", "2": "2", "fist": "3"}
    assert keys([*digits, "fist"], "fist", "3")["fist"] == "10"
    numbers = [str(number) for number in range(13)]
    assert keys(numbers, "12", "7") == {number: number for number in numbers}
    assert keys([*numbers, "fist"], "fist")["fist"] == "13"


def test_typed_class_matches_regardless_of_case_and_accents() -> None:
    classes = ["Café", "cafeteria", "STRASSE"]
    assert find_label(classes, " cafe\u0301 ") == "Café"
    assert find_label(classes, "straße") == "STRASSE"
    assert find_label(classes, "cafe") is None  # a new class may begin like an old one
    assert find_alike(classes, "CAFE") == ["cafeteria"]
    assert find_alike(["car", "scar", "cat"], "ca") == ["car", "cat", "scar"]
