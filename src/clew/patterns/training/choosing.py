"""Which network a run trains, and from which weights: what was requested, what the run was started
with, or else the pretrained one."""

from dataclasses import dataclass, replace

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter
from clew.engine.processes import count_processes
from clew.patterns.networks import LITE0, check_network, usual_network
from clew.patterns.networks.pretrained import pretrained_lite0
from clew.patterns.training.config import USUAL_MINUTES, PatternsConfig
from clew.patterns.training.folder import RunFolder
from clew.patterns.training.start import Start


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """`is_fine_tuned` says whether its body was trained before, on other photos or in an earlier
    run: then it learns more slowly than its classifier. With `minutes` it is not trained by the
    engine, but on features, in about this time."""

    name: str
    reason: str
    pretrained: bool = False
    is_fine_tuned: bool = False
    minutes: float | None = None


def choose_network(
    config: PatternsConfig,
    start: Start | None,
    folder: RunFolder,
    *,
    on_gpu: bool,
    reporter: Reporter,
) -> NetworkChoice:
    """The network and its starting weights. Pretrained weights are downloaded here; where they are
    the default and cannot be had, training starts from scratch, and a Note says why. Raises
    InputError if a requested network cannot be built."""
    chosen = _choose(config, start, folder, on_gpu=on_gpu, reporter=reporter)
    return replace(chosen, minutes=_find_minutes(config, chosen, folder, on_gpu=on_gpu))


def _choose(
    config: PatternsConfig,
    start: Start | None,
    folder: RunFolder,
    *,
    on_gpu: bool,
    reporter: Reporter,
) -> NetworkChoice:
    if start is not None:
        start.refuse_other(network=config.network, image_size=config.image_size)
        return NetworkChoice(
            name=start.network,
            reason="from the weights that it starts from",
            is_fine_tuned=start.network == LITE0,
        )
    resumed = _find_resumed(config, folder)
    if resumed is not None:
        return resumed
    if config.network is not None:
        return _as_requested(config.network, config)
    return _usual(config, on_gpu=on_gpu, reporter=reporter)


def _find_minutes(
    config: PatternsConfig, chosen: NetworkChoice, folder: RunFolder, *, on_gpu: bool
) -> float | None:
    """How long to train on features; None if the engine trains the network. A run that was started
    stays what it is, even if it is resumed on another machine."""
    started = folder.read_started()
    is_quick = not on_gpu and count_processes() == 1
    if started is not None:
        is_quick = started.get("minutes") is not None
    if not is_quick or not chosen.is_fine_tuned or config.epochs is not None:
        return None
    return USUAL_MINUTES if config.minutes is None else config.minutes


def _find_resumed(config: PatternsConfig, folder: RunFolder) -> NetworkChoice | None:
    """The network of the run in the folder, whatever the default was when it was started; None if
    none was started, or if one is requested now."""
    started = folder.read_started()
    if started is None or config.network or config.from_scratch or config.pretrained:
        return None
    name, pretrained = started.get("network"), bool(started.get("pretrained"))
    if not isinstance(name, str):
        return None
    is_fine_tuned = pretrained and name == LITE0
    return NetworkChoice(
        name=name,
        reason="as when the run was started",
        pretrained=pretrained,
        is_fine_tuned=is_fine_tuned,
    )


def _as_requested(name: str, config: PatternsConfig) -> NetworkChoice:
    pretrained = not config.from_scratch if name == LITE0 else config.pretrained
    check_network(name, pretrained=pretrained)
    if name != LITE0 or not pretrained:
        return NetworkChoice(name=name, reason="as requested", pretrained=pretrained)
    pretrained_lite0()
    return NetworkChoice(name=name, reason="as requested", pretrained=True, is_fine_tuned=True)


def _usual(config: PatternsConfig, *, on_gpu: bool, reporter: Reporter) -> NetworkChoice:
    if not config.from_scratch:
        try:
            pretrained_lite0()
        except InputError as error:
            reporter(Note(f"training from scratch: {error}"))
        else:
            return NetworkChoice(
                name=LITE0, reason="pretrained on ImageNet", pretrained=True, is_fine_tuned=True
            )
    name, reason = usual_network(on_gpu=on_gpu)
    return NetworkChoice(name=name, reason=f"from scratch: {reason}")
