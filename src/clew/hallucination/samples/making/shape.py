"""What of the stored traces goes into the samples."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from clew.hallucination.samples.making.config import Kind
from clew.hallucination.samples.making.source import SourceShape
from clew.hallucination.traces.schema import id_fields

# Without these no sample can be made of a trace.
ARRAY_COLUMNS = ("last_hidden", "nodes", "edge_source", "edge_weight")
MAPS = "attentions"


@dataclass(frozen=True, kw_only=True)
class SampleShape:
    """The sizes of the samples, and what they are cut from."""

    source: SourceShape
    features: int
    top_k: int
    attn_threshold: float

    @property
    def from_maps(self) -> bool:
        """Whether more edges are asked for than were stored, so that the maps must give them."""
        return self.top_k > self.source.edges_per_token

    def can_make(self, kind: Kind) -> bool:
        """Whether the traces hold what that kind is made of."""
        return kind != "heads" or (self.source.has_maps and "prompt_length" in self.source.extras)

    def columns(self, kinds: Collection[Kind]) -> list[str]:
        """The trace columns to read. What makes a trace useless is looked for in all of them,
        whichever kinds are made: all kinds hold the same samples."""
        ids = [field.name for field in id_fields()]
        needs_maps = self.from_maps or "heads" in kinds
        maps = [MAPS] if needs_maps else []
        return [*ids, "tokens", *ARRAY_COLUMNS, *sorted(self.source.extras), *maps]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How many tokens some traces have, and how many of them are the answer's."""

    tokens: Int[np.ndarray, " rows"]
    answer: Int[np.ndarray, " rows"]

    @property
    def prompt(self) -> Int[np.ndarray, " rows"]:
        return self.tokens - self.answer
