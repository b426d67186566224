"""Where a command spreads its work."""

from clew.base.errors import InputError
from clew.cluster import Spread


def choose_spread(
    cluster: str | None,
    workers: int | None,
    *,
    threads: int | None = None,
    device: str | None = None,
) -> Spread | None:
    """None without a cluster. Raises InputError for workers without one."""
    if cluster is not None:
        return Spread(cluster=cluster, workers=workers, threads=threads, device=device)
    refuse_workers(workers)
    return None


def refuse_workers(workers: int | None) -> None:
    """Raises InputError: only a cluster has workers."""
    if workers is not None:
        raise InputError(
            'workers are processes of a cluster: give `cluster="ray"` too.',
            setting="workers",
            value=workers,
        )
