"""The metrics of a classifier, as `train` and `evaluate` print them."""

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clew.base.texts import counted, for_terminal, tenth_percent
from clew.cli.printing import make_table, print_line

if TYPE_CHECKING:
    from clew.patterns.flow import ClassifierResult

_WEAKEST = 5


def print_reached(console: Console, results: dict[str, Any]) -> None:
    """Accuracy with its confidence interval, and the classes with the lowest recall."""
    low, high = results["test_accuracy_ci"]
    right = round(results["test_accuracy"] * results["test_photos"])
    console.print(
        Text.assemble(
            (f"test accuracy {tenth_percent(results['test_accuracy'])}", "bold"),
            f" (95% confidence interval {tenth_percent(low)} to {tenth_percent(high)}): {right:,} "
            f"of {counted(results['test_photos'], 'photo')} correct",
        )
    )
    table = _weakest_table(results)
    if table.rows:
        console.print(table)


def print_doubt(console: Console, results: dict[str, Any]) -> None:
    """Warn about a classifier that may be no better than a constant guess."""
    largest = max(results["per_class"], key=lambda row: row["test"])
    share = largest["test"] / results["test_photos"]
    if results["test_accuracy"] == 1 or results["test_accuracy_ci"][0] > share:
        return
    print_line(
        console,
        f'not clearly better than always predicting "{largest["class"]}" '
        f"({tenth_percent(share)}): more photos, more --epochs or a larger --network may help",
    )


def print_places(console: Console, result: "ClassifierResult") -> None:
    """Print the paths of the report and of results.json. If there is no report, an earlier note
    said why."""
    from clew.storage.places import open_place

    if open_place(result.path).stat(result.report.name) is not None:
        print_line(console, f"report: {result.report}")
    print_line(console, f"all metrics: {result.path / 'results.json'}")


def _weakest_table(results: dict[str, Any]) -> Table:
    table = make_table()
    table.add_column("lowest recall", overflow="fold")
    table.add_column("recall", justify="right", no_wrap=True)
    table.add_column("most often predicted as", overflow="fold")
    rows = [row for row in results["per_class"] if row["recall"] is not None and row["recall"] < 1]
    for row in sorted(rows, key=lambda row: row["recall"])[:_WEAKEST]:
        right = f"{tenth_percent(row['recall'])} of {row['test']:,}"
        other = _taken_for(results, row["class"])
        table.add_row(*(for_terminal(text) for text in (row["class"], right, other)))
    return table


def _taken_for(results: dict[str, Any], name: str) -> str:
    """The class that most of the misclassified photos were predicted as, and how many."""
    place = results["classes"].index(name)
    wrong = {
        other: count
        for other, count in zip(results["classes"], results["confusion"][place], strict=True)
        if other != name and count
    }
    most = max(wrong, key=lambda other: wrong[other])
    return f"{most} ({wrong[most]:,})"
