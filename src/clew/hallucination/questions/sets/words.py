"""English words: plurals, past tenses, opposites, comparatives, and what animals and people are
called."""

from collections.abc import Callable, Iterator

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    entry,
    listed,
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
)

_PER_CATEGORY = 140
# What fills the templates, and the accepted answers.
_Fact = tuple[dict[str, str], tuple[str, ...]]
_TEMPLATES = {
    "plural": ("What is the plural of “{word}”?", "How do you write “{word}” in the plural?"),
    "singular": ("What is the singular of “{word}”?", "“{word}” is the plural of which word?"),
    "past": (
        "What is the past tense of “{word}”?",
        "What is the simple past of the verb “{word}”?",
    ),
    "participle": (
        "What is the past participle of “{word}”?",
        "What is the past participle of the verb “to {word}”?",
    ),
    "base": (
        "“{word}” is the past tense of which verb?",
        "Which verb has the past tense “{word}”?",
    ),
    "opposite": ("What is the opposite of “{word}”?", "Which word means the opposite of “{word}”?"),
    "degree": (
        "What is the {degree} form of “{word}”?",
        "What is the {degree} of the adjective “{word}”?",
    ),
    "young": ("What is a young {word} called?", "What do you call a baby {word}?"),
    "female": ("What is a female {word} called?", "What do you call a female {word}?"),
    "male": ("What is a male {word} called?", "What do you call a male {word}?"),
    "group": ("What is a group of {word} called?", "Which word is used for a group of {word}?"),
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
        yield {"word": adjective, "degree": "comparative"}, more
        yield {"word": adjective, "degree": "superlative"}, most


_FACTS: dict[str, Callable[[], Iterator[_Fact]]] = {
    "plural": lambda: _pairs(PLURALS),
    "singular": lambda: _pairs(PLURALS, 0, of=1),
    "past": lambda: _pairs(PASTS),
    "participle": lambda: _pairs(PASTS, 2),
    "base": lambda: _pairs(PASTS, 0, of=1),
    "opposite": lambda: _pairs(OPPOSITES),
    "degree": _degrees,
    "young": lambda: _pairs(ANIMALS),
    "female": lambda: _pairs(ANIMALS, 2),
    "male": lambda: _pairs(ANIMALS, 3),
    "group": lambda: _pairs(GROUPS),
    "person": lambda: _pairs(NATIONALITIES),
}

WORDS = BuiltInSet(
    name="words",
    about="plurals, past tenses, opposites, comparatives, words for animals and people",
    make=_questions,
    instruction="Answer with the word only, without a sentence.",
)
