"""English words: plurals, past tenses, opposites, comparatives, spelling, and names of animals."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from string import ascii_uppercase

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    entry,
    listed,
    number_answers,
    word_questions,
)
from clew.hallucination.questions.sets.word_lists import (
    ANIMALS,
    COMPARATIVES,
    GROUPS,
    NATIONALITIES,
    OPPOSITES,
    PASTS,
    PLURALS,
    SPELLED,
)

_PER_CATEGORY = 100
# What fills the templates, and the accepted answers.
_Fact = tuple[dict[str, str], tuple[str, ...]]
_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")
_TEMPLATES = {
    "plural": (
        "What is the plural of “{word}”?",
        "Which word do you use for more than one {word}?",
    ),
    "singular": ("What is the singular of “{word}”?", "“{word}” is the plural of which word?"),
    "past": (
        "What is the past tense of “{word}”?",
        "Today I {word}. Which form of the verb do I use for yesterday?",
    ),
    "participle": (
        "What is the past participle of “{word}”?",
        "Which form of “{word}” comes after “have”, as in “I have ...”?",
    ),
    "base": (
        "“{word}” is the past tense of which verb?",
        "Which verb has the past tense “{word}”?",
    ),
    "opposite": ("What is the opposite of “{word}”?", "Which word means the opposite of “{word}”?"),
    "degree": (
        "What is the {place} form of “{word}”?",
        "What is the {place} of the adjective “{word}”?",
    ),
    "letter": (
        "What is the {place} letter of the word “{word}”?",
        "Which letter is the {place} one in “{word}”?",
    ),
    "last-letter": (
        "What is the last letter of the word “{word}”?",
        "With which letter does the word “{word}” end?",
    ),
    "length": (
        "How many letters does the word “{word}” have?",
        "How many letters are in “{word}”?",
    ),
    "backwards": ("How is the word “{word}” spelled backwards?", "Write “{word}” backwards."),
    "alphabet": (
        "Which letter of the alphabet comes right {place} {word}?",
        "Which letter comes directly {place} {word} in the alphabet?",
    ),
    "young": ("What is a young {word} called?", "What do you call a baby {word}?"),
    "female": ("What is a female {word} called?", "What do you call a female {word}?"),
    "male": ("What is a male {word} called?", "What do you call a male {word}?"),
    "group": (
        "What is a group of {word} called?",
        "Which word is used for a group of {word}?",
    ),
    "person": (
        "What do you call a person from {word}?",
        "What is the adjective for something that comes from {word}?",
    ),
}


def _questions() -> list[Question]:
    entries = [
        entry(category, "-".join(values.values()).lower(), answers, **values)
        for category, facts in _FACTS.items()
        for values, answers in facts()
    ]
    return word_questions(_TEMPLATES, entries, _PER_CATEGORY)


def _rows(lines: str) -> Iterator[list[tuple[str, ...]]]:
    """ "mouse mice; ox oxen|oxes" as [("mouse",), ("mice",)], [("ox",), ("oxen", "oxes")]."""
    for line in listed(lines):
        yield [tuple(cell.replace("_", " ").split("|")) for cell in line.split(" ")]


def _pairs(lines: str, column: int = 1, of: int = 0) -> Iterator[_Fact]:
    """What stands in one column for what stands in another; not where both are the same word."""
    for row in _rows(lines):
        word, answers = row[of][0], row[column]
        if "-" not in (word, *answers) and word not in answers:
            yield {"word": word}, answers


def _degrees() -> Iterator[_Fact]:
    for (adjective, *_), more, most in _rows(COMPARATIVES):
        yield {"word": adjective, "place": "comparative"}, more
        yield {"word": adjective, "place": "superlative"}, most


def _letters() -> Iterator[_Fact]:
    for word in SPELLED.split():
        for place, letter in zip(_PLACES, word[:-1], strict=False):
            yield {"word": word, "place": place}, _letter(letter)


def _last_letters() -> Iterator[_Fact]:
    return (({"word": word}, _letter(word[-1])) for word in SPELLED.split())


def _letter(letter: str) -> tuple[str, ...]:
    return (letter.upper(), f"letter {letter.upper()}")


def _lengths() -> Iterator[_Fact]:
    return (({"word": word}, number_answers(len(word))) for word in SPELLED.split())


def _backwards() -> Iterator[_Fact]:
    return (({"word": word}, (word[::-1],)) for word in SPELLED.split() if len(word) < 7)


def _neighbors() -> Iterator[_Fact]:
    for before, after in pairwise(ascii_uppercase):
        yield {"word": before, "place": "after"}, _letter(after)
        yield {"word": after, "place": "before"}, _letter(before)


_FACTS: dict[str, Callable[[], Iterator[_Fact]]] = {
    "plural": lambda: _pairs(PLURALS),
    "singular": lambda: _pairs(PLURALS, 0, of=1),
    "past": lambda: _pairs(PASTS),
    "participle": lambda: _pairs(PASTS, 2),
    "base": lambda: _pairs(PASTS, 0, of=1),
    "opposite": lambda: _pairs(OPPOSITES),
    "degree": _degrees,
    "letter": _letters,
    "last-letter": _last_letters,
    "length": _lengths,
    "backwards": _backwards,
    "alphabet": _neighbors,
    "young": lambda: _pairs(ANIMALS),
    "female": lambda: _pairs(ANIMALS, 2),
    "male": lambda: _pairs(ANIMALS, 3),
    "group": lambda: _pairs(GROUPS),
    "person": lambda: _pairs(NATIONALITIES),
}

WORDS = BuiltInSet(
    name="words",
    about="English words: plurals, past tenses, opposites, spelling, names of animals",
    make=_questions,
)
