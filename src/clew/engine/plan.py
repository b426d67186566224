"""The hardware plan: how a run uses its machine, and why; and what the machine offers: cores and
memory that this process may actually use, the GPUs, and whether torch.compile can work."""

import importlib.util
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import psutil
import torch

from clew.base.cores import count_cores
from clew.base.errors import InputError
from clew.base.typed_json import Bounds, Seconds, read_as
from clew.engine.config import Precision

# What was chosen, and why.
Choice = tuple[Any, str]


_COMPILERS = ("g++", "clang++", "c++")
# CPU flags as Linux names them, fastest first, and the common names of the instructions.
_BF16_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "bf16": "BF16"}
_BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True, kw_only=True)
class StepVariant:
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
    def variant(self) -> StepVariant:
        return StepVariant(**{f.name: getattr(self, f.name) for f in fields(StepVariant)})

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
        chosen = (str(self.variant), self.batch_size)
        found = (one.seconds for one in self.timings if (one.way, one.batch_size) == chosen)
        return next(found, None)

    def change(self, name: str, value: Any, reason: str) -> Self:
        """The plan with one choice changed, such as a smaller batch after running out of memory."""
        return self.change_all({name: (value, reason)})

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


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. `free_bytes` is its currently unused memory."""

    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int]

    @property
    def has_bf16(self) -> bool:
        return tuple(self.capability) >= _BF16_CAPABILITY


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of this machine.

    `cores` and `free_memory_bytes` respect CPU affinity and cgroup limits. `bf16_instructions`
    names the CPU's bf16 instructions, "" if it has none; `cannot_compile` says why torch.compile
    cannot work here, "" if it can.
    """

    cores: int
    free_memory_bytes: int
    bf16_instructions: str
    gpus: tuple[Gpu, ...]
    cannot_compile: str

    def gpu(self, device: str) -> Gpu:
        """The GPU behind "cuda" or "cuda:1"."""
        return self.gpus[int(device.partition(":")[2] or 0)]


def look_at_machine() -> Machine:
    """Detect the cores, memory and GPUs of this machine."""
    limits, cores = read_limits(), count_cores()
    memory = psutil.virtual_memory().available
    return Machine(
        cores=cores if limits.cores is None else max(1, min(cores, round(limits.cores))),
        free_memory_bytes=memory if limits.free_bytes is None else min(memory, limits.free_bytes),
        bf16_instructions=_find_bf16(Path("/proc/cpuinfo")),
        gpus=tuple(map(_look_at_gpu, range(torch.cuda.device_count()))),
        cannot_compile=_why_not_compile(),
    )


def limit_threads(cores: int) -> None:
    """Limit PyTorch to `cores` threads. PyTorch counts the cores of the whole machine; in a
    container that may use fewer, extra threads only wait for each other."""
    if torch.get_num_threads() > cores:
        torch.set_num_threads(cores)


class Limits(NamedTuple):
    """What a container's control groups leave; None if they set no limit."""

    cores: float | None
    free_bytes: int | None


def read_limits(root: Path = Path("/")) -> Limits:
    """The tightest limits of this process's control groups and their parents, for cgroup v1 and
    v2."""
    groups = list(_control_groups(root))
    cores = [quota for group in groups if (quota := _quota(group)) is not None]
    free = [left for group in groups if (left := _memory_left(group)) is not None]
    return Limits(cores=min(cores, default=None), free_bytes=min(free, default=None))


def _control_groups(root: Path) -> Iterator[Path]:
    """Folders of the groups, innermost first. A container often sees its own group as the root."""
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and not {"cpu", "memory"} & {*controllers.split(",")}:
            continue
        names = [controllers, *controllers.split(",")] if controllers else ["", "unified"]
        for top in (root / "sys/fs/cgroup" / name for name in names):
            inner = top / path.strip("/")
            yield from (inner, *(folder for folder in inner.parents if folder.is_relative_to(top)))


def _quota(group: Path) -> float | None:
    """CPU time that the group may use, in cores."""
    quota, _, period = _read_text(group / "cpu.max").partition(" ")
    if not period:
        quota = _read_text(group / "cpu.cfs_quota_us")
        period = _read_text(group / "cpu.cfs_period_us")
    limited = quota.strip().isdigit() and period.strip().isdigit()
    return int(quota) / int(period) if limited else None


def _memory_left(group: Path) -> int | None:
    """Bytes until the group's limit; cached files that can be dropped at once count as free."""
    files = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for limit_name, used_name in files:
        limit, used = (_read_text(group / name).strip() for name in (limit_name, used_name))
        if limit.isdigit() and used.isdigit():
            words = dict(line.split() for line in _read_text(group / "memory.stat").splitlines())
            cached = int(words.get("total_inactive_file", words.get("inactive_file", 0)))
            return max(0, int(limit) - int(used) + cached)
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _find_bf16(cpuinfo: Path) -> str:
    for line in _read_text(cpuinfo).splitlines():
        name, _, values = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            flags = values.split()
            return next((word for flag, word in _BF16_INSTRUCTIONS.items() if flag in flags), "")
    return ""


def _look_at_gpu(number: int) -> Gpu:
    properties = torch.cuda.get_device_properties(number)
    return Gpu(
        name=properties.name,
        memory_bytes=properties.total_memory,
        free_bytes=torch.cuda.mem_get_info(number)[0],
        capability=(properties.major, properties.minor),
    )


def _why_not_compile() -> str:
    """Why torch.compile cannot work here, "" if it can. It compiles C++ for the CPU; on a GPU,
    Triton compiles its launchers in C."""
    if not any(map(shutil.which, _COMPILERS)):
        return f"no C++ compiler was found ({', '.join(_COMPILERS)})"
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        return f"Python's headers are missing ({include / 'Python.h'})"
    if torch.cuda.is_available() and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return ""
