"""What a run leaves for people to look at: `log.csv` and TensorBoard, a row an epoch."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from clew.engine.folders import LOG, TENSORBOARD
from clew.storage.writing import replace_file

Row = dict[str, Any]
_EVENTS = "events.out.tfevents.*"


class Logs:
    """Begins with the epochs behind the checkpoint: what a killed run wrote later is cut off."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        self._csv = folder / LOG
        board = folder / TENSORBOARD
        for left_over in board.glob(_EVENTS):
            left_over.unlink()
        self._board = SummaryWriter(str(board))
        self._columns: tuple[str, ...] = ()
        replace_file(self._csv, "".join(map(self._lines, history)).encode())
        for row in history:
            self._show(row)

    def add(self, row: Row) -> None:
        with self._csv.open("a", encoding="utf-8", newline="") as file:
            file.write(self._lines(row))
        self._show(row)

    def close(self) -> None:
        self._board.close()

    def _show(self, row: Row) -> None:
        for name, value in row.items():
            if name not in ("epoch", "step") and value is not None:
                self._board.add_scalar(_group(name), value, global_step=row["step"])
        self._board.flush()

    def _lines(self, row: Row) -> str:
        """The row, below the columns' names if it is the first."""
        text, is_first = io.StringIO(), not self._columns
        self._columns = self._columns or tuple(row)
        writer = csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n")
        if is_first:
            writer.writeheader()
        writer.writerow(row)
        return text.getvalue()


def _group(name: str) -> str:
    """TensorBoard shows what is before the slash as one group."""
    for part in ("train", "val"):
        if name.startswith(f"{part}_"):
            return f"{part}/{name.removeprefix(f'{part}_')}"
    return f"run/{name}"
