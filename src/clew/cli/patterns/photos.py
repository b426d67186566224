"""clew patterns identify, recognize, serve and export: a trained classifier in use."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.commands import select
from clew.base.texts import bytes_text, counted, for_shell, whole_percent
from clew.cli.commands import Call
from clew.cli.errors import with_flags
from clew.cli.patterns.review import review_and_print, say_how_to_review
from clew.cli.printing import print_line, print_table
from clew.cli.progress import working
from clew.cli.serve import check_web, run_api
from clew.patterns.settings import ReviewSettings
from clew.patterns.workflow import export, identify, recognize, serve

if TYPE_CHECKING:
    from clew.patterns.identification.identify import IdentifyResult
    from clew.patterns.identification.recognize import Recognition
    from clew.patterns.identification.results import Identified
    from clew.patterns.trained.export import ExportedModel


_FEW_PHOTOS = 20
_UNKNOWN_MEANS = (
    "unknown: unlike the training photos of every class; the percentage only says which of the "
    "known classes comes closest"
)


def _run_identify(call: Call) -> None:
    given = select(ReviewSettings, SimpleNamespace(**call.settings))
    is_reviewed = call.settings["review"] or given.web
    check_web(given.web)
    # the review runs below, at the terminal
    result = call.run(identify, review=False, web=False)
    if call.as_json:
        call.print_json(describe_identification(result))
        return
    print_identified(call.console, call.progress, result)
    if result.counts["doubtful"] and is_reviewed:
        call.console.print()
        review_and_print(call.console, replace(given, identified=result.folder))
    elif result.counts["doubtful"]:
        say_how_to_review(call.progress, replace(given, identified=call.settings["out"]))


def describe_identification(result: "IdentifyResult") -> dict[str, object]:
    return {
        "folder": str(result.folder),
        "counts": result.counts,
        "classes": dict(result.class_counts),
        "photos": result.table.to_pylist(),
        "notes": [with_flags(note) for note in result.notes],
    }


def print_identified(console: Console, progress: Console, result: "IdentifyResult") -> None:
    from clew.patterns.identification.page import describe_counts
    from clew.patterns.identification.results import read_identified

    console.print(describe_counts(result.counts), style="bold")
    if result.counts["photos"] <= _FEW_PHOTOS:
        _print_photos(console, "photo", read_identified(result.list_file).photos)
    else:
        rows = [(label, f"{count:,}") for label, count in result.class_counts]
        print_table(console, ("class", "photos"), rows, numbers=(1,))
        console.print()
        _print_some(console, "doubtful", result.doubtful, result.counts["doubtful"])
        _print_some(console, "unreadable", result.faulty, result.counts["faulty"])
    for note in result.notes:
        print_line(progress, f"note: {with_flags(note)}")
    _print_places(progress, result)


def _print_some(console: Console, title: str, photos: "tuple[Identified, ...]", count: int) -> None:
    if not photos:
        return
    _print_photos(console, title, photos)
    if count > len(photos):
        console.print(f"... and {count - len(photos):,} more (see identified.csv)")
    console.print()


def _print_photos(console: Console, title: str, photos: "tuple[Identified, ...]") -> None:
    rows = []
    for photo in photos:
        first, others = "unreadable", photo.fault.reason if photo.fault else ""
        if photo.best:
            first, *rest = [f"{label} {whole_percent(chance)}" for label, chance in photo.best]
            others = ", ".join(rest)
        if photo.unknown:
            first += " (unknown)"
        elif photo.doubtful and title != "doubtful":
            first += " (doubtful)"
        rows.append((photo.name, first, others))
    print_table(console, (title, "", ""), rows)
    if any(photo.unknown for photo in photos):
        print_line(console, _UNKNOWN_MEANS)


def _print_places(console: Console, result: "IdentifyResult") -> None:
    print_line(console, f"page: {result.page}")
    if result.sheets:
        more = f" and {len(result.sheets) - 1} more beside it" if len(result.sheets) > 1 else ""
        print_line(console, f"contact sheet: {result.sheets[0]}{more}")
    print_line(console, f"lists: {result.list_file} and {result.list_file.with_suffix('.csv')}")
    if (copies := result.copies) is not None:
        there = f", {copies.already_there:,} already there" if copies.already_there else ""
        copied = f"{counted(copies.copied, 'photo')} copied to {copies.folder}{there}"
        unknown = result.counts["unknown"]
        unsure = {
            "doubtful": (copies.doubtful, result.counts["doubtful"] - unknown),
            "unknown": (copies.unknown, unknown),
        }
        where = [
            f"; {name} photos are in {folder}" for name, (folder, count) in unsure.items() if count
        ]
        print_line(console, f"{copied}{''.join(where)}")


_BAR = 24


def _run_recognize(call: Call) -> None:
    found = recognize(**call.settings)
    if call.as_json:
        from clew.patterns.library.choose import choose_model

        which = {name: call.settings[name] for name in ("model", "name", "library")}
        call.print_json(
            {
                **found.to_record(),
                "model": str(choose_model(**which).model),
                "threshold": found.threshold,
                "doubtful": found.is_doubtful,
            }
        )
        return
    _print(call.console, found)


def _print(console: Console, found: "Recognition") -> None:
    print_line(console, f"{found.path} ({found.width:,} x {found.height:,} pixels)")
    bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"
    rows = ((one, whole_percent(chance), bar * round(_BAR * chance)) for one, chance in found.best)
    print_table(console, ("", "", ""), rows)
    if found.is_unknown:
        print_line(console, _UNKNOWN_MEANS)
    elif found.is_doubtful:
        limit = whole_percent(found.threshold)
        print_line(console, f"doubtful: no class reaches a confidence of {limit}")
    if found.best_view is not None:
        print_line(console, _describe_window(found))


def _describe_window(found: "Recognition") -> str:
    best = found.best_view
    assert best is not None
    box = best.box
    where = f"from ({box.left}, {box.top}) to ({box.right}, {box.bottom})"
    if (box.right - box.left, box.bottom - box.top) == (found.width, found.height):
        where = "in the whole photo"
    chance = whole_percent(best.probability)
    return f"most confident: {best.label} ({chance}) {where}, out of {found.views} windows"


def _run_export(call: Call) -> None:
    with working(call.progress, "exporting the network, and comparing its predictions"):
        exported = export(**call.settings)
    if call.as_json:
        call.print_json(asdict(exported))
    else:
        _print_export(call.console, exported)


def _print_export(console: Console, exported: "ExportedModel") -> None:
    from clew.patterns.trained.export import INPUT, OUTPUT, PROGRAM_SUFFIX, TYPICALITY

    size, classes = exported.image_size, exported.classes
    runtime = "torch.export" if exported.path.suffix == PROGRAM_SUFFIX else "onnxruntime"
    images = "photos" if exported.with_photos else "random images (no photo was found)"
    unknown = f'          "{TYPICALITY}", float32 [batch]: below 0.05, none of the classes'
    lines = (
        f"{exported.path} ({bytes_text(exported.bytes)})",
        f'input:    "{INPUT}", uint8 [batch, {size}, {size}, 3]: RGB photos resized to '
        f"{size} x {size}",
        f'output:   "{OUTPUT}", float32 [batch, {len(classes)}], in this order: '
        f"{_list_classes(classes)}",
        *([unknown] if exported.has_typicality else []),
        "metadata: classes, input, scaling and calibration (both are inside the model)",
        f"checked:  {runtime} returns the same probabilities for {exported.checked} {images}, "
        f"within {exported.difference:.0e}",
    )
    for line in lines:
        print_line(console, line)
    if exported.page is not None:
        _print_page(console, exported.page.parent)


def _print_page(console: Console, folder: Path) -> None:
    words = ("python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", folder, 8000)
    serve = for_shell(words)
    print_line(console, f"page:     {folder}, for any web server; try it with:")
    print_line(console, f"          {serve}")
    print_line(console, "          and open http://127.0.0.1:8000")


def _list_classes(classes: tuple[str, ...]) -> str:
    names = ", ".join(classes[:6])
    return names if len(classes) <= 6 else f"{names}, ... ({len(classes)} in total)"


COMMANDS = {
    "identify": (identify, _run_identify),
    "recognize": (recognize, _run_recognize),
    "serve": (serve, partial(run_api, serve=serve)),
    "export": (export, _run_export),
}
