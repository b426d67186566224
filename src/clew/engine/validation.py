"""Scores on validation and test samples, in the run's own precision."""

from typing import TYPE_CHECKING

from torch import nn

from clew.engine.evaluate import Evaluation, evaluate
from clew.engine.guard import list_some
from clew.engine.planning.plan import HardwarePlan
from clew.engine.precision import build_precision
from clew.engine.protocols import Batches
from clew.errors import TrainingError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def score(model: nn.Module, batches: Batches, plan: HardwarePlan, fabric: "Fabric") -> Evaluation:
    """Raises TrainingError for scores that are no numbers; where only fp16 gives such, the
    scores are those of fp32."""
    result = _evaluate(model, batches, plan, fabric)
    if result.unusable and plan.precision == "fp16":
        plan = plan.change("precision", "fp32", "fp16 gave scores that are no numbers")
        result = _evaluate(model, batches, plan, fabric)
    if result.unusable:
        raise TrainingError(
            f"the network's scores of {len(result.unusable):,} samples are no numbers "
            f"({list_some(result.unusable)}): their data may hold inf or NaN. Leave them out."
        )
    return result


def _evaluate(
    model: nn.Module, batches: Batches, plan: HardwarePlan, fabric: "Fabric"
) -> Evaluation:
    precision = build_precision(plan.precision, fabric.device)
    return evaluate(model, batches, fabric, precision, channels_last=plan.channels_last)
