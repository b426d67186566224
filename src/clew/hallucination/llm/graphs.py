"""How passes run: one after the other on a CPU; on a GPU as CUDA graphs that are captured once and
replayed. A pass over few tokens is limited by the host, which launches thousands of kernels."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.base.garbage import collect_later
from clew.hallucination.llm.generation import NextTokens, Scheduled, choose_tokens
from clew.hallucination.llm.packing import Group, Pass, Segment, to_device
from clew.hallucination.llm.passes import PackedModel
from clew.hallucination.llm.recording import Reading, RowRecord
from clew.hallucination.llm.requests import Token

# Tokens of a pass are padded to one of these, or to a multiple of the last.
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)
_MIN_COLUMNS = 128


class PlainPasses:
    """Runs each pass at once. With `looks_ahead`, the next one may be launched before this one is
    read: a token of -1 is the one that was chosen last for the row."""

    looks_ahead = False

    def __init__(self, model: PackedModel, record: RowRecord | None) -> None:
        self.model, self.record = model, record

    def launch(self, segments: list[Scheduled], *, records: bool) -> "PlainPass | GraphPass":
        return PlainPass(self.model, self.record if records else None, segments)

    def forget(self) -> None:
        """Give memory back that only makes passes faster."""


class PlainPass:
    """A pass that has run, and which of its `segments` were `alive` when it was recorded."""

    def __init__(
        self, model: PackedModel, record: RowRecord | None, segments: list[Scheduled]
    ) -> None:
        self.segments, self.alive = segments, [True] * len(segments)
        self._record, self.choice = record, None
        keeps_weights = record is not None and record.recording.needs_attention
        self._pass = model.plan(segments, keeps_weights=keeps_weights)
        wanted = [number for number, segment in enumerate(segments) if segment.wants_logits]
        # Some token's logits are computed even if none are wanted: no model expects an empty index.
        keep = self._pass.last[to_device(wanted or [0], model.device)]
        logits = model.run(self._pass, keep, keeps_states=record is not None)
        if wanted:
            asking = [segments[number].running for number in wanted]
            self.choice = NextTokens(choose_tokens(logits), logits, asking)

    def add_to_record(self) -> None:
        """Add the segments that are alive to the record. Called once, before the next launch."""
        self.alive = [segment.is_alive for segment in self.segments]
        assert all(self.alive)  # nothing is launched before it is known to be needed
        if self._record is not None:
            self._record.add(self._pass)

    def read(self) -> list[Token]:
        """The next tokens of the segments that want logits, in their order."""
        return self.choice.read() if self.choice else []

    def nodes(self) -> Float[Tensor, "segments layers node_dim"] | None:
        """The projected states of the segments' last tokens, if any layers were asked for."""
        if self._record is None or not self._record.recording.token_layers:
            return None
        return self._record.project_tokens(self._pass).cpu()


def choose_passes(
    model: PackedModel, record: RowRecord | None, max_rows: int, *, is_exact: bool = False
) -> PlainPasses:
    """Graphs on a GPU where its kernels can be used, or plain passes."""
    has_sinks = any(hasattr(module, "sinks") for module in model.model.modules())
    kinds = model.observer.kinds
    if model.has_kernels and not has_sinks and "chunked_attention" not in kinds:
        return GraphPasses(model, record, max_rows, is_exact=is_exact)
    return PlainPasses(model, record)


