"""Photos are put into folders atomically, under valid and free names."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from clew.patterns.library.placing import put_photo, safe_file_name


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a b.jpg", "a b.jpg"),
        ("cafe\u0301.PNG", "caf\u00e9.PNG"),
        ("...hidden.png", "hidden.png"),
        ("new\nline.png", "new_line.png"),
        ("\u00e9" * 120 + ".jpeg", "\u00e9" * 90 + ".jpeg"),
        ("🐈.webp", "🐈.webp"),
    ],
)
def test_names_change_as_little_as_possible(name: str, safe: str) -> None:
    assert safe_file_name(name) == safe


@pytest.mark.parametrize("has_links", [True, False])
def test_no_file_is_ever_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:  # as on a memory card

        def refuse(*_: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    folder = tmp_path / "cats"
    for text in ("one", "two", "three"):
        source = tmp_path / "a.jpg"
        source.write_text(text)
        os.utime(source, (1000, 1000))
        placed = put_photo(source, folder)
        assert placed.read_text() == text
        assert placed.stat().st_mtime == 1000
    assert sorted(os.listdir(folder)) == ["a-2.jpg", "a-3.jpg", "a.jpg"]


def test_source_that_cannot_be_deleted_is_copied_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "a.jpg"
    source.write_text("one")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == source:
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert put_photo(source, tmp_path / "cats", move=True).read_text() == "one"
    assert source.exists()
    assert "the original cannot be deleted (Permission denied)" in caplog.text
