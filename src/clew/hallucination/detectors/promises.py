"""Promises of a detector: which answers are shown so that few of them are wrong, why that cannot be
promised, for which answers it holds, and the page with the curve."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.errors import InputError
from clew.base.texts import counted
from clew.hallucination.detectors.calibration import LabeledRisks, record_calibration
from clew.hallucination.detectors.data import Promise, State, tell_not_shown
from clew.hallucination.detectors.detector import Detector
from clew.metrics.calibration import PlattScale
from clew.metrics.promise import (
    choose_count,
    least_max_wrong,
    share_interval,
    shown_curve,
    threshold_after,
    times_needed,
)
from clew.pages.figures import Dot, Guide, Line, Panel, draw_panel
from clew.pages.markup import Section, tag, wrap_page
from clew.storage.writing import replace_file
from clew.version import __version__

# Beyond this share of the answers the curve begins: before, it jumps with every answer.
_LEAST_SHARE = 0.02
_OTHER_LIMITS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
_PIXELS = 2.0
# Traffic is compared with the labeled answers from this many on; it may differ by chance once in a
# thousand looks.
_FEWEST, _MOST, _CHANCE = 50, 1000, 0.001
_READING = (
    "The curve is what these labels show: with the lowest risks shown first, the share of wrong "
    "answers among those shown. Each point is a promise that these labels allow, on its own: it "
    "lies below its limit by the margin that so many labels need."
)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why the labels do not allow a promise. `wrong` is the share of wrong ones among all labeled
    answers; `least_withheld` of the answers even a perfect detector would have to withhold.
    `could_promise` is the lowest `max_wrong_shown` that they would have allowed, `labels_needed`
    about how many labels more may do; None if nothing helps but another detector."""

    max_wrong_shown: float
    confidence: float
    answers: int
    not_familiar: int
    unchecked: int
    wrong: float
    least_withheld: float
    could_promise: float | None
    labels_needed: int | None

    @property
    def text(self) -> str:
        labeled = counted(self.answers, "labeled answer")
        not_shown = tell_not_shown(self.not_familiar, self.unchecked)
        found = [
            f"cannot promise at most {self.max_wrong_shown:.1%} wrong among the answers shown with "
            f"{self.confidence:.0%} confidence: {labeled}{not_shown} do not prove it for any "
            "threshold."
        ]
        if self.least_withheld:
            found.append(
                f"{self.wrong:.0%} of the answers are wrong, so even a perfect detector would have "
                f"to withhold {self.least_withheld:.0%}."
            )
        if self.could_promise is not None:
            found.append(
                f"With these labels, at most {self.could_promise:.0%} wrong could have been "
                "promised; to promise it, ask for it with other labels."
            )
        more = self.labels_needed
        found.append(
            "More labels like these would not help: use another detector, or adapt this one."
            if more is None
            else f"About {more:,} more labels like these may do."
        )
        return " ".join(found)


def make_promise(
    scale: PlattScale, answers: LabeledRisks, *, max_wrong_shown: float, confidence: float
) -> Promise | Refusal:
    """A promise of risks by this calibration. Raises InputError without labeled answers, or for
    impossible numbers."""
    total = len(answers.labels) + answers.unchecked
    if not total:
        raise InputError("no answer has a label: label some, and say which are hallucinated.")
    near = answers.part(is_far=False)
    asked: dict[str, Any] = {"max_wrong_shown": max_wrong_shown, "confidence": confidence}
    counts = {
        "answers": total,
        "not_familiar": int(answers.is_far.sum()),
        "unchecked": answers.unchecked,
    }
    shown = choose_count(near.labels, near.risks, max_wrong=max_wrong_shown, confidence=confidence)
    if not shown:
        return _refuse(answers, near, max_wrong_shown, confidence, counts)
    threshold = threshold_after(near.risks, shown)
    return Promise(
        **asked,
        **counts,
        threshold=threshold,
        calibration=asdict(scale),
        shown=shown,
        wrong_shown=int(near.labels[near.risks <= threshold].sum()),
        share_shown=shown / total,
        share_interval=share_interval(shown, total, confidence),
    )


def _refuse(
    answers: LabeledRisks,
    near: LabeledRisks,
    limit: float,
    confidence: float,
    counts: dict[str, int],
) -> Refusal:
    wrong = float(answers.labels.mean()) if len(answers.labels) else 0.0
    both = (near.labels, near.risks)
    times = (
        times_needed(*both, max_wrong=limit, confidence=confidence) if len(near.labels) else None
    )
    return Refusal(
        **counts,
        max_wrong_shown=limit,
        confidence=confidence,
        wrong=wrong,
        least_withheld=max(0.0, (wrong - limit) / (1 - limit)),
        could_promise=least_max_wrong(*both, confidence=confidence),
        labels_needed=None if times is None else (times - 1) * counts["answers"],
    )


