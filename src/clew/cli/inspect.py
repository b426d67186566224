"""clew inspect"""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clew.base.terminal import TextConsole
from clew.base.texts import bytes_text, counted, for_terminal
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import first_words, print_line, print_table
from clew.hallucination.workflow import inspect

_MAX_BATCH_ROWS = 20
_SPREAD = ("min", "median", "mean", "max")
_NOUNS = {"heads": ("graph over all heads", "graphs over all heads")}


COMMAND = read_command(inspect)


def run(call: Call) -> None:
    from clew.hallucination.samples.summary import SamplesSummary
    from clew.hallucination.traces.summary import StoreSummary

    summary = inspect(**call.settings)
    console = TextConsole()
    if call.as_json:
        call.print_json(summary.as_dict())
    elif isinstance(summary, SamplesSummary):
        _print_samples(console, summary)
    elif isinstance(summary, StoreSummary):
        _print_store(console, summary)
    elif "warning" in (about := summary.as_dict()):
        _print_detector(console, about)
    else:  # a reader
        for name, text in _each_setting(_round_all(about)):
            print_line(console, f"{name}: {text}")


def _print_detector(console: Console, about: dict[str, Any]) -> None:
    warning, shown = about.pop("warning"), {}
    for name, value in about.items():
        shown[name] = _shorten(value)
    if adapted := about.get("adapted"):
        shown["adapted"] = {name: _shorten(value) for name, value in adapted.items()}
    for name, text in _each_setting(shown):
        print_line(console, f"{name}: {text}")
    if warning:
        print_line(console, f"warning: {warning}", style="yellow")


def _round_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round_all(one) for name, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def _shorten(value: Any) -> Any:
    if isinstance(value, list):
        return "{:.3f} to {:.3f}".format(*value)
    return f"{value:.3f}" if isinstance(value, float) else value


def _print_store(console: Console, summary: Any) -> None:
    _print_totals(console, summary)
    _print_batches(console, summary)
    if summary.tokens:
        _print_lengths(console, summary)
        _print_examples(console, summary)
    if summary.compared:
        _print_comparison(console, summary.compared)
    _print_notes(console, summary)


def _print_samples(console: Console, summary: Any) -> None:
    for store in summary.stores:
        _print_totals(console, store)
        _print_batches(console, store)
        console.print()
    _print_balance(console, summary.balance)
    if summary.graphs:
        _print_graph_sizes(console, summary.graphs, "edges, all layers")
        per_token = f"{summary.graphs.edges_per_token:.1f}"
        console.print(f"edges per token and layer: {per_token} on average")
    if summary.heads:
        _print_graph_sizes(console, summary.heads, "edges, over all heads")
    if summary.answer_fields:
        fields = for_terminal(f"fields per answer: {', '.join(summary.answer_fields)}")
        console.print()
        console.print(fields, soft_wrap=True)
    # All stores of a folder have the same settings and exclude the same traces.
    _print_notes(console, summary.stores[0])


def _print_notes(console: Console, summary: Any) -> None:
    _print_settings(console, summary.settings)
    for note in summary.notes:
        console.print(for_terminal(f"note: {with_flags(note)}"))
    _print_skipped(console, summary)


def _print_balance(console: Console, balance: Any) -> None:
    unlabeled = ["no label"] if any(split.unlabeled for split in balance) else []
    heads = ("split", "samples", "correct", "hallucinated", *unlabeled, "share hallucinated")
    rows = []
    for split in balance:
        counts = [split.samples, split.correct, split.hallucinated]
        counts += [split.unlabeled for _ in unlabeled]
        labeled = split.correct + split.hallucinated
        share = f"{split.hallucinated / labeled:.1%}" if labeled else "-"
        rows.append((split.split, *(f"{count:,}" for count in counts), share))
    print_table(console, heads, rows, numbers=range(1, 6))


def _print_graph_sizes(console: Console, sizes: Any, edges: str) -> None:
    _print_spreads(console, "per sample", {"tokens": sizes.tokens, edges: sizes.edges}, ",.0f")


def _print_totals(console: Console, summary: Any) -> None:
    planned = summary.planned_rows
    of = f" of {planned:,} planned" if planned not in (None, summary.rows) else ""
    nouns = _NOUNS.get(summary.kind, (for_terminal(summary.kind).removesuffix("s"),))
    rows = counted(summary.rows, *nouns)
    console.print(
        Text.assemble(
            (for_terminal(summary.path), "bold"),
            f": {rows}{of}, {bytes_text(summary.bytes)}, {bytes_text(summary.bytes_per_row)} "
            f"each, {counted(len(summary.batches), 'shard')}",
        )
    )


