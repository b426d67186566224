"""The scorers that a detector may have, by the names that its folder uses. Baselines that do not
read the model (length, category) are not among them: they do not detect hallucinations."""

from clew.hallucination.detectors.probes.attention import AttentionScore, HeadsProbe, LayersProbe
from clew.hallucination.detectors.probes.baselines import EachAnswer
from clew.hallucination.detectors.probes.evaluation import (
    ConsistentProbe,
    ContrastProbe,
    EntailmentEntropy,
    TrueProbability,
)
from clew.hallucination.detectors.probes.fusion import FusionProbe
from clew.hallucination.detectors.probes.method import Scorer
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
    "attention_score": AttentionScore,
    "layer": LayerProbe,
    "perceptron": Network,
    "heads": HeadsProbe,
    "layers": LayersProbe,
    "fusion": FusionProbe,
    "tokens": PooledTokens,
}


def kind_of(scorer: Scorer) -> str:
    return next(name for name, kind in SCORERS.items() if type(scorer) is kind)


def can_be_kept(scorer: Scorer | None) -> bool:
    return type(scorer) in SCORERS.values()
