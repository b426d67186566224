"""Work on several machines: processes that Ray starts and watches, and one view of them all. What
they do is shared by leases (`clew.storage.leases`), so that any may die or join at any time."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:
    from clew.cluster.connecting import Cluster, connected
    from clew.cluster.crew import run_crew
    from clew.cluster.mapping import Spread, spread
    from clew.cluster.plan import CrewPlan, plan_crew

__all__ = ["Cluster", "CrewPlan", "Spread", "connected", "plan_crew", "run_crew", "spread"]
_HOMES = {
    "Cluster": "connecting",
    "connected": "connecting",
    "CrewPlan": "plan",
    "plan_crew": "plan",
    "run_crew": "crew",
    "Spread": "mapping",
    "spread": "mapping",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
