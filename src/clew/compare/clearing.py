"""--overwrite: what an earlier comparison left of a method is taken away."""

from clew.compare.methods import AnyMethod
from clew.compare.trial import Trial
from clew.detect.folders import clear_run
from clew.engine.trainer import only_one


def clear_methods(trial: Trial, method: AnyMethod) -> None:
    """Raises StoreLockedError rather than take away what another run is writing."""
    trial.saved.remove(method.name)
    for folder in sorted((trial.networks_folder / method.name).glob("seed-*")):
        with only_one(folder):
            clear_run(folder)
