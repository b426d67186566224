"""How many workers there are, and what each may use."""

from dataclasses import dataclass
from typing import Protocol

from clew.base.errors import InputError
from clew.base.texts import bytes_text, counted


class Resources(Protocol):
    """What a cluster has in all."""

    @property
    def cores(self) -> int: ...
    @property
    def gpus(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class CrewPlan:
    """`workers` processes with so many CPU `threads` and `gpus` each, and why."""

    workers: int
    threads: int
    gpus: int
    reason: str

    def __str__(self) -> str:
        each = "" if self.workers == 1 else " each"
        hardware = counted(self.threads, "thread")
        if self.gpus:
            hardware = f"{counted(self.gpus, 'GPU')} and {hardware}"
        return f"{counted(self.workers, 'worker')} with {hardware}{each}: {self.reason}"


def plan_crew(
    cluster: Resources,
    *,
    units: int,
    noun: str = "shard",
    workers: int | None = None,
    threads: int | None = None,
    use_gpus: bool = False,
    free_bytes: int | None = None,
    worker_bytes: int = 0,
) -> CrewPlan:
    """Plan the workers for `units` pieces of work, called `noun`. `free_bytes` is the memory that
    they share, None if they are on several machines; `worker_bytes` is what each needs."""
    if workers is not None and workers < 1:
        raise InputError("it must be 1 or more.", setting="workers", value=workers)
    if use_gpus:
        count, reason = workers or cluster.gpus, "one per GPU"
    else:
        count, reason = _count_on_cpus(cluster, threads, free_bytes, worker_bytes)
    if workers is not None:
        count, reason = workers, "as requested"
    if units < count:
        are = "is" if units == 1 else "are"
        count, reason = max(1, units), f"there {are} {counted(units, noun)} left to do"
    cores = max(1, cluster.cores // count)
    return CrewPlan(
        workers=count,
        threads=min(threads or cores, max(1, cluster.cores)),
        gpus=int(use_gpus),
        reason=reason,
    )


def _count_on_cpus(
    cluster: Resources, threads: int | None, free_bytes: int | None, worker_bytes: int
) -> tuple[int, str]:
    """As many as fit, with one thread each."""
    count = max(1, cluster.cores // (threads or 1))
    reason = "one per core"
    if threads is not None and threads > 1:
        reason = f"{counted(threads, 'thread')} each on {counted(cluster.cores, 'core')}"
    room = count
    if free_bytes is not None and worker_bytes:
        room = max(1, free_bytes // worker_bytes)
    if room < count:
        needed, free = bytes_text(worker_bytes), bytes_text(free_bytes or 0)
        return room, f"each needs about {needed} of the {free} of free memory"
    return count, "there is one core" if cluster.cores == 1 else reason