class _CapturedPass:
    """The pass of one size and what is recorded of it, with their inputs and outputs. On a GPU both
    are captured once and replayed. (On a CPU they run each time, which only tests use.)"""

    def __init__(self, passes: "GraphPasses", tokens: int, columns: int, records: bool) -> None:
        self._passes, self._columns = passes, columns
        self._record = passes.record if records else None
        device, segments = passes.model.device, min(tokens, passes.max_rows)
        self.inputs = torch.zeros(3 * tokens + segments, dtype=torch.long, device=device)
        self.inputs[tokens : 2 * tokens] = passes.spare_row
        self.alive = torch.zeros(tokens, dtype=torch.bool, device=device)
        self.nodes: Float[Tensor, "segments layers node_dim"] | None = None
        uses_kernels = device.type == "cuda"
        self._weights = passes.weights_of(tokens, columns) if uses_kernels and columns else None
        self._graphs: list[torch.cuda.CUDAGraph] = []
        if uses_kernels:
            self._capture()

    def run(self) -> None:
        if self._graphs:
            self._graphs[0].replay()
        else:
            self._run()

    def add_to_record(self) -> None:
        if self._record is None:
            return
        if self._graphs:
            self._graphs[1].replay()
        else:
            self._add()

    def _run(self) -> None:
        self._pass, self.logits = self._passes.run_once(
            self.inputs, len(self.alive), self._columns, self._record, self._weights
        )
        self.chosen = choose_tokens(self.logits)
        self._passes.next_tokens[self._pass.rows[self._pass.last]] = self.chosen.tokens

    def _add(self) -> None:
        assert self._record is not None
        self._record.add(self._pass, self.alive)
        if self._record.recording.token_layers:
            self.nodes = self._record.project_tokens(self._pass)

    def _capture(self) -> None:
        """Run once to compile the kernels (nothing is alive, and only the spare row is written),
        then capture."""
        work = [self._run, self._add] if self._record is not None else [self._run]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for part in work:
                part()
        torch.cuda.current_stream().wait_stream(stream)
        for part in work:
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile. This one must not even free other graphs.
            with (
                collect_later(),
                torch.cuda.graph(graph, pool=self._passes.pool, capture_error_mode="thread_local"),
            ):
                part()
            self._graphs.append(graph)


