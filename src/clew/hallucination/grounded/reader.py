"""A reader finds what the sources of an answer do not support, whichever model wrote the answer. It
is a folder: reader.json says which language model it changes and how to use it; adapter.safetensors
has the changes."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from clew.base.errors import InputError, StoreError
from clew.base.texts import shortened
from clew.base.typed_json import Bounds, read_as
from clew.engine.model_files import hash_tensors, misfit, read_model, write_model
from clew.engine.plan import look_at_machine
from clew.hallucination.detectors.data import Promise, RiskLevel, State, Verdict, judge, level_of
from clew.hallucination.grounded.folder import (
    ADAPTER,
    BUILT_IN_READER,
    READER_JSON,
    check_reader,
    reader_folder,
)
from clew.hallucination.grounded.network import (
    Attention,
    Frame,
    ReaderNetwork,
    ReaderPiece,
    batch_pieces,
    cut_pieces,
    encode_all,
    encode_frame,
    encode_places,
    fuse_norms,
    linear_layers,
    stack_pieces,
)
from clew.hallucination.grounded.passages import (
    GroundedAnswer,
    Passages,
    SourcePassage,
    cut_at_sentences,
    find_problem,
    split_claims,
    split_sentences,
    whole_words,
)
from clew.hallucination.llm.models import fingerprint, load_model
from clew.metrics.calibration import PlattScale
from clew.metrics.spans import join_tokens
from clew.storage.reading import read_json
from clew.storage.writing import replace_file, replace_json

_FORMAT = 1
_BETWEEN_SOURCES = "\n\n"
# The tensor of an adapter with the negative log-probability of every token in training sources.
SURPRISE = "surprise"
# What a CPU reads at once stays in its cache; a GPU is kept busy.
_BATCH_TOKENS = {"cpu": 1024, "cuda": 65_536}
_ROWS_AT_ONCE = {"cpu": 4096, "cuda": 1024}
# The temperature of the smoothed maximum; chosen on documents of RAGTruth QA that were held out.
SMOOTHING = 0.5
# How much lower the logits of neighbors may be that a span extends over; chosen there, too.
_EXTENT = 1.0
_LEAST_LOGIT = -30.0
_NO_LOGITS = np.full(1, _LEAST_LOGIT)
# Spans whose own risk is below this share of the threshold are not marked beside others.
_LEAST_SHARE = 0.5
# A source of this many tokens is believed half to be like the others.
_SHORT_SOURCE = 20
_UNFAMILIAR = (
    "the sources are unlike those that the reader was trained on, such as text in another language"
)
_Sources = list[list[int]]
# Of every answer, the places of its tokens, and their logits.
_Logits = list[tuple[list[tuple[int, int]], np.ndarray]]
_Probability = Annotated[float, Bounds(least=0, most=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitRisk:
    """The risk that the sources do not support the characters from `start` to `end` of an answer:
    a token, a claim or a sentence."""

    start: int
    end: int
    text: str
    risk: float


@dataclass(frozen=True, kw_only=True, slots=True)
class UnsupportedSpan(UnitRisk):
    """A part of an answer that the sources do not support, and their passage that comes nearest to
    it, None if no word is shared."""

    nearest: SourcePassage | None


@dataclass(frozen=True, kw_only=True, eq=False)
class GroundedReading:
    """What a reader found in an answer. `risk` is the calibrated probability that a part of it is
    not supported; only an answer whose `state` is "checked" has one, and `reason` says why another
    has none. The verdict is "hallucinated" above `threshold`. `distance` is how unlike the training
    data the sources are: above 1 is out of distribution. `places` and `logits` are those of the
    answer's tokens, `[tokens, 2]` and `[tokens]`; `settings` turn them into risks."""

    answer: str
    risk: float | None
    state: State
    threshold: float
    reason: str | None = None
    distance: float | None = None
    spans: tuple[UnsupportedSpan, ...] = ()
    places: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64), repr=False)
    logits: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)
    settings: "ReaderSettings | None" = field(default=None, repr=False)

    @property
    def verdict(self) -> Verdict | None:
        return None if self.risk is None else judge(self.risk, self.threshold)

    @property
    def risk_level(self) -> RiskLevel | None:
        return None if self.verdict is None else level_of(self.verdict)

    @property
    def tokens(self) -> tuple[UnitRisk, ...]:
        return self.units(self.places.tolist())

    @property
    def sentences(self) -> tuple[UnitRisk, ...]:
        """Empty if the answer was not checked."""
        return self.units(split_sentences(self.answer)) if self.risk is not None else ()

    @property
    def claims(self) -> tuple[UnitRisk, ...]:
        """The clauses of sentences; empty if the answer was not checked."""
        return self.units(split_claims(self.answer)) if self.risk is not None else ()

    def units(self, places: Iterable[tuple[int, int]]) -> tuple[UnitRisk, ...]:
        """The risk of each part of an answer that was checked, as if it were the whole."""
        starts, ends, wanted = self.places[:, 0], self.places[:, 1], list(places)
        if self.settings is None or not wanted:
            return ()
        inside = [self.logits[(starts < end) & (start < ends)] for start, end in wanted]
        risks = self.settings.risks(inside)
        return tuple(
            UnitRisk(start=start, end=end, text=self.answer[start:end], risk=float(risk))
            for (start, end), risk in zip(wanted, risks, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """As in JSON, without the tokens."""
        names = ("risk", "state", "threshold", "reason", "distance")
        found = {name: getattr(self, name) for name in names}
        spans = [asdict(span) for span in self.spans]
        return {**found, "verdict": self.verdict, "risk_level": self.risk_level, "spans": spans}


class BaseModel(TypedDict):
    """The language model that an adapter belongs to: its name, and the hash of its weights."""

    id: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """How a reader reads: what a token attends to, the tokens of a window, how many tokens of the
    source two windows share, and the rank of the changed weights. The logits of an answer's tokens
    make its own by a maximum that is smoothed by `smoothing`, plus `mean_weight` times their mean,
    and that its risk by `calibration`. Answers above `threshold` are flagged; their tokens above
    `token_threshold` make spans. Sources are familiar up to a mean surprise of `surprise_limit`."""

    model: BaseModel
    attention: Attention = "both"
    window: Annotated[int, Bounds(least=64, most=1 << 20)] = 1024
    overlap: Annotated[int, Bounds(least=0, most=1 << 16)] = 128
    rank: Annotated[int, Bounds(least=1, most=4096)] = 16
    smoothing: Annotated[float, Bounds(least=0.01, most=10)] = SMOOTHING
    mean_weight: Annotated[float, Bounds(least=0, most=10)] = 0.0
    calibration: PlattScale
    threshold: _Probability = 0.5
    token_threshold: float = 0.0
    surprise_limit: Annotated[float, Bounds(least=0)] | None = None
    promise: Promise | None = None
    card: dict[str, Any] = field(default_factory=dict)

    def pool(self, logits: Sequence[np.ndarray]) -> np.ndarray:
        """The logits of answers, or of parts of them, by those of their tokens. The maximum is
        smoothed (log-sum-exp), so that many suspicious tokens count more than one."""
        found = np.empty(len(logits))
        for row, one in enumerate(logits):
            values = np.maximum(one, _LEAST_LOGIT).astype(float) if len(one) else _NO_LOGITS
            peak = self.smoothing * np.logaddexp.reduce(values / self.smoothing)
            found[row] = peak + self.mean_weight * values.mean()
        return found

    def risks(self, logits: Sequence[np.ndarray]) -> np.ndarray:
        """The risks of answers, or of parts of them, by their tokens."""
        pooled = self.pool(logits)
        return self.calibration.probabilities(pooled) if len(pooled) else pooled

    def as_dict(self) -> dict[str, Any]:
        """What the reader is and how good, its card first."""
        about = asdict(self)
        return {**about.pop("card"), **about}

    @property
    def valid_promise(self) -> Promise | None:
        """What was promised, if calibration and threshold are still the same."""
        found, now = self.promise, (asdict(self.calibration), self.threshold)
        is_same = found is not None and (found.calibration, found.threshold) == now
        return found if is_same else None


class Reader:
    """A language model that reads an answer beside its sources. `read` takes any number of
    answers."""

    def __init__(
        self,
        network: ReaderNetwork,
        tokenizer: Any,
        settings: ReaderSettings,
        adapter: dict[str, Tensor],
        name: str = "reader",
    ) -> None:
        self.network, self.tokenizer, self.settings = network.eval(), tokenizer, settings
        self.adapter, self.name = adapter, name

    @property
    def device(self) -> torch.device:
        return self.network.head.weight.device

    def read(self, rows: Iterable[GroundedAnswer]) -> list[GroundedReading]:
        """The readings, in order. An answer that cannot be read has a reason instead of a risk."""
        return list(self.stream(rows))

    def stream(self, rows: Iterable[GroundedAnswer]) -> Iterator[GroundedReading]:
        """The same, a few thousand answers at a time. While those are described, a GPU reads
        more."""
        kind, left = self.device.type, iter(rows)
        chunks = iter(lambda: list(islice(left, _ROWS_AT_ONCE[kind])), [])
        if kind == "cpu":
            for some in chunks:
                yield from self._describe_all(some, *self._find(some))
            return
        with ThreadPoolExecutor(1) as ahead:
            found = deque([(some, ahead.submit(self._find, some)) for some in islice(chunks, 1)])
            while found:
                found += [(some, ahead.submit(self._find, some)) for some in islice(chunks, 1)]
                some, future = found.popleft()
                yield from self._describe_all(some, *future.result())

    def _find(self, rows: Sequence[GroundedAnswer]) -> tuple[list[str | None], _Sources, _Logits]:
        """Why rows cannot be read; of the others, tokens of the sources, and the logits."""
        reasons = [find_problem(row) for row in rows]
        readable = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
        sources = encode_sources(self.tokenizer, readable)
        return reasons, sources, self._find_logits(readable, sources)

    def _describe_all(
        self,
        rows: Sequence[GroundedAnswer],
        reasons: list[str | None],
        sources: _Sources,
        found: _Logits,
    ) -> Iterator[GroundedReading]:
        risks = self.settings.risks([logits for _, logits in found])
        read = zip(found, risks.tolist(), map(self._distance, sources), strict=True)
        for row, reason in zip(rows, reasons, strict=True):
            if reason is not None:
                yield self._without_risk(row, "unavailable", reason)
                continue
            (places, logits), risk, distance = next(read)
            yield self._describe(row, places, logits, risk, distance)

    def token_logits(self, rows: Sequence[GroundedAnswer]) -> _Logits:
        """Of every answer, the places of its tokens, and the logit of each that no window of the
        sources supports it: the lowest over all windows."""
        return self._find_logits(rows, encode_sources(self.tokenizer, rows))

    def _find_logits(self, rows: Sequence[GroundedAnswer], sources: _Sources) -> _Logits:
        answers = encode_places(self.tokenizer, [row.answer for row in rows])
        questions = encode_all(self.tokenizer, [row.question or "" for row in rows])
        window, overlap = self.settings.window, self.settings.overlap
        texts = zip(sources, questions, (tokens for tokens, _ in answers), strict=True)
        pieces = [
            piece
            for number, parts in enumerate(texts)
            for piece in cut_pieces(self._frame, number, *parts, window=window, overlap=overlap)
        ]
        logits = [np.full(len(places), np.inf, np.float32) for _, places in answers]
        batches = list(batch_pieces(pieces, _BATCH_TOKENS[self.device.type]))
        # A GPU reads on while the next batch is made: nothing is fetched before all are started.
        for batch, read in zip(batches, [self._pass(batch) for batch in batches], strict=True):
            for piece, row in zip(batch, read.cpu().numpy(), strict=True):
                values = row[piece.place : len(piece.tokens)]
                part = logits[piece.row][piece.first : piece.first + len(values)]
                np.minimum(part, values, out=part)
        return [(places, one) for (_, places), one in zip(answers, logits, strict=True)]

    @torch.inference_mode()
    def _pass(self, batch: Sequence[ReaderPiece]) -> Tensor:
        return self.network(*stack_pieces(batch, self.device))

    def mean_surprise(self, tokens: Sequence[int]) -> float:
        """How rare the tokens of a source are in those that the reader was trained on, as their
        mean negative log-probability; that of a short source is drawn to the usual one."""
        surprise, usual = self._surprise
        total = surprise[np.asarray(tokens, np.int64)].sum()
        return float(total + _SHORT_SOURCE * usual) / (len(tokens) + _SHORT_SOURCE)

    @cached_property
    def _frame(self) -> Frame:
        return encode_frame(self.tokenizer)

    @cached_property
    def _surprise(self) -> tuple[np.ndarray, float]:
        surprise = self.adapter[SURPRISE].double().numpy()
        return surprise, float((np.exp(-surprise) * surprise).sum())

    def _distance(self, source: Sequence[int]) -> float | None:
        limit = self.settings.surprise_limit
        return self.mean_surprise(source) / limit if limit and SURPRISE in self.adapter else None

    def _without_risk(
        self, row: GroundedAnswer, state: State, reason: str, distance: float | None = None
    ) -> GroundedReading:
        return GroundedReading(
            answer=row.answer,
            risk=None,
            state=state,
            threshold=self.settings.threshold,
            reason=reason,
            distance=distance,
        )

    def _describe(
        self,
        row: GroundedAnswer,
        places: list[tuple[int, int]],
        logits: np.ndarray,
        risk: float,
        distance: float | None,
    ) -> GroundedReading:
        if distance is not None and distance > 1:
            return self._without_risk(row, "out_of_distribution", _UNFAMILIAR, distance)
        reading = GroundedReading(
            answer=row.answer,
            risk=risk,
            state="checked",
            threshold=self.settings.threshold,
            distance=distance,
            places=np.asarray(places, np.int64).reshape(-1, 2),
            logits=logits,
            settings=self.settings,
        )
        if reading.verdict != "hallucinated":
            return reading
        spans = find_spans(places, logits, self.settings.token_threshold)
        found = cut_at_sentences(row.answer, whole_words(row.answer, spans))
        passages = Passages(row.sources)
        marked = [
            UnsupportedSpan(
                start=one.start,
                end=one.end,
                text=one.text,
                risk=one.risk,
                nearest=passages.nearest(row.answer, one.start, one.end),
            )
            for one in without_minor(reading.units(found), self.settings.threshold)
        ]
        return replace(reading, spans=tuple(marked))

    def save(self, folder: Path) -> None:
        """Write reader.json and adapter.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder / ADAPTER, self.adapter, {"format": _FORMAT})
        replace_json(folder / READER_JSON, {"format": _FORMAT, **asdict(self.settings)})


def load_reader(
    name: str | Path = BUILT_IN_READER, *, device: str = "auto", model: str | None = None
) -> Reader:
    """Load the built-in reader, "grounded", or one in a folder, with its language model; `model`
    says where that is now. Raises InputError or StoreError if either is missing or damaged."""
    folder = reader_folder(name)
    settings = read_settings(folder)
    adapter = read_model(folder / ADAPTER)
    loaded = load_model(model or settings.model["id"], dtype="float32", device=device)
    if fingerprint(loaded.model) != settings.model["fingerprint"]:
        raise InputError(
            f'the reader "{folder}" belongs to another language model: its weights do not fit '
            f'those of "{loaded.name}". Give the model that it was trained with.',
            setting="model",
            value=loaded.name,
        )
    network = make_network(loaded, settings.attention)
    weights = adapter.read(adapter.kinds)
    _check_adapter(adapter.path, weights, network, settings.rank, len(loaded.tokenizer))
    network.merge(weights)
    title = BUILT_IN_READER if str(name) == BUILT_IN_READER else folder.name
    return Reader(fit_to_device(network), loaded.tokenizer, settings, weights, title)


def _check_adapter(
    path: Path, weights: Mapping[str, Tensor], network: ReaderNetwork, rank: int, vocabulary: int
) -> None:
    """Raise StoreError for weights that do not fit the network, or would spoil it."""
    shapes = {f"head.{name}": tuple(one.shape) for name, one in network.head.named_parameters()}
    needed = set(shapes)
    shapes[SURPRISE] = (vocabulary,)
    for name, layer in linear_layers(network.model):
        sides = {
            f"{name}.down": (rank, layer.in_features),
            f"{name}.up": (layer.out_features, rank),
        }
        shapes |= sides
        needed |= {*sides} if sides.keys() & weights.keys() else set()
    for name, weight in weights.items():
        if tuple(weight.shape) != shapes.get(name) or not weight.is_floating_point():
            raise misfit(path, "reader", f"{shortened(name)} has shape {list(weight.shape)}")
        if not weight.isfinite().all():
            raise misfit(path, "reader", f"{name} contains NaN or infinity")
    for name in sorted(needed - weights.keys()):
        raise misfit(path, "reader", f"{name} is missing")


def make_network(loaded: Any, attention: Attention) -> ReaderNetwork:
    """The network around a loaded language model. Raises InputError if that cannot be read with."""
    if not getattr(loaded.tokenizer, "is_fast", False):
        raise InputError(
            f'the tokenizer of "{loaded.name}" does not say which characters a token stands for: '
            "choose a model with a tokenizer.json."
        )
    loaded.model.set_attn_implementation("sdpa")
    fuse_norms(loaded.model.base_model)
    return ReaderNetwork(loaded.model.base_model, attention)


def fit_to_device(network: ReaderNetwork, *, trains: bool = False) -> ReaderNetwork:
    """The model in half precision where that is faster, on a GPU or with AMX; the head is not. To
    train on a GPU, only linear layers are, and what they give is added up in float32."""
    if trains and network.head.weight.is_cuda:
        for _, layer in linear_layers(network.model):
            layer.to(torch.bfloat16)
    elif not trains and (network.head.weight.is_cuda or _has_amx()):
        network.model.to(torch.bfloat16)
    network.pack_rows()
    return network


@cache
def _has_amx() -> bool:
    return look_at_machine().bf16_instructions == "AMX"


def change_reader(reader: str | Path, settings: ReaderSettings, out: Path) -> Path:
    """Write a reader with other settings: beside it, or in its place."""
    folder = reader_folder(reader)
    if out.resolve() != folder.resolve():
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / ADAPTER, (folder / ADAPTER).read_bytes())
    replace_json(out / READER_JSON, {"format": _FORMAT, **asdict(settings)})
    return out


def describe_reader(reader: "str | Path | Reader") -> dict[str, Any]:
    """What identifies a reader: its risks change with any of it."""
    if isinstance(reader, Reader):
        name, settings, weights = reader.name, reader.settings, reader.adapter
    else:
        folder = reader_folder(reader)
        file = read_model(folder / ADAPTER)
        name, settings, weights = folder.name, read_settings(folder), file.read(file.kinds)
    about = {one: value for one, value in asdict(settings).items() if one != "card"}
    name = BUILT_IN_READER if str(reader) == BUILT_IN_READER else name
    return {**about, "name": name, "weights": hash_tensors(weights)}


def read_settings(folder: Path) -> ReaderSettings:
    """What reader.json says. Raises StoreError if it is missing, damaged or of another version."""
    check_reader(folder)
    path = folder / READER_JSON
    try:
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ValueError(f"it is not a reader of format {_FORMAT}")
        return read_as(ReaderSettings, content)
    except (OSError, ValueError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): it is damaged or was not written by clew.'
        ) from error


def encode_sources(tokenizer: Any, rows: Sequence[GroundedAnswer]) -> _Sources:
    """The tokens of the sources of each answer; sources that several share are encoded once."""
    texts = [_BETWEEN_SOURCES.join(row.sources) for row in rows]
    different = list(dict.fromkeys(texts))
    found = dict(zip(different, encode_all(tokenizer, different), strict=True))
    return [found[text] for text in texts]


def without_minor(units: Sequence[UnitRisk], threshold: float) -> list[UnitRisk]:
    """Without those of a risk far below the threshold, beside a higher one."""
    least = min(_LEAST_SHARE * threshold, max((one.risk for one in units), default=0.0))
    return [one for one in units if one.risk >= least]


def find_spans(
    places: Sequence[tuple[int, int]] | np.ndarray, logits: np.ndarray, threshold: float
) -> list[tuple[int, int]]:
    """The unsupported spans of an answer that is flagged, as places in the text: runs of tokens
    around those above the threshold, or around the highest if there are none. They extend over
    neighbors whose logit is nearly as high, and join over a gap of one token."""
    chosen = logits >= min(threshold, float(logits.max(initial=-np.inf)))
    is_near = logits > threshold - _EXTENT
    for order in (range(1, len(chosen)), range(len(chosen) - 2, -1, -1)):
        for number in order:
            chosen[number] |= is_near[number] and chosen[number - order.step]
    return join_tokens(np.asarray(places, np.int64).reshape(-1, 2), chosen)
