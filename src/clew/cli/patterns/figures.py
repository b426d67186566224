"""What a model reached on photos, as `train` and `evaluate` print it."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew.cli.errors import error_text
from clew.cli.printing import make_table, plain_text, print_line
from clew.errors import ClewError
from clew.wording import counted, tenth_percent

_WEAKEST = 5


def print_reached(console: Console, results: dict[str, Any]) -> None:
    """Accuracy with its interval, and the classes that are hardest."""
    low, high = results["test_accuracy_ci"]
    right = round(results["test_accuracy"] * results["test_photos"])
    console.print()
    console.print(
        f"[bold]test accuracy {tenth_percent(results['test_accuracy'])}[/bold] (95% interval "
        f"{tenth_percent(low)} to {tenth_percent(high)}): {right:,} of "
        f"{counted(results['test_photos'], 'photo')} right"
    )
    table = _weakest_table(results)
    if table.rows:
        console.print(table)


def print_doubt(console: Console, results: dict[str, Any]) -> None:
    """Of a training that may have learnt nothing: what 25% are worth, not everybody knows."""
    largest = max(results["per_class"], key=lambda row: row["test"])
    share = largest["test"] / results["test_photos"]
    if results["test_accuracy"] == 1 or results["test_accuracy_ci"][0] > share:
        return
    print_line(
        console,
        f'not clearly better than calling every photo "{largest["class"]}" ({tenth_percent(share)} '
        f"right): more photos, more --epochs or a larger --network may help",
    )


def print_report(console: Console, folder: Path) -> None:
    """Write report.html and say where it is; what was reached stands also without it."""
    from clew.patterns.report import write_report

    try:
        line = f"report: {write_report(folder)}"
    except ClewError as error:
        line = f"the report could not be written: {error_text(error)}"
    print_line(console, line)


def _weakest_table(results: dict[str, Any]) -> Table:
    table = make_table()
    table.add_column("hardest classes", overflow="fold")
    table.add_column("right", justify="right", no_wrap=True)
    table.add_column("mostly taken for", overflow="fold")
    rows = [row for row in results["per_class"] if row["recall"] is not None and row["recall"] < 1]
    for row in sorted(rows, key=lambda row: row["recall"])[:_WEAKEST]:
        right = f"{tenth_percent(row['recall'])} of {row['test']:,}"
        other = _taken_for(results, row["class"])
        table.add_row(*(escape(plain_text(text)) for text in (row["class"], right, other)))
    return table


def _taken_for(results: dict[str, Any], name: str) -> str:
    """The class that most of the wrong ones were called, and how many."""
    place = results["classes"].index(name)
    wrong = {
        other: count
        for other, count in zip(results["classes"], results["confusion"][place], strict=True)
        if other != name and count
    }
    most = max(wrong, key=lambda other: wrong[other])
    return f"{most} ({wrong[most]:,})"
