"""clew patterns export"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clew.cli.patterns.library_flags import LIBRARY, Library, Model, SetName
from clew.cli.printing import print_line
from clew.errors import InputError
from clew.wording import bytes_text

if TYPE_CHECKING:
    from clew.patterns.trained.model import PatternModel
    from clew.patterns.trained.onnx import ExportedModel

_EPILOG = "Example: `clew patterns export --name animals --out animals.onnx`"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(export)


def export(
    model: Model = None,
    name: SetName = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file.  [default: model.onnx beside the model]", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there already.")
    ] = False,
    library: Library = LIBRARY,
) -> None:
    """Write a trained model as one ONNX file, for programs without clew.

    It takes a photo's pixels and gives calibrated probabilities; that onnxruntime gives the same
    answers is checked before the file is put in place. Needs the extra "onnx".
    """
    from clew.patterns.library.choose import choose_model
    from clew.patterns.trained import load_classifier
    from clew.patterns.trained.onnx import export_onnx

    folder = choose_model(model=model, name=name, library=library).model
    path = out or folder / "model.onnx"
    _refuse_to_replace(path, overwrite)
    trained = load_classifier(folder, device="cpu")
    console = Console(highlight=False, soft_wrap=True)
    with console.status("writing the network as ONNX, and comparing its answers ..."):
        exported = export_onnx(trained, path)
    _print_export(console, trained, exported)


def _refuse_to_replace(path: Path, overwrite: bool) -> None:
    if path.is_file() and not overwrite:
        raise InputError(
            f'"{path}" is there already: give another name with --out, or --overwrite to replace '
            f"it."
        )


def _print_export(console: Console, model: "PatternModel", exported: "ExportedModel") -> None:
    from clew.patterns.trained.onnx import INPUT, OUTPUT

    size, classes = model.image_size, len(model.classes)
    with_what = "photos" if exported.with_photos else "made-up pictures (no photo was found)"
    lines = (
        f"{exported.path} ({bytes_text(exported.bytes)})",
        f'in:      "{INPUT}", uint8 [batch, {size}, {size}, 3]: photos as RGB, each squashed to '
        f"{size} x {size}",
        f'out:     "{OUTPUT}", float32 [batch, {classes}], in the order of '
        f"{_list_classes(model.classes)}",
        "inside:  the same classes and the image size, in the file's metadata",
        f"checked: onnxruntime gives the same answers on {exported.checked} {with_what}, to "
        f"{exported.difference:.0e}",
    )
    for line in lines:
        print_line(console, line)


def _list_classes(classes: tuple[str, ...]) -> str:
    names = ", ".join(classes[:6])
    return names if len(classes) <= 6 else f"{names}, ... (in all {len(classes)})"
