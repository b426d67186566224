"""report.html: its header, its sections in the order in which a reader asks, and writing it."""

import logging
from importlib.resources import files
from pathlib import Path

from clew.errors import ClewError
from clew.pages.figures import counted
from clew.pages.markup import Html, join, tag
from clew.pages.shell import Section, wrap_page
from clew.patterns.report.classes import draw_classes, draw_confusion
from clew.patterns.report.curves import draw_sureness, draw_training, tell_threshold
from clew.patterns.report.gallery import Looking, draw_mistakes, draw_right
from clew.patterns.report.headline import (
    describe_network,
    draw_tiles,
    tell_details,
    tell_headline,
)
from clew.patterns.report.origin import draw_excluded, draw_settings, draw_training_facts
from clew.patterns.report.run import Run, read_run
from clew.patterns.trained.gradcam import check_maps
from clew.patterns.trained.model import load_classifier
from clew.storage.writing import replace_file
from clew.version import __version__

REPORT_FILE = "report.html"

logger = logging.getLogger(__name__)
_NO_ANSWERS = "The single answers are not known: there is no predictions.csv beside results.json."


def write_report(folder: Path, *, device: str | None = None) -> Path:
    """The path of the page: one file that can be sent.

    Raises StoreError when the folder holds no finished training or evaluation."""
    run = read_run(Path(folder))
    page = make_page(run, _load(run, device))
    path = run.folder / REPORT_FILE
    # Half a surrogate pair, which a file's name may hold, has no bytes: it becomes a question mark.
    replace_file(path, page.encode("utf-8", errors="replace"))
    logger.info("wrote %s", path)
    return path


def _load(run: Run, device: str | None) -> Looking:
    """A model that has gone since, or has no feature maps, costs the heat maps alone; the page says
    so."""
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
        title=f"clew: patterns in {_name(run)}",
        header=_header(run),
        sections=make_sections(run, looking),
        footer=_footer(run),
        style=files("clew.patterns.report").joinpath("style.css").read_text(encoding="utf-8"),
    )


def _name(run: Run) -> str:
    """What was trained on; the photos of a set all lie in a folder of one name."""
    folder = run.data_folder or run.folder
    if folder.name == "photos" and (folder.parent / "set.json").is_file():
        folder = folder.parent
    return folder.name or str(folder)


def _header(run: Run) -> Html:
    photos = run.part("data").get("photos")
    told = [_name(run), describe_network(run)]
    told += [counted(photos, "photo")] if isinstance(photos, int) else []
    eyebrow = [tag("b", "clew"), tag("span", "patterns"), [tag("bdi", part) for part in told]]
    return tag(
        "header",
        tag("p", eyebrow, class_="eyebrow"),
        tag("h1", tell_headline(run), dir="auto"),
        tag("div", [tag("p", text) for text in tell_details(run)], class_="lead"),
        draw_tiles(run),
    )


def _footer(run: Run) -> Html:
    unseen = "" if run.is_seen else " that took no part in training; nothing was chosen on them"
    figures = (
        f"Figures: clew {__version__}, {describe_network(run)}, on "
        f"{counted(run.test_photos, 'photo')} of {_name(run)}{unseen}."
    )
    files_told = (
        "All figures are in results.json beside this page, every test photo's answer in "
        "predictions.csv, what was left out in excluded.csv."
    )
    return tag("footer", tag("p", tag("b", "To cite: "), figures), tag("p", files_told))


def make_sections(run: Run, looking: Looking) -> list[Section]:
    """All of them; one that has nothing to show says why."""
    return [
        _confusion_section(run),
        _classes_section(run),
        _mistakes_section(run, looking),
        _right_section(run, looking),
        _sureness_section(run),
        _training_section(run),
        _excluded_section(run),
        _settings_section(run),
    ]


