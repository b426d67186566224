"""The side file of a judge: every judgement as it came, so that none is paid for twice."""

import json
import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from clew.storage.disk import disk_errors

logger = logging.getLogger(__name__)


class JudgedFile:
    """Judgements by key, one JSON line each; safe to add to from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._scores = _read_judgements(path)

    def __enter__(self) -> "JudgedFile":
        self._file = self.path.open("a+b")
        # A line that a killed process left half written must not spoil the next one.
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def get(self, key: str) -> float | None:
        return self._scores.get(key)

    def add(self, key: str, score: float, **about: str) -> None:
        """Keep a judgement; it is in the file when this returns."""
        line = json.dumps({"key": key, "score": score, **about}, ensure_ascii=False) + "\n"
        with self._lock, disk_errors(self.path.parent):
            self._file.write(line.encode())
            self._file.flush()
            self._scores[key] = score


def _read_judgements(path: Path) -> dict[str, float]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    found, lost = {}, 0
    for line in filter(None, lines):
        judgement = _parse_line(line)
        if judgement is None:
            lost += 1
        else:
            found[judgement["key"]] = float(judgement["score"])
    if lost:
        logger.warning("%s: %d lines cannot be read; those answers are judged again", path, lost)
    return found


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        judgement = json.loads(line)
        good = isinstance(judgement["key"], str) and 0 <= float(judgement["score"]) <= 1
    except (ValueError, TypeError, KeyError):
        return None
    return judgement if good else None
