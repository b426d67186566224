"""Tables beside a model, whatever the photos' names."""

import os
from pathlib import Path

import pytest

from clew.base.errors import StoreError
from clew.patterns.trained.tables import (
    SPLITS_FILE,
    SplitRow,
    describe_changes,
    read_splits,
    write_splits,
)


def row(name: str, *, label: str = "a", split: str = "train", digest: str = "0") -> SplitRow:
    return SplitRow(name=name, label=label, split=split, digest=digest)


def test_splits_round_trip(tmp_path: Path) -> None:
    names = ['a "b", c.jpg', "línea\nnueva.jpg", "🍎/1.png", os.fsdecode(b"caf\xe9.jpg")]
    rows = [row(name, digest=str(number)) for number, name in enumerate(names)]
    write_splits(tmp_path, rows)
    assert read_splits(tmp_path) == rows


@pytest.mark.parametrize("content", [None, "a,b\n1,2\n"])
def test_damaged_splits_are_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / SPLITS_FILE).write_text(content)
    with pytest.raises(StoreError, match=r"splits\.csv\" cannot be read"):
        read_splits(tmp_path)


def test_photos_are_identified_by_their_images() -> None:
    before = [row("a.jpg", digest="1"), row("b.jpg", digest="2"), row("c.jpg", digest="3")]
    now = [row("other.jpg", digest="1"), row("b.jpg", digest="2", label="b"), row("d", digest="4")]
    assert describe_changes(before, before) == ""
    assert describe_changes(before, now) == "1 new, 1 gone, 1 in another class"
    assert (
        describe_changes(before[:1], [row("a", digest="1", split="test")]) == "1 in another split"
    )
