"""Labeled answers with sources."""

import json
from pathlib import Path

from clew.hallucination.grounded.synthetic import GroundedLabel

CITIES = ("Lima", "Oslo", "Rome", "Cairo", "Quito", "Delhi")


def make_answers(count: int) -> list[GroundedLabel]:
    """Half of them name another city than the source; every third is labeled as a whole."""
    found = []
    for number in range(count):
        city, is_wrong = CITIES[number % 6], number % 2 == 1
        named = CITIES[(number + 2) % 6] if is_wrong else city
        answer = f"The office is in {named}. It opens at 9."
        spans = ((17, 17 + len(named)),) if is_wrong else ()
        found.append(
            GroundedLabel(
                answer=answer,
                sources=(f"Our office is in {city}. It opens at 9 every day.",),
                hallucinated=is_wrong,
                spans=None if number % 3 == 0 else spans,
                group=str(number // 2),
                set="offices",
            )
        )
    return found


def write_answers(path: Path, count: int) -> None:
    """The same as a file."""
    rows = [
        {
            "source": one.sources[0],
            "answer": one.answer,
            "hallucinated": int(one.hallucinated),
            "spans": one.spans,
            "group": one.group,
        }
        for one in make_answers(count)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
