"""manifest.json: what a store is, how it was made, and which shards are finished; the types and
bounds of what it contains are checked when it is read."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import filelock

from clew.base.errors import OtherVersionError, SettingsMismatchError, StoreError
from clew.base.settings import find_differences
from clew.base.texts import shortened
from clew.base.typed_json import Bounds, Matches, read_as, wrong
from clew.base.urls import UrlPath
from clew.storage.place import ChangedError
from clew.storage.places import open_place
from clew.storage.reading import parse_file, read_json, seal
from clew.storage.writing import lock_file, replace_file

Value = TypeVar("Value")

MANIFEST_NAME = "manifest.json"
FORMAT = "clew-store"
SCHEMA_VERSION = 1
_MAX_BYTES = 1 << 28
_MAX_ID = 1 << 62
# Between two tries to replace the manifest of a store at a URL, which other workers replace too.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0
_UNTOUCHED = "The shards beside it are untouched; a repair rebuilds the manifest from them."


RowCount = Annotated[int, Bounds(least=0, most=10**12)]
ByteCount = Annotated[int, Bounds(least=0, most=1 << 60)]
Sha256 = Annotated[str, Matches("[0-9a-f]{64}")]
FileName = Annotated[str, Matches(r"[\w][\w.-]*")]  # points to nothing outside the store
_Size = Annotated[int, Bounds(least=0, most=1 << 31)]


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One finished shard: its file, its row count, and the hash of its bytes."""

    batch_number: RowCount
    file: str
    rows: RowCount
    bytes: ByteCount
    sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A store's description of itself. `settings` identify it: a run with different ones is
    refused."""

    kind: str
    settings: dict[str, Any]
    rows_per_shard: Annotated[RowCount, Bounds(least=1)]
    planned_rows: RowCount | None
    shards: tuple[ShardEntry, ...] = ()
    files: dict[FileName, Sha256] = field(default_factory=dict)
    skipped: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    clew_version: str = ""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def sources(self) -> dict[int, dict[str, Any]]:
        """The files that shards were made from, by the number of the shard."""
        return {source["batch_number"]: source for source in self.settings.get("sources", ())}

    def setting(self, name: str) -> Any:
        """The setting called "shape.layers"; raises StoreError if there is none."""
        value: Any = self.settings
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            raise StoreError(
                f'the manifest of a store of {self.kind} has no setting "{name}": re-create the '
                "store with the command that wrote it."
            )
        return value

    def shard(self, batch_number: int) -> ShardEntry | None:
        return next((s for s in self.shards if s.batch_number == batch_number), None)


def has_manifest(store: Path) -> bool:
    """Whether something is called manifest.json there."""
    if isinstance(store, UrlPath):
        return open_place(store).stat(MANIFEST_NAME) is not None
    return (store / MANIFEST_NAME).exists()


def read_manifest(store: Path) -> Manifest:
    """Reads a store's manifest; raises StoreError when it is missing or invalid."""
    return _read_version(store)[0]


def _read_version(store: Path) -> tuple[Manifest, str]:
    """The manifest and, of a store at a URL, the version to replace."""
    path, version = store / MANIFEST_NAME, ""
    try:
        if isinstance(store, UrlPath):
            content = open_place(store).read(MANIFEST_NAME, _MAX_BYTES)
            raw, version = parse_file(content.data), content.version
        else:
            raw = read_json(path, max_bytes=_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise _explain_missing(store) from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read ({error.strerror}): check what it is and its permissions."
        ) from None
    except ValueError as error:
        raise StoreError(
            f"{path} cannot be read ({error}). {_UNTOUCHED}", action="repair", store=store
        ) from None
    return parse_manifest(raw, path), version


