"""`clew convert`: turn folders of legacy files into stores. Folders of legacy samples are also read
without it: they are converted once, into a folder of clew's own."""

import fnmatch
import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import platformdirs
import torch

from clew.base.errors import InputError
from clew.base.memory import is_out_of_memory
from clew.base.settings import read_size
from clew.base.urls import as_path, local_path
from clew.hallucination.legacy.reading import FileKind
from clew.hallucination.legacy.store import ConvertedStore, SkippedSource, Source, printable
from clew.hallucination.legacy.unpickling import explain_no_memory
from clew.hallucination.traces.schema import Keep
from clew.storage.lock import Part, writer_lock
from clew.storage.reading import hash_text
from clew.storage.writing import disk_errors, lock_file, replace_json

logger = logging.getLogger(__name__)
OnFile = Callable[[Path, int, int], None]
_PATTERNS = ("*_NNNN.pkl.gz", "*_NNNN.pkl", "*_NNNN.pt")
_ENDINGS: dict[str, FileKind] = {".pkl.gz": "pickle", ".pkl": "pickle", ".pt": "torch"}
_NUMBER_AT_END = re.compile(r"(\d{1,9})$")
# The folders of the original preprocessing, and what "clew preprocess" calls them.
_SAMPLE_FOLDERS = {"lstm_solo": "sequences", "gnn": "graphs"}
# Written when all files of a folder of samples have been converted.
_DONE = "converted.json"


