"""What a model is asked about its own answers: the questions, the replies that are compared, and
the layers whose states are kept."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from clew.base.typed_json import Bounds, Count, read_as

_Text = Annotated[str, Bounds(least=1, most=2000)]
# The settings of manifests that describe it.
EVALUATION_KEY = "self_evaluation"
ENTAILMENT_KEY = "entailment"
# The middle of the model, where states tell most about the truth of a statement.
_LAYER_SHARES = (1 / 2, 5 / 8, 3 / 4)


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


# As in "Detecting hallucinations in large language models using semantic entropy", with the
# question about the answers before them, so that all pairs of a question start with it.
_ENTAILMENT = (
    'We are evaluating answers to the question "{question}" Here are two possible answers. Does '
    "Possible Answer 1 semantically entail Possible Answer 2? Reply with Yes or No.\n"
    "Possible Answer 1: {first}\n"
    "Possible Answer 2: {second}"
)
_PLACES = re.compile(r"\{(?:question|first|second)\}")


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
