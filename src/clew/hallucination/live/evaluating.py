"""Ask the model about answers that have passed through it, as it was asked about the answers that a
detector was fitted on."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from clew.base.errors import InputError
from clew.base.typed_json import read_as
from clew.hallucination.capture.batch import BatchModel
from clew.hallucination.capture.decode import record_dtype
from clew.hallucination.capture.entailment import Comparer
from clew.hallucination.capture.evaluation import Evaluator
from clew.hallucination.capture.models import LoadedModel, context_tokens
from clew.hallucination.capture.observe import ModelObserver, accepted_arguments
from clew.hallucination.capture.phrasings import (
    ENTAILMENT_KEY,
    EVALUATION_KEY,
    Entailment,
    SelfEvaluation,
)
from clew.hallucination.capture.plan import BatchPlan
from clew.hallucination.detectors import Detector
from clew.hallucination.live.assessing import read_generation
from clew.hallucination.live.features import PassedAnswer
from clew.hallucination.traces.schema import ENTAILMENT, EVALUATION

Asked = TypeVar("Asked")
# Where nobody has compared padded batches with single passes, nothing is padded.
_UNPADDED = BatchPlan(rows=64, tokens=1 << 14, same_length=True)
_OF_ANSWERS = frozenset(EVALUATION) - {ENTAILMENT}


class LiveEvaluation:
    """What a detector reads of the model's opinion; `fields` is empty if it reads nothing of it.
    Call `evaluate` only while nothing else uses the model."""

    def __init__(self, loaded: LoadedModel, detector: Detector) -> None:
        self.fields = detector.fields & {*EVALUATION}
        self._loaded, self._detector = loaded, detector
        self._max_tokens = context_tokens(loaded.model)

    @property
    def room(self) -> int:
        """The tokens that it needs behind an answer."""
        return self._evaluator.room if self.fields & _OF_ANSWERS else 0

    def evaluate(
        self,
        answers: Sequence[PassedAnswer],
        model: BatchModel | None = None,
        plan: BatchPlan = _UNPADDED,
    ) -> dict[str, np.ndarray]:
        """The columns of `fields`, one row per answer; NaN for one that the model has no room to
        be asked about. `model` is one whose batches were compared with single passes."""
        model = model or self._plain_model
        found: dict[str, np.ndarray] = {}
        if self.fields & _OF_ANSWERS:
            found |= self._ask_about(answers, model, plan)
        if ENTAILMENT in self.fields:
            found[ENTAILMENT] = self._compare_drawn(answers, model, plan)
        return found

    def _ask_about(
        self, answers: Sequence[PassedAnswer], model: BatchModel, plan: BatchPlan
    ) -> dict[str, np.ndarray]:
        most = self._max_tokens - self.room
        sequences = [[*answer.prompt, *answer.tokens] for answer in answers]
        is_cut = [len(sequence) > most for sequence in sequences]
        cut = [sequence[:most] for sequence in sequences]
        found = self._evaluator.evaluate(model, cut, plan)
        for values in found.values():
            values[is_cut] = np.nan
        return found

    def _compare_drawn(
        self, answers: Sequence[PassedAnswer], model: BatchModel, plan: BatchPlan
    ) -> np.ndarray:
        # One without drawn answers gets no risk, whatever is said of it.
        none = [""] * read_generation(self._detector).draws
        compare = self._comparer.compare
        return np.stack([compare(model, a.question, a.samples or none, plan) for a in answers])

    @cached_property
    def _evaluator(self) -> Evaluator:
        read = partial(SelfEvaluation.read, num_layers=self._detector.shape.layers)
        evaluation = self._read(EVALUATION_KEY, read)
        return Evaluator(evaluation, self._loaded.tokenizer, chat=self._detector.prompt.chat)

    @cached_property
    def _comparer(self) -> Comparer:
        entailment = self._read(ENTAILMENT_KEY, Entailment.read)
        return Comparer(entailment, self._loaded, chat=self._detector.prompt.chat)

    def _read(self, key: str, read: Callable[[Mapping[str, Any]], Asked]) -> Asked:
        """How the model was asked, as the detector says. Raises InputError if it does not."""
        try:
            return read(read_as(dict[str, Any], self._detector.kept.capture.get(key), key))
        except ValueError as error:
            raise InputError(
                f"the detector {self._detector.name} does not say what the model was asked about "
                f"its answers ({error}): make it again with this version of clew."
            ) from None

    @cached_property
    def _plain_model(self) -> BatchModel:
        model = self._loaded.model
        return BatchModel(
            model=model,
            observer=ModelObserver(model),
            dtype=record_dtype(model),
            arguments=accepted_arguments(model),
        )
