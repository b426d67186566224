"""What identifies a run: it resumes only with the settings it was started with. Also the versions
that a result may depend on."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clew.base.errors import SettingsMismatchError
from clew.base.settings import find_differences
from clew.engine.config import PlanRequest, TrainConfig
from clew.engine.planning.plan import HardwarePlan
from clew.version import __version__

# They change how long a run takes; its result, at most by rounding (the threads).
_MAY_DIFFER = ("config.checkpoint_every_seconds", "request.calibrate")
_HARMLESS = ("num_workers", "max_cache_batches", "threads")

_LIBRARIES = ("torch", "lightning-fabric", "numpy", "pyarrow")


def describe_run(
    model: nn.Module, config: TrainConfig, request: PlanRequest, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that identifies a run."""
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    return {
        "clew": __version__,
        "model": {"class": type(model).__name__, "parameters": shapes},
        "config": asdict(config),
        "request": request.describe(),
        "settings": dict(settings),
    }


def refuse_other_run(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a run that was started with different settings: raises SettingsMismatchError
    with both values of every difference."""
    if before["request"]["batch_size"] is None and now["request"]["batch_size"] is not None:
        # A batch size that the plan chose may now be requested explicitly, even split into other
        # micro-batches.
        chosen = {name: before["plan"][name] for name in ("batch_size", "grad_accum")}
        before = {**before, "request": before["request"] | chosen}
    different = find_differences(_comparable(before), _comparable(now), _MAY_DIFFER)
    # A network of another size has other weights: the setting explains it better than their shapes.
    by_choice = [one for one in different if not one.name.startswith("model.parameters.")]
    different = by_choice or different
    if different:
        raise SettingsMismatchError(
            f'the run in "{folder}" was started with different settings:\n  '
            + "\n  ".join(map(str, different))
            + "\nUse the same settings to resume it, or another output folder to start over."
        )


def adapt_plan(plan: HardwarePlan, before: PlanRequest, now: PlanRequest) -> HardwarePlan:
    """The saved plan, updated with newly requested choices that do not change the result."""
    changes = {name: getattr(now, name) for name in _HARMLESS}
    if _parts(now) != _parts(before):
        changes["batch_size"], changes["grad_accum"] = _parts(now)
    for name, value in changes.items():
        if value is not None and value != getattr(before, name):
            plan = plan.change(name, value, "requested when the run was resumed")
    return plan


def _parts(request: PlanRequest) -> tuple[int | None, int]:
    return request.batch_size, request.grad_accum or 1


def saved_request(about: Mapping[str, Any]) -> PlanRequest:
    return replace(PlanRequest(), **about["request"])


def _comparable(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that must match. The same effective batch may be split into other
    micro-batches."""
    request = {name: value for name, value in run["request"].items() if name not in _HARMLESS}
    if request["batch_size"] is not None:
        request["batch_size * grad_accum"] = request["batch_size"] * (request["grad_accum"] or 1)
        del request["batch_size"], request["grad_accum"]
    wanted = ("model", "config", "settings")
    return {name: run[name] for name in wanted} | {"request": request}


def read_versions(*more: str) -> dict[str, str]:
    """Versions of clew, Python, the libraries every run uses and `more` of them, and the GPU.
    "unknown" where none can be found."""
    found = {name: _find_version(name) for name in (*_LIBRARIES, *more)}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"clew": __version__, "python": platform.python_version(), **found, "gpu": gpu}


def _find_version(library: str) -> str:
    """The version of a library. One that is bundled with another (lightning_fabric in
    pytorch-lightning) has no metadata of its own."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
