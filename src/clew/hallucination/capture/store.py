"""The store that a capture writes to, new or existing: what it has, what is missing, and its basis,
fitted on the first questions or taken from another store, so that the nodes of both compare."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clew.base.errors import InputError, StoreError
from clew.base.progress import (
    Note,
    OthersAdvanced,
    Reporter,
    StepStarted,
    WorkAdvanced,
    report_work,
)
from clew.base.texts import counted
from clew.base.urls import UrlPath
from clew.hallucination.llm.checked import CheckMemory
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.observe import ModelObserver, listen_to_whole
from clew.hallucination.llm.prompts import CHAT_TEMPLATE
from clew.hallucination.traces.compact import (
    BASIS_NAME,
    Basis,
    decode_basis,
    encode_basis,
    fit_basis,
    load_basis,
    save_basis,
)
from clew.hallucination.traces.schema import ANSWER_HIDDEN, EIGENVALUES, PACKED, TraceShape
from clew.storage.arrow import ARROW_ERRORS, read_table
from clew.storage.leases import WORK_FOLDER, Claim, Claims, Heartbeat, Leases, take_all
from clew.storage.lock import Part, joined_lock, writer_lock
from clew.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    changing_manifest,
    has_manifest,
    read_manifest,
    refuse_other_settings,
    shard_name,
    start_manifest,
    update_manifest,
)
from clew.storage.places import open_place
from clew.storage.reader import open_shard, refuse_damaged_shards
from clew.storage.reading import hash_text, read_bounded
from clew.storage.uploading import remove_leftovers, write_side_file
from clew.storage.verify import expected_rows
from clew.storage.working_copy import fetched
from clew.storage.writing import replace_file
from clew.version import __version__

# Describes the machine, not the traces: a resumed run may differ.
MACHINE_KEY = "machine"
# A model's fingerprint shows whether it is the same, whatever name it was loaded as.
# A store started before the answers' mean states were recorded continues without them.
_MAY_DIFFER = (f"{MACHINE_KEY}.", "model.id", "model.revision", ANSWER_HIDDEN)
# The basis is fitted on this many questions, unless fewer have enough tokens; for short runs, on a
# third of the questions, but not on less than these.
_BASIS_QUESTIONS, _LEAST_BASIS_QUESTIONS, _BASIS_SHARE = 64, 16, 3
_BASIS_TOKENS_PER_COMPONENT = 16
_BASIS_ROWS = 16
# Tokens of a sequence, where several are passed at once.
BASIS_LENGTH = 512


class TraceStore:
    """A trace store with `rows` planned rows, and the part of it that this run captures. Raises
    StoreError if the folder contains something else.
    """

    manifest: Manifest
    rows: int

    def __init__(self, path: Path, *, rows_per_shard: int, part: Part, join: bool = False) -> None:
        self.path, self.rows_per_shard, self.part = path, rows_per_shard, part
        self._lock = joined_lock(path) if join else writer_lock(path, part, shared=True)
        leases = Leases(open_place(path).child(WORK_FOLDER))
        self._work = Claims(leases, self._find_pending)
        self._known: set[int] = set()  # shards that were pending, and that others may finish
        self._report_others: Callable[[int], object] = lambda _: None
        _refuse_foreign_folder(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The right to write this part, or with `join` whatever shards are pending."""
        with self._lock, Heartbeat(self._work.leases):
            try:
                yield
            finally:
                self._work.leases.release_all()
            self._work.clear()
            remove_leftovers(self.path, self._finished())

    def _finished(self) -> set[int]:
        made = {shard.batch_number: shard.rows for shard in self.manifest.shards}
        return {n for n, rows in made.items() if rows >= expected_rows(self.manifest, n)}

    def claims(
        self,
        should_stop: Callable[[], bool],
        settle: Callable[[], object],
        reporter: Reporter,
    ) -> Iterator[Claim]:
        """The pending shards that this process is to make, until all are done. `settle` finishes
        what it has in hand; `reporter` is told what others have finished."""
        self._report_others = lambda rows: reporter(OthersAdvanced(count=rows))
        self._known.update(self.pending_shards())

        def tell(shards: int) -> None:
            waiting = f"waiting for {counted(shards, 'shard')} of other processes"
            reporter(Note(f"{waiting}; that of one that died is taken over within a minute"))

        for claim in take_all(self._work, should_stop, settle, tell):
            self._known.discard(claim.number)
            yield claim

    def release(self, claim: Claim) -> None:
        """The shard is finished, or left to others."""
        self._work.give_up(claim)

    def _find_pending(self) -> list[int]:
        self.reload()
        pending = self.pending_shards()
        gone = self._known.difference(pending)
        if gone:
            self._report_others(self.rows_in(gone))
        self._known.difference_update(gone)
        return pending

    def open(
        self, *, settings: Mapping[str, Any], rows: int, skipped: Sequence[Mapping[str, Any]]
    ) -> None:
        """Start the store, or check that the existing one was started with the same settings.

        More rows than before are fine: the store grows. Raises SettingsMismatchError with both
        values of every setting that differs.
        """
        self.rows = rows
        left_out = tuple(dict(entry) for entry in skipped)
        with changing_manifest(self.path):
            if not has_manifest(self.path):
                _refuse_foreign_folder(self.path)
                new = Manifest(
                    kind="traces",
                    settings=dict(settings),
                    rows_per_shard=self.rows_per_shard,
                    planned_rows=rows,
                    skipped=left_out,
                    clew_version=__version__,
                )
                start_manifest(self.path, new)

        def plan(manifest: Manifest) -> Manifest:
            self._refuse_other_settings(manifest, settings)
            if rows < (manifest.planned_rows or 0):
                return manifest
            return replace(manifest, planned_rows=rows, skipped=left_out)

        self.manifest = update_manifest(self.path, plan)

    def refuse_damaged_shards(self) -> None:
        """Raises StoreError if a finished shard is not what was written: such traces are not
        stored, whatever the manifest says."""
        if has_manifest(self.path):
            refuse_damaged_shards(self.path, read_manifest(self.path))

    @property
    def recorded_settings(self) -> Mapping[str, Any]:
        """Those that the store was started with, empty if there is none yet."""
        return read_manifest(self.path).settings if has_manifest(self.path) else {}

    def reload(self) -> None:
        """Read the manifest again: other parts write to it too."""
        self.manifest = read_manifest(self.path)

    def open_basis(self, fit: Callable[[], Basis], other: bytes | None = None) -> Basis:
        """The store's basis; the first process that needs it fits it for all, or copies that of
        another store."""
        claims = Claims(self._work.leases, self._find_missing_basis, prefix="basis-")
        for claim in take_all(claims, should_stop=lambda: False):
            self._make_basis(fit, other)
            claims.give_up(claim)
        return load_basis(self.path, self.manifest.files.get(BASIS_NAME))

    def _find_missing_basis(self) -> list[int]:
        self.reload()
        return [] if BASIS_NAME in self.manifest.files else [0]

    def _make_basis(self, fit: Callable[[], Basis], other: bytes | None) -> None:
        basis, sha256 = (fit() if other is None else None), ""

        def enter(current: Manifest) -> Manifest:
            nonlocal sha256
            if BASIS_NAME in current.files:
                return current
            if basis is not None:
                sha256 = save_basis(self.path, basis)
            elif other is not None:
                sha256 = write_side_file(self.path, BASIS_NAME, other)
            return replace(current, files={**current.files, BASIS_NAME: sha256})

        self.manifest = update_manifest(self.path, enter)

    def add_notes(self, notes: Sequence[str]) -> None:
        """Record what a user of the traces should know."""

        def add(manifest: Manifest) -> Manifest:
            new = tuple(note for note in notes if note not in manifest.notes)
            return replace(manifest, notes=(*manifest.notes, *new))

        if notes:
            update_manifest(self.path, add)

    def shard_rows(self, number: int) -> range:
        """The global ids that belong to a shard."""
        size = self.rows_per_shard
        return range(number * size, min(self.rows, (number + 1) * size))

    def own_shards(self) -> list[int]:
        """The shards of this part of the store."""
        count = -(-self.rows // self.rows_per_shard)
        return [number for number in range(count) if self.part.owns(number)]

    def rows_in(self, shards: Iterable[int]) -> int:
        return sum(len(self.shard_rows(number)) for number in shards)

    def pending_shards(self) -> list[int]:
        """This part's shards that are not finished, or that miss rows planned now."""
        listed = {entry.batch_number: entry for entry in self.manifest.shards}
        return [n for n in self.own_shards() if not self._is_complete(n, listed.get(n))]

    def scratch_bytes(self, run_bytes: int, shards: Sequence[int]) -> int:
        """The space that a store at a URL takes on this machine: its largest shard, while it is
        written and while the one before it is put."""
        share = self.rows_per_shard / max(1, self.rows_in(shards))
        return min(run_bytes, int(2 * share * run_bytes))

    def unfinished_bytes(self, shards: Iterable[int]) -> int:
        """The rows of unfinished shards that are already on disk."""
        parts = [self.path / f"{shard_name(number)}.part" for number in shards]
        return sum(path.stat().st_size for path in parts if path.exists())

    def _is_complete(self, number: int, entry: ShardEntry | None) -> bool:
        wanted = self.shard_rows(number)
        if entry is None or entry.rows < len(wanted):
            return False
        if entry.rows == expected_rows(self.manifest, number):
            return True
        # If it was started with more questions, it may contain later rows instead of these.
        with fetched(self.path, entry.file) as file:
            ids = open_shard(file.parent, entry, self.manifest).read_ids()
            return set(wanted) <= set(ids.tolist())

    def _refuse_other_settings(self, manifest: Manifest, settings: Mapping[str, Any]) -> None:
        kind = manifest.kind
        if kind != "traces":
            raise StoreError(f'"{self.path}" contains {kind}, not traces: choose another `out`.')
        before = manifest.settings
        # Earlier versions of clew did not record these.
        unknown = [name for name in (EIGENVALUES, PACKED) if name not in before]
        if CHAT_TEMPLATE not in (before.get("prompt") or {}):
            unknown.append(f"prompt.{CHAT_TEMPLATE}")
        refuse_other_settings(
            self.path,
            {**before, "shard_size": manifest.rows_per_shard},
            {**settings, "shard_size": self.rows_per_shard},
            (*_MAY_DIFFER, *unknown),
        )


def _refuse_foreign_folder(store: Path) -> None:
    """Raises StoreError if a folder is not empty and not a store, so that nothing is mixed up."""
    if isinstance(store, UrlPath):
        names = open_place(store).names()
    else:
        names = sorted(path.name for path in store.iterdir()) if store.is_dir() else []
    if MANIFEST_NAME in names:
        return
    # A run killed while writing its first manifest leaves a .tmp file.
    entries = [name for name in names if not name.startswith(".") and not name.endswith(".tmp")]
    if any(name.startswith("batch_") for name in entries):
        raise StoreError(
            f'"{store}" has shards but no {MANIFEST_NAME}', action="repair", store=store
        )
    if entries:
        raise StoreError(
            f'"{store}" is neither empty nor a clew store (it contains {", ".join(entries[:3])}'
            f"{', ...' if len(entries) > 3 else ''}): choose another `out`."
        )


def read_other_basis(store: Path, model: Mapping[str, Any], shape: TraceShape) -> tuple[bytes, str]:
    """The file of another store's basis, and its SHA-256. Raises InputError, with both values, for
    the basis of another model or shape, and StoreError for a store without an intact one."""
    manifest = read_manifest(store)
    sha256 = manifest.files.get(BASIS_NAME)
    if manifest.kind != "traces" or sha256 is None:
        raise InputError(
            f"it contains {manifest.kind}, and no basis: give a store of traces that "
            '"clew extract" wrote.',
            setting="basis",
            value=store,
        )
    with fetched(store, BASIS_NAME) as path:
        content = read_bounded(path, path.stat().st_size) if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise StoreError(f"{store / BASIS_NAME} is missing or damaged: restore it from a backup.")
    theirs = manifest.settings.get("model") or {}
    _refuse_other(store, "fingerprint", theirs.get("fingerprint"), model.get("fingerprint"))
    found = list(load_basis(store, sha256).components.shape)
    _refuse_other(store, "shape", found, [shape.layers, shape.dim, shape.node_dim])
    return content, sha256


def _refuse_other(store: Path, what: str, theirs: object, ours: object) -> None:
    if theirs != ours:
        raise InputError(
            f"its basis is of a model with {what} {theirs}, but this capture's has {ours}: use "
            "the same model and `node_dim`, or omit `basis`.",
            setting="basis",
            value=store,
        )


class _StateSample:
    """A listener that collects the states of real tokens in every layer to fit a basis."""

    def __init__(self, layers: int, reporter: Reporter) -> None:
        self.states: list[list[Tensor]] = [[] for _ in range(layers)]
        self.keep: Tensor | None = None
        self._reporter = reporter

    def on_hidden(self, layer: int, states: Tensor) -> None:
        assert self.keep is not None
        self.states[layer].append(states[self.keep].float())
        self._reporter(WorkAdvanced())

    def each_layer(self) -> Iterator[Tensor]:
        for layer in self.states:
            yield torch.cat(layer)
            self._reporter(WorkAdvanced())

    def on_attention(self, layer: int, weights: Tensor) -> None:
        """The basis does not depend on attention."""


def fit_on_questions(
    loaded: LoadedModel,
    observer: ModelObserver,
    answered: Iterable[tuple[list[int], int]],
    shared_tokens: int,
    node_dim: int,
    reporter: Reporter,
    *,
    planned: int,
    memory: CheckMemory | None = None,
) -> Basis:
    """Fit on the first prompts with their answers (token ids), each from a place on; their
    `shared_tokens` count once. `planned` is the number of answers to capture. What `memory` has of
    the same texts is not fitted again."""
    skip = max(1, shared_tokens)
    sequences: list[list[int]] = []
    firsts: list[int] = []
    tokens = 0
    most = max(_LEAST_BASIS_QUESTIONS, min(_BASIS_QUESTIONS, planned // _BASIS_SHARE))
    for sequence, first in islice(answered, most):
        sequences.append(sequence)
        firsts.append(max(skip, first))
        tokens += len(sequence) - firsts[-1]
        if tokens >= node_dim * _BASIS_TOKENS_PER_COMPONENT:
            break
    # The prefix once, without its first token: in most models that one's state is much larger than
    # all others and would dominate the basis.
    firsts[0] = 1 if firsts[0] == skip else firsts[0]
    key = hash_text(json.dumps([sequences, firsts, node_dim]))
    if memory is not None and (known := _recall_basis(memory, key)) is not None:
        reporter(Note("the basis of these questions was fitted on this machine before"))
        return known
    sample = _StateSample(observer.layers, reporter)
    rows = _BASIS_ROWS if max(map(len, sequences)) <= BASIS_LENGTH else 1
    starts = range(0, len(sequences), rows)
    asked = counted(len(sequences), "question")
    name = f"fitting the basis (principal components that states are stored in) on {asked}"
    with report_work(reporter, StepStarted(name=name, parts=(len(starts) + 1) * observer.layers)):
        for start in starts:
            part = sequences[start : start + rows]
            sample.keep = _tokens_to_fit(part, firsts[start : start + rows]).to(loaded.device)
            listen_to_whole(loaded.model, observer, part, sample)
        basis = fit_basis(sample.each_layer(), node_dim)
    if memory is not None:
        with suppress(OSError):  # a cache that cannot be written to only costs time
            memory.basis.parent.mkdir(parents=True, exist_ok=True)
            replace_file(memory.basis, encode_basis(basis, texts=key))
    return basis


def _recall_basis(memory: CheckMemory, key: str) -> Basis | None:
    try:
        table = read_table(memory.basis)
        is_same = (table.schema.metadata or {}).get(b"texts") == key.encode()
        return decode_basis(table) if is_same else None
    except (*ARROW_ERRORS, KeyError, TypeError):  # none yet, or not readable: fit it again
        return None


def _tokens_to_fit(sequences: Sequence[Sequence[int]], firsts: Sequence[int]) -> Tensor:
    """Real tokens from a place on."""
    width = max(len(sequence) for sequence in sequences)
    keep = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, (sequence, first) in enumerate(zip(sequences, firsts, strict=True)):
        keep[row, first : len(sequence)] = True
    return keep
