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
from clew.cli.patterns.library_flags import LIBRARY, Library
from clew.cli.patterns.printing import command_text, print_line
from clew.cli.plan_flags import with_plan_flags
from clew.cli.renderer import Renderer
from clew.errors import InputError
from clew.wording import duration_text

if TYPE_CHECKING:
    from clew.engine import PlanRequest
    from clew.patterns.augment import AugmentConfig
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.training import PatternsConfig

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
            help="The folder for the model and all about it. [default: trained, or the set's own]"
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
    from clew.patterns.training import LossSettings, PatternsConfig
    from clew.patterns.training.config import usual_train

    train_settings: dict[str, Any] = {
        "lr": lr,
        "weight_decay": weight_decay,
        "warmup_fraction": warmup,
    }
    given = {name: value for name, value in train_settings.items() if value is not None}
    loss = LossSettings(focal=focal_loss, class_weights=class_weights)
    settings: dict[str, Any] = {
        "network": network,
        "pretrained": pretrained,
        "image_size": image_size,
        "cache": cache.value,
        "augment": _read_augment(rand_augment, mixup, flip, no_augment),
        "loss": loss if label_smoothing is None else replace(loss, label_smoothing=label_smoothing),
        "epochs": epochs,
        "patience": patience,
        "train": replace(usual_train(), seed=seed, **given),
        "request": request,
        "overwrite": overwrite,
    }
    if split is not None:
        settings["shares"] = parse_split(split)
    if data is None:
        _refuse_for_sets(output_dir, start_from)
        train_set(name, library, settings, is_plain=_is_plain(context))
        return
    if name is not None:
        raise InputError(f'the set "{name}" and --data "{data}" both name photos: give one.')
    out = output_dir or _OUTPUT
    run_training(PatternsConfig(data=data, output_dir=out, start_from=start_from, **settings))
    _say_next(out)


def train_set(
    name: str | None,
    library: Path,
    settings: dict[str, Any],
    *,
    is_plain: bool = False,
    is_last: bool = True,
) -> dict[str, Any] | None:
    """Train a set in its next run, or go on with one that was not finished. `is_plain` is a wish
    without settings of its own: then nothing is done where nothing has changed. `is_last` tells
    what may be done next."""
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.training import PatternsConfig

    pattern_set = PatternSet.open(name, library, otherwise="a folder of photos with `data`")
    _refuse_empty(pattern_set)
    latest, runs = pattern_set.latest_model(), pattern_set.all_runs()
    is_trained = latest is not None and latest == runs[-1]
    if is_plain and is_trained and not pattern_set.changed_since(runs[-1]):
        _say_unchanged(pattern_set.name, runs[-1], library)
        return None
    out, start_from = pattern_set.run_folder()
    is_afresh = settings.get("overwrite") or _was_begun_afresh(out)
    config = PatternsConfig(
        data=pattern_set.photos,
        output_dir=out,
        cache_dir=pattern_set.cache,
        start_from=None if is_afresh else start_from,
        **settings,
    )
    results = run_training(config)
    if is_last:
        _say_next(out, pattern_set.name, library)
    return results


def run_training(config: "PatternsConfig") -> dict[str, Any]:
    """Train and show it; gives what results.json holds."""
    from clew.engine.processes import is_first_process

    console = _open_console()
    with long_run(console, "everything is saved at once", overwrite=config.overwrite) as stop:
        results = _train(config, console, stop)
    print_reached(console, results)
    print_doubt(console, results)
    if is_first_process():
        print_report(console, config.output_dir)
    print_line(console, f"all figures: {config.output_dir / 'results.json'}")
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


def _refuse_empty(pattern_set: "PatternSet") -> None:
    if not pattern_set.find_photos():
        more = command_text("import", pattern_set.name, "DIR", library=pattern_set.library)
        raise InputError(f'the set "{pattern_set.name}" has no photos yet: add some with "{more}".')


def _say_unchanged(name: str, latest: Path, library: Path) -> None:
    anew = command_text("train", name, "--overwrite", library=library)
    console = Console(highlight=False, soft_wrap=True)
    text = (
        f"no photo has come or gone since {latest} was trained: there is nothing to do. To train "
        f"once more from scratch, beside it: {anew}"
    )
    print_line(console, text)


def _was_begun_afresh(run: Path) -> bool:
    """Whether an unfinished run is there that began with no earlier weights."""
    from clew.engine.folders import LAST
    from clew.engine.model_files import read_about

    if not (run / LAST).exists():
        return False
    return read_about(run / LAST)["settings"].get("started_from") is None


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