@dataclass(frozen=True, kw_only=True)
class ConvertResult:
    """The contents of the stores, including files converted by an earlier run.

    `traces` counts the rows of all stores (a sequence or a graph sample is one), `files` the
    source files behind them, `already` those of them that an earlier run had converted.
    """

    stores: tuple[Path, ...]
    traces: int
    files: int
    already: int
    skipped: tuple[SkippedSource, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing was skipped."""
        return not self.skipped


def convert_folder(
    folder: Path,
    out: Path,
    *,
    keep: Keep = "full",
    names: str | None = None,
    max_memory: int | str | None = None,
    on_file: OnFile | None = None,
) -> ConvertResult:
    """Convert every legacy file in `folder`, one shard per file.

    Files directly in the folder make a store at `out`, those of a subfolder one at
    `out/<subfolder>`; with `names`, a pattern such as "*.pkl.gz", only files directly in it that
    match. `max_memory` bounds what one file may take, in bytes or as text ("4GB"); by default 32
    times its size, at least 256 MB and at most what is free. The same call again resumes a stopped
    conversion. `on_file(path, number, total)` is called before each file. A file or record that
    cannot be used is listed in `skipped`. Raises InputError if there is nothing to convert,
    SettingsMismatchError if a store at `out` was made from other files or with another `keep`.
    """
    folder, out = Path(folder), as_path(out)
    if keep not in ("full", "compact"):
        raise InputError('choose "full" or "compact".', setting="keep", value=keep)
    if max_memory is not None:
        max_memory = read_size("max_memory", max_memory)
    groups = _find_sources(folder, out, names)
    numbers, total = count(1), sum(len(group.files) for group in groups)

    def tell(path: Path) -> None:
        if on_file is not None:
            on_file(path, next(numbers), total)

    already, skipped, written = 0, [], []
    with _one_torch_thread():
        for group in groups:
            with writer_lock(group.out, Part()):
                paths = [*(source.path for source in group.files), *group.unnumbered]
                store = ConvertedStore(group.out, keep=keep, files=paths, max_memory=max_memory)
                already += _convert_group(store, group, tell)
            places = {printable(path.name): path.relative_to(folder).as_posix() for path in paths}
            for skip in store.skipped:
                skipped.append(replace(skip, file=printable(places.get(skip.file, skip.file))))
            if store.manifest is not None:
                written.append((store.path, store.manifest))
    return ConvertResult(
        stores=tuple(path for path, _ in written),
        traces=sum(manifest.rows for _, manifest in written),
        files=sum(len(manifest.shards) for _, manifest in written),
        already=already,
        skipped=tuple(skipped),
    )


def convert_samples(folder: Path, cache_dir: str | Path | None = None) -> Path | None:
    """The stores of a folder that the original preprocessing wrote, as `sequences/` and `graphs/`
    of a folder in the cache; None if it is not such a folder.

    They are converted by the first call, and again when a file has changed. Other processes wait
    meanwhile. Raises InputError if a file cannot be used: training on a part must be explicit.
    """
    groups = _find_samples(folder)
    if not groups:
        return None
    files = [file for of_store in groups.values() for file in of_store]
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    out = _choose_cache(cache_dir) / f"{folder.resolve().name}-{hash_text(json.dumps(stats))[:16]}"
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with lock_file(out / ".lock"):
        if not (out / _DONE).exists():
            logger.info(f'converting the legacy files of "{folder}" into "{out}", once')
            for store, of_store in groups.items():
                _convert_all(of_store[0].parent, out / store)
            replace_json(out / _DONE, {"files": [name for name, *_ in stats]})
    return out


def _find_samples(folder: Path) -> dict[str, list[Path]]:
    """The files of the original preprocessing by store; "." is the folder itself."""
    numbered = "*[0-9].pt"
    found = {store: sorted((folder / n).glob(numbered)) for n, store in _SAMPLE_FOLDERS.items()}
    if not any(found.values()):
        found = {".": sorted(folder.glob(numbered))}
    return {store: files for store, files in found.items() if files}


def _choose_cache(cache_dir: str | Path | None) -> Path:
    if cache_dir is None:
        return Path(platformdirs.user_cache_dir("clew"), "converted")
    return local_path(cache_dir).absolute() / "clew-converted"


def _convert_all(folder: Path, out: Path) -> None:
    def show(path: Path, number: int, total: int) -> None:
        logger.info(f"{number}/{total}  {path.name}")

    result = convert_folder(folder, out, names="*.pt", on_file=show)
    if not result.complete:
        raise InputError(
            f'{len(result.skipped):,} files or records of "{folder}" cannot be used, e.g. '
            f'{result.skipped[0]}. Remove them, or convert the others with "clew convert", and '
            "use the folder that it writes."
        )


class _SourceGroup(NamedTuple):
    """The files that go into one store, in the order of their numbers, and the skipped ones."""

    kind: FileKind
    out: Path
    files: tuple[Source, ...]
    unnumbered: tuple[Path, ...] = ()


def _find_sources(folder: Path, out: Path, names: str | None = None) -> list[_SourceGroup]:
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
        looked_for = names or ", ".join(_PATTERNS) + " (NNNN is the batch number)"
        raise InputError(
            f'"{folder}" {"contains" if names else "and its subfolders contain"} no legacy files: '
            f"clew looked for {looked_for}."
        )
    folders = [parent for parent, _ in found]
    return [
        _make_group(kind, _place_store(parent, kind, folder, out, folders.count(parent) > 1), paths)
        for (parent, kind), paths in found.items()
    ]


def _walk(folder: Path, names: str | None) -> list[tuple[str, list[str], list[str]]]:
    if names is None:
        return sorted(os.walk(folder))
    files = [path.name for path in folder.iterdir() if path.is_file()]
    return [(str(folder), [], fnmatch.filter(files, names))]


def _place_store(parent: Path, kind: FileKind, folder: Path, out: Path, mixed: bool) -> Path:
    inner = parent.relative_to(folder)
    if kind == "torch" and inner.name in _SAMPLE_FOLDERS:
        inner = inner.with_name(_SAMPLE_FOLDERS[inner.name])
    store = out / inner
    if not mixed:
        return store
    return store / ("traces" if kind == "pickle" else "samples")


def _make_group(kind: FileKind, out: Path, paths: list[Path]) -> _SourceGroup:
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
    files = tuple(Source(numbered[n], n) for n in sorted(numbered))
    return _SourceGroup(kind=kind, out=out, files=files, unnumbered=tuple(unnumbered))


def _find_ending(name: str) -> str:
    return next((ending for ending in _ENDINGS if name.endswith(ending)), "")


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread. The arrays of one record are small: on a busy machine, several
    threads spend their time waiting for each other (a layer's basis took 1.9 s on two threads, 3 ms
    on one)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _convert_group(store: ConvertedStore, group: _SourceGroup, tell: Callable[[Path], None]) -> int:
    """Convert the files of a store; returns how many it had already."""
    # All files are checked against the store first: a mismatch must stop the run before it writes.
    present = {source.path for source in group.files if store.has(source)}
    for path in group.unnumbered:
        store.skip(path, "its name does not end in a batch number, and there are other files")
    for source in group.files:
        tell(source.path)
        if source.path not in present:
            _convert_one(store, source, group.kind)
    store.close()
    return len(present)


def _convert_one(store: ConvertedStore, source: Source, kind: FileKind) -> None:
    try:
        store.convert(source, kind)
    except InputError as error:
        store.skip(source.path, str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        store.skip(source.path, explain_no_memory(source.path))
