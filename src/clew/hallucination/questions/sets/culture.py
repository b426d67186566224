"""Books, plays, paintings, music, films, myths, inventions, famous people and events."""

from collections.abc import Iterator

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.culture_lists import MUSIC, NOVELS, PAINTINGS, PLAYS, POEMS
from clew.hallucination.questions.sets.history_lists import (
    CHARACTERS,
    DISCOVERIES,
    FILMS,
    GODS,
    LANDMARKS,
    PEOPLE,
    STATE_CAPITALS,
    YEARS,
)
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    entry,
    listed,
    word_questions,
)

_LISTS = {
    "novel": NOVELS,
    "play": PLAYS,
    "poem": POEMS,
    "painting": PAINTINGS,
    "music": MUSIC,
    "film": FILMS,
    "discovery": DISCOVERIES,
    "myth": GODS,
    "year": YEARS,
    "country": PEOPLE,
    "landmark": LANDMARKS,
    "state-capital": STATE_CAPITALS,
    "character": CHARACTERS,
}
_TEMPLATES = {
    "novel": (
        "Who wrote the book “{of}”?",
        "Who is the author of “{of}”?",
        "“{of}” was written by which author?",
    ),
    "play": ("Who wrote the play “{of}”?", "Which playwright wrote “{of}”?"),
    "poem": ("Who wrote the poem or poems known as “{of}”?", "Which poet wrote “{of}”?"),
    "painting": ("Who is the artist of “{of}”?", "Which artist made “{of}”?"),
    "music": ("Who composed “{of}”?", "Which composer wrote “{of}”?"),
    "film": ("Who directed the film “{of}”?", "Which director made the film “{of}”?"),
    "discovery": (
        "Who is known for inventing or discovering {of}?",
        "Whose discovery or invention is {of}?",
    ),
    "myth": ("What is the name of the {of}?", "Who is the {of}?"),
    "year": ("In which year did {of}?", "When did {of}? Give the year."),
    "country": ("Which country did {of} come from?", "In which country was {of} born?"),
    "landmark": ("In which city is {of}?", "Which city do you visit to see {of}?"),
    "state-capital": (
        "What is the capital of the US state of {of}?",
        "Which city is the capital of {of} in the United States?",
    ),
    "character": ("Who created the character {of}?", "Which author invented {of}?"),
}


def _questions() -> list[Question]:
    return word_questions(_TEMPLATES, _entries())


def _entries() -> Iterator[Entry]:
    for category, lines in _LISTS.items():
        for line in listed(lines):
            of, _, answers = line.partition(" = ")
            yield entry(category, of.lower().replace(" ", "-"), answers.split("|"), of=of)


CULTURE = BuiltInSet(
    name="culture",
    about="books, art, music, films, myths, inventions, famous people and events",
    make=_questions,
)
