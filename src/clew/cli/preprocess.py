"""clew preprocess"""

from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clew.base.texts import bytes_text, counted, for_shell
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import print_line, print_table
from clew.hallucination.workflow import preprocess

if TYPE_CHECKING:
    from clew.hallucination.samples.preprocess import PreprocessResult

COMMAND = read_command(preprocess)
# Excluded traces that are printed one by one; the manifest lists all.
_MAX_SAID = 10


def run(call: Call) -> None:
    result = call.run(preprocess)
    if call.as_json:
        call.print_json(_describe(result))
    else:
        _print_result(call, result)
    if not result.complete:
        raise typer.Exit(1)


def _describe(result: "PreprocessResult") -> dict[str, object]:
    return {
        "path": str(result.path),
        "samples": result.samples,
        "bytes": result.bytes,
        "splits": result.splits,
        "excluded": len(result.skipped),
        "refused": result.refused,
        "warnings": [with_flags(warning) for warning in result.warnings],
    }


def _print_result(call: Call, result: "PreprocessResult") -> None:
    from clew.hallucination.samples.store import is_refused

    say = partial(print_line, call.console)
    said = [skip for skip in result.skipped if not is_refused(skip)]
    for skip in said[:_MAX_SAID]:
        place = f"{skip['file']}, row {skip['record']} ({skip['question_id']})"
        say(f"excluded: {place}: {with_flags(skip['reason'])}")
    if len(said) > _MAX_SAID:
        say(f"excluded: {len(said) - _MAX_SAID:,} more; see the manifest")
    if result.refused:
        say(f"excluded: {counted(result.refused, 'answer')} that the model refused to give")
    _print_balance(call.console, result)
    excluded = f", {len(result.skipped):,} excluded" if result.skipped else ""
    already = "" if result.made else " (all already existed)"
    say(
        f"{counted(result.samples, 'sample')}{already}{excluded}, {bytes_text(result.bytes)} "
        f"in {result.out}"
    )
    for warning in result.warnings:
        say(f"warning: {with_flags(warning)}", style="bold")
    folder = for_shell([result.out])
    print_line(call.progress, f"inspect them with: clew inspect {folder}")
    print_line(
        call.progress, f"compare detection methods with: clew compare --preprocessed-dir {folder}"
    )


def _print_balance(console: Console, result: "PreprocessResult") -> None:
    rows = [
        (name, f"{sum(counts.values()):,}", *(f"{one:,}" for one in counts.values()))
        for name, counts in result.splits.items()
    ]
    heads = ("split", "samples", "correct", "hallucinated")
    print_table(console, heads, rows, numbers=range(1, 4))
