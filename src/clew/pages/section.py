"""One part of the page."""

from dataclasses import dataclass, replace

from clew.pages.markup import Html, tag


@dataclass(frozen=True, kw_only=True)
class Section:
    """`lead` says what it shows, `reading` how to read it; `pictures` are names of the PNGs in
    figures/ that show the same."""

    name: str
    short: str  # its name in the contents
    title: str
    lead: str
    content: Html
    reading: str = ""
    pictures: tuple[str, ...] = ()

    def if_there(self, figure: object, reason: str) -> "Section":
        """The same, or with a sentence in the place of a figure that has nothing to show: nothing
        is left out silently."""
        if figure:
            return self
        said = tag("p", reason, class_="empty")
        return replace(self, lead="", content=said, reading="", pictures=())
