"""Reads a page as a browser does: its elements, their attributes, and its text."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """`elements` are (name, attributes); `text` is what a person may read."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.markup = markup
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(self.markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside[-1:]):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def section(self, name: str) -> str:
        """The markup of one section."""
        start = self.markup.index(f'id="{name}"')
        return self.markup[start : self.markup.index("</section>", start)]
