"""The public names of patterns are importable, and the calls that hints name work."""

from pathlib import Path
from typing import Any

import pytest

import clew
import clew.patterns as front
from clew.base.errors import Call, InputError
from tests.patterns.library.making import make_photos
from tests.test_imports import loaded_by


def test_every_public_name_is_importable() -> None:
    assert all(getattr(front, name) is not None for name in front.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'magic'"):
        _ = front.magic


def test_public_surface_is_exactly_what_is_documented() -> None:
    assert front.__all__ == [
        *("PatternSet", "clean_photos", "create_set", "describe_set", "evaluate", "export"),
        *("find_similar", "identify", "import_photos", "list_sets", "load_classifier"),
        *("recognize", "review_photos", "run_flow", "serve", "train"),
    ]


@pytest.mark.slow
def test_set_is_inspected_without_torch() -> None:
    loaded = loaded_by("from clew.patterns import PatternSet, describe_set, import_photos")
    assert sorted(loaded & {"torch", "matplotlib", "fastapi"}) == []


def test_calls_in_hints_run_when_pasted(tmp_path: Path) -> None:
    """From no library at all to a set with photos, following the errors."""
    library = tmp_path / "my sets"
    make_photos(tmp_path / "cats and dogs", {"cats": 3, "dogs": 3})

    with pytest.raises(InputError) as no_library:
        front.describe_set("animals", library=library)
    made = paste(no_library.value, NAME="animals")
    assert made == front.PatternSet.open("animals", library)
    with pytest.raises(InputError) as no_photos:
        front.train(name="animals", library=library)
    assert len(paste(no_photos.value, DIR=str(tmp_path / "cats and dogs")).results) == 6
    with pytest.raises(InputError) as not_trained:
        front.identify("photos", name="animals", library=library)
    [call] = calls(not_trained.value)
    assert str(call) == f'clew.patterns.train(name="animals", library="{library}")'


def calls(error: InputError) -> list[Call]:
    return [part for part in error.parts if isinstance(part, Call)]


def paste(error: InputError, **filled_in: str) -> Any:
    [call] = calls(error)
    text = str(call)
    for name, value in filled_in.items():
        text = text.replace(name, value)
    return eval(text, {"clew": clew})