class GraphPasses(PlainPasses):
    """Launches passes as graphs, one per number of tokens, captured when first needed. If it
    `is_exact`, prompts are passed without one: the kernels add up what the tokens of a row give in
    any order, which rounds differently every time."""

    looks_ahead = True

    def __init__(
        self,
        model: PackedModel,
        record: RowRecord | None,
        max_rows: int,
        *,
        is_exact: bool = False,
    ) -> None:
        super().__init__(model, record)
        self.max_rows, self.is_exact = max_rows, is_exact
        # The token that follows in each row, and in the spare one.
        self.next_tokens = torch.zeros(max_rows + 1, dtype=torch.long, device=model.device)
        self._captured: dict[tuple[int, int, bool], _CapturedPass] = {}
        self._versions = (0, 0)
        self._weights = torch.empty(0, dtype=torch.float32, device=model.device)
        self.pool = self._make_pool()

    @property
    def spare_row(self) -> int:
        return self.model.cache.rows

    def launch(self, segments: list[Scheduled], *, records: bool) -> "PlainPass | GraphPass":
        if self.is_exact and any(len(segment.tokens) > 1 for segment in segments):
            launched = PlainPass(self.model, self.record if records else None, segments)
            if launched.choice is not None:
                rows = [segment.row for segment in segments if segment.wants_logits]
                self.next_tokens[to_device(rows, self.model.device)] = launched.choice.tokens
            return launched
        count = sum(len(segment.tokens) for segment in segments)
        longest = max(segment.start + len(segment.tokens) for segment in segments)
        captured = self._find(count, longest, records)
        self._fill(captured, segments, count)
        captured.run()
        return GraphPass(captured, segments, self.next_tokens)

    def forget(self) -> None:
        self._captured.clear()
        self.pool = self._make_pool()
        self._weights = self._weights.new_empty(0)

    def _make_pool(self) -> Any:
        """Memory for graphs. That of graphs that are gone cannot be used again while tokens that
        they gave are still being read."""
        return torch.cuda.graph_pool_handle() if self.model.device.type == "cuda" else None

    def weights_of(self, tokens: int, columns: int) -> Float[Tensor, "layers tokens heads columns"]:
        """Where the attention weights of a pass go. All passes share the memory: each is added to
        the record before the next one is launched."""
        observer = self.model.observer
        size = (observer.layers, tokens, observer.heads, columns)
        count = prod(size)
        if count > len(self._weights):  # those captured before keep the smaller one
            self._weights = self._weights.new_empty(1 << (count - 1).bit_length())
        return self._weights[:count].view(size)

    def run_once(
        self,
        inputs: Tensor,
        tokens: int,
        columns: int,
        record: RowRecord | None,
        weights: Tensor | None,
    ) -> tuple[Pass, Float[Tensor, "segments vocabulary"]]:
        """A pass over inputs: tokens, rows, positions, and the last token of each segment."""
        given, rows, positions = inputs[: 3 * tokens].view(3, tokens)
        last = inputs[3 * tokens :]
        planned = Pass(
            groups=[_single_tokens(rows, positions)],
            tokens=torch.where(given < 0, self.next_tokens[rows], given),
            rows=rows,
            positions=positions,
            last=last,
            columns=columns or self.model.cache.capacity,
            keeps_weights=columns > 0,
            cache=self.model.cache,
            uses_kernels=inputs.is_cuda,
            has_kernels=inputs.is_cuda,
            weights=weights,
        )
        return planned, self.model.run(planned, last, keeps_states=record is not None)

    def _find(self, count: int, longest: int, records: bool) -> _CapturedPass:
        cache = self.model.cache
        versions = cache.version, self.record.version if self.record is not None else 0
        if self._versions != versions:  # a graph reads and writes the tensors it was captured with
            self.forget()
            self._versions = versions
        tokens = next((size for size in _SIZES if size >= count), None)
        tokens = tokens or -(-count // _SIZES[-1]) * _SIZES[-1]
        columns = 0
        if records and self.record is not None and self.record.recording.needs_attention:
            columns = min(max(_MIN_COLUMNS, 1 << (longest - 1).bit_length()), cache.capacity)
        key = (tokens, columns, records)
        if key not in self._captured:
            self._captured[key] = _CapturedPass(self, *key)
        return self._captured[key]

    def _fill(self, captured: _CapturedPass, segments: Sequence[Segment], count: int) -> None:
        """Copy the inputs. Padding is written to the spare row."""
        tokens = len(captured.alive)
        padding = tokens - count
        numbers = [t for s in segments for t in s.tokens] + [0] * padding
        numbers += [s.row for s in segments for _ in s.tokens] + [self.spare_row] * padding
        numbers += [p for s in segments for p in range(s.start, s.start + len(s.tokens))]
        numbers += [0] * padding
        last, place = [], -1
        for segment in segments:
            place += len(segment.tokens)
            last.append(place)
        numbers += last + [last[-1]] * (len(captured.inputs) - len(numbers) - len(last))
        host = torch.tensor(numbers, pin_memory=captured.inputs.is_cuda)
        captured.inputs.copy_(host, non_blocking=True)


def _single_tokens(rows: Int[Tensor, " tokens"], positions: Int[Tensor, " tokens"]) -> Group:
    return Group(
        rows=rows,
        sizes=torch.ones_like(rows),
        lanes=rows,
        lane=None,
        first=0,
        packed=None,
        positions=positions[:, None],
        real=None,
        count=len(rows),
        width=1,
    )


class GraphPass:
    """A pass that was launched."""

    def __init__(
        self,
        captured: _CapturedPass,
        segments: list[Scheduled],
        next_tokens: Int[Tensor, " rows"],
    ) -> None:
        self._captured = captured
        self._nodes: Reading | None = None
        self.segments, self.alive = segments, [True] * len(segments)
        asking = [one.running if one.wants_logits else None for one in segments]
        self._choice = NextTokens(captured.chosen, captured.logits, asking)
        if drawn := [*self._choice.drawn]:
            rows = to_device([segments[number].row for number in drawn], next_tokens.device)
            next_tokens[rows] = captured.chosen.tokens[to_device(drawn, next_tokens.device)]

    def add_to_record(self) -> None:
        self.alive = [segment.is_alive for segment in self.segments]
        flags = [ok for ok, s in zip(self.alive, self.segments, strict=True) for _ in s.tokens]
        flags += [False] * (len(self._captured.alive) - len(flags))
        host = torch.tensor(flags, pin_memory=self._captured.alive.is_cuda)
        self._captured.alive.copy_(host, non_blocking=True)
        self._captured.add_to_record()
        if self._captured.nodes is not None:
            self._nodes = Reading(self._captured.nodes)

    def read(self) -> list[Token]:
        read = zip(self._choice.read(), self.segments, strict=True)
        return [token for token, segment in read if segment.wants_logits]

    def nodes(self) -> Float[Tensor, "segments layers node_dim"] | None:
        return None if self._nodes is None else self._nodes.get()
