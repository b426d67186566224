"""What a check of an answer against its sources found, as JSON and as one self-contained page: what
they do not support is marked, and leads to the passage that comes nearest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clew.base.texts import counted
from clew.hallucination.detectors.data import LEVEL_WORDS, NO_VERDICT, RiskLevel, State
from clew.pages.markup import Html, html_head, join, tag
from clew.version import __version__

if TYPE_CHECKING:
    from clew.hallucination.detectors.data import Promise
    from clew.hallucination.grounded import GroundedReading, UnitRisk, UnsupportedSpan

# What has a risk of its own.
By = Literal["span", "sentence", "claim"]
CHECK_GENERATOR = "clew check"
Place = tuple[int, int]
# The variable of the style by which a mark is shaded, and the least of it: what is marked is seen.
_SHADE, _LIGHTEST = "shade", 0.35


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckResult:
    """An answer beside its sources, which have names, and what a reader found. `reading` has all of
    it, with the risks of sentences and tokens. `promise` is what was promised of answers with a low
    risk. `path` is the page that was written, if any."""

    answer: str
    sources: tuple[str, ...]
    names: tuple[str, ...]
    reading: "GroundedReading"
    reader: str
    promise: "Promise | None" = None
    question: str | None = None
    by: By = "span"
    path: Path | None = None

    @property
    def risk(self) -> float | None:
        return self.reading.risk

    @property
    def risk_level(self) -> RiskLevel | None:
        return self.reading.risk_level

    @property
    def state(self) -> State:
        return self.reading.state

    @property
    def spans(self) -> "tuple[UnsupportedSpan, ...]":
        return self.reading.spans

    @property
    def units(self) -> "tuple[UnitRisk, ...]":
        """The parts of the answer that can be shown with a risk of their own."""
        return self.reading.claims if self.by == "claim" else self.reading.sentences

    def as_dict(self) -> dict[str, Any]:
        """As in JSON: places count characters of the answer, and of the source by its number."""
        about = {"answer": self.answer, "question": self.question, "sources": list(self.names)}
        path = None if self.path is None else str(self.path)
        found = describe_reading(self.reading, self.reader, self.promise)
        claims = {"claims": list(map(asdict, self.units))} if self.by == "claim" else {}
        return {**about, **_rounded({**found, **claims}), "page": path}

    def __repr__(self) -> str:
        return f"CheckResult({tell_reading(self.reading)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame of its own."""
        page = escape(render_check(self))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 600px; border: 0"></iframe>'


def describe_reading(
    reading: "GroundedReading", reader: str, promise: "Promise | None"
) -> dict[str, Any]:
    """A reading as in JSON answers; only an answer that is shown has a promise."""
    found = {**reading.to_dict(), "sentences": [asdict(one) for one in reading.sentences]}
    limits = promise.limits if promise is not None and reading.risk_level == "low" else None
    return {**_rounded(found), "method": reader, "detector": reader, "promise": limits}


