"""The hardware plan: how a run uses its machine, and why. `plan_hardware` in planner.py makes it;
every run prints and saves it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Self

from clew.base.errors import InputError
from clew.base.typed_json import Bounds, Seconds, read_as
from clew.engine.config import Precision

# What was chosen, and why.
Choice = tuple[Any, str]


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the kernels of a step are chosen and launched: all that a step needs from a plan."""

    precision: Precision = "fp32"
    channels_last: bool = False
    cuda_graph: bool = False
    compile: bool = False
    gradient_checkpointing: bool = False

    def __str__(self) -> str:
        extras = {
            "channels_last": self.channels_last,
            "compiled": self.compile,
            "one CUDA graph": self.cuda_graph,
        }
        return ", ".join([self.precision, *(name for name, is_on in extras.items() if is_on)])


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What calibration measured for one variant of a step, or why it was dropped.

    `seconds` is the median of a whole step (forward, backward, optimizer) of `batch_size` samples
    in one process; `compile_seconds` is what the first step took on top.
    """

    way: str
    batch_size: int
    seconds: float | None = None
    compile_seconds: float | None = None
    dropped: str = ""

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class HardwarePlan:
    """How a run uses the hardware: every choice, and in `reasons` one sentence for each, by name.

    `device` is "cpu", "cuda" (with several processes, each uses the GPU of its local rank) or
    "cuda:1". `batch_size` is the number of samples in a micro-batch over all `processes`; an
    optimizer step takes `grad_accum` micro-batches. `max_cache_batches` None keeps every shard
    mapped. `threads` is the number that computes on the CPU; None is PyTorch's. `timings` are the
    measurements behind the choices, `calibration_seconds` the time they took.
    """

    device: str = "cpu"
    processes: Annotated[int, Bounds(least=1, most=2**20)] = 1
    precision: Precision = "fp32"
    compile: bool = False
    cuda_graph: bool = False
    channels_last: bool = False
    num_workers: Annotated[int, Bounds(least=0, most=2**12)] = 0
    persistent_workers: bool = False
    prefetch_factor: Annotated[int, Bounds(least=1, most=2**12)] = 2
    pin_memory: bool = False
    non_blocking: bool = False
    batch_size: Annotated[int, Bounds(least=1, most=2**31)] = 32
    grad_accum: Annotated[int, Bounds(least=1, most=2**31)] = 1
    gradient_checkpointing: bool = False
    max_cache_batches: Annotated[int, Bounds(least=1)] | None = None
    threads: Annotated[int, Bounds(least=1, most=2**16)] | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    timings: tuple[Timing, ...] = ()
    calibration_seconds: Seconds = 0.0

    @property
    def choices(self) -> dict[str, Any]:
        """The choices alone, by name, in display order."""
        not_choices = ("reasons", "timings", "calibration_seconds")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in not_choices}

    @property
    def way(self) -> Way:
        return Way(**{f.name: getattr(self, f.name) for f in fields(Way)})

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step."""
        return self.batch_size * self.grad_accum

    @property
    def process_batch(self) -> int:
        """Samples per micro-batch and process, except in the last batch of an epoch."""
        return max(1, self.batch_size // self.processes)

    @property
    def step_seconds(self) -> float | None:
        """What calibration measured for a step of one micro-batch as planned; None if it did
        not."""
        chosen = (str(self.way), self.batch_size)
        found = (one.seconds for one in self.timings if (one.way, one.batch_size) == chosen)
        return next(found, None)

    def change(self, name: str, value: Any, reason: str) -> Self:
        """The plan with one choice changed, such as a smaller batch after running out of memory."""
        return replace(self, **{name: value}, reasons=self.reasons | {name: reason})

    def change_all(self, choices: Mapping[str, Choice]) -> Self:
        """The plan with several choices changed, by name."""
        values = {name: value for name, (value, _) in choices.items()}
        reasons = {name: why for name, (_, why) in choices.items()}
        return replace(self, **values, reasons=self.reasons | reasons)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for JSON."""
        return asdict(self) | {"timings": [asdict(timing) for timing in self.timings]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The plan that `to_dict` saved; raises InputError when it is invalid."""
        try:
            if "timings" not in saved:
                raise ValueError("timings is missing")
            return read_as(cls, saved)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the saved hardware plan is invalid ({error}): train into a new output folder, "
                "or with the clew version that wrote it."
            ) from error
