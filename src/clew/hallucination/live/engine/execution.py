"""How passes run: one after the other on a CPU; on a GPU as graphs that are replayed (`graphs`)."""

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from clew.hallucination.capture.decode import choose_tokens
from clew.hallucination.capture.device_map import can_replay
from clew.hallucination.live.engine.passes import PackedModel, Segment
from clew.hallucination.live.engine.recording import RowRecord
from clew.hallucination.live.engine.sampling import Asking, NextToken, NextTokens


class Launched(Protocol):
    """A pass that has been started. A GPU may still be busy with it."""

    def record(self, alive: Sequence[bool]) -> None:
        """Add the segments that are alive to the record. Called once, before the next launch."""

    def read(self) -> list[NextToken]:
        """The next tokens of the segments that want logits, in their order."""

    def nodes(self) -> Float[Tensor, "segments layers node_dim"] | None:
        """The projected states of the segments' last tokens, if any layers were asked for."""


class Passes(Protocol):
    """Starts passes. With `looks_ahead`, the next one may be launched before this one is read: a
    token of -1 is the one that was chosen last for the row."""

    looks_ahead: bool

    def launch(
        self, segments: Sequence[Segment], asking: Sequence[Asking], *, records: bool
    ) -> Launched: ...

    def forget(self) -> None:
        """Give memory back that only makes passes faster."""


class PlainPasses:
    """Runs each pass at once."""

    looks_ahead = False

    def __init__(self, model: PackedModel, record: RowRecord | None) -> None:
        self._model, self._record = model, record

    def launch(
        self, segments: Sequence[Segment], asking: Sequence[Asking], *, records: bool
    ) -> "PlainPass":
        return PlainPass(self._model, self._record if records else None, segments, asking)

    def forget(self) -> None:
        pass


class PlainPass:
    """A pass that has run."""

    def __init__(
        self,
        model: PackedModel,
        record: RowRecord | None,
        segments: Sequence[Segment],
        asking: Sequence[Asking],
    ) -> None:
        self._record, self._choice = record, None
        keeps_weights = record is not None and record.recording.needs_attention
        self._pass = model.plan(segments, keeps_weights=keeps_weights)
        wanted = [number for number, segment in enumerate(segments) if segment.wants_logits]
        # Some token's logits are computed even if none are wanted: no model expects an empty index.
        keep = self._pass.last[wanted or [0]]
        logits = model.run(self._pass, keep, keeps_states=record is not None)
        if wanted:
            self._choice = NextTokens(choose_tokens(logits), logits, asking)

    def record(self, alive: Sequence[bool]) -> None:
        assert all(alive)  # nothing is launched before it is known to be needed
        if self._record is not None:
            self._record.add(self._pass)

    def read(self) -> list[NextToken]:
        return self._choice.read() if self._choice else []

    def nodes(self) -> Float[Tensor, "segments layers node_dim"] | None:
        if self._record is None or not self._record.recording.token_layers:
            return None
        return self._record.project_tokens(self._pass).cpu()


def choose_passes(model: PackedModel, record: RowRecord | None, max_rows: int) -> Passes:
    """Graphs on a GPU where its kernels can be used, or plain passes."""
    has_sinks = any(hasattr(module, "sinks") for module in model.model.modules())
    if can_replay(model.model) and not has_sinks and _has_triton():
        from clew.hallucination.live.engine.graphs import GraphPasses

        return GraphPasses(model, record, max_rows)
    return PlainPasses(model, record)


def _has_triton() -> bool:
    return torch.utils._triton.has_triton()
