"""Carries decisions out: each is noted first, so that the next review makes good what a kill
broke off."""

import logging
from pathlib import Path

from clew.errors import ClewError
from clew.patterns.review.notes import Decision, Notes, digest_file
from clew.patterns.review.shelf import Shelf

logger = logging.getLogger(__name__)


class Carrier:
    """Every step can be done again: what is done already is seen and left."""

    def __init__(self, shelf: Shelf, notes: Notes) -> None:
        self.shelf, self.notes = shelf, notes

    def carry_out(self, decision: Decision) -> Decision:
        """Put the photo into its class, and take the original away where it moves.

        Raises InputError, DiskFullError or OSError; then nothing was done.
        """
        if decision.step == "place" and decision.label is not None:
            decision = self._place(decision, decision.label)
        if decision.step == "take away":
            path = Path(decision.path)
            moved = self.shelf.take_away(path, str(decision.placed), decision.digest)
            decision = self.notes.change(decision, step="done", moves=moved)
        return decision

    def _place(self, decision: Decision, label: str) -> Decision:
        step = "take away" if decision.moves else "done"
        placed = None
        try:
            placed = self.shelf.add(Path(decision.path), label)
            return self.notes.change(decision, placed=placed.name, is_new=placed.is_new, step=step)
        except (ClewError, OSError):
            if placed is not None and placed.is_new:
                self.shelf.remove(placed.name, decision.digest)
            self.notes.drop(decision)
            raise

    def take_back(self, decision: Decision) -> None:
        """The other way round. Raises InputError when something stands in the way: then the
        decision stays."""
        if decision.placed is not None and (decision.moves or decision.is_new):
            undoing = self.notes.change(decision, step="take back")
            try:
                self._empty(undoing, decision.placed)
            except (ClewError, OSError):
                self.notes.change(undoing, step="done")
                raise
            decision = undoing
        self.notes.drop(decision)

    def finish(self) -> int:
        """Do what earlier reviews had noted when they were killed; how many there were."""
        begun = [decision for decision in self.notes.decisions if decision.step != "done"]
        for decision in begun:
            try:
                self._finish(decision)
            except (ClewError, OSError) as error:
                logger.warning("%s: what was begun cannot be finished: %s", decision.name, error)
        return len(begun)

    def _empty(self, decision: Decision, placed: str) -> None:
        """The original is there before the copy goes, also where somebody has deleted it since."""
        self.shelf.give_back(placed, Path(decision.path), decision.digest)
        if decision.is_new:
            self.shelf.remove(placed, decision.digest)

    def _finish(self, decision: Decision) -> None:
        path = Path(decision.path)
        if decision.step == "take back":
            self.take_back(decision)
        elif path.is_file() and digest_file(path) == decision.digest:
            self.carry_out(decision)
        elif decision.step == "take away":
            self.notes.change(decision, step="done")
        else:
            self.notes.drop(decision)
