"""review.json: every decision, written before it is carried out, so that a kill loses none."""

import hashlib
import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from clew.base.errors import StoreError
from clew.base.texts import shortened
from clew.base.typed_json import Count, read_as, to_json, wrong
from clew.patterns.library.placing import lies_inside
from clew.patterns.photos.photo import SUFFIXES
from clew.storage.reading import read_json
from clew.storage.writing import replace_file
from clew.version import __version__

NOTES_NAME = "review.json"
_FORMAT = "clew-review"
_VERSION = 1
_CHUNK = 1 << 20

Action = Literal["approved", "corrected", "skipped"]
# What is still to do: put the photo into its class; remove the original; undo both; nothing.
Step = Literal["place", "take away", "take back", "done"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A person's decision about one photo, and its result.

    `bytes`, `modified_ns` and `digest` (of the file's bytes) identify the photo. `placed` is the
    photo in its class, below the folder of classes; `is_new` says that it was not there before.
    """

    name: str
    path: str
    bytes: Count
    modified_ns: int
    digest: str
    action: Action
    label: str | None = None
    guess: str | None = None
    probability: float | None = None
    moves: bool = False
    step: Step = "done"
    placed: str | None = None
    is_new: bool = False
    decided: str = ""

    @property
    def is_skip(self) -> bool:
        return self.action == "skipped"


class Notes:
    """The decisions of all reviews of one model or set. Every change is on disk when the method
    returns; if it cannot be written, it does not take effect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decisions: list[Decision] = _read(path)
        self._lines = [_line(decision) for decision in self.decisions]
        self._by_path: dict[str, Decision] = {}
        self._by_bytes: dict[int, list[Decision]] = defaultdict(list)
        for decision in self.decisions:
            self._index(decision)

    def add(self, decision: Decision) -> Decision:
        self._write([*self._lines, _line(decision)])
        self.decisions.append(decision)
        self._index(decision)
        return decision

    def change(self, decision: Decision, **changes: Any) -> Decision:
        """Replaces the decision with other values."""
        changed = replace(decision, **changes)
        place = self.decisions.index(decision)
        self._write([*self._lines[:place], _line(changed), *self._lines[place + 1 :]])
        self.decisions[place] = changed
        self._forget(decision)
        self._index(changed)
        return changed

    def drop(self, decision: Decision) -> None:
        place = self.decisions.index(decision)
        self._write([*self._lines[:place], *self._lines[place + 1 :]])
        del self.decisions[place]
        self._forget(decision)

    def find(self, path: Path) -> Decision | None:
        """The decision about this photo, under this or another name.

        Raises OSError if the photo is missing and no review has moved it. The file is read only if
        a photo of the same length was decided on.
        """
        known = self._by_path.get(str(path))
        if known and known.moves and not os.path.lexists(path):
            return known
        state = path.stat()
        if known and (known.bytes, known.modified_ns) == (state.st_size, state.st_mtime_ns):
            return known
        alike = self._by_bytes.get(state.st_size)
        if not alike:
            return None
        digest = digest_file(path)
        return next((one for one in reversed(alike) if one.digest == digest), None)

    def _index(self, decision: Decision) -> None:
        self._by_path[decision.path] = decision
        self._by_bytes[decision.bytes].append(decision)

    def _forget(self, decision: Decision) -> None:
        self._by_path.pop(decision.path, None)
        self._by_bytes[decision.bytes].remove(decision)

    def _write(self, lines: list[str]) -> None:
        """One line per decision, serialized once: thousands do not slow the next one down."""
        about = {"format": _FORMAT, "version": _VERSION, "clew_version": __version__}
        opening = json.dumps(about).removesuffix("}")
        joined = ",\n".join(lines)
        content = f'{opening}, "decisions": [\n{joined}\n]}}\n'
        replace_file(self.path, content.encode())
        self._lines = lines


def _line(decision: Decision) -> str:
    return to_json(asdict(decision))


def digest_file(path: Path) -> str:
    """blake2b-128 of the file's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read(path: Path) -> list[Decision]:
    try:
        raw = read_as(dict[str, Any], read_json(path, encodable=False))
        kind = raw.get("format"), raw.get("version")
        if kind != (_FORMAT, _VERSION):
            raise ValueError(f"it is version {shortened(kind[1])} of {shortened(kind[0])}")
        decisions: list[Decision] = read_as(list[Decision], raw.get("decisions"), "decisions")
        for decision in decisions:
            _check(decision)
        return decisions
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(
            f'"{path}", the record of earlier reviews, cannot be read ({error}): restore it from '
            "a backup, or rename it to start over (photos that you have already reviewed are then "
            "shown again)."
        ) from None


def _check(decision: Decision) -> None:
    """Raises ValueError for a decision that no review has made. The next review completes what is
    left to do, so it would write or delete whatever file the decision names."""
    if decision.placed is not None and not lies_inside(decision.placed):
        raise wrong("placed", decision.placed)
    is_carried_out = decision.placed is not None or decision.step != "done"
    if is_carried_out and Path(decision.path).suffix.lower() not in SUFFIXES:
        raise wrong("path", decision.path)
