"""clew patterns create, import, list and info: named sets of photos."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from clew.base.terminal import TextConsole
from clew.base.texts import bytes_text, counted, for_shell, for_terminal, tenth_percent
from clew.cli.commands import Call
from clew.cli.errors import error_text
from clew.cli.printing import print_line, print_table
from clew.cli.renderer import Renderer
from clew.cli.signals import how_to_resume, stop_on_signal
from clew.patterns.settings import LIBRARY
from clew.patterns.workflow import create_set, describe_set, import_photos, list_sets

if TYPE_CHECKING:
    from clew.patterns.library.importing import ImportResult
    from clew.patterns.library.pattern_set import PatternSet, RunSummary, SetSummary


def command_text(command: str, *words: object, library: Path = LIBRARY) -> str:
    """The shell command `clew patterns COMMAND WORDS`, with --library if it is not the default."""
    where = [] if library == LIBRARY else ["--library", library]
    return for_shell(["clew", "patterns", command, *words, *where])


def _run_create(call: Call) -> None:
    created = create_set(**call.settings)
    import_them = command_text("import", created.name, "DIR", library=created.library)
    all_at_once = command_text("flow", created.name, "--from", "DIR", library=created.library)
    print_line(call.console, f'created the set "{created.name}" in {created.folder}')
    print_line(call.progress, f"next, import a folder with one subfolder per class: {import_them}")
    print_line(call.progress, f"or run all steps at once: {all_at_once}")


_MOST_NAMED = 10
_RESULTS = ("added", "already there", "excluded")


def _run_import(call: Call) -> None:
    from clew.patterns.library.pattern_set import PatternSet

    pattern_set = PatternSet.open(call.settings["name"], Path(call.settings["library"]))
    options = {name: call.settings[name] for name in ("label", "move")}
    result = import_and_print(
        call.progress,
        pattern_set,
        call.settings["sources"],
        results=None if call.as_json else call.console,
        **options,
    )
    if call.as_json:
        call.print_json(_describe(result))
        return
    say_next(call.progress, pattern_set)


def import_and_print(
    console: Console,
    pattern_set: "PatternSet",
    sources: Sequence[Path],
    *,
    results: Console | None,
    label: str | None = None,
    move: bool = False,
) -> "ImportResult":
    """Import, and print the result; also a step of `clew patterns flow`."""
    with (
        stop_on_signal(console, "finishing the current photo", resume=how_to_resume()) as stop,
        Renderer(console) as reporter,
    ):
        result = import_photos(
            pattern_set, sources, label=label, move=move, reporter=reporter, should_stop=stop
        )
    if results is not None:
        _print_result(results, result)
    if not result.is_finished:
        print_line(console, f"stopped.{how_to_resume()}")
        raise stop.exit()
    return result


def say_next(console: Console, pattern_set: "PatternSet") -> None:
    from clew.patterns.library.pattern_set import summarize_set

    print_line(console, next_step(summarize_set(pattern_set), pattern_set.library))


def _describe(result: "ImportResult") -> dict[str, object]:
    counts = {name: dict(result.count(name)) for name in _RESULTS}
    return {**counts, "other_files": result.other_files, "listing": str(result.listing)}


def _print_result(console: Console, result: "ImportResult") -> None:
    from clew.patterns.photos.photo import natural_order

    counts, excluded = [result.count(name) for name in _RESULTS], result.excluded
    rows = [
        (label or "(no class)", *(f"{count[label]:,}" for count in counts))
        for label in sorted(set().union(*counts), key=natural_order)
    ]
    if len(rows) > 1:
        rows.append(("all", *(f"{count.total():,}" for count in counts)))
    print_table(console, ("class", *_RESULTS), rows, numbers=range(1, 4))
    for source in excluded[:_MOST_NAMED]:
        print_line(console, f"excluded: {source.source}: {source.kind}, {source.reason}")
    if len(excluded) > _MOST_NAMED:
        kinds = Counter(source.kind for source in excluded).most_common()
        shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        print_line(console, f"... {len(excluded):,} in total: {shown}")
    if result.other_files:
        files = counted(result.other_files, "file")
        print_line(console, f"ignored {files} without an image extension (.jpg, .png, ...)")
    print_line(console, f"result for every file: {result.listing}")


def _run_list(call: Call) -> None:
    from clew.patterns.library.pattern_set import summarize_library

    library = Path(call.settings["library"])
    summaries, damaged = summarize_library(library)
    for error in damaged:
        print_line(TextConsole(stderr=True), f"clew: {error_text(error)}")
    if call.as_json:
        call.print_json([asdict(one) for one in summaries])
        return
    if not summaries and not damaged:
        create = command_text("create", "NAME", library=library)
        print_line(call.console, f"no sets in {library} yet. Create one: {create}")
        return
    rows = []
    for one in summaries:
        trained = one.model.finished[:10] if one.model and one.model.finished else "-"
        counts = (f"{len(one.classes):,}", f"{one.photos:,}")
        rows.append((one.name, *counts, accuracy_text(one.model), trained))
    heads = ("set", "classes", "photos", "test accuracy (95% CI)", "trained")
    print_table(call.console, heads, rows, numbers=range(1, 5))


_LAST_RUNS = 5


def _run_info(call: Call) -> None:
    summary = describe_set(**call.settings)
    if call.as_json:
        call.print_json(asdict(summary))
        return
    _print_classes(call.console, summary)
    _print_runs(call.console, summary)
    _print_places(call.console, summary)
    print_line(call.progress, next_step(summary, Path(call.settings["library"])))


def next_step(summary: "SetSummary", library: Path) -> str:
    """The line that ends most commands: what to do with the set now."""
    more = command_text("import", summary.name, "DIR", library=library)
    train = command_text("train", summary.name, library=library)
    small = summary.small_classes()
    if not summary.photos:
        return f"next, add photos: {more}"
    if len(summary.classes) < 2:
        return f"next, add photos of a second class: {more}"
    if small:
        names = ", ".join(f'"{label}"' for label in small[:10])
        return f"next, add photos of {names} (at least 3 per class): {more}"
    if not summary.runs:
        return f"next, train the classifier: {train}"
    if not summary.runs[-1].is_finished:
        return f"next, resume training: run the same command again, or {train}"
    if summary.change:
        return f"next, train again from the last weights: {train}"
    identify = command_text("identify", "FOLDER", "--name", summary.name, library=library)
    return f"next, identify new photos: {identify}"


def accuracy_text(run: "RunSummary | None") -> str:
    """The test accuracy with its confidence interval, as far as it is known."""
    if run is None or run.test_accuracy is None:
        return "-"
    if run.test_accuracy_ci is None:
        return tenth_percent(run.test_accuracy)
    shown, low, high = map(tenth_percent, (run.test_accuracy, *run.test_accuracy_ci))
    return f"{shown} ({low} to {high})"


def _print_classes(console: Console, summary: "SetSummary") -> None:
    what = f"{counted(len(summary.classes), 'class', 'classes')}, "
    what += f"{counted(summary.photos, 'photo')} ({bytes_text(summary.bytes)})"
    name = for_terminal(summary.name)
    title = Text.assemble((name, "bold"), f": {what}, created {for_terminal(summary.created[:10])}")
    console.print(title)
    classes = [(label, f"{photos:,}") for label, photos in summary.classes.items()]
    print_table(console, ("class", "photos"), classes, numbers=(1,))
    console.print()


def _print_runs(console: Console, summary: "SetSummary") -> None:
    rows = []
    for run in summary.runs[-_LAST_RUNS:]:
        photos = "-" if run.photos is None else f"{run.photos:,}"
        ended = run.finished[:16].replace("T", " ") if run.finished else "not finished"
        rows.append((run.folder.name, ended, photos, accuracy_text(run)))
    heads = ("run", "ended", "photos", "test accuracy (95% CI)")
    print_table(console, heads, rows, numbers=range(1, 4))
    if rows:
        if len(summary.runs) > _LAST_RUNS:
            console.print(f"(and {len(summary.runs) - _LAST_RUNS:,} earlier)")
        console.print()


def _print_places(console: Console, summary: "SetSummary") -> None:
    places = {"photos": summary.folder / "photos", "imports": summary.folder / "import.csv"}
    if summary.model is not None:
        places["model"] = summary.model.folder
        places["report"] = summary.model.folder / "report.html"
    places["identified"] = summary.folder / "identified"
    for what, path in places.items():
        if path.exists():
            print_line(console, f"{what + ':':<12}{path}")
    if summary.change:
        new, gone = summary.change.new, summary.change.gone
        removed = f", {gone:,} removed" if gone else ""
        print_line(console, f"since the last training run: {counted(new, 'new photo')}{removed}")


COMMANDS = {
    "create": (create_set, _run_create),
    "import": (import_photos, _run_import),
    "list": (list_sets, _run_list),
    "info": (describe_set, _run_info),
}
