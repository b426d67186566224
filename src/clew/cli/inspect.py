"""clew inspect"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew.cli.formats import bytes_text

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
        typer.echo(json.dumps(summary.as_dict(), indent=1, ensure_ascii=False))
        return
    console = Console(highlight=False)
    _print_totals(console, summary)
    _print_batches(console, summary)
    if summary.tokens:
        _print_lengths(console, summary)
        _print_examples(console, summary)
    _print_settings(console, summary.settings)
    for note in summary.notes:
        console.print(f"note: {note}", markup=False)
    _print_skipped(console, summary)


def _print_totals(console: Console, summary: Any) -> None:
    planned = summary.planned_rows
    of = f" of {planned:,} planned" if planned not in (None, summary.rows) else ""
    console.print(
        f"[bold]{escape(summary.path)}[/bold]: {summary.rows:,} {summary.kind}{of}, "
        f"{bytes_text(summary.bytes)}, {bytes_text(summary.bytes_per_row)} each, "
        f"{len(summary.batches):,} batches"
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
        console.print(f"answers ended by: {ends}; empty: {summary.empty_answers:,}")


def _print_examples(console: Console, summary: Any) -> None:
    table = Table(header_style="bold", show_lines=False)
    for name in ("id", "question", "answer", "accepted"):
        table.add_column(name, overflow="fold")
    for example in summary.examples:
        accepted = example["accepted_answers"] or []
        more = f" (+{len(accepted) - 2})" if len(accepted) > 2 else ""
        table.add_row(
            str(example["global_example_id"]),
            escape(example["question"] or ""),
            escape(example["answer"] or ""),
            escape("; ".join(accepted[:2])) + more,
        )
    console.print()
    console.print(table)


def _print_settings(console: Console, settings: dict[str, Any]) -> None:
    console.print("\n[bold]settings[/bold]")
    for key, value in settings.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        console.print(f"  {key}: {value}", markup=False, soft_wrap=True)


def _print_skipped(console: Console, summary: Any) -> None:
    if summary.skipped:
        console.print(f"\nleft out: {len(summary.skipped):,} questions")
        for entry in summary.skipped[:10]:
            console.print(f"  {entry['where']}: {entry['reason']}", markup=False, soft_wrap=True)
        if len(summary.skipped) > 10:
            console.print("  ... (the manifest names all)")
