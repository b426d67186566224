"""clew patterns train"""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clew.cli.long_runs import long_run
from clew.cli.patterns.figures import print_doubt, print_reached, print_report
from clew.cli.patterns.library_flags import LIBRARY, Library, command_text
from clew.cli.plan_flags import with_plan_flags
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.errors import InputError
from clew.wording import duration_text

if TYPE_CHECKING:
    from clew.engine import PlanRequest, TrainConfig
    from clew.patterns.augment import AugmentConfig
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.training import LossSettings, PatternsConfig

_EPILOG = "Example: `clew patterns train --data photos --output-dir trained`"
_PHOTOS, _NETWORK, _TRAINING = "Photos", "Network", "Training"
_OUTPUT = Path("trained")
# Flags that say which set is meant, not how it is trained.
_NO_SETTINGS = ("name", "library")


class _Cache(StrEnum):
    AUTO = "auto"
    RAM = "ram"
    DISK = "disk"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(train)


@with_plan_flags(without=("max_cache_batches",))
def train(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The set to train.  [default: the only one, without --data]", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Photos in a folder a class, with or without train, val and test folders, "
            "instead of a set.",
            rich_help_panel=_PHOTOS,
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output-dir",
            help="The folder for the model and all about it. [default: trained, or the set's own]",
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start afresh where an earlier run was; photos are kept."),
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="The folder of an earlier training whose weights are begun with. [default: the "
            "set's last]"
        ),
    ] = None,
    library: Library = LIBRARY,
    split: Annotated[
        str | None,
        typer.Option(
            help="Shares of training, validation and test, where folders do not say. "
            "[default: 70/10/20]",
            rich_help_panel=_PHOTOS,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the squares that photos are made. [default: what fits them, 32 to 128]",
            rich_help_panel=_PHOTOS,
        ),
    ] = None,
    cache: Annotated[
        _Cache,
        typer.Option(help="Where the decoded photos are kept.", rich_help_panel=_PHOTOS),
    ] = _Cache.AUTO,
    network: Annotated[
        str | None,
        typer.Option(
            help="tiny, small, standard, large, or timm:NAME. [default: standard, "
            "small without a GPU]",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained", help="Begin with timm's own weights.", rich_help_panel=_NETWORK
        ),
    ] = False,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Times that all photos are seen. [default: 30, more for few photos]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate. [default: follows the batch size]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Epochs without a better validation accuracy that end the run; 0 never ends it. "
            "[default: a third of them, at least 20]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(help="That of AdamW. [default: 0.0001]", rich_help_panel=_TRAINING),
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(
            help="Share of the steps in which the learning rate rises. [default: 0.1]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    focal_loss: Annotated[
        bool,
        typer.Option(
            "--focal-loss", help="Look more at what is still wrong.", rich_help_panel=_TRAINING
        ),
    ] = False,
    label_smoothing: Annotated[
        float | None,
        typer.Option(
            help="Aim at less than full sureness: 0.1 at 90%. [default: 0.1]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    class_weights: Annotated[
        bool,
        typer.Option(
            "--class-weights",
            help="Let all classes weigh the same, however many photos they have.",
            rich_help_panel=_TRAINING,
        ),
    ] = False,
    rand_augment: Annotated[
        str | None,
        typer.Option(
            metavar="N,M",
            help="RandAugment: N changes of strength M (0 to 30). [default: 2,9]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    mixup: Annotated[
        float | None,
        typer.Option(
            help="Alpha of Mixup; 0 mixes nothing. [default: 0.2]", rich_help_panel=_TRAINING
        ),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            help="Mirror photos, or never. [default: if they look alike mirrored]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    no_augment: Annotated[
        bool,
        typer.Option("--no-augment", help="Show photos as they are.", rich_help_panel=_TRAINING),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Of weights, order and changes.", rich_help_panel=_TRAINING)
    ] = 0,
    *,
    request: "PlanRequest",
) -> None:
    """Train a classifier on folders of photos and measure it on photos it has not seen.

    Photos are decoded once; what cannot be used is listed. A run that was stopped or killed goes
    on where it was: give the same command. Trained again with more photos, a set starts from its
    last weights.
    """
    from clew.loading.splits import parse_split
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.photos import USUAL_SHARES
    from clew.patterns.training import PatternsConfig

    if data is None:
        _refuse_for_sets(output_dir, start_from)
        pattern_set = PatternSet.open(name, library, otherwise="a folder of photos with `data`")
    elif name is not None:
        raise InputError(f'the set "{name}" and --data "{data}" both name photos: give one.')
    config = PatternsConfig(
        data=pattern_set.photos if data is None else data,
        out=output_dir or _OUTPUT,
        start_from=start_from,
        network=network,
        pretrained=pretrained,
        image_size=image_size,
        cache=cache.value,
        shares=USUAL_SHARES if split is None else parse_split(split),
        augment=_read_augment(rand_augment, mixup, flip, no_augment),
        loss=_read_loss(focal_loss, class_weights, label_smoothing),
        epochs=epochs,
        patience=patience,
        train=_read_train(seed, lr=lr, weight_decay=weight_decay, warmup_fraction=warmup),
        request=request,
        overwrite=overwrite,
    )
    if data is None:
        _train_set(pattern_set, config, only_if_changed=_is_plain(context))
        return
    run_training(config)
    _say_next(config.out)


def _train_set(pattern_set: "PatternSet", how: "PatternsConfig", *, only_if_changed: bool) -> None:
    from clew.patterns.flow import plan_training

    config = plan_training(pattern_set, how, only_if_changed=only_if_changed)
    if config is None:
        say_unchanged(pattern_set)
        return
    run_training(config)
    _say_next(config.out, pattern_set.name, pattern_set.library)


def run_training(config: "PatternsConfig") -> dict[str, Any]:
    """Train and show it; gives what results.json holds."""
    from clew.engine.processes import is_first_process

    console = _open_console()
    with long_run(console, "everything is saved at once", overwrite=config.overwrite) as stop:
        results = _train(config, console, stop)
    print_reached(console, results)
    print_doubt(console, results)
    if is_first_process():
        print_report(console, config.out)
    print_line(console, f"all figures: {config.out / 'results.json'}")
    return results


def _open_console() -> Console:
    """Of several processes one speaks."""
    from clew.engine.processes import is_first_process

    return Console(highlight=False, soft_wrap=True, quiet=not is_first_process())


def _train(
    config: "PatternsConfig", console: Console, should_stop: Callable[[], bool]
) -> dict[str, Any]:
    from clew.patterns.training import train_patterns

    with Renderer(console) as reporter:
        results = train_patterns(config, reporter, should_stop)
    reporter.say(_epochs_text(results, is_new=reporter.has_trained))
    return results


def _epochs_text(results: dict[str, Any], *, is_new: bool) -> str:
    return (
        f"{'' if is_new else 'trained already: '}best epoch {results['best_epoch']} of "
        f"{results['epochs_run']}, {duration_text(results['seconds'])}, "
        f"{results['images_per_second']:,.0f} photos/s"
    )


def _say_next(folder: Path, set_name: str | None = None, library: Path = LIBRARY) -> None:
    """Commands that can be pasted."""
    which = ("--name", set_name) if set_name is not None else ("--model", folder)
    commands = {
        "name new photos": ("identify", "FOLDER", *which),
        "try it on others": ("evaluate", *which, "--data", "DIR"),
        "use it elsewhere": ("export", *which, "--out", "model.onnx"),
    }
    console = _open_console()
    console.print("next:")
    for what, (command, *words) in commands.items():
        line = f"  {what + ':':<18}{command_text(command, *words, library=library)}"
        print_line(console, line)


def say_unchanged(pattern_set: "PatternSet") -> None:
    anew = command_text("train", pattern_set.name, "--overwrite", library=pattern_set.library)
    console = Console(highlight=False, soft_wrap=True)
    text = (
        f"no photo has come or gone since {pattern_set.latest_model()} was trained: there is "
        f"nothing to do. To train once more from scratch, beside it: {anew}"
    )
    print_line(console, text)


def _is_plain(context: typer.Context) -> bool:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source and source.name != "DEFAULT"}
    return not given - set(_NO_SETTINGS)


