"""The public names of patterns are importable, and the calls that hints name work."""

from pathlib import Path
from typing import Any

import pytest

import clew.patterns as front
from clew.errors import Call, InputError
from tests.patterns.library.making import make_photos
from tests.test_imports import loaded_by


def test_every_public_name_is_importable() -> None:
    assert all(getattr(front, name) is not None for name in front.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'magic'"):
        _ = front.magic


@pytest.mark.slow
def test_set_is_inspected_without_torch() -> None:
    loaded = loaded_by("from clew.patterns import PatternSet, choose_model, import_photos")
    assert sorted(loaded & {"torch", "matplotlib", "fastapi"}) == []


def test_calls_in_hints_can_be_pasted(tmp_path: Path) -> None:
    """From no library at all to a set with photos, following the errors."""
    library = tmp_path / "my sets"
    make_photos(tmp_path / "cats and dogs", {"cats": 3, "dogs": 3})

    with pytest.raises(InputError) as no_library:
        front.PatternSet.open("animals", library)
    made = paste(no_library.value, NAME="animals")
    assert made == front.PatternSet.open("animals", library)
    with pytest.raises(InputError) as no_photos:
        front.train_set("animals", library)
    assert len(paste(no_photos.value, DIR=str(tmp_path / "cats and dogs")).results) == 6
    with pytest.raises(InputError) as not_trained:
        front.choose_model("animals", library=library)
    [call] = calls(not_trained.value)
    assert getattr(front, call.function) is front.train_set


def calls(error: InputError) -> list[Call]:
    return [part for part in error.parts if isinstance(part, Call)]


def paste(error: InputError, **filled_in: str) -> Any:
    [call] = calls(error)
    text = str(call)
    for name, value in filled_in.items():
        text = text.replace(name, value)
    names = {name: getattr(front, name) for name in front.__all__}
    return eval(text, {**names, "Path": Path})
