"""Pictures that are not drawn: rendering takes longer than training a tiny network."""

import base64
import sys
from typing import Any, BinaryIO

# A PNG of one pixel.
_BLANK = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
_real: Any = None


def choose_pictures(*, real: bool) -> None:
    """What matplotlib writes from now on, if it is loaded: what was drawn, or blank pictures."""
    global _real
    backend = sys.modules.get("matplotlib.backends.backend_agg")
    canvas = getattr(backend, "FigureCanvasAgg", None)
    if canvas is not None:
        _real = _real or canvas.print_png
        canvas.print_png = _real if real else _print_blank


def _print_blank(_canvas: object, file: BinaryIO, **_: object) -> None:
    file.write(_BLANK)
