"""clew score"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from clew.base.texts import counted
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import print_line, print_remedy, print_table, shortened_cell
from clew.cli.signals import log_to_stderr
from clew.hallucination.workflow import score

if TYPE_CHECKING:
    from clew.hallucination.live.risk_file import RiskSummary
    from clew.hallucination.workflow.scoring import ScoreResult

COMMAND = read_command(score)
_MOST_ROWS = 40
_CELL_CHARACTERS = 80
_MOST_REASONS = 3


def run(call: Call) -> None:
    log_to_stderr()
    result = call.run(score)
    if call.as_json:
        rows = {"rows": list(result.rows)} if result.path is None else {}
        call.print_json({**result.as_dict(), **rows})
        return
    if result.path is None:
        _print_rows(call.console, result)
    _print_summary(call.console, result)


def _print_rows(console: Console, result: "ScoreResult") -> None:
    from clew.hallucination.detectors.data import LEVEL_WORDS, STATE_WORDS

    rows = []
    for row in result.rows[:_MOST_ROWS]:
        risk = "" if row["risk"] is None else f"{row['risk']:.2f}"
        texts = (
            shortened_cell(text or "", _CELL_CHARACTERS) for text in (row["question"], _marked(row))
        )
        verdict = LEVEL_WORDS.get(row["risk_level"], "no verdict")
        rows.append((risk, verdict, STATE_WORDS[row["state"]], *texts))
    heads = ("risk", "verdict", "state", "question", "answer")
    print_table(console, heads, rows, numbers=(0,))
    left = len(result.rows) - _MOST_ROWS
    if left > 0:
        print_line(console, f"... and {left:,} more (write them to a file with --out)")


def _marked(row: Mapping[str, Any]) -> str | None:
    """The answer, with what its source does not support in brackets."""
    answer = row["answer"]
    for span in reversed(row.get("spans", ())):
        start, end = span["start"], span["end"]
        answer = f"{answer[:start]}[{answer[start:end]}]{answer[end:]}"
    return answer


def _counts(counts: Mapping[str, int], words: Mapping[Any, str]) -> str:
    return ", ".join(f"{count:,} {words[name]}" for name, count in counts.items())


def _print_reasons(console: Console, summary: "RiskSummary") -> None:
    """Why answers are unavailable; a file of an earlier version does not say."""
    chosen = [*summary.reasons.items()][:_MOST_REASONS]
    for reason, count in chosen:
        print_line(console, f"{count:,} unavailable: {with_flags(reason)}")
    left = summary.states.get("unavailable", 0) - sum(count for _, count in chosen)
    if chosen and left:
        print_line(console, f"and {left:,} more")


def _print_summary(console: Console, result: "ScoreResult") -> None:
    from clew.hallucination.detectors.data import LEVEL_WORDS, STATE_WORDS

    summary = result.summary
    answers = counted(summary.answers, "answer")
    states = _counts(summary.states, STATE_WORDS)
    print_line(console, f"{answers}, detector {result.detector}: {states}")
    _print_reasons(console, summary)
    if summary.mean_risk is not None:
        levels = _counts(summary.risk_levels, LEVEL_WORDS)
        print_line(console, f"{levels}; mean risk {summary.mean_risk:.2f}")
    if summary.auroc is not None and summary.ece is not None:
        print_line(
            console,
            f"AUROC {summary.auroc:.3f}, calibration error (ECE) {summary.ece:.3f} on "
            f"{counted(summary.labeled, 'labeled answer')} with a verdict",
        )
    if "out_of_distribution" in summary.states:
        print_remedy(console)
    if summary.retokenized_count:
        some = ", ".join(summary.retokenized[:5])
        print_line(
            console,
            f"{counted(summary.retokenized_count, 'answer')} would get other tokens from the text "
            f"than were generated (the generated ones were scored), e.g. {some}",
        )
    if result.warning:
        print_line(console, f"warning: {result.warning}", style="yellow")
    if result.promise:
        print_line(console, f"promise: {result.promise}")
    if result.no_promise:
        print_line(console, f"no promise: {result.no_promise}")
    if result.path is not None:
        print_line(console, f"risks in {result.path}")
