"""The samples of a folder: their questions, labels and splits, without their values."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from clew.base.errors import StoreError
from clew.hallucination.samples.columns import check_samples
from clew.hallucination.samples.source import KINDS
from clew.hallucination.samples.splits import SPLITS_FILE, assign_splits, read_splits
from clew.loading.splits import Shares
from clew.storage.manifest import MANIFEST_NAME
from clew.storage.mirror import MirrorFolder, open_folder
from clew.storage.reader import StoreReader

if TYPE_CHECKING:
    from clew.loading.samples import SampleIndex


def open_samples(
    where: str | os.PathLike[str],
    *,
    cache_dir: str | Path | None = None,
    cache_size: str | int | None = None,
) -> Path:
    """The folder of samples at a path or URL, as a path on this machine; see `open_folder`. Files
    of the original preprocessing are converted into the cache when they are first opened."""
    folder = open_folder(where, cache_dir=cache_dir, cache_size=cache_size)
    has_store = any((folder / name / MANIFEST_NAME).exists() for name in ("", *KINDS))
    if has_store or isinstance(folder, MirrorFolder) or not folder.is_dir():
        return folder
    from clew.hallucination.legacy import convert_samples

    return convert_samples(folder, cache_dir) or folder


def find_store(folder: Path, kind: str) -> Path:
    """The store of `kind` (such as "sequences") in a folder written by `clew preprocess`; the
    folder itself if it is that store."""
    inner = folder / kind
    if (inner / "manifest.json").exists():
        return inner
    if (folder / SPLITS_FILE).exists():
        full = ', on traces extracted with `keep="full"`' if kind == "heads" else ""
        raise StoreError(
            f"{folder} has no {kind}: they were not requested when it was created. Run the "
            f'"clew preprocess" command again without `{kind}=False`{full}.'
        )
    return folder


def read_index(store: Path, kind: str) -> "SampleIndex":
    """Read the index of a sample store: splits.csv beside it, or the shards' small columns for one
    written by `clew convert`."""
    reader = StoreReader(store, check=check_samples)
    if reader.manifest.kind != kind:
        raise _explain_kind(store, reader.manifest.kind, kind)
    written = store.absolute().parent / SPLITS_FILE
    if reader.manifest.settings.get("command") == "preprocess" and not written.exists():
        raise StoreError(
            f"there is no {written}, which lists the samples of {store} and their splits: copy "
            'it together with the store, or run the same "clew preprocess" command again.'
        )
    index = _read_written(written) if written.exists() else _read_columns(reader)
    if len(index.rows) != reader.manifest.rows:
        raise StoreError(
            f"{written} lists {len(index.rows):,} samples, but {store} contains "
            f'{reader.manifest.rows:,}: run the "clew preprocess" command again to resume.'
        )
    return index


def _read_written(path: Path) -> "SampleIndex":
    from clew.loading.samples import SampleIndex, to_strings  # loads torch

    splits = read_splits(path)
    return SampleIndex(
        rows=np.arange(len(splits.label)),
        example_ids=splits.global_example_id,
        question_ids=to_strings(splits.question_id.to_pylist()),
        labels=np.array(splits.label),
        splits=splits.split,
    )


def _read_columns(reader: StoreReader) -> "SampleIndex":
    """The index of a store without splits.csv (written by `clew convert`): the splits are those
    that `clew preprocess` would choose."""
    names = {"global_example_id": pa.int64(), "question_id": pa.string(), "label": pa.float32()}
    tables = [reader.peek(number).read_columns([*names]) for number in range(len(reader.shards))]
    ids, questions, labels = (
        pa.chunked_array([chunk for one in tables for chunk in one.column(name).chunks], type=kind)
        for name, kind in names.items()
    )
    if labels.null_count:
        raise StoreError(
            f"{labels.null_count:,} of {len(labels):,} samples in {reader.path} have no label, so "
            "they cannot be used for training. Create the samples again from the traces with "
            '"clew preprocess".'
        )
    truth = labels.to_numpy().astype(np.float32)
    strange = np.flatnonzero(~np.isin(truth, (0, 1)))
    if len(strange):
        raise StoreError(
            f"{len(strange):,} of {len(truth):,} samples in {reader.path} have a label that is "
            f"neither 0 (correct) nor 1 (hallucinated), e.g. {truth[strange[0]]:g} of "
            f'{questions[int(strange[0])]}: create them again with "clew preprocess".'
        )
    from clew.loading.samples import SampleIndex, to_strings

    question_ids = questions.to_pylist()
    return SampleIndex(
        rows=np.arange(len(ids)),
        example_ids=ids.to_numpy(),
        question_ids=to_strings(question_ids),
        labels=truth,
        splits=assign_splits(question_ids, None, truth, shares=Shares()),
    )


def _explain_kind(store: Path, found: str, wanted: str) -> StoreError:
    if found == "traces":
        return StoreError(
            f"{store} contains traces, not {wanted}", action="preprocess", store=store
        )
    return StoreError(
        f'{store} contains {found}, not {wanted}: give the folder written by "clew preprocess" '
        f"that contains {found}/ and {wanted}/."
    )