def _print_batches(console: Console, summary: Any) -> None:
    rows = (
        (shard["batch_number"], shard["file"], f"{shard['rows']:,}", bytes_text(shard["bytes"]))
        for shard in summary.batches[:_MAX_BATCH_ROWS]
    )
    print_table(console, ("shard", "file", "rows", "size"), rows, numbers=(0, 2, 3))
    if len(summary.batches) > _MAX_BATCH_ROWS:
        console.print(
            f"... and {len(summary.batches) - _MAX_BATCH_ROWS:,} more (use --json to list all)"
        )


def _print_lengths(console: Console, summary: Any) -> None:
    spreads = {"prompt and answer": summary.tokens, "answer": summary.answer_tokens}
    _print_spreads(console, "tokens", spreads, ",.4g")
    ends = ", ".join(f"{name} {count:,}" for name, count in summary.stop_reasons.items())
    if ends:
        empty = f"{summary.empty_answers:,}"
        console.print(for_terminal(f"stop reasons: {ends}; empty answers: {empty}"))


def _print_spreads(console: Console, of: str, spreads: dict[str, Any], form: str) -> None:
    rows = [
        (name, *(format(getattr(spread, figure), form) for figure in _SPREAD))
        for name, spread in spreads.items()
    ]
    console.print()
    print_table(console, (of, *_SPREAD), rows, numbers=range(1, 5))


def _print_examples(console: Console, summary: Any) -> None:
    table = Table(header_style="bold", show_lines=False)
    has_contexts = any(example.get("context") for example in summary.examples)
    context = ["context"] if has_contexts else []
    for name in ("id", *context, "question", "answer", "accepted"):
        table.add_column(name, overflow="fold")
    for example in summary.examples:
        accepted = example["accepted_answers"] or []
        more = f" (+{len(accepted) - 2})" if len(accepted) > 2 else ""
        table.add_row(
            str(example["global_example_id"]),
            *(_cell(first_words(example["context"] or "", 80)) for _ in context),
            _cell(example["question"] or ""),
            _cell(example["answer"] or ""),
            _cell("; ".join(accepted[:2])) + more,
        )
    console.print()
    console.print(table)


def _print_comparison(console: Console, compared: Any) -> None:
    console.print()
    found = f"{compared.found:,} of {counted(compared.traces, 'trace')} found in the store"
    unreadable = f", {compared.unreadable:,} unreadable" if compared.unreadable else ""
    line = f"compared with {compared.file} ({bytes_text(compared.bytes)}): {found}{unreadable}"
    console.print(for_terminal(line), soft_wrap=True)
    rows = []
    for one in compared.fields:
        most = "" if one.largest_difference is None else f"{one.largest_difference:.3g}"
        rows.append((one.field, f"{one.compared:,}", f"{one.equal:,}", most))
    heads = ("field", "compared", "equal", "largest difference")
    print_table(console, heads, rows, numbers=range(1, 4))


def _cell(text: str) -> str:
    return for_terminal(text, lines=True)


def _print_settings(console: Console, settings: dict[str, Any]) -> None:
    console.print("\nsettings", style="bold")
    for key, value in _each_setting(settings):
        console.print(for_terminal(f"  {key}: {value}"), soft_wrap=True)


def _each_setting(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """One line per setting, and one per group."""
    for key, value in settings.items():
        if isinstance(value, list):
            yield f"{above}{key}", f"{len(value):,} (use --json to list all)"
        elif not isinstance(value, dict):
            yield f"{above}{key}", value
        else:
            groups = {k: v for k, v in value.items() if isinstance(v, dict)}
            plain = {k: v for k, v in value.items() if k not in groups and v is not None}
            if plain or not groups:
                yield f"{above}{key}", ", ".join(f"{k} {v}" for k, v in plain.items())
            yield from _each_setting(groups, f"{above}{key}.")


def _print_skipped(console: Console, summary: Any) -> None:
    if summary.skipped:
        by_command = {"convert": ("file or record", "files or records"), "preprocess": ("trace",)}
        nouns = by_command.get(summary.settings.get("command"), ("question",))
        refused = sum(entry.get("label") == "refused" for entry in summary.skipped)
        of_them = f", {refused:,} of them refused by the model" if refused else ""
        console.print(f"\nexcluded: {counted(len(summary.skipped), *nouns)}{of_them}")
        for entry in summary.skipped[:10]:
            text = for_terminal(f"  {_where(entry)}: {with_flags(entry['reason'])}")
            console.print(text, soft_wrap=True)
        if len(summary.skipped) > 10:
            console.print("  ... (see the manifest for the full list)")


def _where(entry: dict[str, Any]) -> str:
    """Where an excluded entry is: a question, a file, or a record of a file."""
    if "where" in entry:
        return entry["where"]
    record = entry.get("record")
    return entry["file"] if record is None else f"{entry['file']}, record {record}"
