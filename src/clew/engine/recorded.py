"""`record_fit`: keeps a model that was fitted in another way than by steps of the engine, so that
its folder is one that `fit` has finished."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from clew.base.progress import Reporter
from clew.engine.checkpoint import Checkpoints, Parts
from clew.engine.config import PlanRequest, TrainConfig
from clew.engine.events import EpochEnded, TrainingEnded, TrainingStarted
from clew.engine.folders import PLAN, only_one
from clew.engine.identity import describe_run
from clew.engine.logs import Logs
from clew.engine.memory import MemoryUse
from clew.engine.optimizer import build_optimizer
from clew.engine.planning.plan import HardwarePlan
from clew.engine.planning.planner import plan_hardware
from clew.engine.precision import build_precision
from clew.engine.processes import start_fabric
from clew.engine.state import Best, FitResult, Row, RunState
from clew.storage.writing import replace_json

_VALIDATED = "val_"


def record_fit(
    model: nn.Module,
    history: Sequence[Row],
    *,
    best_epoch: int,
    config: TrainConfig,
    request: PlanRequest,
    output_dir: Path,
    settings: Mapping[str, Any],
    reporter: Reporter,
) -> FitResult:
    """Write the files that `fit` leaves with these weights: `fit` with the same arguments then
    returns the same result at once. `history` has one row per epoch, as in log.csv (epoch, step,
    train_loss, samples_per_second, seconds, and validation metrics as val_...); `best_epoch` counts
    from 1."""
    plan = plan_hardware(request)
    fabric = start_fabric(plan.device)
    identity = describe_run(model, config, request, settings)
    identity = json.loads(json.dumps(identity, default=str))
    memory = MemoryUse(fabric.device, 0).look()
    rows = [{"data_wait_share": 0.0, "memory_bytes": memory, **row} for row in history]
    state = _finished(rows, best_epoch)
    result = FitResult.of_run(
        state, plan, test=None, parameters=sum(p.numel() for p in model.parameters())
    )
    parts = Parts(
        model=model,
        optimizer=build_optimizer(model, config, lr=config.peak_lr(plan.effective_batch)),
        precision=build_precision("fp32", fabric.device),
    )
    with only_one(output_dir):
        _report(reporter, plan, state, output_dir, identity)
        Logs(output_dir, state.history).close()
        replace_json(output_dir / PLAN, plan.to_dict())
        checkpoints = Checkpoints(output_dir, fabric, identity)
        checkpoints.keep_best(model)
        checkpoints.save(parts, state, plan)
        result.save(output_dir)
    reporter(TrainingEnded(result=result))
    return result


def _finished(history: Sequence[Row], best_epoch: int) -> RunState:
    best = history[best_epoch - 1]
    metrics = {
        name.removeprefix(_VALIDATED): value
        for name, value in best.items()
        if name.startswith(_VALIDATED)
    }
    steps = int(history[-1]["step"] or 0)
    return RunState(
        total_steps=steps,
        epoch=len(history),
        step=steps,
        best=Best(epoch=best_epoch - 1, metrics=metrics, threshold=None),
        history=list(history),
        seconds=sum(float(row["seconds"] or 0) for row in history),
        is_trained=True,
    )


def _report(
    reporter: Reporter,
    plan: HardwarePlan,
    state: RunState,
    output_dir: Path,
    identity: Mapping[str, Any],
) -> None:
    reporter(
        TrainingStarted(
            plan=plan,
            epochs=state.epoch,
            steps=state.total_steps,
            done_steps=0,
            output_dir=output_dir,
            settings=identity,
        )
    )
    for row in state.history:
        reporter(EpochEnded(row=row))
