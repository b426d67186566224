"""The questions to ask: from a file, a folder, the Hugging Face hub or the embedded facts."""

import os
import re
from pathlib import Path

from clew.errors import InputError
from clew.hallucination.questions.facts import FACTS, facts_questions, facts_version, load_facts
from clew.hallucination.questions.files import READERS, file_ending, load_file
from clew.hallucination.questions.hub import load_dataset
from clew.hallucination.questions.records import Question, QuestionSet, SkippedQuestion

__all__ = [
    "Question",
    "QuestionSet",
    "SkippedQuestion",
    "facts_questions",
    "facts_version",
    "load_questions",
]

_HUB_SPEC = re.compile(r"([\w.-]+(/[\w.-]+)?)(:[\w.+-]*){0,2}")


def load_questions(spec: str, num_samples: int | None = None) -> QuestionSet:
    """Read the questions that `spec` names, the first `num_samples` of them where given.

    `spec` is "facts", a file (.jsonl .json .csv .tsv .parquet .arrow), a folder or a Hugging
    Face id, the last two with ":config:split" or ":split" if wanted. Raises InputError.
    """
    if num_samples is not None and num_samples < 1:
        raise InputError(f"num_samples is {num_samples}: ask for at least 1 question")
    if spec == FACTS:
        return load_facts(num_samples)
    base, names = _find_local(spec)
    if base is None:
        hub_id, *names = spec.split(":", 2)
        return load_dataset(hub_id, names, num_samples, from_hub=True)
    if base.is_dir():
        return load_dataset(str(base), names, num_samples, from_hub=False)
    if names:
        raise InputError(f'{base} is a file and has no config or split: leave ":{names[0]}" away')
    return load_file(base, num_samples)


def _find_local(spec: str) -> tuple[Path | None, list[str]]:
    """The existing path that `spec` begins with, and the names after it."""
    for names_count in range(3):
        base, *names = spec.rsplit(":", names_count)
        path = os.path.expanduser(base)
        if base and os.path.exists(path):
            return Path(path), names
    hub = _HUB_SPEC.fullmatch(spec)
    if hub is None or file_ending(Path(hub[1])) in READERS:
        raise InputError(
            f'questions "{spec}": no such file or folder (looked in {Path.cwd()}): check the path'
        )
    return None, []
