"""Copies of what was recorded of answers, and how those of several are reduced together: to what
capture stores."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clew.hallucination.live.engine.transfers import to_device
from clew.hallucination.traces.compact import Reduced, laplacian, log_diagonal, lookback

# Tensors with one entry per token, and the dimension of the tokens in those of one row.
PER_TOKEN = {
    "nodes": 1,
    "edge_weight": 1,
    "edge_slot": 1,
    "diagonal": 2,
    "received": 2,
    "masses": 2,
}
_RAGGED = {
    "nodes": 3,
    "edge_weight": 3,
    "edge_source": 3,
    "attention_log_diagonal": 4,
    "laplacian_diagonal": 4,
}


@dataclass(frozen=True, kw_only=True)
class RowCopy:
    """The record of one answer, `[1, ...]` each; those with one entry per token may have room for
    more than its `length`. The last `answer` tokens are the answer."""

    tensors: dict[str, Tensor]
    columns: frozenset[str]
    length: int
    answer: int


def reduce_ragged(copies: Sequence[RowCopy]) -> Reduced:
    """The fields of some answers' traces. Those of columns that were not recorded are empty."""
    rows = _Rows(copies)
    fields = rows.reduce()
    ragged = {name: _RAGGED[name] for name in fields if name in _RAGGED}
    for name, dims in ragged.items():
        fields[name] = rows.select(fields[name], dims)
    return _reduced(fields, rows.device)


def reduce_padded(copies: Sequence[RowCopy]) -> Reduced:
    """The same, with ragged fields `[answers, layers, (heads,) tokens, ...]` and zeros after each
    answer's tokens."""
    rows = _Rows(copies)
    return _reduced(rows.reduce(), rows.device)


def _reduced(fields: dict[str, Tensor], device: torch.device) -> Reduced:
    empty = torch.empty(0, device=device)
    return Reduced(**{name: fields.get(name, empty) for name in Reduced.__dataclass_fields__})


class _Rows:
    """Copies of several rows, joined."""

    used: Bool[Tensor, "rows tokens"]
    index: Int[Tensor, "rows tokens"]

    def __init__(self, copies: Sequence[RowCopy]) -> None:
        self.columns = copies[0].columns
        self.device = next(iter(copies[0].tensors.values()), torch.empty(0)).device
        sizes = [[copy.length, copy.answer] for copy in copies]
        self.lengths, self.answers = to_device(sizes, self.device).T
        self._longest = max(copy.length for copy in copies)
        self._is_padded = any(copy.length < self._longest for copy in copies)
        places = torch.arange(self._longest, device=self.device)
        self.index = places.expand(len(copies), -1)
        self.used = places < self.lengths[:, None]
        self._kept = {name: self._join(copies, name) for name in copies[0].tensors}

    def reduce(self) -> dict[str, Tensor]:
        kept, fields = self._kept, {}
        if "last_hidden" in kept:
            fields["last_hidden"] = kept["last_hidden"]
        if "answer_sum" in kept:
            count = self.answers.clamp(min=1)[:, None, None]
            fields["answer_hidden"] = kept["answer_sum"] / count
        if "nodes" in kept:
            fields["nodes"] = kept["nodes"]
        if "edge_weight" in kept:
            weight = kept["edge_weight"]
            fields |= {"edge_weight": weight, "edge_source": kept["edge_slot"].where(weight > 0, 0)}
        if "attention_log_diagonal" in self.columns:
            fields["attention_log_diagonal"] = self._mask(log_diagonal(kept["diagonal"]), 2)
        if "laplacian_diagonal" in self.columns:
            fields["laplacian_diagonal"] = laplacian(
                kept["received"], kept["diagonal"], self.lengths, self.index
            )
        if "masses" in kept:
            sizes = self.lengths, self.answers
            fields["lookback"] = lookback(kept["masses"], *sizes, self.index, self.used)
        return fields

    def select(self, values: Tensor, dims: int) -> Tensor:
        """The entries of tokens that exist, flat over the first `dims` dimensions."""
        if not self._is_padded:
            return values.flatten(0, dims - 1)
        used = self.used.view(len(self.used), *[1] * (dims - 2), -1)
        return values[used.expand(values.shape[:dims])]

    def _join(self, copies: Sequence[RowCopy], name: str) -> Tensor:
        parts, along = [copy.tensors[name] for copy in copies], PER_TOKEN.get(name)
        if along is None:
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        if len({part.shape for part in parts}) == 1:
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        else:
            joined = _pad(parts, along)
        return self._mask(joined.narrow(along + 1, 0, self._longest), along)

    def _mask(self, values: Tensor, along: int) -> Tensor:
        """Zeros after each row's tokens, where tokens may have been recorded that an answer does
        not have."""
        if not self._is_padded:
            return values
        behind = [1] * (values.dim() - along - 2)
        used = self.used.view(len(self.used), *[1] * along, -1, *behind)
        return torch.where(used, values, 0)


def _pad(rows: Sequence[Tensor], along: int) -> Tensor:
    """Join rows `[1, ...]`, with zeros where one is shorter along that dimension of a row."""
    longest = max(rows, key=lambda row: row.shape[along + 1])
    joined = longest.new_zeros(len(rows), *longest.shape[1:])
    for place, row in zip(joined.split(1), rows, strict=True):
        place.narrow(along + 1, 0, row.shape[along + 1]).copy_(row)
    return joined
