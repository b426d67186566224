"""Lists of alternatives: whether an answer names an accepted answer among others, as "Paris or
Rome" and "Norway, Sweden, and Denmark" do, but "Paris, France" and "Bosnia and Herzegovina" do not.
"""

import re
from collections.abc import Sequence

from clew.hallucination.labels.normalize import LISTS, Place, Words, split_words

_LIST_QUESTION = re.compile(
    r"\b(?:what|which|who|name|list|give|mention)(?: \w+)? (?:are|were)\b"
    r"|\b(?:name|list|give|mention|identify)(?: me)?(?: the)? (?:\d+|all|some|several|both|every)\b"
    rf"|\b(?:which|what|in which|in what) (?:\d+ )?(?:{'|'.join(LISTS['list_nouns'])}|\w+ies|\d+)\b"
    r"|^(?:name|list)\b"
)
_SEPARATOR = re.compile(r"\s*(?:,|;|/|&|\band\b)\s*")
_JOINS = frozenset(("and", "or", "plus", "nor"))
_ARTICLES = frozenset(("a", "an", "the", "both", "either", "in", "also"))
# Before a name they say what it is of: "and in the book of Leviticus".
_KINDS = frozenset(LISTS["kinds"])
# Words that begin a clause, not another item.
_CLAUSES = frozenset(LISTS["clauses"])
_COPULAS = frozenset(("is", "was", "are", "were", "by"))
# What a country may be said to be in, after a comma.
_REGIONS = frozenset(LISTS["regions"])
_ONE_PLACE = (" country ", " continent ", " who ")
_LONGEST_ITEM = 4


def asks_for_list(question: str) -> bool:
    """Whether a normalized question asks for several answers."""
    return bool(_LIST_QUESTION.search(question))


def parse_list(text: str) -> list[str]:
    """The items of a list, normalized; empty if the text is no list."""
    parts = _SEPARATOR.split(text)
    if len(parts) == 1:
        return []
    items = [item for part in parts if (item := split_words(part).without_articles().text)]
    return items if len(items) > 1 else []


