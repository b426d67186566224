"""Everything: all hidden states and all attention maps of given sequences, for `keep="full"`."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from clew.hallucination.capture.observe import ModelObserver, listen_to_whole
from clew.hallucination.traces.compact import flat, to_float16


class FullRecord:
    """A listener that moves each layer to the host as it comes, padding left out."""

    def __init__(self, lengths: Sequence[int], dtype: torch.dtype) -> None:
        self.lengths = lengths
        self.dtype = dtype
        self.hidden: list[list[Tensor]] = [[] for _ in lengths]
        self.attention: list[list[Tensor]] = [[] for _ in lengths]

    def on_hidden(self, _layer: int, states: Float[Tensor, "batch tokens dim"]) -> None:
        host = self._to_host(states)
        for row, length in enumerate(self.lengths):
            self.hidden[row].append(host[row, :length])

    def on_attention(
        self, _layer: int, weights: Float[Tensor, "batch heads tokens columns"]
    ) -> None:
        host = self._to_host(weights)
        for row, length in enumerate(self.lengths):
            self.attention[row].append(host[row, :, :length, :length])

    def hidden_states(self, row: int) -> Float[Tensor, "layers tokens dim"]:
        return torch.stack(self.hidden[row])

    def attentions(self, row: int) -> Float[Tensor, "layers heads tokens tokens"]:
        return torch.stack(self.attention[row])

    def _to_host(self, values: Tensor) -> Tensor:
        values = to_float16(values) if self.dtype == torch.float16 else values.to(self.dtype)
        return values.cpu()


def record_fully(
    model: PreTrainedModel,
    observer: ModelObserver,
    sequences: Sequence[Sequence[int]],
    dtype: torch.dtype = torch.float16,
) -> FullRecord:
    """All states and attention maps of some sequences, on the host."""
    record = FullRecord([len(sequence) for sequence in sequences], dtype)
    listen_to_whole(model, observer, sequences, record)
    return record


def full_columns(record: FullRecord) -> dict[str, np.ndarray]:
    """All states and maps of a few traces, one trace after the other."""
    rows = range(len(record.lengths))
    return {
        "hidden_states": np.concatenate([flat(record.hidden_states(row)) for row in rows]),
        "attentions": np.concatenate([flat(record.attentions(row)) for row in rows]),
    }