def keep_promise(detector: Detector, promise: Promise) -> Detector:
    """The detector with the promise's threshold: an answer of low risk is one that is shown."""
    changed = replace(detector, threshold=promise.threshold)
    return record_calibration(changed, {"promise": promise.to_dict()})


class Traffic:
    """Answers as they come, compared with those of a promise: it is made for answers like them, of
    which as many are shown, have a high risk, or have no verdict. The latest 1,000 count."""

    def __init__(self, promise: Promise, most: int | None = _MOST) -> None:
        self._promise = promise
        self._latest: deque[str] = deque(maxlen=most)
        self._counts: Counter[str] = Counter()

    def add(self, state: State, risk_level: str | None) -> None:
        kind = "none" if state != "checked" or risk_level is None else risk_level
        if self._latest.maxlen is not None:
            if len(self._latest) == self._latest.maxlen:
                self._counts[self._latest[0]] -= 1
            self._latest.append(kind)
        self._counts[kind] += 1

    def count(self, levels: Mapping[str, int]) -> None:
        """Add answers by their risk level, "none" without one."""
        self._counts.update(levels)

    @property
    def difference(self) -> str | None:
        """How these answers differ from those of the promise; None if they may be like them."""
        from scipy.stats import chi2_contingency  # slow to import

        promise, total = self._promise, self._counts.total()
        if total < _FEWEST:
            return None
        none = promise.not_familiar + promise.unchecked
        before = {"low": promise.shown, "none": none}
        before["high"] = promise.answers - promise.shown - none
        pairs = [(before[k], self._counts[k]) for k in before if before[k] + self._counts[k]]
        if len(pairs) < 2 or chi2_contingency(pairs).pvalue >= _CHANCE:
            return None
        now = {name: self._counts[name] / total for name in before}
        was = {name: count / promise.answers for name, count in before.items()}
        return (
            f"{now['low']:.0%} of these answers have a low risk and {now['none']:.0%} no verdict, "
            f"but {was['low']:.0%} and {was['none']:.0%} of those it was calibrated on"
        )


def draw_shown(answers: LabeledRisks, found: Promise | Refusal) -> Panel:
    """Share shown against share wrong, with the points that these labels allow to promise. At least
    one answer is familiar."""
    near, limit = answers.part(is_far=False), found.max_wrong_shown
    counts, wrong = shown_curve(near.labels, near.risks)
    late = counts >= _LEAST_SHARE * found.answers
    dots = []
    for other in sorted({*_OTHER_LIMITS, limit}):
        shown = choose_count(near.labels, near.risks, max_wrong=other, confidence=found.confidence)
        if shown:
            share, y = shown / found.answers, float(wrong[np.searchsorted(counts, shown)])
            tip = f"at most {other:.1%} wrong: {share:.0%} shown, {y:.1%} of these wrong"
            color = "blue" if other == limit else "green"
            dots.append(Dot(x=share, y=y, color=color, tip=tip))
    return Panel(
        title="Share shown against share wrong",
        x_label="share of the answers shown, lowest risk first",
        y_label="share wrong among those shown",
        x_range=(0.0, 1.0),
        y_range=(0.0, min(1.0, 1.1 * max(limit, *wrong[late], 0.01))),
        lines=(
            Line(x=counts[late] / found.answers, y=wrong[late], color="blue", tip="these labels"),
        ),
        guides=(Guide(x=(0, 1), y=(limit,) * 2, label=f"{limit:.1%}", label_at=(0.9, limit)),),
        dots=tuple(dots),
    )


def write_promise_page(path: Path, answers: LabeledRisks, found: Promise | Refusal) -> Path:
    """Write the page, and the same figure as figures/promise.png beside it."""
    from clew.pages.png import draw_png  # matplotlib is slow to import

    figure = draw_panel(draw_shown(answers, found))
    headline = "Cannot be promised" if isinstance(found, Refusal) else "A promise"
    section = Section(
        name="curve",
        short="Curve",
        title="Share shown against share wrong",
        lead=f"{found.text[:1].upper()}{found.text[1:]}",
        content=tag("div", figure, class_="panels"),
        reading=_READING,
        pictures={"promise": [[figure]]},
    )
    header = tag("header", tag("h1", f"{headline}: at most {found.max_wrong_shown:.1%} wrong"))
    page = wrap_page(
        title=f"clew: {headline.lower()}",
        header=header,
        sections=[section],
        footer=tag("footer", f"clew {__version__}"),
    )
    pictures = path.parent / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    replace_file(pictures / "promise.png", draw_png([[figure]], pixels=_PIXELS))
    replace_file(path, page.encode())
    return path
