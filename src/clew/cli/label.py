"""clew label"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from clew.base.texts import counted, for_shell, for_terminal
from clew.cli.commands import Call, read_command
from clew.cli.errors import flag
from clew.cli.printing import print_line, print_table, shortened_cell
from clew.cli.serve import check_web, serve_until_done
from clew.hallucination.workflow import label

if TYPE_CHECKING:
    from clew.hallucination.labels import LabeledAnswer
    from clew.hallucination.labels.label import LabelResult

COMMAND = read_command(label)
_CELL_CHARACTERS = 160
_SCORED_BY = ("method", "judge_url", "judge_model")


def run(call: Call) -> None:
    asked, port, browser = (call.settings[name] for name in ("review", "port", "browser"))
    check_web(asked)
    result = call.run(label, review=False)
    if asked:
        result = _review(call, result, port=port, browser=browser)
    if call.as_json:
        call.print_json(_describe(result))
        return
    _print_examples(call.console, result)
    _print_categories(call.console, result)
    _print_totals(call.console, result)
    if not asked and result.next is not None:
        print_line(
            call.progress,
            f"label {counted(len(result.next), 'answer')} next: {_review_command(call)}",
        )
    elif not asked and result.doubtful:
        say = f"check {counted(result.doubtful, 'doubtful label')} with: {_review_command(call)}"
        print_line(call.progress, say)
    print_line(call.progress, f"create training samples with: {_next_command(call, result)}")


def _next_command(call: Call, result: "LabelResult") -> str:
    words = ["clew", "preprocess", Path(call.settings["store"]), "--scores-file", result.path]
    words += ["--skip-unlabeled"] if result.excluded or result.unclear else []
    return for_shell([*words, "--out", "preprocessed_data"])


def _review_command(call: Call) -> str:
    """With what decides the scores: with other scores, the file would be refused."""
    words = ["clew", "label", Path(call.settings["store"]), "--out", Path(call.settings["out"])]
    for name in _SCORED_BY:
        words += [flag(name), str(call.settings[name])] if call.settings[name] else []
    detector = call.settings["detector"]
    more = ["--next", "--detector", Path(detector)] if detector else []
    return for_shell([*words, "--review", *more])


def _review(call: Call, result: "LabelResult", *, port: int, browser: bool) -> "LabelResult":
    """Let a person correct labels on a page; Ctrl-C ends it as well."""
    from clew.hallucination.labels.label import apply_corrections
    from clew.hallucination.labels.review import Hints, open_page, open_review

    hints = Hints(next=_next_command(call, result), again=_review_command(call))
    with open_review(result.path, result.score_threshold, result.next) as review:
        with open_page(review, port, hints) as server:
            print_line(call.progress, f"review page: {server.address}")
            print_line(call.progress, "finish there or press Ctrl-C here; decisions are saved")
            serve_until_done(call.progress, server, browser=browser)
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(review.counts().items()))
        print_line(call.progress, f"reviewed: {told or 'nothing'}")
    return apply_corrections(result)


def _describe(result: "LabelResult") -> dict[str, object]:
    return {
        "path": str(result.path),
        "answers": len(result.rows),
        "correct": result.correct,
        "hallucinated": result.hallucinated,
        "refused": result.refused,
        "corrected": result.corrected,
        "excluded": result.excluded,
        "unclear": result.unclear,
        "spans": _count_spans(result),
        "score_threshold": result.score_threshold,
        "next": result.next,
        "categories": {
            one.category: {
                "answers": one.answers,
                "hallucinated": one.hallucinated,
                "refused": one.refused,
            }
            for one in result.categories
        },
    }


def _count_spans(result: "LabelResult") -> dict[str, int]:
    labels = [span.label for span in result.spans]
    return {name: labels.count(name) for name in ("correct", "hallucinated", "unsure")}


def _print_examples(console: Console, result: "LabelResult") -> None:
    from clew.hallucination.labels.label import find_doubt

    table = Table(header_style="bold")
    for name in ("", "score", "reason", "question", "answer", "accepted"):
        table.add_column(name, overflow="fold", no_wrap=not name)
    chosen = result.examples
    for kind, rows in (("correct", chosen.correct), ("hallucinated", chosen.hallucinated)):
        _add_rows(table, kind, rows)
    _add_rows(table, "refused", chosen.refused)
    table.add_section()
    for row in chosen.doubtful:
        is_large = find_doubt(row, result.score_threshold).is_large
        _add_rows(table, "doubtful" if is_large else "borderline", [row])
    console.print(table)


def _add_rows(table: Table, kind: str, rows: Sequence["LabeledAnswer"]) -> None:
    for row in rows:
        texts = (row.question, row.answer, row.accepted_answer)
        score = "-" if row.score is None else f"{row.score:.2f}"
        table.add_row(kind, score, row.reason, *map(_cell, texts))


def _cell(text: str) -> str:
    return for_terminal(shortened_cell(text, _CELL_CHARACTERS))


def _print_categories(console: Console, result: "LabelResult") -> None:
    if not result.categories:
        return
    has_refused = ["refused"] if result.refused else []
    rows = []
    for share in result.categories:
        part = f"{share.hallucinated / share.answers:.1%}" if share.answers else "-"
        counts = [f"{share.answers:,}", f"{share.hallucinated:,}", part]
        counts += [f"{share.refused:,}" for _ in has_refused]
        rows.append((shortened_cell(share.category, _CELL_CHARACTERS), *counts))
    heads = ("category", "answers", "hallucinated", "share", *has_refused)
    console.print()
    print_table(console, heads, rows, numbers=range(1, 5))
    console.print()


def _print_totals(console: Console, result: "LabelResult") -> None:
    say = partial(print_line, console)
    answers = len(result.rows) + len(result.excluded) + len(result.unclear)
    planned = result.planned_rows
    if planned is not None and answers < planned:
        say(f"the store is incomplete: it has {answers:,} of {planned:,} planned answers")
    if result.excluded:
        have = "answer has" if len(result.excluded) == 1 else "answers have"
        some = ", ".join(result.excluded[:5])
        given = "no label and " if any(row.method == "given" for row in result.rows) else ""
        say(f"excluded: {len(result.excluded):,} {have} {given}no accepted answers, e.g. {some}")
    verb = "is" if result.hallucinated == 1 else "are"
    in_class = counted(result.correct + result.hallucinated, "answer")
    say(
        f"{result.hallucinated:,} of {in_class} {verb} hallucinated "
        f"({result.hallucinated_share:.1%}) at score < {result.score_threshold:g}"
    )
    if result.refused:
        say(f"refused: {counted(result.refused, 'answer')} more, in neither class")
    if result.corrected:
        say(f"corrected by hand: {counted(result.corrected, 'answer')}")
    if result.lost_corrections:
        lost = counted(result.lost_corrections, "correction")
        say(f"dropped: {lost} of answers that the store no longer has")
    say(f"scores in {result.path}" + ("" if result.written else " (unchanged)"))
    if result.spans_path is not None:
        _print_spans(say, result)


def _print_spans(say: Callable[[str], None], result: "LabelResult") -> None:
    counts = _count_spans(result)
    if result.unclear:
        say(f"excluded: {counted(len(result.unclear), 'answer')} with no part that is clear")
    say(
        f"{counted(len(result.spans), 'span')}: {counts['correct']:,} correct, "
        f"{counts['hallucinated']:,} hallucinated, {counts['unsure']:,} unsure (excluded)"
    )
    say(f"span labels in {result.spans_path}")
