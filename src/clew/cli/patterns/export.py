"""clew patterns export"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clew.base.texts import bytes_text, for_shell
from clew.cli.commands import Call, Command
from clew.cli.printing import print_line
from clew.patterns.workflow import export

if TYPE_CHECKING:
    from clew.patterns.trained.exporting import ExportedModel

COMMAND = Command(
    function=export,
    name="patterns export",
    example="clew patterns export --name animals --out animals.onnx",
    has_json=True,
    has_threads=True,
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    with call.progress.status("exporting and comparing predictions ..."):
        exported = export(**call.settings)
    if call.as_json:
        call.print_json(asdict(exported))
    else:
        _print_export(call.console, exported)


def _print_export(console: Console, exported: "ExportedModel") -> None:
    from clew.patterns.trained.exporting import INPUT, OUTPUT, TYPICALITY
    from clew.patterns.trained.program import SUFFIX

    size, classes = exported.image_size, exported.classes
    runtime = "torch.export" if exported.path.suffix == SUFFIX else "onnxruntime"
    images = "photos" if exported.with_photos else "random images (no photo was found)"
    unknown = f'          "{TYPICALITY}", float32 [batch]: below 0.05, none of the classes'
    lines = (
        f"{exported.path} ({bytes_text(exported.bytes)})",
        f'input:    "{INPUT}", uint8 [batch, {size}, {size}, 3]: RGB photos resized to '
        f"{size} x {size}",
        f'output:   "{OUTPUT}", float32 [batch, {len(classes)}], in this order: '
        f"{_list_classes(classes)}",
        *([unknown] if exported.has_typicality else []),
        "metadata: classes, input, scaling and calibration (both are inside the model)",
        f"checked:  {runtime} returns the same probabilities for {exported.checked} {images}, "
        f"within {exported.difference:.0e}",
    )
    for line in lines:
        print_line(console, line)
    if exported.page is not None:
        _print_page(console, exported.page.parent)


def _print_page(console: Console, folder: Path) -> None:
    words = ("python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", folder, 8000)
    serve = for_shell(words)
    print_line(console, f"page:     {folder}, for any web server; try it with:")
    print_line(console, f"          {serve}")
    print_line(console, "          and open http://127.0.0.1:8000")


def _list_classes(classes: tuple[str, ...]) -> str:
    names = ", ".join(classes[:6])
    return names if len(classes) <= 6 else f"{names}, ... ({len(classes)} in total)"
