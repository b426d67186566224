"""Arithmetic with small and round numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    entry,
    number_answers,
    word_questions,
)

_PER_CATEGORY = 90
_SUM = ("What is {a} + {b}?", "What is {a} plus {b}?", "What is the sum of {a} and {b}?")
_DIFFERENCE = (
    "What is {c} - {a}?",
    "What is {c} minus {a}?",
    "What is the difference between {c} and {a}?",
)
_PRODUCT = ("What is {a} × {b}?", "What is {a} times {b}?", "What is the product of {a} and {b}?")
_QUOTIENT = (
    "What is {c} / {a}?",
    "What is {c} divided by {a}?",
    "How many times does {a} go into {c}?",
)
_TENS, _SMALL = range(10, 100, 10), range(2, 13)


@dataclass(frozen=True)
class _Task:
    """What is asked about numbers: `c` follows from `a` and `b`. The answer is `c`, or `b` if the
    templates ask for that."""

    templates: tuple[str, ...]
    a: Sequence[int]
    b: Sequence[int]
    c: Callable[[int, int], int]
    answer: str = "c"


_TASKS = {
    "sum": _Task(_SUM, range(2, 30), range(2, 10), lambda a, b: a + b),
    "sum-of-tens": _Task(_SUM, _TENS, _TENS, lambda a, b: a + b),
    "sum-with-ten": _Task(
        _SUM, [a for a in range(11, 100) if a % 10], (10, 20), lambda a, b: a + b
    ),
    "difference": _Task(_DIFFERENCE, _SMALL, range(2, 20), lambda a, b: a + b, "b"),
    "difference-of-tens": _Task(_DIFFERENCE, _TENS, _TENS, lambda a, b: a + b, "b"),
    "product": _Task(_PRODUCT, _SMALL, (*range(2, 10), 11, 12), lambda a, b: a * b),
    "product-with-tens": _Task(_PRODUCT, _SMALL, (10, 20, 30, 50, 100), lambda a, b: a * b),
    "quotient": _Task(_QUOTIENT, _SMALL, _SMALL, lambda a, b: a * b, "b"),
    "quotient-of-tens": _Task(_QUOTIENT, (2, 5, 10), range(13, 60), lambda a, b: a * b, "b"),
    "square": _Task(
        ("What is the square of {a}?", "What is {a} squared?", "What is {a} to the power of two?"),
        range(3, 33),
        (1,),
        lambda a, _: a * a,
    ),
    "double": _Task(
        ("What is twice {a}?", "What is {a} doubled?", "What is the double of {a}?"),
        range(3, 60),
        (1,),
        lambda a, _: 2 * a,
    ),
    "half": _Task(
        ("What is half of {c}?", "What is one half of {c}?", "What is 50% of {c}?"),
        (2,),
        range(3, 60),
        lambda a, b: a * b,
        "b",
    ),
}


def _questions() -> list[Question]:
    entries = [one for category, task in _TASKS.items() for one in _ask(category, task)]
    templates = {category: task.templates for category, task in _TASKS.items()}
    return word_questions(templates, entries, _PER_CATEGORY)


def _ask(category: str, task: _Task) -> Iterator[Entry]:
    """Not where the answer is a number of the question: repeating that would look correct."""
    for a, b in product(task.a, task.b):
        c = task.c(a, b)
        answer, given = (c, (a, b)) if task.answer == "c" else (b, (a, c))
        if answer not in given:
            yield entry(category, f"{a}-{b}", number_answers(answer), a=a, b=b, c=c)


ARITHMETIC = BuiltInSet(
    name="arithmetic",
    about="sums, differences, products and quotients of small and round numbers",
    make=_questions,
    instruction="Answer with the number only, without a sentence.",
)
