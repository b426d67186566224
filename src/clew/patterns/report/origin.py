"""Where the figures come from: excluded files, how it was trained, all settings."""

import json
from typing import Any

from clew.pages.markup import Html, tag, with_settings
from clew.pages.numbers import DASH, as_dict, counted, duration, size, whole
from clew.patterns.photos.photo import Fault
from clew.patterns.report.run import Run

_MOST_FILES = 200
_SETTINGS = (
    ("plan", "Hardware plan: every choice and measurement"),
    ("augment", "Augmentation"),
    ("loss", "Loss"),
    ("train", "Optimizer and schedule"),
    ("data", "Photos"),
)


def draw_excluded(run: Run) -> Html:
    kinds = run.excluded_kinds
    counts = [tag("span", f"{kind} ", tag("b", f"{count:,}")) for kind, count in kinds.items()]
    # Rare kinds come first: thousands of one kind would hide them.
    rarest = sorted(run.excluded, key=lambda one: kinds.get(one.kind, 0))
    rows = [_excluded_row(one) for one in rarest[:_MOST_FILES]]
    head = tag("tr", *(tag("th", name) for name in ("file", "class", "what", "why")))
    table = tag("table", tag("thead", head), tag("tbody", rows), class_="plain files")
    return tag(
        "div",
        tag("p", counts, class_="facts"),
        tag("div", table, class_="scroll", tabindex="0") if rows else None,
        _describe_rest(run),
    )


def _excluded_row(one: Fault) -> Html:
    return tag(
        "tr",
        tag("td", tag("bdi", one.name)),
        tag("td", tag("bdi", one.label or DASH)),
        tag("td", one.kind),
        tag("td", one.reason),
    )


def _describe_rest(run: Run) -> Html | None:
    more = len(run.excluded) - _MOST_FILES
    if more <= 0:
        return None
    words = f"{counted(more, 'more file')}: excluded.csv beside this page has all of them."
    return tag("p", words, class_="empty")


def draw_training_facts(run: Run) -> Html:
    facts = [(name, value) for name, value in _facts(run) if value not in ("", DASH)]
    spans = [tag("span", f"{name} ", tag("b", value, dir="auto")) for name, value in facts]
    return tag("div", tag("p", spans, class_="facts"), draw_reasons(run))


def _facts(run: Run) -> list[tuple[str, str]]:
    epochs, best = run.figure("epochs_run"), run.figure("best_epoch")
    wait = run.figure("data_wait_share")
    splits = as_dict(run.part("data").get("splits"))
    return [
        ("network", _plain(run.raw.get("network"))),
        ("parameters", whole(run.figure("parameters"))),
        ("image size", f"{whole(run.figure('image_size'))} px"),
        ("photos", ", ".join(f"{name} {_plain(count)}" for name, count in splits.items())),
        (
            "epochs",
            whole(epochs) if best is None else f"{whole(epochs)} (epoch {best:.0f} was kept)",
        ),
        ("duration", duration(run.figure("seconds"))),
        ("photos per second", whole(run.figure("images_per_second"))),
        ("waiting for data", "" if wait is None else f"{100 * wait:.1f}%"),
        ("peak memory", size(run.figure("peak_memory_bytes"))),
        ("started from", _plain(run.raw.get("started_from"))),
        ("seed", _plain(run.raw.get("seed"))),
    ]


def draw_reasons(run: Run) -> Html | None:
    """The choices of the hardware plan with their reasons, as a table."""
    plan = run.part("plan")
    reasons = as_dict(plan.get("reasons"))
    rows = [
        tag(
            "tr",
            tag("th", name.replace("_", " "), scope="row"),
            tag("td", _plain(plan.get(name))),
            tag("td", with_settings(str(reason))),
        )
        for name, reason in reasons.items()
        if name in plan
    ]
    if not rows:
        return None
    head = tag("tr", *(tag("th", name) for name in ("choice", "value", "why")))
    table = tag("table", tag("thead", head), tag("tbody", rows), class_="plain plan")
    return tag("div", table, class_="scroll", tabindex="0")


def draw_settings(run: Run) -> Html:
    folds = [_fold(title, run.raw[name]) for name, title in _SETTINGS if run.raw.get(name)]
    versions = [
        tag("span", f"{name} ", tag("b", _plain(value)))
        for name, value in run.part("versions").items()
    ]
    return tag("div", folds, tag("p", versions, class_="facts") if versions else None)


def _fold(title: str, values: Any) -> Html:
    text = json.dumps(values, indent=2, ensure_ascii=False, default=str)
    return tag("details", tag("summary", title), tag("pre", text, dir="auto"))


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
