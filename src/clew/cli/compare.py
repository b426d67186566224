"""clew compare, and its table."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clew.base.terminal import TextConsole
from clew.base.texts import bytes_text, for_terminal, step_text
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import OWN_METHODS, PlainTable, print_line
from clew.hallucination.workflow import compare

if TYPE_CHECKING:
    from clew.hallucination.comparison import ComparisonResult


COMMAND = read_command(compare)


def run(call: Call) -> None:
    comparison = call.run(compare)
    if call.as_json:
        call.print_json(comparison.results)
    print_result(call, comparison)


def print_result(call: Call, comparison: "ComparisonResult") -> None:
    """Print the table and the path of the report; exit with 1 if a method failed because of a bug
    in clew."""
    if not call.as_json:
        call.progress.print()
        print_comparison(call.console, comparison.folder, comparison.results)
        metrics = comparison.folder / "results.json"
        call.progress.print()
        print_line(
            call.progress, f"all metrics: {metrics} (also table.csv, table.tex, scores.arrow)"
        )
        kept = comparison.results["detectors"].get(comparison.best)
        if kept is not None:
            print_line(call.progress, f"detector: {comparison.folder / kept}")
        print_line(call.console, f"report: {comparison.report}")
    if comparison.faults:
        _complain_faults(comparison)


def _complain_faults(comparison: "ComparisonResult") -> None:
    names = ", ".join(dict.fromkeys(one.title for one in comparison.faults))
    console = TextConsole(stderr=True, soft_wrap=True)
    text = f"clew: {names}: {with_flags(comparison.faults[0].reason)}. Please report this bug."
    print_line(console, text)
    raise typer.Exit(1)


_PADDING = 2
_METHOD = "  method"
_SPLITS = ("train", "validation", "test")


def _figure(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: "-" if row[name] is None else f"{row[name]:.3f}"


def _auroc(row: dict[str, Any]) -> str:
    return _with_interval(row["test_auroc"], row["test_auroc_ci"])


def _seeds(row: dict[str, Any]) -> str:
    if row["test_auroc_std"] is None:
        return "-"
    return f"{row['test_auroc_mean']:.3f} ± {row['test_auroc_std']:.3f}"


def _versus(row: dict[str, Any]) -> str:
    versus = row["versus_perplexity"]
    if versus is None:
        return "-"
    sure = "*" if versus["p_value"] is not None and versus["p_value"] < 0.05 else ""
    return f"{versus['difference']:+.3f}{sure}"


def _count(row: dict[str, Any]) -> str:
    value = row["parameters"]
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return str(value)


_VERSUS = "vs ppl"
# The columns in the order in which they are dropped from a narrow table, the last first; then in
# that in which they are shown.
_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "AUROC [95%]": _auroc,
    "val.": _figure("val_auroc"),
    _VERSUS: _versus,
    "AUPRC": _figure("test_auprc"),
    "F1": _figure("test_f1"),
    "ECE": _figure("test_ece"),
    "acc.": _figure("test_accuracy"),
    "AURC": _figure("test_aurc"),
    "seeds": _seeds,
    "per answer": lambda row: step_text(row["ms_per_answer"] / 1000),
    "training": lambda row: step_text(row["train_seconds"]),
    "params": _count,
    "bytes/answer": lambda row: bytes_text(row["bytes_per_answer"]),
}
_SHOWN = (
    *("val.", "AUROC [95%]", "seeds", _VERSUS, "AUPRC", "F1", "acc.", "ECE", "AURC", "params"),
    *("training", "per answer", "bytes/answer"),
)


def print_comparison(console: Console, folder: Path, results: dict[str, Any]) -> None:
    """Print the most important results; the files in `folder` contain the rest."""

    def say(text: str, style: str | None = None) -> None:
        console.print(for_terminal(text), style=style, soft_wrap=False)

    rows = results["methods"]
    best = results["best"]["method"] if results["best"]["is_supported"] else ""
    table, hidden = make_table(rows, best=best, width=console.width)
    say(_describe_data(results))
    console.print(table)
    notes = [f"> best on {results['best']['chosen_on']}"] if best else []
    tested = [row["versus_perplexity"] for row in rows if row["versus_perplexity"]]
    star = ", * p < 0.05" if any(one["p_value"] is not None for one in tested) else ""
    notes.append(f"vs ppl: AUROC difference from perplexity, the usual baseline{star}")
    notes += [
        text for name, text in OWN_METHODS.items() if any(row["method"] == name for row in rows)
    ]
    if "per answer" not in hidden:
        notes.append("per answer: time to compute the risk, excluding capture")
    if hidden:
        notes.append(f"columns not shown, see {folder / 'table.csv'}: {', '.join(hidden)}")
    say("; ".join(notes), "dim")
    if results["leave_one_out"] is not None:
        _print_left_out(console, results["leave_one_out"])
    if results["transfer"] is not None:
        _print_transfer(console, results["transfer"], results["best"]["method"])
    if results["tokens"] is not None:
        _print_tokens(console, results["tokens"])
    _print_excluded(console, results["excluded"])
    console.print()
    for sentence in results["findings"].values():
        say(with_flags(sentence))


def make_table(rows: Sequence[dict[str, Any]], *, best: str, width: int) -> tuple[Table, list[str]]:
    """The table in at most `width` columns, and the names of the columns that do not fit."""
    names = [f"{'>' if row['method'] == best else ' '} {row['title']}" for row in rows]
    cells = {name: [show(row) for row in rows] for name, show in _COLUMNS.items()}
    room = width - max(map(len, [_METHOD, *names])) - _PADDING
    widths = [max(map(len, [name, *cells[name]])) + _PADDING for name in _COLUMNS]
    # As many as fit, the most important first; always at least one.
    count = max(1, sum(total <= room for total in accumulate(widths)))
    chosen = [*_COLUMNS][:count]
    table = PlainTable()
    table.add_column(_METHOD, no_wrap=True, overflow="ellipsis")
    shown = [name for name in _SHOWN if name in chosen]
    for name in shown:
        table.add_column(name, justify="left" if name == _VERSUS else "right", no_wrap=True)
    for number, (row, title) in enumerate(zip(rows, names, strict=True)):
        style = "bold" if row["method"] == best else None
        values = [Text(cells[name][number]) for name in shown]
        table.add_row(Text(for_terminal(title)), *values, style=style)
    return table, [name for name in _SHOWN if name not in chosen]


def _describe_data(results: dict[str, Any]) -> str:
    data, is_of_sets = results["data"], results["leave_one_out"] is not None
    counts = [f"{sum(data[split].values()):,} {split}" for split in _SPLITS]
    where = data["name"]
    refused = f"; {data['refused']:,} refused and excluded" if data.get("refused") else ""
    if data["train_on"] != data["test_on"] and not is_of_sets:
        several = (results["transfer"] or {}).get("train_on", ())
        alone = " alone" if len(several) > 1 else ""
        where = f"trained on {data['train_on']}{alone}, tested on {data['test_on']}"
    return (
        f"{where}: {', '.join(counts)} answers ({data['test']['hallucinated']:,} of the test "
        f"answers hallucinated{refused})"
    )


def _print_left_out(console: Console, sets: dict[str, Any]) -> None:
    """Print the AUROC of every method on every set that it was not trained on."""
    counts = _zip(sets, "sets", "answers", "correct")
    heads = [f"{for_terminal(name)}\n{_answers(*of)}" for name, *of in counts]
    means = _zip(sets, "mean", "mean_low", "mean_high")
    columns = {"mean [95%]": [_with_interval(value, of) for value, *of in means]}
    for place, head in enumerate(heads):
        figures = _zip(sets, "auroc", "low", "high")
        columns[head] = [_with_interval(v[place], (a[place], b[place])) for v, a, b in figures]
    title = "  AUROC on sets not trained on\n  answers (correct)"
    _print_columns(console, title, sets["titles"], columns)


def _print_transfer(console: Console, transfer: dict[str, Any], best: str) -> None:
    """Print the transfer matrix of the best method; nothing for a single pair of stores, which the
    table already shows."""
    if len(transfer["train_on"]) * len(transfer["test_on"]) == 1:
        return
    place = transfer["methods"].index(best) if best in transfer["methods"] else 0
    auroc, low, high = (transfer[name][place] for name in ("auroc", "low", "high"))
    figures = (auroc, low, high, transfer["answers"], transfer["correct"])
    columns = {
        f"on {for_terminal(name)}": [
            _cell(*(of[row][at] for of in figures)) for row in range(len(auroc))
        ]
        for at, name in enumerate(transfer["test_on"])
    }
    names = [f"trained on {name}" for name in transfer["train_on"]]
    title = f"  {for_terminal(transfer['titles'][place])}: AUROC\n  answers (correct)"
    _print_columns(console, title, names, columns)
    console.print("other methods: transfer.csv and the report", style="dim")


def _zip(of: dict[str, Any], *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(of[name] for name in names), strict=True)


def _print_columns(
    console: Console, title: str, names: Sequence[str], columns: dict[str, list[str]]
) -> None:
    """Print a table of as many columns as fit, then another with the next ones."""
    left = list(columns)
    names = [f"  {for_terminal(name)}" for name in names]
    first = max(len(line) for text in (title, *names) for line in text.split("\n"))
    while left:
        table, room = PlainTable(), console.width - first
        table.add_column(title, no_wrap=True)
        shown: list[str] = []
        for head in left:
            lines = [line for text in (head, *columns[head]) for line in text.split("\n")]
            room -= max(map(len, lines)) + _PADDING
            if shown and room < 0:
                break
            shown.append(head)
            table.add_column(Text(head), justify="right", no_wrap=True)
        for row, name in enumerate(names):
            table.add_row(Text(name), *(Text(columns[head][row]) for head in shown))
        left = left[len(shown) :]
        console.print()
        console.print(table)


def _cell(value: float | None, low: float, high: float, answers: int, correct: int) -> str:
    if value is None:
        return "-"
    return f"{_with_interval(value, (low, high))}\n{_answers(answers, correct)}"


def _answers(answers: int, correct: int) -> str:
    return f"{answers:,} ({correct:,})"


def _print_tokens(console: Console, tokens: dict[str, Any]) -> None:
    """Print the metrics per token, for answers with span labels."""
    rate, rows = f"{tokens['false_positive_rate']:.0%}", tokens["rows"]
    columns = {
        "AUROC [95%]": [_with_interval(row["auroc"], row["auroc_ci"]) for row in rows],
        f"recall, {rate} FPR": [_with_interval(row["recall"], row["recall_ci"]) for row in rows],
    }
    # Results of earlier versions have no such column, samples of earlier ones no places.
    if "characters" in tokens:
        columns["span F1"] = [_with_interval(row["span_f1"], row["span_f1_ci"]) for row in rows]
    _print_columns(console, "  per token", [row["title"] for row in rows], columns)
    text = (
        f"{tokens['tokens']:,} tokens of {tokens['answers']:,} test answers have a span label, "
        f"{tokens['hallucinated']:,} of them hallucinated; intervals resample "
        f"{tokens.get('resampled', 'answers')}"
    )
    if tokens.get("characters"):
        text += (
            f"; span F1: by characters, {tokens['hallucinated_characters']:,} of "
            f"{tokens['characters']:,} hallucinated, threshold from validation"
        )
    elif "characters" in tokens:
        text += (
            "; no span F1: these samples do not say where spans and tokens are in the answer. Run "
            '"clew preprocess" again into a new folder to have it'
        )
    console.print(text, style="dim", soft_wrap=False)


def _with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None or interval is None:
        return "-"
    low, high = interval
    if low == high:  # too few answers for the bootstrap
        return f"{value:.3f} [-]"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _print_excluded(console: Console, excluded: Sequence[dict[str, Any]]) -> None:
    """Print why methods were excluded; methods with the same reason share a line."""
    titles: dict[str, list[str]] = {}
    for one in excluded:
        titles.setdefault(one["reason"], []).append(one["title"])
    for reason, some in titles.items():
        names = ", ".join(dict.fromkeys(some))
        text = for_terminal(f"excluded: {names}: {with_flags(reason)}")
        console.print(text, soft_wrap=False)
