"""clew show"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from clew.cli.errors import with_flags
from clew.cli.printing import make_table, plain_text, print_line

if TYPE_CHECKING:
    from clew.hallucination.answer_page import Picture, ShownAnswer

_EPILOG = "Example: `clew show traces_data --id 5 --scores-file ground_truth_scores.csv`"
_MOST_TOKENS = 40
_BAR = 20


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(show)


def show(
    store: Annotated[Path, typer.Argument(help="The folder of a store of traces.")],
    answer: Annotated[
        str, typer.Option("--id", help="The answer: its global_example_id, or its question_id.")
    ],
    layer: Annotated[
        int | None,
        typer.Option(help="The layer to begin with, from 0.  [default: the middle one]"),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            help="The picture: FILE.html (all layers) or FILE.png (one layer); may be given "
            "twice.  [default: answer-ID.html]",
            show_default=False,
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            help="Another answer to put beside it, or none. With scores: by itself the most "
            "similar question whose answer is of the other kind."
        ),
    ] = None,
    scores_file: Annotated[
        Path | None, typer.Option(help="The scores of `clew label`: what is right, what made up.")
    ] = None,
    score_threshold: Annotated[
        float, typer.Option(help="Answers that score below count as made up.")
    ] = 0.5,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="The tokenizer's folder, where the model of the store has moved."),
    ] = None,
) -> None:
    """Draw one captured answer: what it looked at, its way through the layers, how sure it was.

    The picture is one file that needs no network. Right and made-up answers stand side by side.
    """
    from clew.hallucination.answer_page import ShowConfig, show_answer

    config = ShowConfig(
        store=store,
        answer=answer,
        out=tuple(out or ()),
        layer=layer,
        beside=beside,
        scores_file=scores_file,
        score_threshold=score_threshold,
        tokenizer=tokenizer,
    )
    result = show_answer(config)
    console = Console(highlight=False)
    _print_picture(console, result.picture)
    for path in result.paths:
        print_line(console, f"picture in {path}")


def _print_picture(console: Console, picture: "Picture") -> None:
    for shown in picture.answers:
        _print_answer(console, shown)
        console.print()
    first = picture.answers[0]
    if first.logprobs is not None and len(first.logprobs):
        _print_tokens(console, first)
    notes = [f"answer {a.number}: {note}" for a in picture.answers for note in a.notes]
    for note in (*notes, *picture.notes):
        print_line(console, f"note: {with_flags(note)}")


def _print_answer(console: Console, shown: "ShownAnswer") -> None:
    from clew.hallucination.answer_page.cards import accepted_text, describe_source

    score = "" if shown.score is None else f", score {shown.score:.2f}"
    console.print(f"[bold]{escape(plain_text(describe_source(shown)))}[/bold]", soft_wrap=True)
    print_line(console, f"question: {shown.question}")
    print_line(console, f"answer:   {shown.answer or '(empty)'}")
    print_line(console, f"right:    {accepted_text(shown)}")
    print_line(console, f"label:    {shown.kind or 'not known'}{score}")


def _print_tokens(console: Console, shown: "ShownAnswer") -> None:
    from clew.hallucination.answer_page.tokens import visible_text

    assert shown.logprobs is not None
    table = make_table()
    table.add_column(f"token of {shown.number}", overflow="fold")
    table.add_column("probability", justify="right")
    table.add_column("")
    table.add_column("entropy", justify="right")
    chances = [math.exp(logprob) for logprob in shown.logprobs.tolist()]
    entropies = [math.nan] * len(chances)
    if shown.entropies is not None:
        entropies = shown.entropies.tolist()
    rows = list(zip(shown.answer_texts, chances, entropies, strict=True))
    for text, chance, entropy in rows[:_MOST_TOKENS]:
        bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * round(_BAR * chance)
        cell = escape(plain_text(visible_text(text)))
        table.add_row(cell, f"{chance:.3f}", bar, f"{entropy:.2f}")
    console.print(table)
    if len(rows) > _MOST_TOKENS:
        console.print(f"... and {len(rows) - _MOST_TOKENS:,} more (the picture has them)")
    console.print()
