"""The projected states of answer tokens, read layer by layer from the nodes of graphs/, so that no
second copy of them is stored."""

from pathlib import Path

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.samples.making.columns import check_samples
from clew.loading.reader import Rows, SampleReader
from clew.loading.samples import SampleIndex

# The field of the answers under which the states are read.
NODE_TOKENS = "node_tokens"
_OPEN_FILES = 16
_NODES = "nodes"


class TokenNodes:
    """Reads the nodes of answer tokens. `prompts` are the prompt lengths of all samples of the
    index."""

    def __init__(self, path: Path, index: SampleIndex, prompts: Rows) -> None:
        self._reader = SampleReader(
            path,
            (_NODES, "node_counts"),
            ids=index.example_ids,
            questions=index.question_ids,
            check=check_samples,
            access="read",
            max_open=_OPEN_FILES,
        )
        [self._layers] = self._reader.columns["node_counts"].item_shape
        self._prompts = prompts

    def read(self, rows: Rows, layer: int | None) -> list[np.ndarray]:
        """For each row float32 `[tokens, features]` of a layer, or `[tokens, layers, features]` of
        all."""
        if layer is None:
            every = [self.read(rows, one) for one in range(self._layers)]
            return [np.stack(one, axis=1) for one in zip(*every, strict=True)]
        if not 0 <= layer < self._layers:
            raise InputError(
                f'"{NODE_TOKENS}" has no layer {layer}: its layers are 0 to {self._layers - 1}.'
            )
        shards, column = self._reader.locate(rows), self._reader.columns[_NODES]
        tokens = column.counts[rows] // self._layers
        prompts = np.clip(self._prompts[rows], 0, tokens)
        starts = column.starts[rows] + (layer * tokens + prompts) * column.item_bytes
        sizes = (tokens - prompts) * column.item_bytes
        ends = np.cumsum(sizes)
        content = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        pieces = np.stack([shards, starts, ends - sizes, sizes], axis=1)
        self._reader.files.copy(pieces[sizes > 0].tolist(), content)
        values = content.view(column.dtype).reshape(-1, *column.item_shape).astype(np.float32)
        return np.split(values, np.cumsum(tokens - prompts)[:-1]) if len(rows) else []

    def bytes_per_answer(self) -> float:
        """The average size of the nodes of an answer's tokens in all layers."""
        rows = np.arange(len(self._prompts))
        self._reader.locate(rows)
        column = self._reader.columns[_NODES]
        tokens = column.counts // self._layers
        answer = tokens - np.clip(self._prompts, 0, tokens)
        return float(np.mean(answer)) * self._layers * column.item_bytes
