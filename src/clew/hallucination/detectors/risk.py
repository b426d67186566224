"""What a detector says about an answer: a calibrated risk, the verdict, and whether it could be
checked at all."""

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["checked", "out_of_distribution", "unavailable"]
Verdict = Literal["correct", "hallucinated"]


@dataclass(frozen=True, kw_only=True)
class Risk:
    """The risk of one answer: the calibrated probability that it is hallucinated. None if `state`
    is "unavailable"; `reason` says why the state is not "checked". `method` is the method that gave
    the risk: token probabilities if the answer is out of distribution. `threshold` is the risk
    above which the verdict is "hallucinated". `distance` is that of the features to the training
    answers, in units of the limit: above 1 is out of distribution."""

    risk: float | None
    verdict: Verdict | None
    threshold: float | None
    state: State
    method: str
    reason: str | None = None
    distance: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in JSON answers; `method` and `distance` included."""
        return {
            "risk": self.risk,
            "verdict": self.verdict,
            "threshold": self.threshold,
            "state": self.state,
            "method": self.method,
            "reason": self.reason,
            "distance": self.distance,
        }


def unavailable(reason: str, *, method: str) -> Risk:
    """The risk of an answer that was not checked."""
    return Risk(
        risk=None, verdict=None, threshold=None, state="unavailable", method=method, reason=reason
    )
