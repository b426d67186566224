"""Lines, tables and answers that several commands print."""

import textwrap
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from clew.base.terminal import print_line as print_line
from clew.base.texts import for_terminal
from clew.cli.errors import with_flags

if TYPE_CHECKING:
    from clew.engine import HardwarePlan
    from clew.hallucination.live.session import AskedAnswer


def first_words(text: str, characters: int = 200) -> str:
    """The start of a long text on one line."""
    return textwrap.shorten(text[: 4 * characters], characters, placeholder=" ...")


def shortened_cell(text: str, characters: int) -> str:
    """The start of a text, for a cell of a table."""
    return text if len(text) <= characters else text[: characters - 3] + "..."


class PlainTable(Table):
    """A table without lines around its cells, and without spaces after the last one: they would be
    copied along."""

    def __init__(self, **options: Any) -> None:
        super().__init__(box=None, header_style="bold", padding=(0, 2, 0, 0), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = super().__rich_console__(console, options)
        for line in Segment.split_lines(part for part in drawn if isinstance(part, Segment)):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                last = line.pop()
                line.append(Segment(last.text.rstrip(), last.style))
            yield from line
            yield Segment.line()


def print_table(
    console: Console,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Container[int] = (),
) -> None:
    """Print rows below their headings, if any; nothing if there are no rows. `numbers` are the
    places of the columns that are right-aligned."""
    table = PlainTable(show_header=any(heads))
    for place, head in enumerate(heads):
        is_number = place in numbers
        table.add_column(head, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(for_terminal, row))
    if table.rows:
        console.print(table)


# From this risk on, the shade; below the first, none. They read well on dark and on light.
_SHADES = (
    (0.8, "#ffffff on #c0182b"),
    (0.6, "#1a1a1a on #ff8f5e"),
    (0.4, "#1a1a1a on #ffc36b"),
    (0.2, "#1a1a1a on #ffe9a8"),
)
LEVEL_STYLES = {"high": "bold red", "low": "bold green"}
_BAR = 20
_MOST_ECHOED = 1_000
_INDENT = " " * len("question: ")


def print_answer(console: Console, asked: "AskedAnswer", *, with_question: bool = True) -> None:
    if with_question and asked.question.context:
        print_line(console, f"context:  {first_words(asked.question.context)}")
    if with_question:
        print_line(console, f"question: {_echo(asked.question.question)}")
    console.print(Text.assemble("answer:   ", _answer(console, asked)), soft_wrap=True)
    console.print(Text.assemble("risk:     ", _risk(console, asked)), soft_wrap=True)
    if asked.state != "checked":
        state = Text.assemble("state:    ", (_state(asked), "yellow"))
        console.print(state, soft_wrap=True)
    if not is_colored(console) and _has_token_risks(asked):
        print_line(console, f"tokens:   {_figures(asked)}")


def _echo(question: str) -> str:
    if len(question) <= _MOST_ECHOED:
        return question
    return f"{question[:_MOST_ECHOED]} ... ({len(question):,} characters)"


# What the titles of clew's own methods mean.
OWN_METHODS = {
    "fusion": "Fusion: one classifier on hidden states, token probabilities and attention",
    "robust": "Robust: a sum of linear scores, for questions unlike the training ones",
    "reader": "Grounded reader: a model of clew's own, trained on other answers and their sources",
    "gated": "Gated: fusion for answers like the training ones, robust for others",
}


def print_scale(console: Console, asked: "AskedAnswer") -> None:
    """What risk, threshold and the name behind it are: to people, not in a pipe."""
    if console.is_terminal and asked.state == "checked":
        words = "risk: the probability that the answer is hallucinated, high above the threshold"
        method = OWN_METHODS.get(asked.assessment.method, "")
        print_line(console, f"{words}{method and f'. {method}'}", style="dim")


def print_legend(console: Console) -> None:
    """What the shades mean."""
    shades = ((f" {risk:g} ", style) for risk, style in reversed(_SHADES))
    console.print(Text.assemble(("shaded by the risk of each token, from ", "dim"), *shades))


def print_remedy(console: Console) -> None:
    """What to do about answers that got no verdict."""
    from clew.hallucination.detectors.data import REMEDY

    print_line(console, f"not familiar? To get a verdict, {with_flags(REMEDY)}", style="dim")


def is_colored(console: Console) -> bool:
    return console.is_terminal and not console.no_color and console.color_system is not None


def has_shades(console: Console, asked: "AskedAnswer") -> bool:
    if not is_colored(console) or not _has_token_risks(asked):
        return False
    return any(shade_of(token.risk) for token in asked.tokens)


def _answer(console: Console, asked: "AskedAnswer") -> Text:
    if not asked.text:
        return Text("(empty)" if asked.ended else "(none)", "dim")
    if not is_colored(console) or not _has_token_risks(asked):
        return Text(_lines(asked.text))
    text = Text()
    for token in asked.tokens:
        for place, line in enumerate(for_terminal(token.text, lines=True).split("\n")):
            word = line.lstrip()
            text.append(f"\n{_INDENT}" if place else "")
            text.append(line[: len(line) - len(word)])
            text.append(word, shade_of(token.risk))
    return _stripped(text)


def _stripped(text: Text) -> Text:
    """Without the space that the first token of most answers starts with."""
    text.rstrip()
    return text[len(text.plain) - len(text.plain.lstrip()) :]


def _lines(text: str) -> str:
    return for_terminal(text, lines=True).replace("\n", f"\n{_INDENT}")


def shade_of(risk: float | None) -> str:
    return next((style for least, style in _SHADES if risk is not None and risk >= least), "")


def _risk(console: Console, asked: "AskedAnswer") -> Text:
    found = asked.assessment
    if found.risk is None or found.risk_level is None or found.threshold is None:
        return Text(found.words, "yellow")
    style = LEVEL_STYLES[found.risk_level]
    doubt = ", not shown to be better than chance" if asked.warning else ""
    about = f" (threshold {found.threshold:.2f}, {found.method}{doubt})"
    bar = Text()
    if is_colored(console):
        full = round(_BAR * found.risk)
        bar = Text.assemble(("━" * full, style), ("━" * (_BAR - full), "dim"), " ")
    return Text.assemble(f"{found.risk:.2f} ", bar, (found.words, style), (about, "dim"))


def _state(asked: "AskedAnswer") -> str:
    return for_terminal(with_flags(asked.assessment.explain()))


def _has_token_risks(asked: "AskedAnswer") -> bool:
    """An answer that is not familiar gets no verdict on its tokens either."""
    is_familiar = asked.state != "out_of_distribution"
    return is_familiar and any(token.risk is not None for token in asked.tokens)


def _figures(asked: "AskedAnswer") -> str:
    risks = ("-" if token.risk is None else f"{token.risk:.2f}" for token in asked.tokens)
    texts = (token.text.strip() or repr(token.text)[1:-1] for token in asked.tokens)
    return ", ".join(f"{text} {risk}" for text, risk in zip(texts, risks, strict=True))


# Choices that calibration makes by measuring the alternatives.
_MEASURED = ("precision", "channels_last", "cuda_graph", "batch_size")


def plan_table(made: "HardwarePlan", before: "HardwarePlan | None" = None) -> Table:
    """Every choice with its value and reason, or only those that differ from `before`."""
    table = PlainTable()
    for name in ("choice", "value", "why"):
        table.add_column(name, overflow="fold")
    for name, value in made.choices.items():
        if before is not None and not _is_news(made, before, name):
            continue
        why = with_flags(made.reasons.get(name, ""))
        table.add_row(name, _value_text(name, value), Text(for_terminal(why)))
    return table


def _is_news(made: "HardwarePlan", before: "HardwarePlan", name: str) -> bool:
    """Whether a choice is worth showing: its value differs from `before`, or was measured again for
    this network."""
    if made.choices[name] != before.choices[name]:
        return True
    is_measured = name in _MEASURED and len(made.timings) > 1
    is_weighed = name == "gradient_checkpointing"  # its peaks are measured in every run
    return (is_measured or is_weighed) and made.reasons.get(name) != before.reasons.get(name)


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None and name == "max_cache_batches":
        return "all"
    return f"{value:,}" if isinstance(value, int) else str(value)