def _refuse_for_sets(output_dir: Path | None, start_from: Path | None) -> None:
    for flag, value in (("--output-dir", output_dir), ("--start-from", start_from)):
        if value is not None:
            raise InputError(
                f'{flag} "{value}" goes with --data: a set keeps its trainings in its own folder, '
                f"and each starts from the last. Leave it out, or give --data."
            )


def _read_train(seed: int, **wished: float | None) -> "TrainConfig":
    from clew.patterns.training.config import usual_train

    given: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
    return replace(usual_train(), seed=seed, **given)


def _read_loss(focal: bool, class_weights: bool, label_smoothing: float | None) -> "LossSettings":
    from clew.patterns.training import LossSettings

    loss = LossSettings(focal=focal, class_weights=class_weights)
    return loss if label_smoothing is None else replace(loss, label_smoothing=label_smoothing)


def _read_augment(
    rand_augment: str | None, mixup: float | None, flip: bool | None, no_augment: bool
) -> "AugmentConfig":
    from clew.patterns.augment import AugmentConfig

    wished: dict[str, Any] = {"mixup": mixup, "flip": flip}
    if rand_augment is not None:
        wished["ops"], wished["magnitude"] = _read_pair(rand_augment)
    given = {name: value for name, value in wished.items() if value is not None}
    plain = AugmentConfig.nothing() if no_augment else AugmentConfig()
    return replace(plain, **given)


def _read_pair(text: str) -> tuple[int, float]:
    count, _, strength = text.partition(",")
    try:
        return int(count), float(strength)
    except ValueError:
        raise InputError(
            f'--rand-augment "{text}" is not of the form N,M: give how many changes and how '
            f"strong, for example --rand-augment 2,9."
        ) from None
