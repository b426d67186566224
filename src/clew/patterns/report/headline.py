"""What the run reached: one sentence, what stands behind it, and the great figures."""

from typing import Any

from clew.pages.figures import DASH, as_dict, as_number, counted, decimals
from clew.pages.markup import Html, tag
from clew.patterns.report.run import Run
from clew.wording import tenth_percent

_FEW = 100  # test photos under which one photo moves the figure by more than a point


def tell_headline(run: Run) -> str:
    accuracy = run.figure("test_accuracy")
    if accuracy is None:
        return "The test accuracy is not known."
    right = round(accuracy * run.test_photos)
    return (
        f"{percents(accuracy)} of the test photos are recognized: {right:,} of "
        f"{run.test_photos:,}, {counted(len(run.classes), 'class', 'classes')}."
    )


def tell_details(run: Run) -> list[str]:
    return [
        sentence
        for sentence in (
            _tell_interval(run),
            _tell_learnt_before(run),
            _tell_trained(run),
            _tell_weakest(run),
            _tell_confused(run),
        )
        if sentence
    ]


def _tell_interval(run: Run) -> str:
    if run.is_seen:
        return (
            "The model had learnt from all of these photos: the figure says nothing about others."
        )
    if run.interval is None:
        return ""
    low, high = run.interval
    told = (
        f"On other photos of the same kind, expect between {percents(low)} and {percents(high)} "
        f"(95% interval)."
    )
    if 0 < run.test_photos < _FEW:
        told += f" It is wide because there are only {run.test_photos:,} test photos."
    return told


def _tell_learnt_before(run: Run) -> str:
    count = run.learnt_before
    if not count:
        return ""
    return (
        f"{counted(count, 'test photo')} had been learnt from by the weights that the training "
        f"began with: the figure is too good by them."
    )


def _tell_trained(run: Run) -> str:
    before = run.figure("trained_test_accuracy")
    if before is None:
        return ""
    return f"At the end of its training it recognized {percents(before)} of its own test photos."


def _tell_weakest(run: Run) -> str:
    known = [
        (recall, row)
        for row in run.per_class
        if (recall := as_number(row.get("recall"))) is not None and as_number(row.get("test"))
    ]
    if len(known) < 2:
        return ""
    recall, row = min(known, key=lambda pair: pair[0])
    if recall == 1:
        return "No class has a mistake."
    return (
        f'Hardest class: "{row["class"]}", of which {percents(recall)} of '
        f"{counted(int(row['test']), 'test photo')} are recognized."
    )


def _tell_confused(run: Run) -> str:
    pairs = confused_pairs(run)
    if not pairs or pairs[0][2] < 2:
        return ""
    label, predicted, count = pairs[0]
    return f'Most frequent mistake: "{label}" taken for "{predicted}", {counted(count, "photo")}.'


def confused_pairs(run: Run) -> list[tuple[str, str, int]]:
    """(true class, said class, photos), the most frequent first."""
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
    between = f"95% interval {percents(interval[0])} to {percents(interval[1])}" if interval else ""
    mistakes = len(run.mistakes) if run.answers else None
    tiles = [
        _tile("test accuracy", percents(run.figure("test_accuracy")), between, is_best=True),
        _tile("mistakes", DASH if mistakes is None else f"{mistakes:,}", _of_photos(run)),
        _tile("macro F1", decimals(run.figure("test_macro_f1")), "every class counts the same"),
        _tile(
            "sureness is off by",
            percents(run.figure("test_ece")),
            "on average: calibration error (ECE)",
        ),
    ]
    return tag("div", tiles, class_="tiles")


def _of_photos(run: Run) -> str:
    excluded = sum(run.excluded_kinds.values())
    told = f"of {counted(run.test_photos, 'test photo')}"
    return f"{told}; {counted(excluded, 'file')} left out" if excluded else told


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
