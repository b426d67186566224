"""The scorers that a detector may have, by the names that its folder uses. Baselines that do not
read the model (length, category, text) are not among them: they do not detect hallucinations."""

from typing import Any

from clew.hallucination.detectors.probes.attention import AttentionScore, HeadsProbe, LayersProbe
from clew.hallucination.detectors.probes.baselines import EachAnswer
from clew.hallucination.detectors.probes.consistency import Consistency
from clew.hallucination.detectors.probes.contrastive import EmbeddedNeighbors
from clew.hallucination.detectors.probes.evaluation import (
    ConsistentProbe,
    ContrastProbe,
    EntailmentEntropy,
    TrueProbability,
)
from clew.hallucination.detectors.probes.fusion import FusionProbe
from clew.hallucination.detectors.probes.gated import GatedProbe
from clew.hallucination.detectors.probes.method import Scorer
from clew.hallucination.detectors.probes.own import OwnMethod
from clew.hallucination.detectors.probes.registration import find_keepable, find_own_methods
from clew.hallucination.detectors.probes.robust import RobustProbe
from clew.hallucination.detectors.probes.semantic import SemanticEntropy
from clew.hallucination.detectors.probes.states import LayerProbe, Network
from clew.hallucination.detectors.probes.tokens import PooledTokens

SCORERS: dict[str, type[Scorer]] = {
    "token_probabilities": EachAnswer,
    "semantic_entropy": SemanticEntropy,
    "entailment_entropy": EntailmentEntropy,
    "p_true": TrueProbability,
    "contrast_consistent": ConsistentProbe,
    "contrast": ContrastProbe,
    "consistency": Consistency,
    "attention_score": AttentionScore,
    "layer": LayerProbe,
    "perceptron": Network,
    "heads": HeadsProbe,
    "layers": LayersProbe,
    "fusion": FusionProbe,
    "robust": RobustProbe,
    "gated": GatedProbe,
    "neighbors": EmbeddedNeighbors,
    "tokens": PooledTokens,
}


# The kind of a scorer of a method from outside clew: this and the method's name.
_OWN = "method:"


def kind_of(scorer: Scorer) -> str:
    """The name of the scorer's class in a file."""
    known = next((name for name, kind in SCORERS.items() if type(scorer) is kind), None)
    if known is not None:
        return known
    own = find_keepable(scorer)
    assert own is not None
    return f"{_OWN}{own.name}"


def find_scorer_class(kind: str) -> type[Any]:
    """The class behind a name in a file. Raises ValueError for an unknown one."""
    if kind in SCORERS:
        return SCORERS[kind]
    if not kind.startswith(_OWN):
        raise ValueError(f"method.kind is {kind[:100]!r}")
    name = kind.removeprefix(_OWN)
    method = find_own_methods([name]).get(name)
    if not isinstance(method, OwnMethod) or method.given.scorer is None:
        raise ValueError(
            f"it needs the method {name[:100]!r}, which no installed package provides: install the "
            "one that it was made with"
        )
    return method.given.scorer


def can_be_kept(scorer: Scorer | None) -> bool:
    return type(scorer) in SCORERS.values() or find_keepable(scorer) is not None
