"""What the service counts besides requests: tokens, latencies, risks. Nothing of a prompt or an
answer is in it."""

from typing import TYPE_CHECKING

from clew.pages.api import SECONDS, Counter, Histogram, RequestMetrics

if TYPE_CHECKING:
    from clew.hallucination.detectors.risk import Risk

_RISKS = tuple(place / 10 for place in range(1, 11))
_PATHS = (
    *("/", "/v1/chat/completions", "/v1/completions", "/v1/models", "/score"),
    *("/healthz", "/readyz", "/metrics"),
)


class Metrics(RequestMetrics):
    """Everything that is counted."""

    def __init__(self) -> None:
        super().__init__(_PATHS)
        self.prompt_tokens = Counter("clew_prompt_tokens_total", "Tokens of prompts.")
        self.tokens = Counter("clew_generated_tokens_total", "Tokens of answers.")
        self.scored = Counter(
            "clew_answers_total", "Answers by endpoint, state of the check and verdict."
        )
        self.first_token = Histogram(
            "clew_first_token_seconds", "Time to the first token, in seconds.", SECONDS
        )
        self.risks = Histogram("clew_risk", "Risk of answers that have one.", _RISKS)

    def count_answer(self, risk: "Risk", endpoint: str) -> None:
        verdict = risk.verdict or "none"
        self.scored.add(endpoint=endpoint, state=risk.state, verdict=verdict)
        if risk.risk is not None:
            self.risks.observe(risk.risk)
