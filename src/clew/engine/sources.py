"""Opens batches as the plan wants them, and makes sure that processes do not all read the same."""

from torch.utils.data import DistributedSampler

from clew.engine.planning.plan import HardwarePlan
from clew.engine.protocols import Batches, LoadSettings, OpenBatches
from clew.errors import InputError


class Source:
    """Batches that are opened when the plan is known, or that the caller has opened already."""

    def __init__(self, given: Batches | OpenBatches, *, seed: int, shuffle: bool) -> None:
        self._given, self._seed, self._shuffle = given, seed, shuffle

    @property
    def is_ready_made(self) -> bool:
        """Its batch size is then what it is."""
        return not callable(self._given)

    def open(self, plan: HardwarePlan) -> Batches:
        """Raises InputError for batches that the processes would not share."""
        batches = (
            self._given(load_settings(plan, seed=self._seed, shuffle=self._shuffle))
            if callable(self._given)
            else self._given
        )
        if plan.processes > 1 and _count_sharing(batches) != plan.processes:
            raise InputError(
                f"{plan.processes} processes train together, but this "
                f"{type(batches).__name__} would give each of them all samples: pass a function "
                f"that opens a clew Loader, or a DataLoader with a DistributedSampler, when the "
                f"processes are connected."
            )
        if not len(batches):
            raise InputError("there are no batches: check the data and its split.")
        return batches


def load_settings(plan: HardwarePlan, *, seed: int = 0, shuffle: bool = False) -> LoadSettings:
    """What the plan tells a loader."""
    return LoadSettings(
        batch_size=plan.process_batch,
        num_workers=plan.num_workers,
        persistent_workers=plan.persistent_workers,
        prefetch_factor=plan.prefetch_factor,
        pin_memory=plan.pin_memory,
        max_cache_batches=plan.max_cache_batches,
        seed=seed,
        shuffle=shuffle,
    )


def _count_sharing(batches: Batches) -> int:
    """How many processes share these batches, as far as they tell."""
    sampler = getattr(batches, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return sampler.num_replicas
    return getattr(getattr(batches, "rank", None), "count", 1)