def _rounded(value: Any) -> Any:
    """As in files of risks."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def tell_reading(reading: "GroundedReading") -> str:
    """ "high risk 0.91, 1 unsupported span", or why there is no risk."""
    if reading.risk is None or reading.risk_level is None:
        words = NO_VERDICT if reading.state == "out_of_distribution" else "not checked"
        return f"{words}: {reading.reason}"
    spans = counted(len(reading.spans), "unsupported span") if reading.spans else "nothing marked"
    return f"{LEVEL_WORDS[reading.risk_level]} {reading.risk:.2f}, {spans}"


def cut_text(text: str, places: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, str, list[int]]]:
    """The text in parts: where each starts, and the numbers of the places that cover it."""
    ends = sorted({0, len(text), *(end for place in places for end in place)})
    for start, end in zip(ends, ends[1:], strict=False):
        covering = [n for n, (first, last) in enumerate(places) if first <= start and end <= last]
        yield start, text[start:end], covering


def render_check(result: CheckResult) -> str:
    """The whole page. The answer and its sources are escaped."""
    reading = result.reading
    kind = {"high": "hallucinated", "low": "correct"}.get(reading.risk_level or "", "unknown")
    chip = tag("b", tell_reading(reading).partition(",")[0], class_="chip")
    spans = counted(len(reading.spans), "unsupported span") if reading.risk is not None else ""
    card = tag(
        "article",
        tag("p", chip, spans, class_="quiet"),
        tag("h2", result.question) if result.question else None,
        _offer_units(result),
        tag("p", list(_marked_answer(result)), class_="answer"),
        tag("ul", [_list_span(result, n) for n in range(len(reading.spans))], class_="spans"),
        class_=f"card {kind}",
    )
    sources = [_draw_source(result, number) for number in range(len(result.sources))]
    made = f"Made by clew {__version__} with the reader {result.reader}."
    body = tag(
        "main",
        tag("header", tag("h1", "An answer beside its sources"), tag("p", _LEAD)),
        tag("div", card, tag("div", sources), class_="columns"),
        tag("footer", made),
        class_="two",
    )
    style = join(_read("style.css"), _read("checked.css"))
    head = html_head("An answer beside its sources", style, CHECK_GENERATOR)
    return f'<!doctype html>\n<html lang="en">{head}{tag("body", body)}</html>\n'


_LEAD = (
    "Marked in the answer is what the sources do not support. A mark leads to the passage of the "
    "sources that comes nearest to it."
)


def _offer_units(result: CheckResult) -> Html | None:
    """The box that shows and hides the risks of sentences or claims, without a script."""
    name = "claim" if result.by == "claim" else "sentence"
    box = tag("input", type="checkbox", id="by-unit", checked=result.by == name)
    label = tag("label", f" by {name}", for_="by-unit", class_="quiet")
    return join(box, label) if result.units else None


def _marked_answer(result: CheckResult) -> Iterator[Html | str]:
    """The text with its marks; behind each sentence or claim its risk."""
    risks = {one.end: one.risk for one in result.units}
    name = "claim" if result.by == "claim" else "sentence"
    cuts = [(end, end) for end in risks]
    places = [*((one.start, one.end) for one in result.reading.spans), *cuts]
    for start, text, of in cut_text(result.answer, places):
        yield _mark(result, of[0], text) if of else text
        if start + len(text) in risks:
            yield tag("small", f" {risks[start + len(text)]:.2f}", title=f"risk of the {name}")


def _mark(result: CheckResult, number: int, text: str) -> Html:
    span = result.reading.spans[number]
    mark = tag("mark", text, style=f"--{_SHADE}:{max(_LIGHTEST, span.risk):.2f}")
    where = None if span.nearest is None else f"#passage-{number}"
    return tag("a", mark, href=where, title=f"risk {span.risk:.2f}")


def _list_span(result: CheckResult, number: int) -> Html:
    span = result.reading.spans[number]
    near = span.nearest
    told = [" No passage of the sources shares a word with it."]
    if near is not None:
        link = tag("a", f"\u201c{near.text}\u201d", href=f"#passage-{number}")
        told = [" Nearest: ", link, f" ({result.names[near.source]})"]
    return tag("li", tag("b", span.text), f" risk {span.risk:.2f}.", told)


def _draw_source(result: CheckResult, number: int) -> Html:
    near = [span.nearest for span in result.reading.spans]
    own = {n: (p.start, p.end) for n, p in enumerate(near) if p is not None and p.source == number}
    parts = [
        _passage(start, text, [list(own)[n] for n in of], own.__getitem__) if of else text
        for start, text, of in cut_text(result.sources[number], list(own.values()))
    ]
    return tag("section", tag("h2", result.names[number]), tag("p", parts, class_="source"))


def _passage(start: int, text: str, of: Sequence[int], place_of: Callable[[int], Place]) -> Html:
    """Marks lead to the first part of their passage."""
    drawn = tag("span", text, class_="passage")
    for number in of:
        if place_of(number)[0] == start:
            drawn = tag("span", drawn, id=f"passage-{number}")
    return drawn


def _read(name: str) -> Html:
    return Html(files(str(__package__)).joinpath(name).read_text(encoding="utf-8"))
