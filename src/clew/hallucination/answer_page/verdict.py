"""A detector's verdict on an answer, from the risks that a comparison stored."""

from dataclasses import dataclass
from pathlib import Path

from clew.errors import InputError
from clew.hallucination.answer_page.picture import Verdict
from clew.hallucination.answer_page.store import Kind
from clew.hallucination.comparison.report.comparison import (
    AGAIN,
    SCORES_FILE,
    Answers,
    Comparison,
    read_answers,
    read_comparison,
)
from clew.hallucination.traces import Trace

_SPLITS = ("validation", "test")


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """The risks of a comparison's best method for the answers that it was not fitted on."""

    comparison: Comparison
    answers: Answers

    def of(self, trace: Trace) -> tuple[Verdict | None, Kind | None]:
        """The verdict on an answer and its label; None where the method was fitted on it.

        Raises InputError if the comparison was run on other answers."""
        best, row = self.comparison.best, self._row(trace["global_example_id"])
        if row is None or best.name not in self.answers.risks:
            return None, None
        if self.answers.text("question_id", row) not in (None, trace["question_id"]):
            raise InputError(
                "it covers different answers than the store. Give the comparison that was made "
                "from these traces.",
                setting="comparison",
                value=self.comparison.folder,
            )
        risk = float(self.answers.risks[best.name][row])
        verdict = Verdict(method=best.title, risk=risk, threshold=best.threshold)
        return verdict, "hallucinated" if self.answers.labels[row] else "correct"

    def explain_missing(self, number: int) -> str:
        return (
            f"answer {number} has no risk: it is not in the validation or test split of the "
            f"comparison"
        )

    def _row(self, number: int) -> int | None:
        found = (self.answers.numbers == number).nonzero()[0]
        return int(found[0]) if len(found) else None


def read_verdicts(folder: Path) -> Verdicts:
    """Read the risks of a comparison's best method. Raises StoreError if the folder holds no
    finished comparison."""
    comparison = read_comparison(folder)
    path, methods = folder / SCORES_FILE, [comparison.best.name]
    answers = read_answers(path, methods, again=AGAIN, splits=_SPLITS)
    return Verdicts(comparison=comparison, answers=answers)
