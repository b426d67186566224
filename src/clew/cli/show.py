"""clew show"""

import math
from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.terminal import TextConsole
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import first_words, print_line, print_table
from clew.hallucination.workflow import show

if TYPE_CHECKING:
    from clew.hallucination.answer_page import Picture, ShownAnswer

COMMAND = read_command(show)
_MOST_TOKENS = 40
_BAR = 20


def run(call: Call) -> None:
    result = show(**call.settings)
    if call.as_json:
        call.print_json(
            {
                "pages": [str(path) for path in result.paths],
                "answers": [_describe(shown) for shown in result.picture.answers],
            }
        )
        return
    console = TextConsole()
    _print_picture(console, result.picture)
    for path in result.paths:
        print_line(console, f"written to {path}")


def _describe(shown: "ShownAnswer") -> dict[str, object]:
    logprobs = [] if shown.logprobs is None else shown.logprobs.tolist()
    return {
        "global_example_id": shown.number,
        **({"context": shown.context} if shown.context else {}),
        "question": shown.question,
        "answer": shown.answer,
        "label": shown.kind,
        "score": shown.score,
        "tokens": list(shown.answer_texts),
        "probabilities": [math.exp(logprob) for logprob in logprobs],
    }


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
    from clew.hallucination.answer_page.picture import (
        accepted_text,
        describe_source,
        tell_verdict,
    )

    score = "" if shown.score is None else f", score {shown.score:.2f}"
    print_line(console, describe_source(shown), style="bold")
    if shown.context:
        print_line(console, f"context:  {first_words(shown.context)}")
    print_line(console, f"question: {shown.question}")
    print_line(console, f"answer:   {shown.answer or '(empty)'}")
    print_line(console, f"accepted: {accepted_text(shown)}")
    print_line(console, f"label:    {shown.kind or 'unknown'}{score}")
    if shown.verdict is not None:
        print_line(console, f"detector: {tell_verdict(shown)}")


def _print_tokens(console: Console, shown: "ShownAnswer") -> None:
    from clew.hallucination.traces.token_texts import visible_text

    assert shown.logprobs is not None
    chances = [math.exp(logprob) for logprob in shown.logprobs.tolist()]
    entropies = [math.nan] * len(chances)
    if shown.entropies is not None:
        entropies = shown.entropies.tolist()
    rows = list(zip(shown.answer_texts, chances, entropies, strict=True))
    bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"
    cells = (
        (visible_text(text), f"{chance:.3f}", bar * round(_BAR * chance), f"{entropy:.2f}")
        for text, chance, entropy in rows[:_MOST_TOKENS]
    )
    heads = (f"token of answer {shown.number}", "probability", "", "entropy")
    print_table(console, heads, cells, numbers=(1, 3))
    if len(rows) > _MOST_TOKENS:
        console.print(f"... and {len(rows) - _MOST_TOKENS:,} more (on the page)")
    console.print()
