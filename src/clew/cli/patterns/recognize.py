"""clew patterns recognize"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew.cli import plan_flags
from clew.cli.patterns.library_flags import LIBRARY, Library, Model, SetName
from clew.cli.printing import plain_text, print_line
from clew.wording import whole_percent

if TYPE_CHECKING:
    from clew.patterns.identification.recognize import Recognition

_EPILOG = "Example: `clew patterns recognize bird.jpg --name animals --multiscale`"
_BAR = 24


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(recognize)


def recognize(
    image: Annotated[Path, typer.Argument(help="The photo.")],
    model: Model = None,
    name: SetName = None,
    multiscale: Annotated[
        bool,
        typer.Option(
            "--multiscale",
            help="Look from near and far, for a thing that is small in the photo; tells where.",
        ),
    ] = False,
    top_k: Annotated[int, typer.Option(help="So many classes are told.")] = 3,
    threshold: Annotated[
        float, typer.Option(help="Doubtful when the likeliest class is less probable than this.")
    ] = 0.6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    library: Library = LIBRARY,
    device: plan_flags.Device = None,
) -> None:
    """Say what one photo shows; with --multiscale also where."""
    from clew.patterns.identification.config import check_threshold
    from clew.patterns.identification.recognize import recognize_photo
    from clew.patterns.library.choose import choose_model
    from clew.patterns.trained.model import load_classifier, usual_device

    check_threshold(threshold)
    chosen = choose_model(model=model, name=name, library=library)
    loaded = load_classifier(chosen.model, usual_device(device))
    found = recognize_photo(loaded, image, top_k=top_k, multiscale=multiscale)
    if as_json:
        record = {**found.to_record(), "model": str(chosen.model), "threshold": threshold}
        typer.echo(json.dumps(record | {"doubtful": found.best[0][1] < threshold}, indent=1))
    else:
        _print(Console(highlight=False), found, threshold)


def _print(console: Console, found: "Recognition", threshold: float) -> None:
    print_line(console, f"{found.path} ({found.width:,} x {found.height:,} pixels)")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, chance in found.best:
        bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * round(_BAR * chance)
        table.add_row(escape(plain_text(label)), whole_percent(chance), bar)
    console.print(table)
    if found.best[0][1] < threshold:
        print_line(console, f"doubtful: no class reaches {whole_percent(threshold)}")
    if found.best_view is not None:
        print_line(console, _tell_where(found))


def _tell_where(found: "Recognition") -> str:
    best = found.best_view
    assert best is not None
    box = best.box
    where = f"from ({box.left}, {box.top}) to ({box.right}, {box.bottom})"
    if (box.right - box.left, box.bottom - box.top) == (found.width, found.height):
        where = "of the whole photo"
    chance = whole_percent(best.probability)
    return f"most confident: {best.label} ({chance}) {where}, among {found.views} views"
