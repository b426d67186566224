"""The output folder of a run: its files, its lock, how it is created and emptied; `log.csv`,
TensorBoard and a plot of the curves for people to look at."""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from clew.base.errors import InputError, StoreError, StoreLockedError
from clew.base.urls import UrlPath
from clew.engine.config import BEST as BEST
from clew.engine.torchrun import is_first_process
from clew.storage.lock import lone_lease
from clew.storage.ownership import claim
from clew.storage.place import AccessDeniedError
from clew.storage.reading import RemoteFile
from clew.storage.text_files import csv_text
from clew.storage.working_copy import WorkingCopy, find_files
from clew.storage.writing import (
    append_to_file,
    disk_errors,
    lock_file,
    remove_temporaries,
    replace_file,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# A run resumes from `last`, `best` has the weights to use, `next best` waits for its `last`.
LAST, NEXT_BEST = "last.safetensors", "best.next.safetensors"
PLAN, RESULT, LOG, CURVES = "plan.json", "result.json", "log.csv", "curves.png"
TENSORBOARD, EVENTS = "tensorboard", "events.out.tfevents."
TRACKING = "tracking.json"  # the ID of the run in each experiment tracker
_FILES = (LAST, BEST, NEXT_BEST, PLAN, RESULT, LOG, CURVES, TRACKING)
# What training writes; anything else in the folder belongs to somebody else.
RUN_FILES = (*_FILES, TENSORBOARD)


Row = dict[str, Any]
# Distinguishable with color blindness, and in print.
_TRAIN, _VALIDATION, _BEST = "#0072B2", "#D55E00", "#555555"
_MARKED_EPOCHS = 40
# Given instead of computed, which takes as long as drawing does.
_MARGINS = {"left": 0.09, "right": 0.98, "bottom": 0.14, "top": 0.88, "wspace": 0.25}


def make_folder(folder: Path, *names: str, command: str = "") -> None:
    """Create the folder, into which files and folders of these names will be written. Raises
    InputError if that is not possible, or if somebody else's has one of the names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{folder}" cannot be created ({error.strerror}): choose another `out`.'
        ) from None
    claim(folder, names, command=command)


def clear_run(folder: Path, *more: str) -> None:
    """Removes what an earlier run wrote into a network's folder, and the additional files named in
    `more`. Raises InputError if somebody else wrote one of them."""
    claim(folder, (*RUN_FILES, *(name for name in more if "/" not in name)))
    for name in (*_FILES, *more):
        (folder / name).unlink(missing_ok=True)
    remove_temporaries(folder, *_FILES)
    remove_events(folder / TENSORBOARD)
    with suppress(OSError):  # it is not there, or has other files
        (folder / TENSORBOARD).rmdir()


def remove_events(board: Path) -> None:
    """Removes TensorBoard's files of an earlier run, as far as that is allowed."""
    for path in find_files(board, EVENTS):
        with suppress(AccessDeniedError):
            path.unlink()


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; raises StoreLockedError if another run is writing into
    it."""
    if not is_first_process():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(folder, WorkingCopy):
        with lone_lease(UrlPath(folder.url)):
            yield
        return
    with ExitStack() as held:
        try:
            held.enter_context(lock_file(folder / ".lock", timeout_seconds=0))
        except Timeout as error:
            raise StoreLockedError(
                f'another run is writing to "{folder}": wait until it finishes, or choose another '
                "folder."
            ) from error
        yield


class Logs:
    """Writes log.csv and TensorBoard events. It starts with the epochs before the checkpoint: rows
    that a killed run wrote after it are removed."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        self._csv = folder / LOG
        board = folder / TENSORBOARD
        if board.is_symlink():
            raise StoreError(
                f'"{board}" is a symbolic link, but training writes there and deletes its earlier '
                "files: move it elsewhere, then run the same command again."
            )
        remove_events(board)
        with disk_errors(folder):
            board.mkdir(parents=True, exist_ok=True)
            # Not SummaryWriter: its thread and its queue wait for ever if memory runs out.
            self._board = EventsWriter(str(board / "events"))
        self._columns: tuple[str, ...] = ()
        replace_file(self._csv, "".join(map(self._lines, history)).encode())
        for row in history:
            self._show(row)

    def add(self, row: Row) -> None:
        with append_to_file(self._csv) as file:
            file.write(self._lines(row).encode())
        self._show(row)

    def publish(self) -> None:
        """Puts what was written to its URL, if the folder is at one."""
        for path in (self._csv, *(self._csv.parent / TENSORBOARD).glob(f"{EVENTS}*")):
            if isinstance(path, RemoteFile):
                path.publish()

    def close(self) -> None:
        with disk_errors(self._csv.parent):
            self._board.close()

    def _show(self, row: Row) -> None:
        shown = {n: v for n, v in row.items() if n not in ("epoch", "step") and v is not None}
        with disk_errors(self._csv.parent):
            for name, value in shown.items():
                summary = scalar(_group(name), value)
                event = Event(summary=summary, step=row["step"], wall_time=time.time())
                self._board.write_event(event)
            self._board.flush()

    def _lines(self, row: Row) -> str:
        """The row, below the column names if it is the first."""
        head = [] if self._columns else [tuple(row)]
        self._columns = self._columns or tuple(row)
        return csv_text([*head, [row.get(name, "") for name in self._columns]])


def _group(name: str) -> str:
    """The name of a curve in TensorBoard, which groups curves by the part before the slash."""
    part, _, rest = name.partition("_")
    return f"{part}/{rest}" if part in ("train", "val") else f"run/{name}"


def draw_curves(
    path: Path,
    history: Sequence[dict[str, Any]],
    *,
    title: str,
    best_epoch: int,
    figure_name: str = "AUROC",
) -> None:
    """Writes a PNG. `history` has one row per epoch, like log.csv; `best_epoch` counts from 1;
    `figure_name` is the validation metric shown beside the losses."""
    from matplotlib import rc_context, rcParamsDefault  # slow to import

    # Not the settings of a file in the current folder, which may even start programs (TeX).
    with rc_context(rcParamsDefault):
        replace_file(path, _draw_curves(history, title, best_epoch, figure_name))


def _draw_curves(
    history: Sequence[dict[str, Any]], title: str, best_epoch: int, figure_name: str
) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), dpi=150)
    figure.suptitle(title)
    loss, reached = figure.subplots(1, 2, gridspec_kw=_MARGINS)
    _draw(loss, history, "train_loss", label="training", color=_TRAIN)
    _draw(loss, history, "val_loss", label="validation", color=_VALIDATION)
    column = f"val_{figure_name.lower()}"
    _draw(reached, history, column, label="validation", color=_VALIDATION)
    for axes, name in ((loss, "loss"), (reached, figure_name)):
        axes.axvline(best_epoch, color=_BEST, linestyle=":", label=f"best epoch ({best_epoch})")
        axes.set(xlabel="epoch", ylabel=name, xlim=(0.5, len(history) + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize="small")
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)
    return image.getvalue()


def _draw(
    axes: "Axes", history: Sequence[dict[str, Any]], name: str, *, label: str, color: str
) -> None:
    points = [(row["epoch"], row[name]) for row in history if row.get(name) is not None]
    if points:
        # Without a marker a run of one epoch would show nothing.
        marker = "o" if len(points) <= _MARKED_EPOCHS else None
        axes.plot(*zip(*points, strict=True), label=label, color=color, marker=marker, markersize=3)
