"""report.html of a training or an evaluation: its header, its sections, and writing it. Nothing is
fitted here."""

import logging
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from clew.base.errors import ClewError
from clew.base.urls import as_path
from clew.pages.markup import Html, Section, join, make_section, tag, wrap_page
from clew.pages.numbers import counted
from clew.patterns.photo_map.block import map_style
from clew.patterns.report.figures import (
    describe_threshold,
    draw_confidence,
    draw_confusion,
    draw_training,
)
from clew.patterns.report.gallery import describe_shown, draw_evidence, draw_mistakes, draw_run_map
from clew.patterns.report.results import (
    Run,
    describe_details,
    describe_headline,
    describe_network,
    draw_tiles,
    read_run,
)
from clew.patterns.report.tables import (
    describe_unknown,
    draw_classes,
    draw_excluded,
    draw_settings,
    draw_training_facts,
    draw_unknown,
)
from clew.patterns.trained.model import PatternModel, check_maps, load_classifier
from clew.patterns.trained.tables import read_map
from clew.storage.working_copy import working_copy
from clew.storage.writing import replace_file
from clew.version import __version__

REPORT_FILE = "report.html"

logger = logging.getLogger(__name__)
_NO_ANSWERS = "There are no predictions: predictions.csv is missing beside results.json."
_HEAT_OF_MISTAKES = (
    "Beside each photo: the evidence for the predicted class, and for the true one (Grad-CAM; "
    "brighter is stronger). "
)
_HEAT_OF_EVIDENCE = (
    "The heat should be on the object, not on its surroundings. Where it is on the background, the "
    "model may fail on photos with other backgrounds. Grad-CAM shows coarse regions, not outlines."
)


def write_report(folder: Path, *, device: str | None = None) -> Path:
    """Write report.html, a self-contained page, and return its path, which may be at a URL.

    Raises StoreError when the folder holds no finished training or evaluation."""
    given = as_path(folder)
    with working_copy(given) as here:
        page = _make_page(read_run(here), device)
        # A lone surrogate, which a file name may hold, cannot be encoded: it becomes "?".
        replace_file(here / REPORT_FILE, page.encode("utf-8", errors="replace"))
    path = given / REPORT_FILE
    logger.info("wrote %s", path)
    return path


def _make_page(run: Run, device: str | None) -> str:
    """The whole HTML, pictures included. Without the model, or its feature maps, the page says why
    there are no heat maps."""
    model, fault = None, ""
    try:
        loaded = load_classifier(run.model_folder, device)
        check_maps(loaded)
        model = loaded
    except ClewError as error:
        logger.warning("no heat maps in the report: %s", error)
        fault = f"There are no heat maps: {error} "
    return wrap_page(
        title=f"clew: photo classifier for {_name(run)}",
        header=_header(run),
        sections=_make_sections(run, model, fault),
        footer=_footer(run),
        style=files("clew.patterns.report").joinpath("style.css").read_text("utf-8") + map_style(),
    )


def _name(run: Run) -> str:
    """The name of the training data; for a set of the library, the name of the set."""
    folder = run.data_folder or run.folder
    if folder.name == "photos" and (folder.parent / "set.json").is_file():
        folder = folder.parent
    return folder.name or str(folder)


def _header(run: Run) -> Html:
    photos = run.part("data").get("photos")
    parts = [_name(run), describe_network(run)]
    parts += [counted(photos, "photo")] if isinstance(photos, int) else []
    eyebrow = [
        tag("b", "clew"),
        tag("span", "photo classifier"),
        [tag("bdi", part) for part in parts],
    ]
    return tag(
        "header",
        tag("p", eyebrow, class_="eyebrow"),
        tag("h1", describe_headline(run), dir="auto"),
        tag("div", [tag("p", text) for text in describe_details(run)], class_="lead"),
        draw_tiles(run),
    )


def _footer(run: Run) -> Html:
    unseen = "" if run.is_seen else " that the model was not trained on; nothing was tuned on them"
    figures = (
        f"clew {__version__}, {describe_network(run)}, on "
        f"{counted(run.test_photos, 'photo')} of {_name(run)}{unseen}."
    )
    files_text = (
        "All metrics are in results.json beside this page, the predictions for all test photos in "
        "predictions.csv, the excluded files in excluded.csv."
    )
    return tag("footer", tag("p", tag("b", "Cite as: "), figures), tag("p", files_text))


def _make_sections(run: Run, model: PatternModel | None, fault: str) -> list[Section]:
    """All sections of the page; one with nothing to show carries the reason."""
    mapped, thumbnails = read_map(run.folder)
    correct = any(answer.is_correct for answer in run.answers)
    # What each section shows, in reading order, and whether there is anything.
    figures: dict[str, tuple[Callable[[], Html], object]] = {
        "confusion": (partial(draw_confusion, run), run.confusion is not None),
        "classes": (partial(draw_classes, run), True),
        "mistakes": (partial(draw_mistakes, run, model), run.mistakes),
        "evidence": (partial(draw_evidence, run, model), correct),
        "map": (partial(draw_run_map, run, mapped, thumbnails), mapped),
        "confidence": (partial(draw_confidence, run), run.answers),
        "unknown": (partial(draw_unknown, run), run.part("unknown")),
        "training": (lambda: join(draw_training(run), draw_training_facts(run)), run.history),
        "excluded": (partial(draw_excluded, run), run.excluded_kinds),
        "settings": (partial(draw_settings, run), True),
    }
    words: dict[str, Any] = {
        "heat_of_mistakes": fault or _HEAT_OF_MISTAKES,
        "heat_of_evidence": fault or _HEAT_OF_EVIDENCE,
        "no_answers": _NO_ANSWERS,
        "no_mistakes": "Every test photo was classified correctly." if run.answers else _NO_ANSWERS,
        "no_evidence": "No test photo was classified correctly." if run.answers else _NO_ANSWERS,
        "on_the_map": describe_shown(run, mapped),
        "threshold": describe_threshold(run) if run.answers else "",
        "unknown": describe_unknown(run),
        "excluded": counted(sum(run.excluded_kinds.values()), "file"),
    }
    return [
        make_section(
            "clew.patterns.report", name, draw() if shown else join(), figure=shown, **words
        )
        for name, (draw, shown) in figures.items()
    ]
