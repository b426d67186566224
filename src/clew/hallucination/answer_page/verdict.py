"""A detector's verdict on an answer, from the risks that a comparison stored."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from clew.base.errors import InputError
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
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.folder import DETECTOR_JSON, KEPT
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.traces import Trace

_SPLITS = ("validation", "test")


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """The risks of a comparison's best method for the answers that it was not fitted on. `warning`
    says that the method may be guessing."""

    comparison: Comparison
    answers: Answers
    probe: TokenProbe | None = None

    @property
    def warning(self) -> str | None:
        told = self.comparison.part("findings").get("detector")
        return None if told is None else str(told)

    def risks_of(self, trace: Trace) -> np.ndarray | None:
        """The risk of every token of an answer that the method was not fitted on; None without a
        token probe."""
        columns = [trace.get(name) for name in ("nodes", "token_logprobs", "token_entropies")]
        row = self._row(trace["global_example_id"])
        if self.probe is None or row is None or any(column is None for column in columns):
            return None
        nodes, *beside = (torch.from_numpy(np.array(column, np.float32)) for column in columns)
        if nodes.shape[0] <= max(self.probe.layers) or nodes.shape[2] < self.probe.node_dim:
            return None
        prompt = int(trace["prompt_length"])
        states = nodes[list(self.probe.layers), prompt:, : self.probe.node_dim].transpose(0, 1)
        return self.probe.score(states, *beside).numpy()

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

    def _row(self, number: int) -> int | None:
        found = (self.answers.numbers == number).nonzero()[0]
        return int(found[0]) if len(found) else None


def read_verdicts(folder: Path) -> Verdicts:
    """Read the risks of a comparison's best method, and the token probe of its detector. Raises
    StoreError if the folder holds no finished comparison, or the detector is damaged."""
    comparison = read_comparison(folder)
    path, methods = folder / SCORES_FILE, [comparison.best.name]
    answers = read_answers(path, methods, again=AGAIN, splits=_SPLITS)
    probe = (
        load_detector(folder / KEPT).token_probe
        if (folder / KEPT / DETECTOR_JSON).exists()
        else None
    )
    return Verdicts(comparison=comparison, answers=answers, probe=probe)
