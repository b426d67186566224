"""clew preprocess"""

import shlex
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from clew.cli.errors import with_flags
from clew.cli.printing import make_table, print_line
from clew.cli.renderer import Renderer
from clew.wording import bytes_text, counted

if TYPE_CHECKING:
    from clew.hallucination.samples.making import PreprocessResult

_EPILOG = (
    "Example: `clew preprocess traces_data --scores-file ground_truth_scores.csv "
    "--out preprocessed_data`"
)
# Left-out traces that are said one by one; the manifest names all.
_MAX_SAID = 10


class _SplitBy(StrEnum):
    question = "question"
    file = "file"


class _HigherIs(StrEnum):
    correct = "correct"
    hallucinated = "hallucinated"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(preprocess)


def preprocess(
    store: Annotated[Path, typer.Argument(help="The folder of a store of traces.")],
    scores_file: Annotated[
        Path, typer.Option(help="A CSV with question_id and score, such as clew label writes.")
    ] = Path("ground_truth_scores.csv"),
    score_threshold: Annotated[
        float, typer.Option(help="Answers that score below this count as hallucinated.")
    ] = 0.5,
    out: Annotated[Path, typer.Option(help="The folder to write to, made if need be.")] = Path(
        "preprocessed_data"
    ),
    attn_threshold: Annotated[
        float, typer.Option(help="Leave out attention edges that are weaker.")
    ] = 0.0,
    top_k: Annotated[
        int | None,
        typer.Option(help="Strongest edges to keep of every token and layer. [default: all]"),
    ] = None,
    node_dim: Annotated[
        int | None,
        typer.Option(help="Numbers to keep of every node, the weightiest first. [default: all]"),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Shares of training, validation and test.")
    ] = "70/15/15",
    split_by: Annotated[
        _SplitBy,
        typer.Option(help="question: stratified, stays when data is added; file: whole batches."),
    ] = _SplitBy.question,
    no_sequences: Annotated[
        bool, typer.Option("--no-sequences", help="Leave out the states by layer.")
    ] = False,
    no_graphs: Annotated[
        bool, typer.Option("--no-graphs", help="Leave out the graphs of attention.")
    ] = False,
    no_answers: Annotated[
        bool, typer.Option("--no-answers", help="Leave out what probes read of the answers.")
    ] = False,
    no_heads: Annotated[
        bool,
        typer.Option(
            "--no-heads", help="Leave out the graphs over all heads (of traces kept in full)."
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Batches made at a time. [default: one a core]")
    ] = None,
    skip_unlabelled: Annotated[
        bool, typer.Option("--skip-unlabelled", help="Leave out answers that have no score.")
    ] = False,
    score_column: Annotated[
        str | None,
        typer.Option(help="The column with the scores. [default: score, or the only one]"),
    ] = None,
    higher_is: Annotated[
        _HigherIs | None,
        typer.Option(help="What a high score says of an answer. [default: by the column's name]"),
    ] = None,
) -> None:
    """Turn traces and their scores into samples for detectors: sequences, graphs, answers, splits.

    A run that was broken off goes on where it was: give the same command. So does one whose
    store has grown since; what was split before stays where it is.
    """
    from clew.hallucination.samples.making import PreprocessConfig, preprocess_store
    from clew.loading.splits import parse_split

    console = Console(highlight=False, soft_wrap=True)
    wanted = {
        "sequences": not no_sequences,
        "graphs": not no_graphs,
        "answers": not no_answers,
        "heads": not no_heads,
    }
    config = PreprocessConfig(
        store=store,
        scores_file=scores_file,
        out=out,
        score_threshold=score_threshold,
        attn_threshold=attn_threshold,
        top_k=top_k,
        node_dim=node_dim,
        shares=parse_split(split),
        split_by=split_by.value,
        kinds=tuple(kind for kind, is_wanted in wanted.items() if is_wanted),  # type: ignore[misc]
        workers=workers,
        skip_unlabelled=skip_unlabelled,
        score_column=score_column,
        higher_is=higher_is.value if higher_is else None,
    )
    with Renderer(console) as reporter:
        result = preprocess_store(config, reporter)
    _print_result(console, result)
    if not result.complete:
        raise typer.Exit(1)


def _print_result(console: Console, result: "PreprocessResult") -> None:
    say = partial(print_line, console)
    for skip in result.skipped[:_MAX_SAID]:
        place = f"{skip['file']}, row {skip['record']} ({skip['question_id']})"
        say(f"left out: {place}: {with_flags(skip['reason'])}")
    if len(result.skipped) > _MAX_SAID:
        say(f"left out: {len(result.skipped) - _MAX_SAID:,} more, named in the manifest")
    console.print(_balance_table(result))
    left_out = f", {len(result.skipped):,} left out" if result.skipped else ""
    already = "" if result.made else " (all of them there already)"
    say(
        f"{counted(result.samples, 'sample')}{already}{left_out}, {bytes_text(result.bytes)} "
        f"in {result.out}"
    )
    for warning in result.warnings:
        say(f"warning: {with_flags(warning)}", style="bold")
    say(f"look at it with: clew inspect {shlex.quote(str(result.out))}")


def _balance_table(result: "PreprocessResult") -> Table:
    from clew.loading.splits import SPLIT_NAMES

    table = make_table("split", "samples", "correct", "hallucinated")
    for name, (correct, hallucinated) in zip(SPLIT_NAMES, result.counts.tolist(), strict=True):
        table.add_row(name, f"{correct + hallucinated:,}", f"{correct:,}", f"{hallucinated:,}")
    return table
