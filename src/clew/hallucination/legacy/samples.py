"""What a file of the older tools holds, as a list of samples, and the ids they get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clew.errors import InputError
from clew.hallucination.legacy.records import MalformedRecordError, is_list, is_whole
from clew.hallucination.legacy.sources import FileKind
from clew.hallucination.legacy.torchfile import load_torch_file
from clew.hallucination.legacy.unpickle import load_pickle

StoreKind = Literal["traces", "sequences", "graphs"]
_SAMPLE_KINDS: tuple[StoreKind, ...] = ("sequences", "graphs")


@dataclass(frozen=True, kw_only=True)
class RowIds:
    """The four ids that every row of a store bears."""

    global_example_id: int
    example_id: int
    batch_number: int
    question_id: str


def load_samples(path: Path, file_kind: FileKind) -> tuple[StoreKind, Sequence[Any]]:
    """The kind of store that the file belongs to, and its samples; raises InputError."""
    if file_kind == "torch":
        kind, samples = _split_torch_content(load_torch_file(path), path)
    else:
        kind, samples = "traces", _check_list(load_pickle(path), path)
    if len(samples) == 0:
        raise InputError(f'"{path}" holds no records: there is nothing in it to convert.')
    return kind, samples


def assign_ids(samples: Sequence[Any], batch_number: int, rows_per_shard: int) -> list[RowIds]:
    """Ids that let a row be found from its `global_example_id` alone.

    The ids in the records are kept when all are there, differ, and lie where a store with
    `rows_per_shard` rows a batch looks for them; otherwise they are counted anew.
    """
    first = batch_number * rows_per_shard
    examples = _read_ids(samples, "example_id", 0, rows_per_shard) or range(len(samples))
    given = _read_ids(samples, "global_example_id", first, rows_per_shard)
    numbers = given or [first + example for example in examples]
    return [
        RowIds(
            global_example_id=number,
            example_id=example,
            batch_number=batch_number,
            question_id=_read_question_id(sample) or nameless_id(number),
        )
        for sample, number, example in zip(samples, numbers, examples, strict=True)
    ]


def nameless_id(global_example_id: int) -> str:
    """Splits and labels go by the question's id, so a record without one gets its own."""
    return f"record_{global_example_id}"


def read_label(value: Any) -> float | None:
    """A label as a number: it comes as one, or as a tensor that holds one."""
    if value is None:
        return None
    plain = isinstance(value, int | float | np.generic | np.ndarray)
    array = np.asarray(value if plain else "")
    if array.dtype.kind not in "biuf" or array.size != 1:
        raise MalformedRecordError(f"its label is {value!r:.60}, not a number")
    return float(array.reshape(()))


def _check_list(content: Any, path: Path) -> Sequence[Any]:
    if not isinstance(content, list | tuple):
        raise InputError(
            f'"{path}" holds a {type(content).__name__}, not a list of traces: it is not a trace '
            f"file of the older tools. Take it out of the folder."
        )
    return content


def _split_torch_content(content: Any, path: Path) -> tuple[StoreKind, Sequence[Any]]:
    kind = next((k for k in _SAMPLE_KINDS if isinstance(content, dict) and k in content), None)
    if kind is None:
        raise InputError(
            f'"{path}" holds neither "sequences" nor "graphs": it is not a preprocessed file of '
            f"the older tools (a model's weights, perhaps). Take it out of the folder."
        )
    samples = content[kind]
    if not is_list(samples):
        raise InputError(
            f'"{path}" has a {type(samples).__name__} where its list of {kind} should be: make '
            f"the file again."
        )
    if isinstance(samples, np.ndarray) and samples.size == 0:
        return kind, []  # a shape such as [10**12, 0] takes no bytes in a file
    labels = _read_column(content, "labels", len(samples), path)
    question_ids = _read_column(content, "question_ids", len(samples), path)
    return kind, [
        {"content": sample, "label": label, "question_id": question_id}
        for sample, label, question_id in zip(samples, labels, question_ids, strict=True)
    ]


def _read_column(content: dict[str, Any], name: str, count: int, path: Path) -> Sequence[Any]:
    values = content.get(name)
    if values is None:
        return [None] * count
    found = len(values) if is_list(values) else 0
    if found != count:
        raise InputError(
            f'"{path}" has {count} samples but {found} {name}: which belong together cannot be '
            f"told. Make the file again."
        )
    return values


def _read_ids(samples: Sequence[Any], name: str, first: int, count: int) -> list[int] | None:
    values: list[Any] = [s.get(name) if isinstance(s, Mapping) else None for s in samples]
    if not all(is_whole(value) and first <= value < first + count for value in values):
        return None
    return [int(value) for value in values] if len(set(values)) == len(values) else None


def _read_question_id(sample: Any) -> str | None:
    value = sample.get("question_id") if isinstance(sample, Mapping) else None
    if isinstance(value, str):
        # A lone surrogate cannot be stored; the id must not cost the whole record.
        return value.encode("utf-8", "backslashreplace").decode()
    return str(value) if is_whole(value) else None
