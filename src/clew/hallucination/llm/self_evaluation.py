"""Ask a model about answers: how probable it finds that its own answer is true, and which of
several answers entail each other. Prompt and answer are passed once, the questions behind them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from clew.base.errors import InputError
from clew.base.typed_json import Bounds, Count, read_as
from clew.hallucination.llm.decoder import FilledRows
from clew.hallucination.llm.memory import BatchPlan, ExtraWork, make_batches
from clew.hallucination.llm.models import LoadedModel, context_tokens
from clew.hallucination.llm.passes import PackedModel
from clew.hallucination.llm.prompts import format_chat, tokenize
from clew.hallucination.traces.compact import to_float16
from clew.hallucination.traces.schema import (
    CONTRAST_FALSE,
    CONTRAST_TRUE,
    ENTAILMENT,
    ENTAILMENT_KEY,
    EVALUATION_KEY,
    P_TRUE,
    EvaluationShape,
    TraceShape,
)

_Text = Annotated[str, Bounds(least=1, most=2000)]
# The middle of the model, where states tell most about the truth of a statement.
_LAYER_SHARES = (1 / 2, 5 / 8, 3 / 4)
# As in "Detecting hallucinations in large language models using semantic entropy", with the
# question about the answers before them, so that all pairs of a question start with it.
_ENTAILMENT = (
    'We are evaluating answers to the question "{question}" Here are two possible answers. Does '
    "Possible Answer 1 semantically entail Possible Answer 2? Reply with Yes or No.\n"
    "Possible Answer 1: {first}\n"
    "Possible Answer 2: {second}"
)
_PLACES = re.compile(r"\{(?:question|first|second)\}")
# Where a chat template puts the answer.
_ANSWER = "The answer is unknown."


@dataclass(frozen=True, kw_only=True)
class Phrasing:
    """A question about an answer, and the two replies to it."""

    text: _Text
    true: _Text
    false: _Text


PHRASINGS = (
    Phrasing(text="Is your answer correct? Reply with Yes or No.", true="Yes", false="No"),
    Phrasing(
        text="Is the proposed answer:\n(A) True\n(B) False\nReply with A or B.",
        true="A",
        false="B",
    ),
    Phrasing(text="Is your answer true or false? Reply with one word.", true="True", false="False"),
)


@dataclass(frozen=True, kw_only=True)
class SelfEvaluation:
    """What a model is asked about its answers, as manifests record it. The states after the two
    replies to the first phrasing are kept in `layers`."""

    phrasings: Annotated[tuple[Phrasing, ...], Bounds(least=1, most=20)]
    layers: Annotated[tuple[Count, ...], Bounds(least=1, most=64)]
    version: Literal[1] = 1

    @classmethod
    def of_model(cls, num_layers: int) -> "SelfEvaluation":
        layers = sorted({int(num_layers * share) for share in _LAYER_SHARES})
        return cls(phrasings=PHRASINGS, layers=tuple(layers))

    @classmethod
    def read(cls, described: Mapping[str, Any], num_layers: int) -> "SelfEvaluation":
        """As described in a file. Raises ValueError if it does not fit the model."""
        found = read_as(cls, dict(described), "self_evaluation")
        layers = list(found.layers)
        if layers != sorted({*layers}) or layers[-1] >= num_layers:
            raise ValueError(f"self_evaluation.layers is {layers}")
        return found

    def describe(self) -> dict[str, Any]:
        phrasings = [asdict(phrasing) for phrasing in self.phrasings]
        return {"version": self.version, "phrasings": phrasings, "layers": list(self.layers)}


@dataclass(frozen=True, kw_only=True)
class Entailment:
    """How a model is asked whether one answer to a question entails another, as manifests record
    it."""

    template: _Text = _ENTAILMENT
    true: _Text = "Yes"
    false: _Text = "No"
    version: Literal[1] = 1

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> "Entailment":
        """As described in a file. Raises ValueError for something else."""
        return read_as(cls, dict(described), ENTAILMENT_KEY)

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    def fill(self, question: str, first: str, second: str) -> str:
        texts = {"{question}": question, "{first}": first, "{second}": second}
        return _PLACES.sub(lambda found: texts[found[0]], self.template)


class Replies(NamedTuple):
    """The tokens before two replies, those that both start with included, and the next token of
    either."""

    tokens: list[int]
    true: int
    false: int


def make_follow_up(tokenizer: Any, phrasing: Phrasing, *, chat: bool) -> Replies:
    """A phrasing in the model's chat format, or as the next question of a plain prompt. Raises
    InputError if the model cannot be asked."""
    text = _next_turn(tokenizer, phrasing.text) if chat else f"\nQ: {phrasing.text} A:"
    replies = _find_replies(tokenizer, text, phrasing, chat=chat)
    return replies._replace(tokens=[*tokenize(tokenizer, [text])[0], *replies.tokens])


def _find_replies(
    tokenizer: Any, before: str, asked: "Phrasing | Entailment", *, chat: bool
) -> Replies:
    """The tokens of two replies to the text before them. What both start with, such as a space, is
    passed before the model chooses. Raises InputError if the tokenizer does not tell them apart.
    """
    gap = "" if chat else " "
    both = [f"{gap}{asked.true}", f"{gap}{asked.false}"]
    replies = [_encode_reply(tokenizer, before, one) for one in both]
    for place, (one, other) in enumerate(zip(*replies, strict=False)):
        if one != other:
            return Replies(replies[0][:place], one, other)
    raise InputError(
        f'this model\'s tokenizer does not tell the replies "{asked.true}" and '
        f'"{asked.false}" apart, so the model cannot be asked about its answers.'
    )


def _next_turn(tokenizer: Any, text: str) -> str:
    """What the chat template puts between an answer and the reply to the user's next message."""
    turns = (("user", text), ("assistant", _ANSWER), ("user", text))
    whole = format_chat(tokenizer, [{"role": role, "content": content} for role, content in turns])
    _, answer, rest = whole.rpartition(_ANSWER)
    if not answer:
        raise InputError(
            "this model's chat template drops earlier answers, so the model cannot be asked about "
            "them. Omit `self_evaluation`, or use `chat=False`."
        )
    return rest


