"""clew patterns flow"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clew.cli import plan_flags
from clew.cli.patterns.figures import print_reached
from clew.cli.patterns.import_ import import_and_print, say_next
from clew.cli.patterns.library_flags import LIBRARY, Library, Review, Web
from clew.cli.patterns.printing import command_text, print_line
from clew.cli.patterns.train import train_set
from clew.errors import InputError, SettingsMismatchError

if TYPE_CHECKING:
    from clew.patterns.identification.run import IdentifyResult
    from clew.patterns.library.pattern_set import PatternSet

_EPILOG = "Example: `clew patterns flow animals --from my_photos --identify holiday_photos --web`"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(flow)


def flow(
    name: Annotated[str, typer.Argument(help="The set; made if there is none of that name.")],
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Photos to import: a folder with a folder a class. May be given twice."
        ),
    ] = None,
    identify: Annotated[
        Path | None, typer.Option(help="New photos to say what they show, once it is trained.")
    ] = None,
    review: Review = False,
    web: Web = False,
    epochs: Annotated[
        int | None,
        typer.Option(help="Times that all photos are seen. [default: 30, more for few photos]"),
    ] = None,
    library: Library = LIBRARY,
    device: plan_flags.Device = None,
) -> None:
    """All in one: create, import, train, identify, review; each can also be run by itself.

    Given again, it goes on where it was: photos are imported once, and what is trained is trained
    again only when photos have come or gone.
    """
    from clew.patterns.library.names import check_set_name

    console = Console(highlight=False, soft_wrap=True)
    name, sources, is_reviewed = check_set_name(name), sources or [], review or web
    _refuse(name, library, sources, identify, is_reviewed)
    pattern_set = _open_or_create(console, library, name)
    if sources:
        _head(console, "import")
        import_and_print(console, pattern_set, sources)
    _head(console, "train")
    _train(console, pattern_set, epochs, device)
    identified = None
    if identify is not None:
        _head(console, "identify")
        identified = _identify(pattern_set, identify, device, is_reviewed=is_reviewed)
    if is_reviewed:
        _head(console, "review")
        _review(console, pattern_set, identified, web=web)
    console.print()
    say_next(console, pattern_set)


def _refuse(
    name: str, library: Path, sources: list[Path], identify: Path | None, is_reviewed: bool
) -> None:
    """What can be told to go wrong is told before hours of training."""
    from clew.patterns.identification import find_newest
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.photos import find_photos

    for source in sources:
        find_photos(source)
    if identify is not None:
        find_photos(identify)
    known = {one.name: one for one in PatternSet.all(library)}
    if name not in known and not sources:
        raise InputError(
            f'there is no set "{name}" in "{library}" yet: say with --from where its photos are.'
        )
    nothing_known = name not in known or find_newest(known[name].folder) is None
    if is_reviewed and identify is None and nothing_known:
        raise InputError(
            "--review asks about photos that were identified, and none were: say with --identify "
            "which photos to look at."
        )


def _open_or_create(console: Console, library: Path, name: str) -> "PatternSet":
    from clew.patterns.library.pattern_set import PatternSet

    if name in {one.name for one in PatternSet.all(library)}:
        return PatternSet.open(name, library)
    made = PatternSet.create(name, library)
    print_line(console, f'made the set "{made.name}" in {made.folder}')
    return made


def _train(
    console: Console, pattern_set: "PatternSet", epochs: int | None, device: str | None
) -> None:
    """As `clew patterns train NAME`; what was reached is told even when there is nothing to do."""
    from clew.engine import PlanRequest
    from clew.patterns.library.folders import read_results

    settings = {"epochs": epochs, "request": PlanRequest(device=device)}
    name, library = pattern_set.name, pattern_set.library
    try:
        results = train_set(name, library, settings, is_plain=True, is_last=False)
    except SettingsMismatchError as error:
        anew = command_text("train", name, "--overwrite", library=library)
        raise SettingsMismatchError(f"{error.text} To begin anew: {anew}") from None
    if results is None:
        latest = pattern_set.latest_model()
        assert latest is not None
        print_reached(console, read_results(latest))


def _identify(
    pattern_set: "PatternSet", photos: Path, device: str | None, *, is_reviewed: bool
) -> "IdentifyResult":
    from clew.cli.patterns.identify import identify_and_print, say_how_to_review
    from clew.patterns.identification import default_folder
    from clew.patterns.identification.config import IdentifyConfig
    from clew.patterns.library.choose import choose_model
    from clew.patterns.trained.model import usual_device

    chosen = choose_model(name=pattern_set.name, library=pattern_set.library)
    config = IdentifyConfig(
        photos=photos,
        model=chosen.model,
        output_dir=default_folder(pattern_set.folder, photos),
        device=usual_device(device),
    )
    console = Console(highlight=False)
    result = identify_and_print(console, config)
    if result.counts["doubtful"] and not is_reviewed:
        say_how_to_review(console, chosen)
    return result


def _review(
    console: Console, pattern_set: "PatternSet", result: "IdentifyResult | None", *, web: bool
) -> None:
    from clew.cli.patterns.review import run_review
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review import ReviewConfig

    chosen = choose_model(name=pattern_set.name, library=pattern_set.library)
    config = ReviewConfig(identified=None if result is None else result.folder)
    run_review(console, chosen, config, web=web)


def _head(console: Console, title: str) -> None:
    console.print()
    console.print(title, style="bold")
