"""Find the legacy files in a folder, the store each belongs to, and its contents."""

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.legacy.budget import Budget, choose_limit
from clew.hallucination.legacy.records import is_list
from clew.hallucination.legacy.row_sizes import check_rows
from clew.hallucination.legacy.torchfile import read_torch
from clew.hallucination.legacy.unpickle import explain_errors, unpickle

FileKind = Literal["pickle", "torch"]

PATTERNS = ("*_NNNN.pkl.gz", "*_NNNN.pkl", "*_NNNN.pt")
_ENDINGS: dict[str, FileKind] = {".pkl.gz": "pickle", ".pkl": "pickle", ".pt": "torch"}
_NUMBER_AT_END = re.compile(r"(\d{1,9})$")
# The folders of the original preprocessing, and what "clew preprocess" calls them.
SAMPLE_FOLDERS = {"lstm_solo": "sequences", "gnn": "graphs"}


StoreKind = Literal["traces", "sequences", "graphs"]
_SAMPLE_KINDS: tuple[StoreKind, ...] = ("sequences", "graphs")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One legacy file; it becomes the shard `batch_number`."""

    path: Path
    batch_number: int


@dataclass(frozen=True, kw_only=True)
class SourceGroup:
    """The files that go into one store, in the order of their numbers, and the skipped ones."""

    kind: FileKind
    out: Path
    files: tuple[Source, ...]
    unnumbered: tuple[Path, ...] = ()


def find_sources(folder: Path, out: Path, names: str | None = None) -> list[SourceGroup]:
    """The stores that `folder` becomes: one at `out`, or one per subfolder at `out/<subfolder>`, or
    at `out/sequences` and `out/graphs` for those of the original preprocessing.

    With `names`, only files of the folder itself whose names match that pattern.

    Raises InputError if there is nothing to convert or two files have the same number.
    """
    if not folder.is_dir():
        raise InputError(f'"{folder}" is not a folder: give the folder that contains the files.')
    found: dict[tuple[Path, FileKind], list[Path]] = defaultdict(list)
    for parent, _, found_names in _walk(folder, names):
        for name in sorted(found_names):
            ending = _find_ending(name)
            if ending:
                found[Path(parent), _ENDINGS[ending]].append(Path(parent, name))
    if not found:
        looked_for = names or ", ".join(PATTERNS) + " (NNNN is the batch number)"
        raise InputError(
            f'"{folder}" {"contains" if names else "and its subfolders contain"} no legacy files: '
            f"clew looked for {looked_for}."
        )
    mixed = {parent for parent, kind in found if (parent, _other(kind)) in found}
    return [
        _make_group(kind, _place_store(parent, kind, folder, out, parent in mixed), paths)
        for (parent, kind), paths in found.items()
    ]


def _walk(folder: Path, names: str | None) -> list[tuple[str, list[str], list[str]]]:
    if names is None:
        return sorted(os.walk(folder))
    files = [path.name for path in folder.iterdir() if path.is_file()]
    return [(str(folder), [], fnmatch.filter(files, names))]


def _place_store(parent: Path, kind: FileKind, folder: Path, out: Path, mixed: bool) -> Path:
    inner = parent.relative_to(folder)
    if kind == "torch" and inner.name in SAMPLE_FOLDERS:
        inner = inner.with_name(SAMPLE_FOLDERS[inner.name])
    store = out / inner
    if not mixed:
        return store
    return store / ("traces" if kind == "pickle" else "samples")


def _make_group(kind: FileKind, out: Path, paths: list[Path]) -> SourceGroup:
    numbered: dict[int, Path] = {}
    unnumbered = []
    for path in paths:
        match = _NUMBER_AT_END.search(path.name.removesuffix(_find_ending(path.name)))
        if match is None:
            unnumbered.append(path)
            continue
        other = numbered.setdefault(int(match[1]), path)
        if other != path:
            raise InputError(
                f'"{other.name}" and "{path.name}" in "{path.parent}" are both batch '
                f"{int(match[1])}: keep one of them in the folder, or put them into two folders."
            )
    if not numbered and len(unnumbered) == 1:
        # A merged file, alone in its folder: it cannot duplicate anything.
        numbered, unnumbered = {0: unnumbered[0]}, []
    files = tuple(Source(path=numbered[n], batch_number=n) for n in sorted(numbered))
    return SourceGroup(kind=kind, out=out, files=files, unnumbered=tuple(unnumbered))


def _find_ending(name: str) -> str:
    return next((ending for ending in _ENDINGS if name.endswith(ending)), "")


def _other(kind: FileKind) -> FileKind:
    return "torch" if kind == "pickle" else "pickle"


def load_samples(
    path: Path, file_kind: FileKind, max_memory: int | str | None = None
) -> tuple[StoreKind, Sequence[Any]]:
    """The kind of store that the file belongs to, and its samples; raises InputError."""
    with explain_errors(path):
        budget = Budget(path, choose_limit(path, max_memory))
        content = (read_torch if file_kind == "torch" else unpickle)(path, budget)
    if file_kind == "torch":
        kind, samples = _split_torch_content(content, path)
    else:
        kind, samples = "traces", _check_list(content, path)
    if len(samples) == 0:
        raise InputError(f'"{path}" contains no records: there is nothing to convert.')
    check_rows(samples, budget)
    return kind, samples


def _check_list(content: Any, path: Path) -> Sequence[Any]:
    if not isinstance(content, list | tuple):
        raise InputError(
            f'"{path}" contains a {type(content).__name__}, not a list of traces: it is not a '
            "legacy trace file. Remove it from the folder."
        )
    return content


def _split_torch_content(content: Any, path: Path) -> tuple[StoreKind, Sequence[Any]]:
    kind = next((k for k in _SAMPLE_KINDS if isinstance(content, dict) and k in content), None)
    if kind is None:
        raise InputError(
            f'"{path}" contains neither "sequences" nor "graphs": it is not a legacy file of '
            "samples (it may contain model weights). Remove it from the folder."
        )
    samples = content[kind]
    if not is_list(samples):
        raise InputError(
            f'"{path}" has a {type(samples).__name__} instead of a list of {kind}: create the file '
            "again."
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
            f'"{path}" has {count} samples but {found} {name}: it is unclear which belong '
            "together. Create the file again."
        )
    return values
