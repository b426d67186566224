"""clew patterns identify, recognize, review, serve and export: a trained classifier in use."""

import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.texts import bytes_text, counted, for_shell, for_terminal, whole_percent
from clew.cli.commands import Call, read_command
from clew.cli.errors import call_text, with_flags
from clew.cli.printing import PlainTable, make_table, print_line
from clew.cli.renderer import Renderer
from clew.cli.serve import check_web, open_browser, run_api
from clew.cli.signals import exit_interrupted
from clew.patterns.workflow import export, identify, recognize, review_photos, serve

if TYPE_CHECKING:
    from clew.patterns.identification.identify import IdentifyResult
    from clew.patterns.identification.recognize import Recognition
    from clew.patterns.identification.results import Identified, IdentifyConfig
    from clew.patterns.library.choose import Chosen
    from clew.patterns.review import Review, ReviewConfig
    from clew.patterns.trained.export import ExportedModel


_IDENTIFY = read_command(identify, "patterns identify")
_FEW_PHOTOS = 20


def _run_identify(call: Call) -> None:
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review import ReviewConfig

    wished = {name: call.settings[name] for name in ("review", "web")}
    check_web(wished["web"])
    # the review runs below, at the terminal
    settings = {**call.settings, "review": False, "web": False}
    with Renderer(call.progress) as reporter:
        result = identify(**settings, reporter=reporter)
    if call.as_json:
        call.print_json(describe_identification(result))
        return
    print_result(call.console, call.progress, result)
    if not result.counts["doubtful"]:
        return
    names = ("model", "name", "library")
    chosen = choose_model(**{name: call.settings[name] for name in names})
    if any(wished.values()):
        call.console.print()
        config = ReviewConfig(identified=result.folder)
        run_review(call.console, chosen, config, web=wished["web"])
    else:
        say_how_to_review(call.progress, chosen, call.settings["out"])


def say_how_to_review(console: Console, chosen: "Chosen", out: Path | None = None) -> None:
    """Print the command that reviews the doubtful photos. `out` is the folder of the results, if it
    is not the default."""
    from clew.patterns.review.session import ReviewConfig, call_to_review

    review = call_to_review(chosen, ReviewConfig(identified=out))
    print_line(console, f"review doubtful photos with: {call_text(review)}")


def identify_and_print(
    console: Console, progress: Console, config: "IdentifyConfig"
) -> "IdentifyResult":
    """Identify photos and print the result, as a step of `clew patterns flow`."""
    from clew.patterns.identification.identify import identify_photos

    with Renderer(progress) as reporter:
        result = identify_photos(config, reporter)
    print_result(console, progress, result)
    return result


def describe_identification(result: "IdentifyResult") -> dict[str, object]:
    return {
        "folder": str(result.folder),
        "counts": result.counts,
        "classes": dict(result.class_counts),
        "photos": result.table.to_pylist(),
        "notes": [with_flags(note) for note in result.notes],
    }


def print_result(console: Console, progress: Console, result: "IdentifyResult") -> None:
    from clew.patterns.identification.page import describe_counts
    from clew.patterns.identification.results import read_identified

    console.print(describe_counts(result.counts), style="bold")
    if result.counts["photos"] <= _FEW_PHOTOS:
        _print_photos(console, "photo", read_identified(result.list_file).photos)
    else:
        _print_classes(console, result)
        _print_some(console, "doubtful", result.doubtful, result.counts["doubtful"])
        _print_some(console, "unreadable", result.faulty, result.counts["faulty"])
    for note in result.notes:
        print_line(progress, f"note: {with_flags(note)}")
    _print_places(progress, result)


def _print_classes(console: Console, result: "IdentifyResult") -> None:
    table = make_table("class", "photos")
    for label, count in result.class_counts:
        table.add_row(for_terminal(label), f"{count:,}")
    console.print(table)
    console.print()


def _print_some(console: Console, title: str, photos: "tuple[Identified, ...]", count: int) -> None:
    if not photos:
        return
    _print_photos(console, title, photos)
    if count > len(photos):
        console.print(f"... and {count - len(photos):,} more (see identified.csv)")
    console.print()


def _print_photos(console: Console, title: str, photos: "tuple[Identified, ...]") -> None:
    table = make_table()
    for heading in (title, "", ""):
        table.add_column(heading, overflow="fold")
    for photo in photos:
        first, others = _tell(photo)
        if photo.unknown:
            first += " (unknown)"
        elif photo.doubtful and title != "doubtful":
            first += " (doubtful)"
        table.add_row(*(for_terminal(text) for text in (photo.name, first, others)))
    console.print(table)


