"""What the run achieved: one sentence, the details behind it, and the key figures."""

from typing import Any

from clew.base.texts import list_some, tenth_percent
from clew.pages.markup import Html, tag
from clew.pages.numbers import DASH, as_dict, as_number, counted, decimals
from clew.patterns.report.run import Run

_FEW = 100  # with fewer test photos, one photo changes the accuracy by more than a percentage point


def describe_headline(run: Run) -> str:
    accuracy = run.figure("test_accuracy")
    if accuracy is None:
        return "The test accuracy is unknown."
    right = round(accuracy * run.test_photos)
    return (
        f"{right:,} of {run.test_photos:,} test photos in "
        f"{counted(len(run.classes), 'class', 'classes')} are classified correctly "
        f"({percents(accuracy)})."
    )


def describe_details(run: Run) -> list[str]:
    return [
        sentence
        for sentence in (
            _describe_interval(run),
            _describe_trained_before(run),
            _describe_trained(run),
            _describe_weakest(run),
            _describe_confused(run),
            _describe_unvalidated(run),
        )
        if sentence
    ]


def _describe_interval(run: Run) -> str:
    if run.is_seen:
        return (
            "The model was trained on all of these photos: this accuracy says nothing about new "
            "photos."
        )
    if run.interval is None:
        return ""
    low, high = run.interval
    text = (
        f"On other photos of the same kind, expect between {percents(low)} and {percents(high)} "
        f"(95% confidence interval)."
    )
    if 0 < run.test_photos < _FEW:
        text += f" It is wide because there are only {run.test_photos:,} test photos."
    return text


def _describe_trained_before(run: Run) -> str:
    count = run.trained_before
    if not count:
        return ""
    return (
        f"This run started from weights that were trained on {counted(count, 'test photo')}, so "
        "this accuracy is too optimistic."
    )


def _describe_trained(run: Run) -> str:
    before = run.figure("trained_test_accuracy")
    if before is None:
        return ""
    return f"On the test photos of its own training run, its accuracy was {percents(before)}."


def _describe_weakest(run: Run) -> str:
    known = [
        (recall, row)
        for row in run.per_class
        if (recall := as_number(row.get("recall"))) is not None and as_number(row.get("test"))
    ]
    if len(known) < 2:
        return ""
    recall, row = min(known, key=lambda pair: pair[0])
    if recall == 1:
        return "There are no mistakes in any class."
    return (
        f'Hardest class: "{row["class"]}", with a recall of {percents(recall)} on '
        f"{counted(int(row['test']), 'test photo')}."
    )


def _describe_confused(run: Run) -> str:
    pairs = confused_pairs(run)
    if not pairs or pairs[0][2] < 2:
        return ""
    label, predicted, count = pairs[0]
    return (
        f'Most frequent mistake: "{label}" predicted as "{predicted}", {counted(count, "photo")}.'
    )


def _describe_unvalidated(run: Run) -> str:
    names = classes_without(run, "validation")
    verb = "has" if len(names) == 1 else "have"
    text = f"{counted(len(names), 'class', 'classes')} {verb} no validation photos"
    return f"{text}: {list_some(names)}." if names else ""


def classes_without(run: Run, split: str) -> list[str]:
    """The classes that have no photos in this split; none where the counts are unknown."""
    return [str(row["class"]) for row in run.per_class if as_number(row.get(split)) == 0]


def confused_pairs(run: Run) -> list[tuple[str, str, int]]:
    """(true class, predicted class, photos), the most frequent first."""
    confusion = run.confusion
    if confusion is None:
        return []
    pairs = [
        (run.classes[row], run.classes[column], int(confusion[row, column]))
        for row, column in zip(*confusion.nonzero(), strict=True)
        if row != column
    ]
    return sorted(pairs, key=lambda pair: -pair[2])


def draw_tiles(run: Run) -> Html:
    interval = run.interval
    between = f"95% CI: {percents(interval[0])} to {percents(interval[1])}" if interval else ""
    mistakes = len(run.mistakes) if run.answers else None
    tiles = [
        _tile("test accuracy", percents(run.figure("test_accuracy")), between, is_best=True),
        _tile("mistakes", DASH if mistakes is None else f"{mistakes:,}", _of_photos(run)),
        _tile("macro F1", decimals(run.figure("test_macro_f1")), "mean over classes"),
        _tile(
            "calibration error",
            percents(run.figure("test_ece")),
            "ECE: mean gap between confidence and accuracy",
        ),
    ]
    return tag("div", tiles, class_="tiles")


def _of_photos(run: Run) -> str:
    excluded = sum(run.excluded_kinds.values())
    text = f"of {counted(run.test_photos, 'test photo')}"
    return f"{text}; {counted(excluded, 'file')} excluded" if excluded else text


def _tile(name: str, figure: str, words: str, *, is_best: bool = False) -> Html:
    return tag(
        "div",
        tag("div", name, class_="tile-name"),
        tag("div", figure, class_="figure"),
        tag("div", words, class_="muted"),
        class_=f"tile blue{' best' if is_best else ''}",
    )


def percents(value: float | None) -> str:
    return DASH if value is None else tenth_percent(value)


def describe_network(run: Run) -> str:
    network: Any = run.raw.get("network")
    name = as_dict(network).get("name") if isinstance(network, dict) else network
    size = run.figure("image_size")
    return f"{name or 'network'}{f' at {size:.0f} px' if size else ''}"
