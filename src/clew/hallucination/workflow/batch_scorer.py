"""Score batches of answers in a program of one's own: a detector that stays loaded."""

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.progress import ignore_event
from clew.hallucination.grounded import is_reader
from clew.hallucination.workflow.scoring import score

if TYPE_CHECKING:
    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.hallucination.grounded import Reader

_TEXTS = ("risk_level", "state", "reason")


class BatchScorer:
    """Adds the risk to batches of answers. Pickled, it is only its settings: processes load the
    model by themselves, and `datasets` finds in its cache what it has scored before."""

    def __init__(self, detector: str, model: str | None, device: str, columns: str | None) -> None:
        self.detector, self.model, self.device, self.columns = detector, model, device, columns
        self._lock = threading.Lock()
        self._kept: Detector | Reader | None = None
        self._loaded: LoadedModel | None = None

    def __reduce__(self) -> tuple[type["BatchScorer"], tuple[str | None, ...]]:
        return BatchScorer, (self.detector, self.model, self.device, self.columns)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        names = list(batch)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True)]
        with self._lock:
            self._load()
            assert self._kept is not None
            found = score(
                questions=rows,
                detector=self._kept,
                model=self._loaded,
                columns=self.columns,
                reporter=ignore_event,
            )
        risks = [math.nan if row["risk"] is None else row["risk"] for row in found.rows]
        # A column of None has no type, which the next batch would then contradict.
        return {"risk": risks} | {name: [row[name] or "" for row in found.rows] for name in _TEXTS}

    def _load(self) -> None:
        if self._kept is not None:
            return
        if is_reader(self.detector):
            from clew.hallucination.grounded import load_reader

            self._kept = load_reader(self.detector, model=self.model, device=self.device)
            return
        from clew.hallucination.detectors import load_detector
        from clew.hallucination.live.session import Session

        kept = load_detector(self.detector)
        with Session.open(
            kept, model=self.model, device=self.device, reporter=ignore_event
        ) as session:
            self._loaded = session.loaded
        self._kept = kept


def scorer(
    detector: str | Path = "grounded",
    *,
    model: str | Path | None = None,
    device: str = "auto",
    columns: str | None = None,
) -> BatchScorer:
    """A function that adds the risk to batches of answers, for `datasets.Dataset.map`.

    The detector and its model are loaded with the first batch, and stay loaded.

    Args:
        detector: Folder of a detector; or grounded, the built-in reader, or the folder of a reader.
        model: The detector's model, if it is in another place now.
        device: auto, cpu, cuda or cuda:1.
        columns: What the columns are, if their names do not say it, as in `score`.

    Returns:
        A function of a batch, a dict of columns. It returns the columns risk (NaN if there is
        none), risk_level, state and reason ("" if there is none).

    Raises:
        InputError: With a batch, as `score` does: columns, detector or model cannot be used.

    Examples:
        >>> dataset = dataset.map(clew.scorer("grounded"), batched=True)
        >>> dataset.filter(lambda row: row["risk_level"] == "high")
    """
    return BatchScorer(str(detector), None if model is None else str(model), device, columns)
