"""The settings of preprocessing, and which part of the stored traces goes into the samples."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int

from clew.base.cores import count_cores
from clew.base.errors import InputError
from clew.base.settings import check_numbers
from clew.hallucination.labels import Refused
from clew.hallucination.samples.making.source import (
    ARRAY_COLUMNS,
    MAPS,
    TOKEN_LABELS,
    SourceShape,
)
from clew.hallucination.traces.schema import TOKEN_ENDS, id_fields
from clew.loading.splits import Shares

Kind = Literal["sequences", "graphs", "answers", "heads"]
KINDS: tuple[Kind, ...] = ("sequences", "graphs", "answers", "heads")
SplitBy = Literal["question", "file"]


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """Settings of `preprocess_store`; None for `top_k` and `node_dim` means all that is stored.
    "heads" require traces with full attention maps. Traces at a URL are read through `cache_dir`,
    which may take `cache_size` bytes (see `open_folder`)."""

    store: Path
    scores_file: Path
    out: Path
    score_threshold: float = 0.5
    attn_threshold: float = 0.0
    top_k: int | None = None
    node_dim: int | None = None
    shares: Shares = field(default_factory=Shares)
    split_by: SplitBy = "question"
    kinds: tuple[Kind, ...] = KINDS
    workers: int | None = None
    skip_unlabeled: bool = False
    refused: Refused = "exclude"
    score_column: str | None = None
    higher_is: Literal["correct", "hallucinated"] | None = None
    spans_file: Path | None = None  # None: the one beside the scores file, if it exists
    cache_dir: Path | None = None
    cache_size: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        if not self.kinds:
            without = ", ".join(f"`{kind}=False`" for kind in KINDS)
            raise InputError(f"{without} together leave nothing to create: omit one of them.")
        if self.refused not in get_args(Refused):
            known = ", ".join(get_args(Refused))
            raise InputError(f"choose from: {known}.", setting="refused", value=self.refused)
        for name in ("score_threshold", "attn_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                value = getattr(self, name)
                raise InputError("it must be from 0 to 1.", setting=name, value=value)
        for name in ("top_k", "node_dim", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError("it must be 1 or more.", setting=name, value=value)

    def count_workers(self, jobs: int) -> int:
        """The number of workers: as requested, or one per core; never more than there are jobs."""
        return max(1, min(self.workers or count_cores(), jobs))


@dataclass(frozen=True, kw_only=True)
class SampleShape:
    """The sizes of the samples and of the stored arrays."""

    source: SourceShape
    features: int
    top_k: int
    attn_threshold: float

    @property
    def from_maps(self) -> bool:
        """Whether more edges are requested than stored, so that they come from the full maps."""
        return self.top_k > self.source.edges_per_token

    def can_make(self, kind: Kind) -> bool:
        """Whether the traces contain what this kind requires."""
        return kind != "heads" or (self.source.has_maps and "prompt_length" in self.source.extras)

    def columns(self, kinds: Collection[Kind]) -> list[str]:
        """The trace columns to read. All of them are checked for unusable traces, whichever kinds
        are requested, so that all kinds contain the same samples."""
        ids = [field.name for field in id_fields()]
        needs_maps = self.from_maps or "heads" in kinds
        maps = [MAPS] if needs_maps else []
        ends = [TOKEN_ENDS] if TOKEN_LABELS in self.source.extras else []
        extras = sorted(self.source.extras - {TOKEN_LABELS})
        return [*ids, "tokens", *ARRAY_COLUMNS, *extras, *ends, *maps]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The token counts of some traces, in total and of the answer."""

    tokens: Int[np.ndarray, " rows"]
    answer: Int[np.ndarray, " rows"]

    @property
    def prompt(self) -> Int[np.ndarray, " rows"]:
        return self.tokens - self.answer