def _encode_reply(tokenizer: Any, before: str, reply: str) -> list[int]:
    first, joined, alone = tokenize(tokenizer, [before, f"{before}{reply}", reply])
    # A tokenizer may merge the reply with what comes before it; generation cannot.
    return joined[len(first) :] if joined[: len(first)] == first else alone


class Evaluator:
    """Asks a model about its answers. It passes up to `extra_tokens` behind an answer."""

    def __init__(self, evaluation: SelfEvaluation, loaded: LoadedModel, *, chat: bool) -> None:
        """Raises InputError if the model cannot be asked."""
        self.evaluation = evaluation
        self._follow_ups = [
            make_follow_up(loaded.tokenizer, one, chat=chat) for one in evaluation.phrasings
        ]
        self.extra_tokens = max(len(one.tokens) for one in self._follow_ups) + 1
        self._most = context_tokens(loaded.model) - self.extra_tokens

    def extra_work(self, shape: TraceShape) -> ExtraWork:
        """What evaluating one answer takes."""
        return ExtraWork(
            tokens=sum(len(one.tokens) for one in self._follow_ups) + 2,
            bytes=4 * len(self._follow_ups) + 4 * len(self.evaluation.layers) * shape.dim,
        )

    @torch.inference_mode()
    def evaluate(
        self, model: PackedModel, sequences: Sequence[Sequence[int]], plan: BatchPlan
    ) -> dict[str, np.ndarray]:
        """The columns of self-evaluation for prompts with their answers (token ids), one row per
        answer, in batches no larger than planned; NaN for one that the model has no room to be
        asked about."""
        is_cut = [len(sequence) > self._most for sequence in sequences]
        cut = [sequence[: self._most] for sequence in sequences]
        batches = make_batches([len(sequence) for sequence in cut], plan, self.extra_tokens)
        parts = [self._pass(model, [cut[row] for row in rows]) for rows in batches]
        order = np.argsort([row for rows in batches for row in rows])
        found = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
        for values in found.values():
            values[is_cut] = np.nan
        return found

    def _pass(
        self, model: PackedModel, sequences: Sequence[Sequence[int]]
    ) -> dict[str, np.ndarray]:
        rows = FilledRows(model, sequences, extra_tokens=self.extra_tokens)
        for _ in rows.fill([range(len(sequence), 0) for sequence in sequences]):
            pass
        # The first one comes last: its replies are passed behind it.
        found = [self._ask(rows, one) for one in reversed(self._follow_ups)]
        return {P_TRUE: torch.stack(found[::-1], dim=1).cpu().numpy(), **self._contrast(rows)}

    def _ask(self, rows: FilledRows, follow_up: Replies) -> Float[Tensor, " rows"]:
        """The probability of the reply that an answer is true, of the two replies."""
        logits, _ = rows.follow(follow_up.tokens)
        return (logits[:, follow_up.true].float() - logits[:, follow_up.false].float()).sigmoid()

    def _contrast(self, rows: FilledRows) -> dict[str, np.ndarray]:
        """The states after both replies to the first phrasing, which was passed last."""
        first, layers, states = self._follow_ups[0], self.evaluation.layers, {}
        for name, reply in ((CONTRAST_TRUE, first.true), (CONTRAST_FALSE, first.false)):
            _, found = rows.follow([reply], after=len(first.tokens), layers=layers)
            states[name] = to_float16(found).cpu().numpy()
        return states