class Alternatives:
    """Finds other items around a mention. `aliases` are not others; `asked` is the question, with
    a space at both ends."""

    def __init__(self, answer: Words, aliases: Sequence[str], asked: str) -> None:
        self._answer, self._aliases, self._asked = answer, aliases, asked
        self._longest = max((alias.count(" ") + 1 for alias in aliases), default=1)

    def surround(self, mention: Place) -> bool:
        """Whether the mention is one of several items."""
        return self._is_item_before(mention) or self._is_item_after(mention)

    def count(self, mention: Place) -> int:
        """The number of items of the list around a mention."""
        return self._count_names(mention)[0]

    def _is_item_before(self, mention: Place) -> bool:
        words, place = self._answer, mention.first
        link = self._link(place)
        last = place - 1
        while last >= 0 and words[last].text in _ARTICLES and link is None:
            link, last = self._link(last), last - 1
        while last >= 0 and words[last].text in _JOINS:
            last -= 1
        while last >= 0 and words[last].depth > words[mention.first].depth:
            last -= 1
        if link is None or last < 0 or words[last].depth < words[mention.first].depth:
            return False
        said = f" {words.join(last + 1 - self._longest, last + 1)}"
        if any(said.endswith(f" {alias}") for alias in self._aliases):
            return False
        return self._is_alternative(last, mention, link, after=False)

    def _is_item_after(self, mention: Place) -> bool:
        words, start = self._answer, mention.end
        while start < len(words) and words[start].depth > words[mention.first].depth:
            start += 1
        if start >= len(words) or words[start].depth < words[mention.first].depth:
            return False
        link = self._link(start)
        passed = {*_JOINS, *_ARTICLES, *(_KINDS if words[mention.first].is_name else ())}
        while start < len(words) and words[start].text in passed:
            start += 1
        if link is None or start >= len(words):
            return False
        following = f"{words.join(start, start + 8)} "
        name = f" {words.join(start, self._name_end(start))}"  # "Watson and Francis Crick"
        if any(
            following.startswith(f"{alias} ") or name.endswith(f" {alias}")
            for alias in self._aliases
        ):
            return False
        return self._is_alternative(start, mention, link, after=True)

    def _link(self, place: int) -> str | None:
        """What joins the word at `place` to the one before it: "and", "or", a comma, or nothing."""
        word, before = self._answer.get(place), self._answer.get(place - 1)
        if word is None or before is None:
            return None
        if "\n" in word.gap and any(mark in word.gap for mark in "-*•"):
            return "or"
        if word.starts_sentence:
            return None
        for one in (word, before):
            if one.text in _JOINS:
                return "and" if one.text in ("and", "plus") else "or"
        marks = {"/": "or", "&": "and", ",": ","}
        return next((link for mark, link in marks.items() if mark in word.gap), None)

    def _is_alternative(self, place: int, mention: Place, link: str, *, after: bool) -> bool:
        words = self._answer
        mine, other = words[mention.first], words[place]
        if link == "and" and f" {other.text} " in self._asked and self._has_verb(mention):
            return False
        if mine.text[:1].isdigit():
            return other.text[:1].isdigit() and link != ","
        if mine.is_name:
            if after and link == "and" and self._is_title(mention):
                return False
            return other.is_name and (link != "," or self._is_list(place, mention, after=after))
        if other.text in _CLAUSES:
            return False
        if link == ",":
            return after and self._continues(place)
        return self._is_short_after(place) if after else self._is_short_before(place)

    def _is_title(self, mention: Place) -> bool:
        """Whether the mention is a title that "and" may continue: "Centers for Disease Control and
        Prevention"."""
        words = self._answer.join(*mention).split()
        return len(words) > 2 and not {"of", "for", "to"}.isdisjoint(words[1:-1])

    def _has_verb(self, mention: Place) -> bool:
        first, end = (
            self._answer.sentence_start(mention.first),
            self._answer.sentence_end(mention.end),
        )
        return any(word.text in _CLAUSES for word in self._answer.words[first:end])

    def _continues(self, place: int) -> bool:
        """Whether one or two words are followed by "and" or "or": "white, yellow or orange"."""
        return any(
            (word := self._answer.get(one)) is not None
            and not word.starts_sentence
            and word.text in _JOINS
            for one in (place + 1, place + 2)
        )

    def _is_short_before(self, place: int) -> bool:
        """Whether the item has few words since the beginning of the sentence or the verb."""
        words = self._answer
        for one in range(place, max(-1, place - 3), -1):
            if words[one].starts_sentence or words[one].text in (*_COPULAS, *_ARTICLES):
                return True
        before = words.get(place - 1)
        return before is not None and (before.text.endswith("s") or "," in words[place].gap)

    def _is_short_after(self, place: int) -> bool:
        """Whether the item has few words up to the end of the sentence or the next comma."""
        words = self._answer
        for one in range(place + 1, min(len(words), place + 4)):
            if words[one].text in _CLAUSES:
                return False
            if words[one].starts_sentence or "," in words[one].gap or words[one].text in _JOINS:
                return True
        return place + 3 >= len(words)

    def _is_list(self, place: int, mention: Place, *, after: bool) -> bool:
        """Names between commas: a list if there are three or more, or an "and"; "Paris, France" is
        a place within another."""
        names, has_join = self._count_names(mention)
        if has_join or names > 3:
            return True
        if names == 3:
            return (self._link(mention.first) is None) == (self._link(mention.end) is None)
        if not after or not any(word in self._asked for word in _ONE_PLACE):
            return False
        end = self._name_end(place)
        word = self._answer.get(end)
        is_whole = word is None or word.starts_sentence or "," in word.gap
        return is_whole and self._answer[place].text not in _REGIONS and end - place <= 3

    def _name_end(self, place: int) -> int:
        """The word after the name that begins at `place`."""
        end = place
        while (
            (word := self._answer.get(end))
            and word.is_name
            and not (end > place and (word.starts_sentence or "," in word.gap))
        ):
            end += 1
        return end

    def _count_names(self, mention: Place) -> tuple[int, bool]:
        """The number of names between commas, the mention included, and whether "and" joins
        them."""
        count_after, join_after = self._count_towards(mention.end, 1)
        count_before, join_before = self._count_towards(mention.first - 1, -1)
        return 1 + count_after + count_before, join_after or join_before

    def _count_towards(self, place: int, step: int) -> tuple[int, bool]:
        words = self._answer
        count, length, has_join = 0, 0, False
        while 0 <= place < len(words) and length <= _LONGEST_ITEM:
            word = words[place]
            # The gap between this word and the one nearer to the mention.
            edge = word if step > 0 else words[place + 1]
            if edge.starts_sentence:
                break
            if word.text in _JOINS:
                following = words.get(place + 1)
                if following is None or not following.is_name:
                    break
                has_join, length = True, 0
                count += step > 0 or not has_join
            elif "," in edge.gap and word.text not in _JOINS:
                if not word.is_name:
                    break
                count, length = count + 1, 0
            elif not word.is_name and word.text not in ("of", "the", "de"):
                break
            length += 1
            place += step
        return count, has_join