def parse_manifest(raw: Any, path: Path) -> Manifest:
    """The manifest in a JSON document; raises StoreError if it is none or has invalid members."""
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise StoreError(
            f'{path} is not a clew manifest (it has no "format": "{FORMAT}"). Check the path.'
        )
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise OtherVersionError(
            f"{path} has schema version {shortened(version)}, but this version of clew "
            f"reads version {SCHEMA_VERSION}. Use the version of clew that wrote it: "
            f"{shortened(raw.get('clew_version', 'unknown'))}."
        )
    try:
        return build_manifest(raw)
    except ValueError as error:
        raise StoreError(
            f"{path} is damaged ({error}). {_UNTOUCHED}", action="repair", store=path.parent
        ) from None


def build_manifest(raw: dict[str, Any]) -> Manifest:
    """A manifest from its members as JSON has them; raises ValueError with the first that is
    missing, unknown, of another type or out of bounds, and for a number that is listed twice."""
    manifest: Manifest = read_as(Manifest, raw)
    settings = read_as(Settings, manifest.settings, "settings")
    for place, skip in enumerate(read_as(list[Skip], raw.get("skipped", []), "skipped")):
        if "where" not in skip and "file" not in skip:
            raise wrong(f"skipped[{place}]", skip)
    sources = [source["batch_number"] for source in settings.get("sources", ())]
    _refuse_twice([shard.batch_number for shard in manifest.shards], "shard")
    _refuse_twice(sources, "source")
    for shard in manifest.shards:
        if shard.file != shard_name(shard.batch_number):
            raise wrong(f"the file name of shard {shard.batch_number}", shard.file)
        if shard.batch_number * manifest.rows_per_shard > _MAX_ID:
            raise ValueError(f"shard {shard.batch_number} is out of range")
    return manifest


def _refuse_twice(numbers: Sequence[int], what: str) -> None:
    if len({*numbers}) < len(numbers):
        number, _ = Counter(numbers).most_common(1)[0]
        raise ValueError(f"{what} {number} is listed twice")


def shard_name(batch_number: int) -> str:
    """The file name of a shard: four digits as in legacy files, more when needed."""
    return f"batch_{batch_number:04d}.arrow"


def write_manifest(store: Path, manifest: Manifest) -> None:
    """Replaces the manifest atomically: readers see the old one or the new one, never a partial
    file."""
    if isinstance(store, UrlPath):
        open_place(store).replace(MANIFEST_NAME, _encode(manifest), None)
    else:
        replace_file(store / MANIFEST_NAME, _encode(manifest))


def start_manifest(store: Path, manifest: Manifest) -> None:
    """Writes the first manifest, unless there is one: another process may have been faster. For
    a folder, the caller holds the lock."""
    if isinstance(store, UrlPath):
        open_place(store).create(MANIFEST_NAME, _encode(manifest))
    elif not has_manifest(store):
        write_manifest(store, manifest)


def _encode(manifest: Manifest) -> bytes:
    """One line per shard: a store may have thousands, and is locked or read again for each."""
    text = json.dumps(asdict(replace(manifest, shards=())), indent=1, ensure_ascii=False)
    lines = ",\n".join(f"  {json.dumps(vars(shard))}" for shard in manifest.shards)
    # Members of the manifest itself are indented by one space, all others by more.
    empty = '\n "shards": []'
    if lines:
        text = text.replace(empty, f"{empty[:-1]}\n{lines}\n ]", 1)
    return seal(text)


