"""The plot of a run."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from clew.engine.folders import draw_curves

pytestmark = pytest.mark.usefixtures("real_pictures")


def history(epochs: int, **more: Any) -> list[dict[str, Any]]:
    rows = [{"epoch": i + 1, "train_loss": 1 / (i + 1), "val_loss": 0.5} for i in range(epochs)]
    return [{**row, "val_auroc": 0.6, **more} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 2, 50, 400])
def test_run_of_any_length_is_plotted(tmp_path: Path, epochs: int) -> None:
    path = tmp_path / "curves.png"
    draw_curves(path, history(epochs), title="LSTM", best_epoch=1)
    image = imread(path)
    height, width, _ = image.shape
    assert width > 2 * height > 800
    assert len({tuple(pixel) for pixel in image.reshape(-1, image.shape[2])[::7]}) > 10


@pytest.mark.slow
def test_chosen_metric_is_plotted(tmp_path: Path) -> None:
    """A curve of another metric, or none, gives another plot."""
    for name, reached in (("low", 0.1), ("high", 0.9), ("none", None)):
        rows = history(1, val_accuracy=0.5) + history(1, epoch=2, val_accuracy=reached)
        path = tmp_path / f"{name}.png"
        draw_curves(path, rows, title="a run", best_epoch=1, figure_name="accuracy")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 3


@pytest.mark.slow
def test_missing_values_leave_a_gap(tmp_path: Path) -> None:
    rows = [*history(2), *history(1, epoch=3, val_auroc=None, val_loss=None)]
    draw_curves(tmp_path / "curves.png", rows, title="no AUROC", best_epoch=3)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
