"""What vLLM loads by name: `DetectorWorker` (its `worker_extension_cls`) and `RiskMiddleware` put a
detector inside it; `StatesWorker` records for a capture."""

from clew.hallucination.live.vllm import DetectorWorker, RiskMiddleware
from clew.hallucination.llm.vllm_decoder import StatesWorker

__all__ = ["DetectorWorker", "RiskMiddleware", "StatesWorker"]