def _confusion_section(run: Run) -> Section:
    known = run.confusion is not None
    return Section(
        name="confusion",
        short="Confusion",
        title="What is taken for what",
        lead="Every test photo: its true class across from what the model said.",
        content=draw_confusion(run) if known else join(),
        reading="Rows are true classes, columns what was said; a row's photos add up to its class. "
        "Blue cells on the diagonal are right, red ones are mistakes; the deeper, the larger the "
        "share of the row. Point at a cell for its numbers.",
    ).if_there(known, "The confusion matrix is not known: results.json has none that fits.")


def _classes_section(run: Run) -> Section:
    return Section(
        name="classes",
        short="Classes",
        title="Class by class",
        lead="A class that is seldom recognized usually needs more photos, or has some that belong "
        "elsewhere.",
        content=draw_classes(run),
        reading="Recognised: of the class's own test photos (recall). Trusted: of all photos that "
        "were taken for it (precision). F1 joins both. Click a heading to sort.",
    )


def _mistakes_section(run: Run, looking: Looking) -> Section:
    none = "Every test photo was recognized." if run.answers else _NO_ANSWERS
    heat = (
        "Beside each photo: what spoke for the class that was said, and what would have spoken for "
        "the true one (Grad-CAM; brighter is more). "
        if looking.model
        else _tell_no_heat(looking)
    )
    return Section(
        name="mistakes",
        short="Mistakes",
        title="The mistakes, the surest first",
        lead="Where the model was sure and wrong, look twice: some photos lie in the wrong folder.",
        content=draw_mistakes(run, looking) if run.mistakes else join(),
        reading=f"{heat}The percentage is how sure the model was.",
    ).if_there(run.mistakes, none)


def _tell_no_heat(looking: Looking) -> str:
    return f"There are no heat maps: {looking.fault} "


def _right_section(run: Run, looking: Looking) -> Section:
    right = any(answer.is_right for answer in run.answers)
    return Section(
        name="right",
        short="What it looks at",
        title="What it looks at when it is right",
        lead="Of each class a typical test photo and the one that was least sure.",
        content=draw_right(run, looking) if right else join(),
        reading="The heat should lie on the thing, not on the table it stands on. Where it lies on "
        "the background, the model may fail on photos from elsewhere. Grad-CAM shows coarse "
        "places, not outlines."
        if looking.model
        else _tell_no_heat(looking),
    ).if_there(right, "No test photo was recognized." if run.answers else _NO_ANSWERS)


def _sureness_section(run: Run) -> Section:
    return Section(
        name="sureness",
        short="Sureness",
        title="What its sureness is worth",
        lead=tell_threshold(run) if run.answers else "",
        content=draw_sureness(run) if run.answers else join(),
        reading="Left: the higher the threshold, the fewer photos are named, and the more of these "
        "rightly. Right: of the photos that were called with, say, 0.8, eight of ten should be "
        "right; points below the line are too sure of themselves.",
    ).if_there(run.answers, _NO_ANSWERS)


def _training_section(run: Run) -> Section:
    return Section(
        name="training",
        short="Training",
        title="How it learnt",
        lead="Epoch by epoch; the dot is the epoch whose weights were kept.",
        content=join(draw_training(run), draw_training_facts(run)),
        reading="Training photos are augmented, mixed and their labels smoothed, so that their "
        "loss is higher than that of validation even when all is well.",
    ).if_there(run.history, "This folder holds an evaluation: nothing was trained here.")


def _excluded_section(run: Run) -> Section:
    kinds = run.excluded_kinds
    return Section(
        name="excluded",
        short="Left out",
        title="What was left out, and why",
        lead=f"{counted(sum(kinds.values()), 'file')} took no part. Nothing was deleted or moved.",
        content=draw_excluded(run),
    ).if_there(kinds, "Nothing: every photo that was found took part.")


def _settings_section(run: Run) -> Section:
    return Section(
        name="settings",
        short="Settings",
        title="Settings and versions",
        lead="All that is needed to do it again.",
        content=draw_settings(run),
    )