class Comparer:
    """Asks a model which of several answers to a question entail each other."""

    def __init__(self, entailment: Entailment, loaded: LoadedModel, *, chat: bool) -> None:
        """Raises InputError if the model cannot be asked."""
        self.entailment, self._tokenizer, self._chat = entailment, loaded.tokenizer, chat
        self._max_tokens = context_tokens(loaded.model)
        before = self._format("", "", "")
        self._replies = _find_replies(self._tokenizer, before, entailment, chat=chat)

    def extra_work(self, draws: int, max_new_tokens: int) -> ExtraWork:
        """What comparing the answers drawn for one question takes at most."""
        [empty] = self._encode([self._format("", "", "")])
        pairs = draws * (draws - 1)
        return ExtraWork(pairs * (len(empty) + 2 * max_new_tokens), 4 * draws**2)

    @torch.inference_mode()
    def compare(
        self, model: PackedModel, question: str, answers: Sequence[str], plan: BatchPlan
    ) -> Float32[np.ndarray, "answers answers"]:
        """How probable it is, according to the model, that the answer of the row entails that of
        the column; 1 for the same text. A pair that the model has no room for counts as 0."""
        texts = list(dict.fromkeys(answers))
        found = np.eye(len(texts), dtype=np.float32)
        pairs = list(permutations(range(len(texts)), 2))
        filled = [self._format(question, texts[i], texts[j]) for i, j in pairs]
        sequences = [[*one, *self._replies.tokens] for one in self._encode(filled)]
        fits = [n for n, one in enumerate(sequences) if len(one) <= self._max_tokens]
        chances = self._pass(model, [sequences[n] for n in fits], plan)
        for n, chance in zip(fits, chances, strict=True):
            found[pairs[n]] = chance
        places = [texts.index(answer) for answer in answers]
        return found[np.ix_(places, places)]

    def _pass(
        self, model: PackedModel, sequences: Sequence[list[int]], plan: BatchPlan
    ) -> Float32[np.ndarray, " pairs"]:
        chances = np.zeros(len(sequences), np.float32)
        if not sequences:
            return chances
        true, false = self._replies.true, self._replies.false
        for rows in make_batches([len(one) for one in sequences], plan, 0):
            filled = FilledRows(model, [sequences[row] for row in rows])
            last = [range(len(sequences[row]) - 1, len(sequences[row])) for row in rows]
            for places, logits in filled.fill(last):
                both = logits[:, [true, false]].float()
                where = [rows[row] for row, _ in places]
                chances[where] = (both[:, 0] - both[:, 1]).sigmoid().cpu().numpy()
        return chances

    def _format(self, question: str, first: str, second: str) -> str:
        text = self.entailment.fill(question, first, second)
        if not self._chat:
            return f"{text}\nReply:"
        return format_chat(self._tokenizer, [{"role": "user", "content": text}])

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return tokenize(self._tokenizer, texts, special=not self._chat)


class SelfChecks:
    """What asks the model about its answers, and what compares `draws` drawn ones per question;
    None for what is not wanted."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        chat: bool,
        evaluation: SelfEvaluation | None,
        entailment: Entailment | None,
        draws: int,
    ) -> None:
        """Raises InputError if the model cannot be asked."""
        self.evaluator = Evaluator(evaluation, loaded, chat=chat) if evaluation else None
        self.comparer = Comparer(entailment, loaded, chat=chat) if entailment else None
        self.draws = draws

    @property
    def extra_tokens(self) -> int:
        """The tokens that are passed behind an answer."""
        return self.evaluator.extra_tokens if self.evaluator else 0

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
        model: PackedModel,
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
        self, model: PackedModel, sequences: Sequence[Sequence[int]], plan: BatchPlan
    ) -> dict[str, np.ndarray]:
        """The columns of what the model says about its answers, if it is asked."""
        return {} if self.evaluator is None else self.evaluator.evaluate(model, sequences, plan)
