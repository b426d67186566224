"""clew inspect"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew.cli.formats import bytes_text, count_text, plain_text

_MAX_BATCH_ROWS = 20


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: `clew inspect traces_data`")(inspect)


def inspect(
    store: Annotated[Path, typer.Argument(help="The folder of a store.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show what is in a store: totals, batches, lengths, some answers, the settings."""
    from clew.traces.summary import StoreSummary, summarize_store

    summary: StoreSummary = summarize_store(store)
    if as_json:
        text = json.dumps(summary.as_dict(), indent=1, ensure_ascii=False)
        typer.echo(plain_text(text, lines=True))
        return
    console = Console(highlight=False)
    _print_totals(console, summary)
    _print_batches(console, summary)
    if summary.tokens:
        _print_lengths(console, summary)
        _print_examples(console, summary)
    _print_settings(console, summary.settings)
    for note in summary.notes:
        console.print(plain_text(f"note: {note}"), markup=False)
    _print_skipped(console, summary)


def _print_totals(console: Console, summary: Any) -> None:
    planned = summary.planned_rows
    of = f" of {planned:,} planned" if planned not in (None, summary.rows) else ""
    rows = count_text(summary.rows, plain_text(summary.kind).removesuffix("s"))
    console.print(
        f"[bold]{escape(plain_text(summary.path))}[/bold]: {escape(rows)}{of}, "
        f"{bytes_text(summary.bytes)}, {bytes_text(summary.bytes_per_row)} each, "
        f"{count_text(len(summary.batches), 'batch', 'batches')}"
    )


def _print_batches(console: Console, summary: Any) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name, side in (("batch", "right"), ("file", "left"), ("rows", "right"), ("size", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for shard in summary.batches[:_MAX_BATCH_ROWS]:
        size = bytes_text(shard["bytes"])
        table.add_row(str(shard["batch_number"]), shard["file"], f"{shard['rows']:,}", size)
    console.print(table)
    if len(summary.batches) > _MAX_BATCH_ROWS:
        console.print(f"... and {len(summary.batches) - _MAX_BATCH_ROWS:,} more (--json has all)")


def _print_lengths(console: Console, summary: Any) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("tokens", "min", "median", "mean", "max"):
        table.add_column(name, justify="left" if name == "tokens" else "right")
    for label, spread in (("whole", summary.tokens), ("answer", summary.answer_tokens)):
        numbers = (spread.min, spread.median, spread.mean, spread.max)
        table.add_row(label, *(f"{number:,.4g}" for number in numbers))
    console.print()
    console.print(table)
    ends = ", ".join(f"{name} {count:,}" for name, count in summary.stop_reasons.items())
    if ends:
        empty = f"{summary.empty_answers:,}"
        console.print(plain_text(f"answers ended by: {ends}; empty: {empty}"), markup=False)


def _print_examples(console: Console, summary: Any) -> None:
    table = Table(header_style="bold", show_lines=False)
    for name in ("id", "question", "answer", "accepted"):
        table.add_column(name, overflow="fold")
    for example in summary.examples:
        accepted = example["accepted_answers"] or []
        more = f" (+{len(accepted) - 2})" if len(accepted) > 2 else ""
        table.add_row(
            str(example["global_example_id"]),
            _cell(example["question"] or ""),
            _cell(example["answer"] or ""),
            _cell("; ".join(accepted[:2])) + more,
        )
    console.print()
    console.print(table)


def _cell(text: str) -> str:
    return escape(plain_text(text, lines=True))


def _print_settings(console: Console, settings: dict[str, Any]) -> None:
    console.print("\n[bold]settings[/bold]")
    for key, value in settings.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        elif isinstance(value, list):
            value = f"{len(value):,} (--json has all)"
        console.print(plain_text(f"  {key}: {value}"), markup=False, soft_wrap=True)


def _print_skipped(console: Console, summary: Any) -> None:
    if summary.skipped:
        captured = "where" in summary.skipped[0]
        nouns = ("question",) if captured else ("file or record", "files or records")
        console.print(f"\nleft out: {count_text(len(summary.skipped), *nouns)}")
        for entry in summary.skipped[:10]:
            text = plain_text(f"  {_where(entry)}: {entry['reason']}")
            console.print(text, markup=False, soft_wrap=True)
        if len(summary.skipped) > 10:
            console.print("  ... (the manifest names all)")


def _where(entry: dict[str, Any]) -> str:
    """A capture names a question by its place, a conversion a file and perhaps a record of it."""
    if "where" in entry:
        return entry["where"]
    record = entry.get("record")
    return entry["file"] if record is None else f"{entry['file']}, record {record}"
