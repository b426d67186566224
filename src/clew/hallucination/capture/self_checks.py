"""What a run asks the model about its own answers, and about those drawn in addition: the columns,
the settings that record it, and the work it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.hallucination.capture.batch import BatchModel
from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.dialogue import Prompt
from clew.hallucination.capture.entailment import Comparer
from clew.hallucination.capture.evaluation import Evaluator
from clew.hallucination.capture.models import LoadedModel
from clew.hallucination.capture.observe import ModelObserver
from clew.hallucination.capture.phrasings import (
    ENTAILMENT_KEY,
    EVALUATION_KEY,
    Entailment,
    SelfEvaluation,
)
from clew.hallucination.capture.plan import BatchPlan, ExtraWork
from clew.hallucination.traces.schema import ENTAILMENT, EvaluationShape, TraceShape


@dataclass(frozen=True, kw_only=True)
class SelfChecks:
    """What asks the model about its answers, and what compares `draws` drawn ones per question;
    None for what is not wanted."""

    evaluator: Evaluator | None
    comparer: Comparer | None
    draws: int

    @classmethod
    def prepare(cls, config: ExtractConfig, loaded: LoadedModel, prompt: Prompt) -> "SelfChecks":
        """Raises InputError if the model cannot be asked."""
        evaluator = comparer = None
        if config.self_evaluation:
            evaluation = SelfEvaluation.of_model(ModelObserver(loaded.model).num_layers)
            evaluator = Evaluator(evaluation, loaded.tokenizer, chat=prompt.chat)
        if config.entailment:
            comparer = Comparer(Entailment(), loaded, chat=prompt.chat)
        return cls(evaluator=evaluator, comparer=comparer, draws=config.draws)

    @property
    def room(self) -> int:
        """The tokens that are passed behind an answer."""
        return self.evaluator.room if self.evaluator else 0

    @property
    def shape(self) -> EvaluationShape:
        asked = self.evaluator.evaluation if self.evaluator else None
        return EvaluationShape(
            phrasings=len(asked.phrasings) if asked else 0,
            layers=len(asked.layers) if asked else 0,
            draws=self.draws if self.comparer else 0,
        )

    def describe(self) -> dict[str, Any]:
        """The settings as recorded in the manifest; only those of what is asked."""
        described = {}
        if self.evaluator is not None:
            described[EVALUATION_KEY] = self.evaluator.evaluation.describe()
        if self.comparer is not None:
            described[ENTAILMENT_KEY] = self.comparer.entailment.describe()
        return described

    def extra_work(self, shape: TraceShape, max_new_tokens: int) -> list[ExtraWork]:
        """What each answer takes."""
        work = []
        if self.evaluator is not None:
            work.append(self.evaluator.extra_work(shape))
        if self.comparer is not None:
            work.append(self.comparer.extra_work(self.draws, max_new_tokens))
        return work

    def compare(
        self,
        model: BatchModel,
        questions: Sequence[str],
        samples: Sequence[Sequence[str]],
        plan: BatchPlan,
    ) -> dict[str, np.ndarray]:
        """The column of which drawn answers entail each other, if they are compared."""
        if self.comparer is None:
            return {}
        pairs = zip(questions, samples, strict=True)
        found = [self.comparer.compare(model, asked, drawn, plan) for asked, drawn in pairs]
        return {ENTAILMENT: np.stack(found)}

    def evaluate(
        self, model: BatchModel, sequences: Sequence[Sequence[int]], plan: BatchPlan
    ) -> dict[str, np.ndarray]:
        """The columns of what the model says about its answers, if it is asked."""
        return {} if self.evaluator is None else self.evaluator.evaluate(model, sequences, plan)