def update_manifest(store: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Reads, changes and replaces the manifest under a lock that other processes respect; at a URL,
    as often as another process was faster."""
    if isinstance(store, UrlPath):
        place = open_place(store)
        return swap(
            lambda: _read_version(store),
            lambda manifest, version: place.replace(MANIFEST_NAME, _encode(manifest), version),
            change,
        )
    with manifest_lock(store):
        before = read_manifest(store)
        manifest = change(before)
        if manifest != before:
            write_manifest(store, manifest)
    return manifest


def swap(
    read: Callable[[], tuple[Value, str]],
    write: Callable[[Value, str], object],
    change: Callable[[Value], Value],
    sleep: Callable[[float], object] = time.sleep,
) -> Value:
    """Change what `read` gives, with its version, and `write` it, as often as somebody else was
    faster and `write` raises ChangedError."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        before, version = read()
        after = change(before)
        if after == before:
            return after
        try:
            write(after, version)
            return after
        except ChangedError:
            sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def changing_manifest(store: Path) -> AbstractContextManager[Any]:
    """Holds the lock of a folder's manifest. At a URL there is none: see `update_manifest`."""
    return nullcontext() if isinstance(store, UrlPath) else manifest_lock(store)


def manifest_lock(store: Path) -> filelock.BaseFileLock:
    """The lock held briefly while the manifest changes."""
    return lock_file(store / ".manifest.lock")


def _explain_missing(store: Path) -> StoreError:
    if isinstance(store, UrlPath):
        if any(name.startswith("batch_") for name in open_place(store).names()):
            return _shards_only(store)
        return StoreError(
            f'there is no store at "{store}": it has no {MANIFEST_NAME}. Check the URL.'
        )
    if not store.exists():
        return StoreError(
            f'there is no store at "{store}": the folder does not exist. Check the path.'
        )
    if not store.is_dir():
        return StoreError(f'"{store}" is a file: give the folder of the store.')
    if any(store.glob("batch_*.arrow*")):
        return _shards_only(store)
    if any(any(store.glob(f"{folder}*{end}")) for folder in ("", "*/") for end in (".pkl*", ".pt")):
        return StoreError(
            f'"{store}" contains legacy files, not a clew store',
            action="convert",
            store=store,
        )
    return StoreError(f'"{store}" is not a clew store: it has no {MANIFEST_NAME}. Check the path.')


def _shards_only(store: Path) -> StoreError:
    return StoreError(
        f'"{store}" has shards but no {MANIFEST_NAME}; a repair rebuilds it from them.',
        action="repair",
        store=store,
    )


def refuse_other_settings(
    store: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_differ: tuple[str, ...]
) -> None:
    """Compare the settings of a store and a run: raises SettingsMismatchError with both values of
    every difference. Names that start with one of `may_differ` are ignored."""
    different = find_differences(before, now, may_differ)
    if different:
        raise SettingsMismatchError(
            f'the store "{store}" was started with different settings:\n  '
            + "\n  ".join(map(str, different))
            + "\nUse the same settings to resume it, or another `out` to start a new one."
        )


class Source(TypedDict):
    """The file that a shard was made from."""

    batch_number: RowCount
    file: str
    sha256: Sha256
    records: NotRequired[RowCount]


class Skip(TypedDict):
    """An excluded question, file or record of a file, with the reason."""

    reason: str
    where: NotRequired[str]
    file: NotRequired[str]
    record: NotRequired[RowCount | None]
    question_id: NotRequired[str | None]


class _Model(TypedDict, total=False):
    id: str | None


class _Questions(TypedDict, total=False):
    name: str | None
    sha256: str | None


class _Capture(TypedDict, total=False):
    model: _Model | None
    questions: _Questions | None


class _SampleSource(TypedDict, total=False):
    store: str | None
    model: str | None
    sha256: str | None
    capture: _Capture | None


class _Machine(TypedDict, total=False):
    threads: RowCount | None
    generation_batch: RowCount | None
    generation_tokens: RowCount | None


class Settings(TypedDict, total=False):
    """The settings that are read back. Others are only shown and compared."""

    command: str | None
    keep: str | None
    method: str | None
    model: _Model | None
    questions: _Questions | None
    prompt: dict[str, Any] | None
    generation: dict[str, Any] | None
    machine: _Machine | None
    source: _SampleSource | None
    sources: list[Source]
    scores: dict[str, Any] | None
    shape: dict[str, _Size] | None
    answer_hidden: bool | None
    node_dim: RowCount | None
    edges_per_token: RowCount | None
    top_k: RowCount | None
    size: RowCount | None
