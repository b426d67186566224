from pathlib import Path

import pytest

from clew.patterns.library.pattern_set import PatternSet
from tests.patterns.review.making import identify, make_set


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return tmp_path / "my holiday"


@pytest.fixture
def animals(tmp_path: Path, photos: Path) -> PatternSet:
    """A set whose newest identify was uncertain about four photos."""
    made = make_set(tmp_path)
    identify(made.folder, photos)
    return made
