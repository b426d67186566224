"""The built-in question sets. Each is made by code from the data of a package, from a list or by
rules, and is the same on every machine; a new set is one module and one entry here."""

from dataclasses import replace

from clew.hallucination.questions.records import Collector, Question, QuestionSet
from clew.hallucination.questions.sets.abbreviations import ABBREVIATIONS
from clew.hallucination.questions.sets.arithmetic import ARITHMETIC
from clew.hallucination.questions.sets.culture import CULTURE
from clew.hallucination.questions.sets.elements import ELEMENTS
from clew.hallucination.questions.sets.everyday import EVERYDAY
from clew.hallucination.questions.sets.fact_spans import FACT_SPANS
from clew.hallucination.questions.sets.facts import FACTS
from clew.hallucination.questions.sets.languages import LANGUAGES
from clew.hallucination.questions.sets.making import BuiltInSet, name_versions
from clew.hallucination.questions.sets.reading import READING
from clew.hallucination.questions.sets.statements import STATEMENTS
from clew.hallucination.questions.sets.words import WORDS

# Every set whose answers are correct or hallucinated as a whole, in the order of `ALL`.
_WHOLE = (
    *(FACTS, ELEMENTS, ARITHMETIC, LANGUAGES, ABBREVIATIONS, EVERYDAY, READING, STATEMENTS, WORDS),
    CULTURE,
)
SETS: dict[str, BuiltInSet] = {one.name: one for one in (*_WHOLE, FACT_SPANS)}
ALL = "all"


def load_built_in(name: str, limit: int | None = None) -> QuestionSet | None:
    """The first `limit` questions of a built-in set, or all; None if there is no such set."""
    if name == ALL:
        return _load_all(limit)
    return SETS[name].load(limit) if name in SETS else None


def built_in_names() -> list[str]:
    return [*SETS, ALL]


def _load_all(limit: int | None) -> QuestionSet:
    """Every set but the one of several facts per answer. The sets alternate, so that any prefix is
    a fair mix of them."""
    collector = Collector(ALL, limit)
    loaded = [(one, one.make()) for one in _WHOLE]
    for place in range(max(len(questions) for _, questions in loaded)):
        for one, questions in loaded:
            if place < len(questions):
                collector.add(_as_part(one, questions[place]))
    packages = tuple(dict.fromkeys(package for one in _WHOLE for package in one.packages))
    return collector.finish(name_versions(ALL, packages))


def _as_part(one: BuiltInSet, question: Question) -> Question:
    """With the set in id and category, and its instruction in the question: the prompt is the same
    as when the set is asked alone."""
    return replace(
        question,
        id=f"{one.name}/{question.id}",
        question=f"{question.question} {one.instruction}".strip(),
        category=f"{one.name}/{question.category}",
    )
