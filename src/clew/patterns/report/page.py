"""report.html: its header, its sections in reading order, and writing it."""

import logging
from importlib.resources import files
from pathlib import Path

from clew.base.errors import ClewError
from clew.base.urls import as_path
from clew.pages.markup import Html, Section, join, tag, wrap_page
from clew.pages.numbers import counted
from clew.patterns.photo_map.block import map_style
from clew.patterns.report.classes import draw_classes
from clew.patterns.report.confusion import draw_confusion
from clew.patterns.report.curves import describe_threshold, draw_confidence, draw_training
from clew.patterns.report.gallery import Looking, draw_evidence, draw_mistakes
from clew.patterns.report.headline import (
    describe_details,
    describe_headline,
    describe_network,
    draw_tiles,
)
from clew.patterns.report.origin import draw_excluded, draw_settings, draw_training_facts
from clew.patterns.report.photo_map import describe_shown, draw_photo_map, read_mapped
from clew.patterns.report.run import Run, read_run
from clew.patterns.report.unknown import describe_unknown, draw_unknown
from clew.patterns.trained.gradcam import check_maps
from clew.patterns.trained.model import load_classifier
from clew.storage.working_copy import working_copy
from clew.storage.writing import replace_file
from clew.version import __version__

REPORT_FILE = "report.html"

logger = logging.getLogger(__name__)
_NO_ANSWERS = "There are no predictions: predictions.csv is missing beside results.json."


def write_report(folder: Path, *, device: str | None = None) -> Path:
    """Write report.html, a self-contained page, and return its path, which may be at a URL.

    Raises StoreError when the folder holds no finished training or evaluation."""
    given = as_path(folder)
    with working_copy(given) as here:
        run = read_run(here)
        page = make_page(run, _load(run, device))
        # A lone surrogate, which a file name may hold, cannot be encoded: it becomes "?".
        replace_file(here / REPORT_FILE, page.encode("utf-8", errors="replace"))
    path = given / REPORT_FILE
    logger.info("wrote %s", path)
    return path


def _load(run: Run, device: str | None) -> Looking:
    """Load the model for the heat maps; without it, or without feature maps, the page says why
    there are none."""
    try:
        model = load_classifier(run.model_folder, device)
        check_maps(model)
    except ClewError as error:
        logger.warning("no heat maps in the report: %s", error)
        return Looking(fault=str(error))
    return Looking(model=model)


