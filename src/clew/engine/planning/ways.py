"""The ways to make one step that calibration tries against each other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from torch import nn

from clew.engine.config import PlanRequest, Precision
from clew.engine.planning.hardware import Machine
from clew.engine.planning.plan import HardwarePlan

# A faster way must be this much faster than every plainer one: less is noise, and plain is safe.
_MUST_GAIN = 0.05
_MIXED = ("bf16", "fp16")
_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the kernels of a step are chosen and launched."""

    precision: Precision = "fp32"
    channels_last: bool = False
    cuda_graph: bool = False
    compile: bool = False

    def __str__(self) -> str:
        extras = {
            "channels_last": self.channels_last,
            "compiled": self.compile,
            "one CUDA graph": self.cuda_graph,
        }
        return ", ".join([self.precision, *(name for name, is_on in extras.items() if is_on)])


def way_of(plan: HardwarePlan) -> Way:
    return Way(
        precision=plan.precision,
        channels_last=plan.channels_last,
        cuda_graph=plan.cuda_graph,
        compile=plan.compile,
    )


def list_ways(
    request: PlanRequest, plan: HardwarePlan, machine: Machine, model: nn.Module
) -> list[Way]:
    """Every way that the request leaves open on this machine, the plainest first: that is the
    plan's own. Compiling is not among them: it costs too much to be tried with each."""
    precisions = open_precisions(request, plan, machine)
    layouts, launches = _open_layouts(request, plan, model), _open_launches(request, plan)
    return [
        Way(precision=precision, channels_last=channels_last, cuda_graph=cuda_graph)
        for precision, channels_last, cuda_graph in product(precisions, layouts, launches)
    ]


def open_precisions(
    request: PlanRequest, plan: HardwarePlan, machine: Machine
) -> tuple[Precision, ...]:
    """The plan's own precision, and the 16-bit format that might beat it."""
    if request.precision is not None or request.amp is not None:
        return (plan.precision,)
    if plan.device == "cpu":
        return ("fp32", "bf16") if machine.bf16_instructions else ("fp32",)
    return (plan.precision, mixed_precision(plan.device, machine))


def mixed_precision(device: str, machine: Machine) -> Precision:
    """The device's 16-bit format. fp16 needs its loss scaled: only for GPUs that lack bf16."""
    return "bf16" if device == "cpu" or machine.gpu(device).has_bf16 else "fp16"


def has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, _CONVOLUTIONS) for module in model.modules())


def can_graph(plan: HardwarePlan) -> bool:
    """A graph holds neither messages between processes nor a second forward pass."""
    return plan.device != "cpu" and plan.processes == 1 and not plan.gradient_checkpointing


def _open_layouts(request: PlanRequest, plan: HardwarePlan, model: nn.Module) -> tuple[bool, ...]:
    is_open = request.channels_last is None and has_convolutions(model)
    return (False, True) if is_open else (plan.channels_last,)


def _open_launches(request: PlanRequest, plan: HardwarePlan) -> tuple[bool, ...]:
    is_open = request.cuda_graph is None and can_graph(plan)
    return (False, True) if is_open else (plan.cuda_graph,)


def fastest_way(seconds: Mapping[Way, float]) -> Way:
    """The fastest, where a plainer way that is nearly as fast is preferred; plainest come first.

    16 bits must beat the best of full precision.
    """
    full = {way: time for way, time in seconds.items() if not is_mixed(way.precision)}
    mixed = {way: time for way, time in seconds.items() if is_mixed(way.precision)}
    if not full or not mixed:
        return _pick(seconds)
    best = _pick(mixed)
    return best if _beats(mixed[best], min(full.values())) else _pick(full)


def _pick(seconds: Mapping[Way, float]) -> Way:
    best = next(iter(seconds))
    for way in seconds:
        if _beats(seconds[way], seconds[best]):
            best = way
    return best


def _beats(seconds: float, plainer: float) -> bool:
    return seconds < plainer * (1 - _MUST_GAIN)


def rival(way: Way, name: str, seconds: Mapping[Way, float]) -> Way | None:
    """The measured way that differs in one choice alone, the fastest if there are several."""
    values = {getattr(other, name) for other in seconds} - {getattr(way, name)}
    others = [replace(way, **{name: value}) for value in values]
    return min((o for o in others if o in seconds), key=seconds.__getitem__, default=None)


def is_mixed(precision: Precision) -> bool:
    return precision in _MIXED
