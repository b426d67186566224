"""clew label"""

import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew.cli.printing import make_table, plain_text, print_line
from clew.cli.progress import show_line
from clew.errors import InputError
from clew.wording import counted

if TYPE_CHECKING:
    from clew.hallucination.labels import LabelledAnswer
    from clew.hallucination.labels.chat import ChatConfig
    from clew.hallucination.labels.label import LabelResult

_EPILOG = "Example: `clew label traces_data --out ground_truth_scores.csv`"
_CELL_CHARACTERS = 160


class _Method(StrEnum):
    alias = "alias"
    exact = "exact"
    token_f1 = "token-f1"
    rouge_l = "rouge-l"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(label)


def label(
    store: Annotated[Path, typer.Argument(help="The folder of a store of traces.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("ground_truth_scores.csv"),
    method: Annotated[
        _Method | None,
        typer.Option(
            help="alias: is an accepted answer, or states one in whole words; exact: is one; "
            "token-f1, rouge-l: how much of its wording it has.  [default: alias]",
            show_default=False,
        ),
    ] = None,
    score_threshold: Annotated[
        float, typer.Option(help="Answers that score below count as wrong in what is printed.")
    ] = 0.5,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that holds other scores.")
    ] = False,
    judge_url: Annotated[
        str | None,
        typer.Option(help="Let a model judge: an OpenAI-compatible address, http://host/v1."),
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="The model to ask there.")] = None,
    judge_key_env: Annotated[
        str, typer.Option(help="The environment variable that holds its key, if it wants one.")
    ] = "OPENAI_API_KEY",
) -> None:
    """Score every answer of a store against the accepted ones, 0 wrong to 1 right.

    Scores are by wording: look at the doubtful examples that are printed. A judge's replies are
    kept beside the file as they come, so that a run that was broken off pays only for the rest.
    """
    from clew.hallucination.labels.label import label_store

    console = Console(highlight=False)
    judge = _judge_config(method, judge_url, judge_model, judge_key_env)
    with show_line(console, "reading answers") as show:
        result = label_store(
            store,
            out,
            method=(method or _Method.alias).value,
            judge=judge,
            score_threshold=score_threshold,
            overwrite=overwrite,
            on_judged=lambda done, total: show(
                f"judged {done:,} of {total:,} answers", done == total
            ),
        )
    _print_examples(console, result)
    _print_categories(console, result)
    _print_totals(console, result)
    scores = f"--scores-file {shlex.quote(str(result.path))}"
    next_command = f"clew preprocess {shlex.quote(str(store))} {scores} --out preprocessed_data"
    print_line(console, f"make training samples with: {next_command}")


def _judge_config(
    method: _Method | None, url: str | None, model: str | None, key_env: str
) -> "ChatConfig | None":
    from clew.hallucination.labels.chat import ChatConfig

    if url is None and model is None:
        return None
    if url is None or model is None:
        missing = "--judge-url" if url is None else "--judge-model"
        raise InputError(f"a judge needs both --judge-url and --judge-model: give {missing} too.")
    if method is not None:
        raise InputError(f'the judge scores in place of "--method {method}": give one of the two.')
    key = os.environ.get(key_env, "").strip() or None
    return ChatConfig(url=url, model=model, key=key, key_name=key_env)


def _print_examples(console: Console, result: "LabelResult") -> None:
    table = Table(header_style="bold")
    for name in ("", "score", "question", "answer", "accepted"):
        table.add_column(name, overflow="fold")
    chosen = result.examples
    for kind, rows in (("right", chosen.right), ("wrong", chosen.wrong)):
        _add_rows(table, kind, rows)
    table.add_section()
    _add_rows(table, "doubtful", chosen.doubtful)
    console.print(table)


def _add_rows(table: Table, kind: str, rows: Sequence["LabelledAnswer"]) -> None:
    for row in rows:
        texts = (row.question, row.answer, row.accepted_answer)
        table.add_row(kind, f"{row.score:.2f}", *map(_cell, texts))


def _cell(text: str) -> str:
    short = text if len(text) <= _CELL_CHARACTERS else text[: _CELL_CHARACTERS - 3] + "..."
    return escape(plain_text(short))


def _print_categories(console: Console, result: "LabelResult") -> None:
    if not result.categories:
        return
    table = make_table("category", "answers", "wrong", "share")
    for share in result.categories:
        part = f"{share.wrong / share.answers:.1%}"
        table.add_row(_cell(share.category), f"{share.answers:,}", f"{share.wrong:,}", part)
    console.print()
    console.print(table)
    console.print()


def _print_totals(console: Console, result: "LabelResult") -> None:
    say = partial(print_line, console)
    answers, planned = len(result.rows) + len(result.excluded), result.planned_rows
    if planned is not None and answers < planned:
        say(f"the store is not finished: {answers:,} of {planned:,} planned answers are in it")
    if result.excluded:
        have = "answer has" if len(result.excluded) == 1 else "answers have"
        some = ", ".join(result.excluded[:5])
        say(f"excluded: {len(result.excluded):,} {have} no accepted answers, e.g. {some}")
    verb = "is" if result.wrong == 1 else "are"
    say(
        f"{result.wrong:,} of {counted(len(result.rows), 'answer')} {verb} wrong "
        f"({result.wrong_share:.1%}) at score < {result.score_threshold:g}"
    )
    say(f"scores in {result.path}" + ("" if result.written else " (as they were)"))