def make_page(run: Run, looking: Looking) -> str:
    """The whole HTML, pictures included."""
    return wrap_page(
        title=f"clew: photo classifier for {_name(run)}",
        header=_header(run),
        sections=make_sections(run, looking),
        footer=_footer(run),
        style=files("clew.patterns.report").joinpath("style.css").read_text(encoding="utf-8")
        + map_style(),
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


def make_sections(run: Run, looking: Looking) -> list[Section]:
    """All sections of the page; one with nothing to show carries the reason."""
    return [
        _confusion_section(run),
        _classes_section(run),
        _mistakes_section(run, looking),
        _evidence_section(run, looking),
        _map_section(run),
        _confidence_section(run),
        _unknown_section(run),
        _training_section(run),
        _excluded_section(run),
        _settings_section(run),
    ]


def _confusion_section(run: Run) -> Section:
    known = run.confusion is not None
    return Section(
        name="confusion",
        short="Confusion",
        title="Confusion matrix",
        lead="Every test photo by its true class and its predicted class.",
        content=draw_confusion(run) if known else join(),
        reading="Rows are true classes, columns predicted classes. Blue cells on the diagonal are "
        "correct, red ones are mistakes; the deeper the color, the larger the share of the class. "
        "With many classes, those that are confused with each other are grouped. Hover over a cell "
        "for its counts.",
    ).if_there(
        known, "There is no confusion matrix: results.json has none that matches the classes."
    )


def _classes_section(run: Run) -> Section:
    return Section(
        name="classes",
        short="Classes",
        title="Metrics by class",
        lead="A class with a low recall usually needs more photos, or contains photos of another "
        "class.",
        content=draw_classes(run),
        reading="Recall: the share of the class's test photos that are classified correctly. "
        "Precision: the share of the photos predicted as this class that belong to it. F1 is "
        "their harmonic mean. Click a column heading to sort.",
    )


def _mistakes_section(run: Run, looking: Looking) -> Section:
    none = "Every test photo was classified correctly." if run.answers else _NO_ANSWERS
    heat = (
        "Beside each photo: the evidence for the predicted class, and for the true one (Grad-CAM; "
        "brighter is stronger). "
        if looking.model
        else _describe_no_heat(looking)
    )
    return Section(
        name="mistakes",
        short="Mistakes",
        title="Mistakes, most confident first",
        lead="Check these first: where the model was confident but wrong, the photo may be in the "
        "wrong folder.",
        content=draw_mistakes(run, looking) if run.mistakes else join(),
        reading=f"{heat}The percentage is the confidence of the model.",
    ).if_there(run.mistakes, none)


def _describe_no_heat(looking: Looking) -> str:
    return f"There are no heat maps: {looking.fault} "


def _evidence_section(run: Run, looking: Looking) -> Section:
    correct = any(answer.is_correct for answer in run.answers)
    return Section(
        name="evidence",
        short="Evidence",
        title="Where the model looks",
        lead="For each class a typical correct prediction and the least confident one.",
        content=draw_evidence(run, looking) if correct else join(),
        reading="The heat should be on the object, not on its surroundings. Where it is on the "
        "background, the model may fail on photos with other backgrounds. Grad-CAM shows coarse "
        "regions, not outlines."
        if looking.model
        else _describe_no_heat(looking),
    ).if_there(correct, "No test photo was classified correctly." if run.answers else _NO_ANSWERS)


def _confidence_section(run: Run) -> Section:
    return Section(
        name="confidence",
        short="Confidence",
        title="Confidence and calibration",
        lead=describe_threshold(run) if run.answers else "",
        content=draw_confidence(run) if run.answers else join(),
        reading="Left: with a higher threshold, fewer photos get a label (coverage), and more of "
        "those labels are correct (accuracy). Right: of the photos with a confidence of 0.8, "
        "80% should be correct; points below the line are overconfident.",
    ).if_there(run.answers, _NO_ANSWERS)


def _map_section(run: Run) -> Section:
    rows, thumbnails = read_mapped(run)
    return Section(
        name="map",
        short="Map",
        title="Map of the photos",
        lead=describe_shown(run, rows) if rows else "",
        content=draw_photo_map(run, rows, thumbnails) if rows else join(),
        reading="A point inside another class is a photo that looks like that class: its label may "
        "be wrong, or the classes overlap. Hover over a point for its photo, click a name to "
        "highlight it, double-click to zoom in. Positions are by t-SNE: only who is close to whom "
        "has a meaning, neither directions nor sizes.",
    ).if_there(rows, "There is no map: map.csv is missing beside results.json.")


def _unknown_section(run: Run) -> Section:
    known = run.part("unknown")
    return Section(
        name="unknown",
        short="Unknown",
        title="Photos of none of the classes",
        lead=describe_unknown(run) if known else "",
        content=draw_unknown(run) if known else join(),
        reading="A photo is unknown if it is far from the training photos of every class. To "
        "measure that, each class is held out in turn: its test photos should be unknown, those of "
        "the others should not. This AUROC is optimistic: only the distances are without the "
        "class, while the network was trained on it. Photos of something new are harder.",
    ).if_there(
        known,
        "This run says nothing about photos of none of the classes: it has too few validation "
        "photos, is an evaluation, or was trained with an earlier version.",
    )


def _training_section(run: Run) -> Section:
    return Section(
        name="training",
        short="Training",
        title="Training curves",
        lead="By epoch; the dot is the epoch whose weights were kept.",
        content=join(draw_training(run), draw_training_facts(run)),
        reading="Training photos are augmented and mixed, and their labels smoothed: the training "
        "loss can be higher than the validation loss.",
    ).if_there(run.history, "This folder contains an evaluation: nothing was trained here.")


def _excluded_section(run: Run) -> Section:
    kinds = run.excluded_kinds
    return Section(
        name="excluded",
        short="Excluded",
        title="Excluded files",
        lead=f"{counted(sum(kinds.values()), 'file')} could not be used; nothing was deleted.",
        content=draw_excluded(run),
    ).if_there(kinds, "Every photo that was found was used.")


def _settings_section(run: Run) -> Section:
    return Section(
        name="settings",
        short="Settings",
        title="Settings and versions",
        lead="Everything needed to repeat this training run.",
        content=draw_settings(run),
    )
