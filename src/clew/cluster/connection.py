"""Connect to Ray, or start it on this machine, and plan how many workers it gets."""

import logging
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, cast

from clew.base.cores import count_cores
from clew.base.errors import ClewError, InputError, without_settings
from clew.base.settings import check_least
from clew.base.texts import bytes_text, counted

logger = logging.getLogger("clew.cluster")

# A worker reads and writes the store itself; Ray only passes settings and questions.
_OBJECT_STORE_BYTES = 256 << 20
_ADDRESS = re.compile(r"ray(://.+)?")
# "(raylet) A worker died ...", in color on a terminal.
_RAY_LINE = re.compile(r"(?:\x1b\[\d+m)?\((?:raylet|autoscaler|pid=)")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a cluster has: CPU cores and GPUs in all, and the number of machines."""

    ray: Any
    cores: int
    gpus: int
    nodes: int


@contextmanager
def connected(cluster: str, *, cores: int | None = None) -> Iterator[Cluster]:
    """A connection to Ray: "ray://host:port", or for "ray" that of RAY_ADDRESS, one that runs on
    this machine, or a new one with as many `cores`. Ends what it started. Raises InputError if
    there is no such cluster or Ray is not installed, and ClewError if one of Ray's own processes
    ends."""
    ray = _import_ray(cluster)
    with redirect_stdout(cast(Any, _WithoutRay(sys.stdout))), _losses_explained(ray):
        if ray.is_initialized():
            yield _describe(ray)
            return
        _connect(ray, cluster, cores)
        try:
            yield _describe(ray)
        finally:
            ray.shutdown()


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
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


def plan_workers(
    cluster: Cluster,
    *,
    units: int,
    noun: str = "shard",
    workers: int | None = None,
    threads: int | None = None,
    use_gpus: bool = False,
    free_bytes: int | None = None,
    worker_bytes: int = 0,
) -> WorkerPlan:
    """Plan the workers for `units` pieces of work, called `noun`. `free_bytes` is the memory that
    they share, None if they are on several machines; `worker_bytes` is what each needs."""
    check_least("workers", workers)
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
    return WorkerPlan(
        workers=count,
        threads=min(threads or cores, max(1, cluster.cores)),
        gpus=int(use_gpus),
        reason=reason,
    )


def _count_on_cpus(
    cluster: Cluster, threads: int | None, free_bytes: int | None, worker_bytes: int
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


def _import_ray(cluster: str) -> Any:
    if _ADDRESS.fullmatch(cluster) is None:
        raise InputError(
            'write it as "ray" or "ray://host:port".', setting="cluster", value=cluster
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError(
            'Ray is not installed. Install it with: pip install "clew[ray]"',
            setting="cluster",
            value=cluster,
        ) from None
    return ray


@contextmanager
def _losses_explained(ray: Any) -> Iterator[None]:
    """An error of Ray itself as one sentence; one in a worker's code keeps its traceback."""
    try:
        yield
    except ray.exceptions.RayTaskError:
        raise
    except (ray.exceptions.RayError, ConnectionError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of the operating system, as a closed pipe
        raise ClewError(
            f"Ray has ended, or lost one of its processes ({_first_line(error)}). Run the same "
            "command again."
        ) from None


def find_raylet(ray: Any) -> str:
    """The socket of Ray's process on this machine, or "" if it has none."""
    own = ray.get_runtime_context().get_node_id()
    found = (node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == own)
    return next(found, "")


def refuse_lost_raylet(path: str) -> None:
    """Raises ClewError if Ray's process on this machine has ended, before Ray knows it: then it
    ends this process without a word."""
    if path and _is_abandoned(path):
        raise ClewError(
            "Ray's process on this machine (the raylet) has ended. Run the same command again."
        )


def _is_abandoned(path: str) -> bool:
    """Whether nobody listens to a socket; one on another machine is not there at all."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False


def _connect(ray: Any, cluster: str, cores: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = cluster if "://" in cluster else os.environ.get("RAY_ADDRESS", "auto")
    if "://" not in address:  # otherwise the cluster decides
        options["job_config"] = _job_config()
    try:
        if address != "local":
            ray.init(address, **options)
            return
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        if address != "auto" or not isinstance(error, ConnectionError):
            raise InputError(
                f"{address} cannot be reached ({_first_line(error)}). Check the address, and that "
                "Ray runs there.",
                setting="cluster",
                value=cluster,
            ) from None
    try:
        ray.init(
            "local",
            num_cpus=cores or count_cores(),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **options,
        )
    except Exception as error:  # Ray raises plain ones, too
        raise ClewError(
            f"Ray could not be started on this machine ({_first_line(error)}). Run the same "
            "command again; if it fails again, look into Ray's logs (usually in "
            "/tmp/ray/session_latest/logs)."
        ) from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return without_settings(lines[0].rstrip(".") if lines else type(error).__name__)


def _job_config() -> Any:
    from ray.job_config import JobConfig

    job = JobConfig()
    job._py_driver_sys_path = _SearchPath()
    return job


class _SearchPath(list[str]):
    """Where workers find modules. Ray adds the current folder of the driver, before the standard
    library; only folders where this process finds its own are accepted."""

    def extend(self, folders: Iterable[str]) -> None:
        super().extend(folder for folder in folders if folder in sys.path)


def _describe(ray: Any) -> Cluster:
    found = ray.cluster_resources()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return Cluster(
        ray=ray,
        cores=int(found.get("CPU", 0)),
        gpus=int(found.get("GPU", 0)),
        nodes=len(alive),
    )


class _WithoutRay:
    """Standard output without the lines that Ray prints there from a thread of its own; they go to
    the log."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def write(self, text: str) -> int:
        if _RAY_LINE.match(text):
            logger.debug("%s", text.rstrip())
            return len(text)
        return int(self._output.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)
