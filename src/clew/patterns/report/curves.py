"""Training curves by epoch, and how far the model's confidence can be trusted, as panels."""

import math
from collections.abc import Sequence

import numpy as np

from clew.base.texts import counted
from clew.metrics import calibration_points
from clew.pages.figures import Dot, Guide, Line, Panel, draw_panel, padded_range
from clew.pages.markup import Html, tag
from clew.pages.numbers import decimals
from clew.patterns.report.results import Run, percents

# Colors of the page's style: distinct for color-blind readers and in grayscale print.
_TRAINING, _VALIDATION = "red", "blue"
# Title, y label, and the lines: column of log.csv, name, color, dash.
_PANELS = (
    (
        "Loss",
        "loss",
        (("train_loss", "training", _TRAINING, 1), ("val_loss", "validation", _VALIDATION, 0)),
    ),
    (
        "Accuracy",
        "accuracy",
        (
            ("train_accuracy", "training", _TRAINING, 1),
            ("val_accuracy", "validation", _VALIDATION, 0),
        ),
    ),
    ("Learning rate", "", (("lr", "learning rate", "gray", 0),)),
)
_BINS = 10
_DEFAULT_THRESHOLD = 0.6


def draw_training(run: Run) -> Html:
    panels = [_epoch_panel(run, *panel) for panel in _PANELS]
    return tag("div", [draw_panel(panel) for panel in panels if panel.lines], class_="panels")


def _lines(run: Run, columns: Sequence[tuple[str, str, str, int]]) -> tuple[Line, ...]:
    found = []
    for column, name, color, dash in columns:
        values = np.array([_or_nan(row.get(column)) for row in run.history])
        if np.isfinite(values).any():
            line = Line(
                x=_epochs(run),
                y=values,
                color=color,
                dash=dash,
                tip=name,
                has_dots=len(values) == 1,
            )
            found.append(line)
    return tuple(found)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _epochs(run: Run) -> np.ndarray:
    rows = enumerate(run.history, start=1)
    return np.array([row.get("epoch") or place for place, row in rows], dtype=float)


def _epoch_panel(
    run: Run, title: str, y_label: str, columns: Sequence[tuple[str, str, str, int]]
) -> Panel:
    lines = _lines(run, columns)
    last = float(max(_epochs(run), default=1.0))
    return Panel(
        title=title,
        x_label="epoch",
        y_label=y_label,
        x_range=(1.0, last) if last > 1 else (0.5, 1.5),
        y_range=padded_range(value for line in lines for value in line.y),
        lines=lines,
        dots=_best_dot(run) if y_label == "accuracy" else (),
        legend=tuple((line.tip, line.color, line.dash) for line in lines) if y_label else (),
        has_whole_steps=True,
    )


def _best_dot(run: Run) -> tuple[Dot, ...]:
    best = run.figure("best_epoch")
    found = [row for row in run.history if row.get("epoch") == best]
    accuracy = found[0].get("val_accuracy") if found else None
    if best is None or accuracy is None:
        return ()
    tip = f"epoch {best:.0f} was kept: validation accuracy {percents(accuracy)}"
    return (Dot(x=best, y=accuracy, color=_VALIDATION, tip=tip),)


def draw_confidence(run: Run) -> Html:
    confidence = np.array([answer.probability for answer in run.answers])
    is_correct = np.array([answer.is_correct for answer in run.answers])
    panels = [_threshold_panel(confidence, is_correct), _calibration_panel(confidence, is_correct)]
    return tag("div", [draw_panel(panel) for panel in panels], class_="panels")


def describe_threshold(run: Run, threshold: float = _DEFAULT_THRESHOLD) -> str:
    """A sentence on how the default threshold of `identify` would divide the test photos."""
    kept = [answer for answer in run.answers if answer.probability >= threshold]
    if not kept:
        return f"No test photo reaches a confidence of {percents(threshold)}."
    right = sum(answer.is_correct for answer in kept) / len(kept)
    return (
        f'At the default threshold of {threshold:g} in "clew patterns identify", '
        f"{percents(len(kept) / len(run.answers))} of the "
        f"{counted(len(run.answers), 'test photo')} get a label, {percents(right)} of them "
        f"correctly; the others are marked as doubtful for you to check."
    )


def _threshold_panel(confidence: np.ndarray, is_correct: np.ndarray) -> Panel:
    thresholds = np.linspace(0, 1, 101)
    kept = np.array([(confidence >= at).mean() for at in thresholds])
    right = np.array([_share(is_correct[confidence >= at]) for at in thresholds])
    lines = (
        Line(x=thresholds, y=kept, color=_TRAINING, dash=1, tip="coverage"),
        Line(x=thresholds, y=right, color=_VALIDATION, tip="accuracy"),
    )
    default = _DEFAULT_THRESHOLD
    return Panel(
        title="Coverage and accuracy by threshold",
        x_label="confidence threshold",
        y_label="share",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        lines=lines,
        guides=(
            Guide(x=(default, default), y=(0.0, 1.0), label="default", label_at=(default, 0.02)),
        ),
        legend=tuple((line.tip, line.color, line.dash) for line in lines),
    )


def _share(is_correct: np.ndarray) -> float:
    return float(is_correct.mean()) if len(is_correct) else math.nan


def _calibration_panel(confidence: np.ndarray, is_correct: np.ndarray) -> Panel:
    said, found, counts = calibration_points(
        is_correct.astype(np.int64), confidence, bins=_BINS, equal_mass=False
    )
    dots = tuple(
        Dot(
            x=float(x),
            y=float(y),
            color=_VALIDATION,
            tip=f"{counted(int(count), 'photo')}: mean confidence {decimals(float(x), 2)}, "
            f"accuracy {decimals(float(y), 2)}",
        )
        for x, y, count in zip(said, found, counts, strict=True)
    )
    return Panel(
        title="Calibration",
        x_label="confidence",
        y_label="accuracy",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        lines=(Line(x=said, y=found, color=_VALIDATION, tip="test photos", is_thin=True),),
        guides=(Guide(x=(0.0, 1.0), y=(0.0, 1.0), label="perfect", label_at=(0.05, 0.1)),),
        dots=dots,
    )
