"""clew patterns evaluate"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from clew.cli.long_runs import long_run
from clew.cli.patterns.figures import print_reached, print_report
from clew.cli.patterns.library_flags import LIBRARY, Library, Model, SetName
from clew.cli.preparation import excluded_text
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.wording import counted, tenth_percent

_EPILOG = "Example: `clew patterns evaluate --model trained --data other_photos`"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(evaluate)


def evaluate(
    data: Annotated[
        Path,
        typer.Option(help="Photos in a folder a class.", show_default=False),
    ],
    model: Model = None,
    name: SetName = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output-dir",
            help="The folder for figures and report.  [default: evaluated/DATA beside the model]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, or cuda:1. [default: the GPU if there is one]")
    ] = None,
    num_workers: Annotated[
        int | None,
        typer.Option(min=0, help="Threads that read photos ahead. [default: one a core]"),
    ] = None,
    library: Library = LIBRARY,
) -> None:
    """Measure a trained model on photos that it has not seen.

    Photos that it was trained on are told by what they show, whatever their names, and left out
    of the figure.
    """
    from clew.patterns.library.choose import choose_model
    from clew.patterns.training.evaluate import evaluate_patterns, usual_evaluation_folder

    console = Console(highlight=False, soft_wrap=True)
    folder = choose_model(model=model, name=name, library=library).model
    out = output_dir or usual_evaluation_folder(folder, data)
    with (
        long_run(console, "nothing is written", is_resumable=False) as stop,
        Renderer(console) as reporter,
    ):
        results = evaluate_patterns(
            folder,
            data,
            out=out,
            device=device,
            workers=num_workers,
            reporter=reporter,
            should_stop=stop,
        )
    _print_photos(console, results, out)
    print_reached(console, results)
    _print_before(console, results)
    print_report(console, out)
    print_line(console, f"all figures: {out / 'results.json'}")


def _print_photos(console: Console, results: dict[str, Any], out: Path) -> None:
    data = results["data"]
    seen = data["seen"]
    lines = [f"{counted(data['photos'], 'photo')} of {data['folder']} are measured on"]
    if data["excluded"]:
        where = out / "excluded.csv"
        lines.append(
            f"excluded: {excluded_text(data['excluded'])}: each with its reason in {where}"
        )
    if data["all_seen"]:
        counts = " and ".join(f"{count:,} for {split}" for split, count in seen.items())
        lines.append(
            f"careful: the model has learnt from every one of these photos ({counts}), so the "
            f"figures say nothing about new ones: give other photos."
        )
    for line in lines:
        print_line(console, line)


def _print_before(console: Console, results: dict[str, Any]) -> None:
    before = results["trained_test_accuracy"]
    if isinstance(before, float):
        console.print(f"on the test photos of its own training it was {tenth_percent(before)}")
