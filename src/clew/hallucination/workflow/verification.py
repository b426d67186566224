"""Check the stores in a folder, and repair them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.base.texts import counted
from clew.hallucination.samples.splits import SPLITS_FILE
from clew.hallucination.traces.schema import BASIS_NAME
from clew.storage.manifest import read_manifest
from clew.storage.places import open_place
from clew.storage.reading import hash_file
from clew.storage.repair import ensure_manifest, repair_store
from clew.storage.verify import Problem, find_stores, verify_store, way_on
from clew.storage.working_copy import fetched


@dataclass(frozen=True, kw_only=True)
class CheckedStore:
    """The check of one store. `found` are the problems before a repair, `problems` those that
    remain; `next_step` says how to create the missing rows."""

    path: Path
    problems: tuple[Problem, ...]
    found: tuple[Problem, ...] = ()
    repaired: tuple[str, ...] = ()
    rebuilt: str | None = None
    next_step: str = ""

    @property
    def is_damaged(self) -> bool:
        return any(not problem.is_unfinished for problem in self.problems)


@dataclass(frozen=True, kw_only=True, repr=False)
class Verification:
    """What `clew.verify` found in each store of a folder. `not_checked` are files that may be
    edited."""

    stores: tuple[CheckedStore, ...]
    not_checked: tuple[str, ...] = ()

    @property
    def is_intact(self) -> bool:
        return not any(store.problems for store in self.stores)

    @property
    def problems(self) -> list[Problem]:
        return [problem for store in self.stores for problem in store.problems]

    def __repr__(self) -> str:
        found = {store.path: len(store.problems) for store in self.stores}
        states = (
            f"{path}: {counted(count, 'problem') if count else 'intact'}"
            for path, count in found.items()
        )
        return f"Verification({'; '.join(states)})"

    def as_dict(self) -> dict[str, Any]:
        return {
            "is_intact": self.is_intact,
            "stores": [
                {
                    "path": str(store.path),
                    "problems": [problem.message for problem in store.problems],
                    "repaired": list(store.repaired),
                }
                for store in self.stores
            ],
            "not_checked": list(self.not_checked),
        }


def check_folder(folder: Path, repair: bool, reporter: Reporter) -> Verification:
    """Check the stores in a folder, or the one that it is, and what lies beside them."""
    stores = find_stores(folder)
    checked = [check_store(store, repair, reporter) for store in stores]
    has_splits = open_place(folder).stat(SPLITS_FILE) is not None
    return Verification(
        stores=(*checked, *_check_basis(folder, stores)),
        not_checked=(SPLITS_FILE,) if has_splits else (),
    )


def _check_basis(folder: Path, stores: Sequence[Path]) -> Iterator[CheckedStore]:
    """The basis beside samples, whose hash their manifests have."""
    sources = (read_manifest(store).settings.get("source") for store in stores)
    hashes = {source.get("basis") for source in sources if isinstance(source, dict)}
    with fetched(folder, BASIS_NAME) as path:
        if not path.is_file() or not hashes - {None, hash_file(path)}:
            return
    problem = Problem(
        kind="file",
        file=BASIS_NAME,
        message=f"{BASIS_NAME} has changed since it was written: run the same "
        '"clew preprocess" command again to replace it',
    )
    yield CheckedStore(path=folder, problems=(problem,), found=(problem,))


def check_store(store: Path, repair: bool, reporter: Reporter) -> CheckedStore:
    """Check one store and, with `repair`, repair it."""
    rebuilt = ensure_manifest(store) if repair else None
    found = tuple(_verify(store, reporter))
    if not (repair and found):
        return CheckedStore(path=store, problems=found, found=found, rebuilt=rebuilt)
    repaired = tuple(repair_store(store, list(found)))
    left = tuple(_verify(store, reporter))
    return CheckedStore(
        path=store,
        problems=left,
        found=found,
        repaired=repaired,
        rebuilt=rebuilt,
        next_step=way_on(read_manifest(store)) if left else "",
    )


def _verify(store: Path, reporter: Reporter) -> list[Problem]:
    def count(_file: str, number: int, _total: int) -> None:
        """Called before each shard is read; reports the one before it as done."""
        if number > 1:
            reporter(WorkAdvanced())

    shards = len(read_manifest(store).shards)
    verb = f"checked in {store.name or store}"
    with report_work(reporter, WorkStarted(noun="shards", verb=verb, planned=shards)):
        problems = verify_store(store, count)
        if shards:
            reporter(WorkAdvanced())
        return problems
