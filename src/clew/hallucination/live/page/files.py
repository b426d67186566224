"""What the page shows besides live answers: a trace store with its labels and risks, and finished
comparisons. Everything is opened when the server starts; clients never name a path."""

import threading
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clew.base.errors import InputError, StoreError
from clew.hallucination.answer_page.picture import ShownAnswer, read_answer
from clew.hallucination.answer_page.store import open_traces
from clew.hallucination.answer_page.verdict import Verdicts, read_verdicts
from clew.hallucination.detectors.similar_answers import KnownAnswers
from clew.hallucination.live.page.comparisons import ShownComparison, show_comparison
from clew.hallucination.live.page.index import AnswerIndex, build_index
from clew.hallucination.live.page.known import gather_known
from clew.hallucination.traces import Trace, TraceBatchLoader
from clew.hallucination.traces.basis import BASIS_NAME, Basis, load_basis
from clew.hallucination.traces.token_texts import read_token_texts


class BrowsedStore:
    """The answers of a trace store, for the explorer and as known answers beside new ones."""

    def __init__(self, loader: TraceBatchLoader, index: AnswerIndex) -> None:
        self.loader, self.index = loader, index
        self._lock = threading.Lock()
        self._is_prepared = False

    @property
    def model(self) -> dict[str, Any]:
        """The captured model, as in the manifest."""
        model = self.loader.manifest.settings.get("model")
        return model if isinstance(model, dict) else {}

    @property
    def name(self) -> str:
        return self.loader.traces_dir.resolve().name

    @cached_property
    def basis(self) -> Basis | None:
        """The basis of the projected states; None for a store without one."""
        try:
            sha256 = self.loader.manifest.files.get(BASIS_NAME)
            return load_basis(self.loader.traces_dir, sha256)
        except StoreError:
            return None

    @cached_property
    def _known(self) -> KnownAnswers | None:
        return gather_known(self.loader, self.index)

    @property
    def known(self) -> KnownAnswers | None:
        """Gathered on first use, which takes seconds; other threads wait for it."""
        with self._lock:
            return self._known

    def prepare(self) -> None:
        """Gather the known answers in the background."""
        if not self._is_prepared:
            self._is_prepared = True
            threading.Thread(target=lambda: self.known, name="clew-known", daemon=True).start()

    def trace(self, number: int) -> Trace | None:
        """A stored trace, None if there is no such number. Loaders are not for several threads."""
        if self.index.row_of(number) is None:
            return None
        with self._lock:
            trace = self.loader.get_trace_by_global_id(number)
        return trace if trace is not None and trace["tokens"] is not None else None

    def show(self, trace: Trace) -> ShownAnswer:
        """A stored answer with its label."""
        row = self.index.row_of(trace["global_example_id"])
        label = None if row is None else self.index.label_at(row)
        model = self.model.get("id")
        texts, note = read_token_texts(
            trace["tokens"],
            trace.get("tokens_decoded"),
            model if isinstance(model, str) else None,
            None,
        )
        answer = read_answer(trace, texts, label, None)
        return replace(answer, notes=(*answer.notes, note)) if note else answer


@dataclass(frozen=True, kw_only=True)
class PageFiles:
    """The folders that the page shows."""

    store: BrowsedStore | None = None
    comparisons: tuple[ShownComparison, ...] = ()


def open_page_files(
    traces: Path | None = None,
    scores_file: Path | None = None,
    comparisons: tuple[Path, ...] = (),
    *,
    score_threshold: float = 0.5,
) -> PageFiles:
    """Open the folders. Raises InputError or StoreError if one is not what it should be, or the
    scores belong to other answers."""
    if scores_file is not None and traces is None:
        raise InputError(
            "scores need the traces that they are of: give `traces` too.",
            setting="scores_file",
            value=scores_file,
        )
    verdicts = [read_verdicts(folder) for folder in comparisons]
    store = None
    if traces is not None:
        store = _open_store(traces, scores_file, verdicts, score_threshold)
    shown = tuple(show_comparison(found.comparison) for found in verdicts)
    return PageFiles(store=store, comparisons=shown)


def _open_store(
    traces: Path, scores_file: Path | None, verdicts: list[Verdicts], score_threshold: float
) -> BrowsedStore:
    loader = open_traces(traces)
    return BrowsedStore(loader, build_index(loader, scores_file, score_threshold, verdicts))
