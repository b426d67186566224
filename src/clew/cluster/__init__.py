"""Work on several machines: processes that Ray starts and watches, and one view of them all. What
they do is shared by leases (`clew.storage.leases`), so that any may die or join at any time."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:
    from clew.cluster.connection import Cluster, WorkerPlan, connected, plan_workers
    from clew.cluster.workers import Spread, run_workers, spread

__all__ = [
    "Cluster",
    "Spread",
    "WorkerPlan",
    "connected",
    "plan_workers",
    "run_workers",
    "spread",
]
_HOMES = {name: "connection" for name in __all__} | {
    name: "workers" for name in ("Spread", "run_workers", "spread")
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
