"""Questions from a local dataset folder or the Hugging Face Hub, read with `datasets`."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clew.base.errors import InputError
from clew.hallucination.hub import quiet_hub
from clew.hallucination.questions.records import (
    Row,
    RowSource,
    first_line,
    plain_name,
    useful_columns,
)
from clew.storage.hashing import hash_text

_PREFERRED_SPLITS = ("train", "validation", "dev", "test")


def open_dataset(base: str, names: list[str], *, from_hub: bool) -> RowSource:
    """The rows of a dataset; `names` is [split] or [config, split].

    `base` is a folder or a dataset id on the Hub. Raises InputError, immediately or while reading,
    if it cannot be loaded. A local dataset is read completely for its hash, one on the Hub only as
    far as needed.
    """
    label = base if from_hub else Path(base).resolve().name
    explained = functools.partial(_explained, ":".join((base, *names)), from_hub=from_hub)
    with explained():
        if from_hub:
            _check_hub_answers(base)
        with quiet_hub():
            splits, config, split, revision = _open_splits(base, names)
        content = splits[split]
    name = ":".join(filter(None, (label, config, split)))

    def read() -> Iterator[Row]:
        with explained():
            yield from _dataset_rows(name, content)

    return RowSource(
        name=name,
        stem=label.split("/")[-1],
        rows=read(),
        sha256=hash_text(base, config, split, revision) if from_hub else None,
    )


@contextmanager
def _explained(spec: str, *, from_hub: bool) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # `datasets` raises a dozen unrelated types
        raise InputError(_why_not_loaded(spec, from_hub, error)) from error


def _check_hub_answers(hub_id: str) -> None:
    """Request the file that `datasets` requests first; it would retry six times over 23 s."""
    import datasets
    from huggingface_hub import constants, hf_hub_url, is_offline_mode
    from huggingface_hub.utils import http_backoff

    if datasets.config.HF_HUB_OFFLINE or is_offline_mode() or _is_cached(hub_id):
        return
    url = hf_hub_url(
        hub_id,
        datasets.config.REPOCARD_FILENAME,
        repo_type="dataset",
        endpoint=datasets.config.HF_ENDPOINT,
    )
    # Any response will do, even an error: `datasets` reports what it means.
    with quiet_hub():
        http_backoff(
            "HEAD",
            url,
            max_retries=1,
            retry_on_status_codes=(),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )


def _is_cached(hub_id: str) -> bool:
    """Whether `datasets` has a cached copy, which it uses when the Hub is unreachable."""
    import datasets

    cache = Path(datasets.config.HF_DATASETS_CACHE).expanduser()
    names = [folder.name for folder in cache.iterdir()] if cache.is_dir() else []
    # The folder of "rajpurkar/SquadV2" is "rajpurkar___squad_v2".
    return plain_name(hub_id) in map(plain_name, names)


def _why_not_loaded(spec: str, from_hub: bool, error: Exception) -> str:
    if not from_hub:
        return (
            f"folder {spec} cannot be read as a dataset ({first_line(error)}): "
            'give a file in it, or check ":config:split"'
        )
    return (
        f'dataset "{spec}" could not be loaded from the Hugging Face Hub, and there is no such '
        f'local file or folder ({first_line(error)}): check "name:config:split", the network '
        "connection and HF_HUB_OFFLINE, or give a local file (.jsonl, .csv, .parquet)"
    )


def _open_splits(base: str, names: list[str]) -> tuple[Mapping[str, Any], str, str, str]:
    """All splits of a dataset (nothing is read yet), the config, the chosen split, the revision."""
    # Imported here since it takes seconds.
    import datasets

    if any(Path(base, mark).exists() for mark in ("dataset_dict.json", "state.json")):
        saved = datasets.load_from_disk(base)
        splits = (
            saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or ""): saved}
        )
        if len(names) > 1 and names[0]:
            raise InputError(f'{base} has no configs: omit "{names[0]}"')
        return splits, "", _choose_split(base, splits, names[-1] if names else ""), ""
    config, split = names if len(names) == 2 else ("", "".join(names))
    if not config and split and split in datasets.get_dataset_config_names(base):
        config, split = split, ""
    builder = datasets.load_dataset_builder(base, config or None)
    # Streaming opens files as rows are requested and copies nothing into a cache.
    splits = builder.as_streaming_dataset()
    config = "" if builder.config.name == "default" else builder.config.name
    return splits, config, _choose_split(base, splits, split), str(builder.hash)


def _choose_split(base: str, splits: Mapping[str, Any], wanted: str) -> str:
    """The named split; otherwise the only one, or the one that is usually the largest."""
    if wanted and wanted not in splits:
        raise InputError(f'{base} has no split "{wanted}": use one of {", ".join(splits)}')
    preferred = [name for name in (wanted, *_PREFERRED_SPLITS, *splits) if name in splits]
    return preferred[0]


def _dataset_rows(name: str, rows: Any) -> Iterator[Row]:
    # A stream of plain files may not know its columns until it is read.
    if rows.column_names is not None:
        rows = rows.select_columns(useful_columns(name, rows.column_names))
    for number, record in enumerate(rows):
        yield Row(number=number, where=f"row {number + 1}", record=record)