def _tell(photo: "Identified") -> tuple[str, str]:
    """The photo's class and its alternatives, or why it cannot be read."""
    if photo.fault is not None:
        return "unreadable", photo.fault.reason
    told = [f"{label} {whole_percent(chance)}" for label, chance in photo.best]
    return told[0], ", ".join(told[1:])


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


_RECOGNIZE = read_command(recognize, "patterns recognize")
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
    table = PlainTable(show_header=False)
    for label, chance in found.best:
        bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * round(_BAR * chance)
        table.add_row(for_terminal(label), whole_percent(chance), bar)
    console.print(table)
    if found.is_unknown:
        print_line(console, "unknown: none of these classes; the photo is unlike all of them")
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


_REVIEW = read_command(review_photos, "patterns review")


def _run_review(call: Call) -> None:
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review import ReviewConfig

    settings = dict(call.settings)
    check_web(settings["web"])
    which = {name: settings.pop(name) for name in ("name", "model", "library")}
    asked = {name: settings.pop(name) for name in ("identified", "data", "every", "move")}
    run_review(call.console, choose_model(**which), ReviewConfig(**asked), **settings)


def run_review(
    console: Console,
    chosen: "Chosen",
    config: "ReviewConfig",
    *,
    web: bool = False,
    port: int = 0,
    browser: bool = True,
) -> None:
    """Review what was identified, in the terminal or the browser, then print the next command."""
    from clew.patterns.review import open_review

    with open_review(chosen, config) as opened:
        _print_queue(console, opened)
        if not opened.queue.questions:
            return
        try:
            if web:
                _serve(console, opened, port, browser)
            else:
                _ask(console, opened)
        except KeyboardInterrupt as interrupt:
            if getattr(interrupt, "number", signal.SIGINT) != signal.SIGINT:
                raise exit_interrupted(interrupt) from None
        finally:
            _print_end(console, opened, web=web)


def _ask(console: Console, opened: "Review") -> None:
    from clew.patterns.review.terminal import Dialogue, open_keys

    keys = open_keys(sys.stdin, lambda prompt: print_line(console, prompt))
    Dialogue(console, opened, keys).run()


def _serve(console: Console, opened: "Review", port: int, browser: bool) -> None:
    from clew.patterns.review.app import open_page

    with open_page(opened, port, call_text) as server:
        print_line(console, f"review page: {server.address}")
        print_line(console, "finish there or press Ctrl-C here; your decisions are saved")
        open_browser(console, server.address, wanted=browser)
        server.run()


def _print_queue(console: Console, opened: "Review") -> None:
    from clew.patterns.review.session import name_some

    queue = opened.queue
    photos = counted(len(queue.questions), "photo")
    print_line(console, f"{photos} to review, from {queue.source}")
    before = [
        f"{queue.decided:,} reviewed" if queue.decided else "",
        f"{queue.skipped:,} skipped (--all includes them)" if queue.skipped else "",
    ]
    if any(before):
        print_line(console, f"in earlier reviews: {', '.join(filter(None, before))}")
    if queue.gone:
        print_line(console, f"no longer found: {len(queue.gone):,} ({name_some(queue.gone)})")
    if queue.faulty:
        print_line(console, f"{len(queue.faulty):,} could not be opened: {name_some(queue.faulty)}")
    if queue.sure:
        print_line(
            console,
            f"{counted(queue.sure, 'confident prediction')} not shown (--all includes them)",
        )


def _print_end(console: Console, opened: "Review", *, web: bool) -> None:
    from clew.patterns.review.session import describe_new_classes

    counts = opened.counts()
    told = [f"{counts[name]:,} {name}" for name in ("approved", "corrected", "skipped")]
    left = len(opened.queue.questions) - opened.place
    again = f"{call_text(opened.again_call)}{' --web' if web else ''}"
    rest = f"; {left:,} left, continue with: {again}" if left else ""
    console.print("")
    print_line(console, f"{', '.join(told)}{rest}")
    if opened.new_classes():
        print_line(console, describe_new_classes(opened.new_classes()))
    if counts["approved"] or counts["corrected"]:
        print_line(console, f"the photos are in {opened.folder}")
        print_line(
            console, f"train again from the last weights with: {call_text(opened.next_call)}"
        )


_SERVE = read_command(serve, "patterns serve")


def _run_serve(call: Call) -> None:
    run_api(call, serve)


_EXPORT = read_command(export, "patterns export")


def _run_export(call: Call) -> None:
    with call.progress.status("exporting and comparing predictions ..."):
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


COMMANDS = (
    (_IDENTIFY, _run_identify),
    (_RECOGNIZE, _run_recognize),
    (_REVIEW, _run_review),
    (_SERVE, _run_serve),
    (_EXPORT, _run_export),
)
