"""Train a reader on answers with spans, or labeled as a whole: low-rank changes of a language
model, calibrated on documents that it was not trained on."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, ignore_event, report_work
from clew.base.settings import check_least
from clew.base.texts import counted
from clew.hallucination.grounded.network import (
    Attention,
    ReaderNetwork,
    ReaderPiece,
    batch_pieces,
    cut_pieces,
    encode_all,
    encode_frame,
    encode_places,
    stack_pieces,
)
from clew.hallucination.grounded.passages import find_problem
from clew.hallucination.grounded.reader import (
    SURPRISE,
    BaseModel,
    Reader,
    ReaderSettings,
    encode_sources,
    find_spans,
    fit_to_device,
    make_network,
)
from clew.hallucination.grounded.synthetic import GroundedLabel, make_answers
from clew.hallucination.llm.models import LoadedModel, fingerprint
from clew.hallucination.questions import AnsweredQuestion
from clew.metrics.calibration import PlattScale
from clew.metrics.measures import best_threshold
from clew.metrics.ranking import draw_resamples
from clew.metrics.spans import count_overlap, span_f1

# An answer of fewer tokens does not count more for each of them.
_LEAST_TOKENS = 30
_WARM_UP, _LEAST_FACTOR = 0.06, 0.02
_HEAD_RATE = 5e-4
_POOL = 1024  # pieces among which those of similar length share a batch
_SYNTHETIC_WEIGHT = 0.5
# Of the answer's logit. On documents and on sets that were not trained on, the maximum alone is
# worse: many tokens that are somewhat suspicious count, too.
_MEAN_WEIGHT = 0.75
# Token frequencies: this share of the texts is any token. Text is familiar up to a bit more than
# this quantile, which separates JSON from other languages; where documents are few and alike, up to
# this multiple of the median.
_ANY_TOKEN, _FAMILIAR, _MARGIN, _WIDE = 0.02, 0.99, 1.03, 1.1
_TOKEN_THRESHOLDS = np.linspace(-3.0, 2.0, 26)
_LEAST_ANSWERS = 10
_RESAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class ReaderTraining:
    """How a reader is trained. Per epoch, at most `most_per_set` answers of a set are drawn, and
    `synthetic` ones are made per answer, most of them unsupported. `base_rate` is the share of
    hallucinated answers to calibrate for, None as in the data. `held_out` is the share of documents
    to calibrate on; those are not trained on. `calibrate_on` names the sets that are like the
    answers to be read, None for all: all of their answers are drawn, most synthetic answers are
    made from them, and risks come from their documents that are held out. `dropout` is that of the
    trained changes. The changes of several `trainings`, which differ by their seed, are
    averaged."""

    attention: Attention = "both"
    rank: int = 16
    window: int = 1024
    overlap: int = 128
    epochs: int = 2
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dropout: float = 0.05
    batch_tokens: int = 16_384
    most_per_set: int | None = None
    synthetic: float = 0.3
    answer_weight: float = 0.0
    base_rate: float | None = None
    held_out: float = 0.15
    calibrate_on: tuple[str, ...] | None = None
    trainings: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rank", "epochs", "batch_tokens", "most_per_set", "trainings"):
            check_least(name, getattr(self, name))
        if not 0 < self.held_out < 1:
            raise InputError(
                "give a share between 0 and 1.", setting="held_out", value=self.held_out
            )


@dataclass(frozen=True, slots=True)
class _Example(ReaderPiece):
    """A piece to train on: `labels` of its answer's tokens, None if only the whole is labeled."""

    labels: Tensor | None
    is_hallucinated: bool
    weight: float


class _Batch(NamedTuple):
    """Examples of similar length on the device of the training: `is_answer` and `labels` are those
    of tokens, `whole` has for each answer whether it lacks spans, is hallucinated, and counts."""

    tokens: Tensor
    lengths: Tensor
    is_answer: Tensor
    labels: Tensor
    whole: Tensor

    @classmethod
    def stack(cls, examples: Sequence[_Example], device: torch.device) -> Self:
        tokens, lengths = stack_pieces(examples, device)
        is_answer, labels = torch.zeros(2, *tokens.shape)
        for row, one in enumerate(examples):
            is_answer[row, one.place : len(one.tokens)] = 1
            if one.labels is not None:
                labels[row, one.place : len(one.tokens)] = one.labels
        whole = [[one.labels is None, one.is_hallucinated, one.weight] for one in examples]
        return cls(
            tokens, lengths, is_answer.to(device), labels.to(device), torch.tensor(whole).to(device)
        )


def label_answers(
    answers: Iterable[AnsweredQuestion], name: str
) -> tuple[list[GroundedLabel], int]:
    """The answers of a set that have a source and a label, and how many have not."""
    found, excluded = [], 0
    for number, one in enumerate(answers):
        row = GroundedLabel(
            answer=one.answer,
            sources=(one.context or "",),
            question=one.question or None,
            hallucinated=bool(one.hallucinated),
            spans=None
            if one.spans is None
            else tuple((start, end) for start, end, label in one.spans if label == 1),
            group=f"{name}/{number if one.group is None else one.group}",
            set=name,
        )
        if one.problem or one.hallucinated is None or find_problem(row):
            excluded += 1
        else:
            found.append(row)
    return found, excluded


def hold_out(
    answers: Sequence[GroundedLabel], share: float
) -> tuple[list[GroundedLabel], list[GroundedLabel]]:
    """The answers to train on, and those of the documents that are held out, always the same."""
    parts: tuple[list[GroundedLabel], list[GroundedLabel]] = ([], [])
    for one in answers:
        parts[crc32(one.group.encode()) % 1000 < 1000 * share].append(one)
    return parts


def train_reader(
    loaded: LoadedModel,
    answers: Sequence[GroundedLabel],
    config: ReaderTraining,
    *,
    start: Mapping[str, Tensor] | None = None,
    card: Mapping[str, Any] | None = None,
    report: Reporter = ignore_event,
    should_stop: Callable[[], bool] = lambda: False,
) -> Reader:
    """Train a reader, which changes the loaded model, and calibrate it on the documents held out.
    `start` is the adapter of another reader of this model to continue from. Raises InputError if
    there are too few answers."""
    seen, unseen = hold_out(answers, config.held_out)
    for part, use in ((seen, "train"), (unseen, "calibrate")):
        labels = [one.hallucinated for one in part]
        if len(part) < _LEAST_ANSWERS or len({*labels}) < 2:
            raise InputError(
                f"{counted(len(part), 'answer')} ({sum(labels):,} hallucinated) are left to {use} "
                f"on, but {_LEAST_ANSWERS} of both kinds are needed: label more answers, of more "
                "documents."
            )
    network = make_network(loaded, config.attention)
    options: Any = {"start": start, "report": report, "should_stop": should_stop}
    trained = [
        train_adapter(
            network, loaded.tokenizer, seen, replace(config, seed=config.seed + number), **options
        )
        for number in range(config.trainings)
    ]
    adapter = trained[0] if len(trained) == 1 else average_adapters(trained, config.rank)
    return build_reader(loaded, adapter, seen, unseen, config, card)


def build_reader(
    loaded: LoadedModel,
    adapter: dict[str, Tensor],
    seen: Sequence[GroundedLabel],
    unseen: Sequence[GroundedLabel],
    config: ReaderTraining,
    card: Mapping[str, Any] | None = None,
) -> Reader:
    """The reader of an adapter that was trained on the answers `seen`, calibrated on others."""
    base: BaseModel = {"id": loaded.name, "fingerprint": fingerprint(loaded.model)}
    network = make_network(loaded, config.attention)
    network.merge(adapter)
    settings = ReaderSettings(
        model=base,
        attention=config.attention,
        window=config.window,
        overlap=config.overlap,
        rank=config.rank,
        mean_weight=_MEAN_WEIGHT,
        calibration=PlattScale(slope=1.0, intercept=0.0, middle=0.0, spread=1.0),
        card={"trained_on": describe(seen), "training": asdict(config), **(card or {})},
    )
    reader = Reader(fit_to_device(network), loaded.tokenizer, settings, adapter)
    alike = [one for one in unseen if one.set in (config.calibrate_on or {one.set})]
    is_enough = len({one.hallucinated for one in alike}) == 2
    return calibrate_reader(reader, seen, alike if is_enough else unseen, config.base_rate)


def describe(answers: Sequence[GroundedLabel]) -> dict[str, dict[str, int]]:
    """Answers, documents and hallucinated answers of each set."""
    found: dict[str, dict[str, int]] = {}
    for name in sorted({one.set for one in answers}):
        rows = [one for one in answers if one.set == name]
        found[name] = {
            "answers": len(rows),
            "hallucinated": sum(one.hallucinated for one in rows),
            "documents": len({one.group for one in rows}),
        }
    return found


def train_adapter(
    network: ReaderNetwork,
    tokenizer: Any,
    answers: Sequence[GroundedLabel],
    config: ReaderTraining,
    *,
    start: Mapping[str, Tensor] | None = None,
    report: Reporter = ignore_event,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Tensor]:
    """Train changes of a network, which itself stays as it is. Raises StoppedError."""
    torch.manual_seed(config.seed)
    chance, network = random.Random(config.seed), copy.deepcopy(network)
    fit_to_device(network.eval(), trains=True)
    changed = network.insert_low_rank(config.rank, config.dropout)
    if start is not None:
        network.load_adapter(start)
    heads = list(network.head.parameters())
    rates = (config.learning_rate, max(config.learning_rate, _HEAD_RATE))
    others = [one for one in changed if all(one is not head for head in heads)]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": config.weight_decay},
        {"params": heads, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    batches = [
        _Batch.stack(batch, network.head.weight.device)
        for _ in range(config.epochs)
        for batch in _draw_epoch(tokenizer, answers, config, chance)
    ]
    network.train()
    with report_work(report, WorkStarted(noun="batches", verb="trained", planned=len(batches))):
        for step, batch in enumerate(batches):
            if should_stop():
                raise StoppedError("the training was stopped; nothing is kept.")
            factor = _rate_factor(step, len(batches))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            _loss(network, batch, config.answer_weight).backward()
            nn.utils.clip_grad_norm_(changed, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            report(WorkAdvanced())
    return network.adapter()


def _rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then linear decay."""
    done = step / steps
    return max(min(1.0, (step + 1) / (_WARM_UP * steps + 1)) * (1 - done), _LEAST_FACTOR)


def _draw_epoch(
    tokenizer: Any, answers: Sequence[GroundedLabel], config: ReaderTraining, chance: random.Random
) -> list[list[_Example]]:
    """The batches of an epoch, in random order."""
    rows: list[GroundedLabel] = []
    for name in sorted({one.set for one in answers}):
        inside = [one for one in answers if one.set == name]
        is_whole = config.most_per_set is None or name in (config.calibrate_on or ())
        most = len(inside) if is_whole else config.most_per_set
        rows += chance.sample(inside, min(len(inside), most or 0))
    rows += make_answers(answers, int(config.synthetic * len(rows)), chance, config.calibrate_on)
    examples = _make_examples(tokenizer, rows, config)
    chance.shuffle(examples)
    batches = [
        batch
        for first in range(0, len(examples), _POOL)
        for batch in batch_pieces(examples[first : first + _POOL], config.batch_tokens)
    ]
    chance.shuffle(batches)
    return batches


def _make_examples(
    tokenizer: Any, rows: Sequence[GroundedLabel], config: ReaderTraining
) -> list[_Example]:
    sources = encode_sources(tokenizer, rows)
    questions = encode_all(tokenizer, [row.question or "" for row in rows])
    answers = encode_places(tokenizer, [row.answer for row in rows])
    options = {"window": config.window, "overlap": config.overlap}
    frame, found = encode_frame(tokenizer), list[_Example]()
    each = zip(rows, sources, questions, answers, strict=True)
    for row, source, question, (tokens, places) in each:
        pieces = list(cut_pieces(frame, 0, source, question, tokens, **options))
        found += _label_piece(_choose_window(pieces, tokens), places, row)
    return found


def _choose_window(pieces: Sequence[ReaderPiece], answer: Sequence[int]) -> ReaderPiece:
    """Of a source of several windows, the one that shares most tokens with the answer: what others
    support, it may not."""
    words = {*answer} if len(pieces) > 1 else set()
    first = [one for one in pieces if one.first == 0]
    return max(first, key=lambda one: len(words & {*one.tokens[: one.place]}) if words else 0)


def _label_piece(
    piece: ReaderPiece, places: Sequence[tuple[int, int]], row: GroundedLabel
) -> Iterator[_Example]:
    labels = None
    if row.spans is not None or not row.hallucinated:
        inside = places[: len(piece.tokens) - piece.place]
        labels = torch.tensor([float(_overlaps(place, row.spans or ())) for place in inside])
    if labels is None or bool(labels.any()) == row.hallucinated:  # its spans may be cut off
        weight = _SYNTHETIC_WEIGHT if row.is_synthetic else 1.0
        own = (piece.row, piece.tokens, piece.first, piece.place)
        yield _Example(*own, labels, row.hallucinated, weight)


def _overlaps(place: tuple[int, int], spans: Iterable[tuple[int, int]]) -> bool:
    return any(start < place[1] and place[0] < end for start, end in spans)


def _loss(network: ReaderNetwork, batch: _Batch, answer_weight: float) -> Tensor:
    """Of answers with spans, the mean cross-entropy over tokens; of others, that of the smoothed
    maximum over their tokens."""
    logits = network(batch.tokens, batch.lengths)
    lacks_spans, is_hallucinated, weights = batch.whole.unbind(1)
    each = binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    count = batch.is_answer.sum(1).clamp(min=_LEAST_TOKENS)
    by_token = (each * batch.is_answer).sum(1) / count
    inside = logits.masked_fill(batch.is_answer == 0, -1e4)
    smoothed = (inside.softmax(1) * inside).sum(1)
    by_answer = binary_cross_entropy_with_logits(smoothed, is_hallucinated, reduction="none")
    with_spans = by_token + answer_weight * by_answer
    return (weights * torch.where(lacks_spans > 0, by_answer, with_spans)).sum() / weights.sum()


def average_adapters(adapters: Sequence[Mapping[str, Tensor]], rank: int) -> dict[str, Tensor]:
    """The mean of several trainings as one adapter: the changes of the weights are averaged, and
    reduced to the rank again by a singular value decomposition."""
    first, averaged = adapters[0], {}
    for name in first:
        layer, _, side = name.rpartition(".")
        if side == "up":
            parts = [one[name].float() @ one[f"{layer}.down"].float() for one in adapters]
            left, sizes, right = torch.linalg.svd(torch.stack(parts).mean(0), full_matrices=False)
            root = sizes[:rank].sqrt()
            averaged[name] = (left[:, :rank] * root).half()
            averaged[f"{layer}.down"] = (root[:, None] * right[:rank]).half()
        elif side != "down":
            averaged[name] = torch.stack([one[name].float() for one in adapters]).mean(0).half()
    return averaged


def calibrate_reader(
    reader: Reader,
    seen: Sequence[GroundedLabel],
    unseen: Sequence[GroundedLabel],
    base_rate: float | None = None,
) -> Reader:
    """The reader with risks, thresholds, and a limit of what is familiar. Risks and thresholds come
    from the documents that it was not trained on, for a `base_rate` of hallucinated answers."""
    read = reader.token_logits(unseen)
    labels = np.array([one.hallucinated for one in unseen])
    scores = reader.settings.pool([logits for _, logits in read])
    rate = float(labels.mean()) if base_rate is None else base_rate
    scale = PlattScale.fit(labels, scores)
    shift = np.log(rate / (1 - rate)) - np.log(labels.mean() / (1 - labels.mean()))
    scale = replace(scale, intercept=scale.intercept + float(shift))
    known = {SURPRISE: token_surprise(reader.tokenizer, seen)}
    reader = Reader(reader.network, reader.tokenizer, reader.settings, {**reader.adapter, **known})
    sources = {source: None for one in (*seen, *unseen) for source in one.sources}
    distances = [reader.mean_surprise(one) for one in encode_all(reader.tokenizer, [*sources])]
    risks = scale.probabilities(scores)
    threshold = _choose_threshold(unseen, labels, risks, rate)
    settings = replace(
        reader.settings,
        calibration=scale,
        threshold=threshold,
        token_threshold=_choose_token_threshold(unseen, read, risks > threshold, rate),
        surprise_limit=max(
            _MARGIN * float(np.quantile(distances, _FAMILIAR)), _WIDE * float(np.median(distances))
        ),
    )
    return Reader(reader.network, reader.tokenizer, settings, reader.adapter)


def _choose_threshold(
    answers: Sequence[GroundedLabel], labels: np.ndarray, risks: np.ndarray, rate: float
) -> float:
    """The median of the best thresholds for resampled documents: a single one depends on the few
    answers next to it."""
    counts = draw_resamples(
        labels, resamples=_RESAMPLES, clusters=np.array([one.group for one in answers])
    )
    found = [
        best_threshold(np.repeat(labels, drawn), np.repeat(risks, drawn), positive_rate=rate)
        for drawn in counts
    ]
    return float(np.median(found))


def _choose_token_threshold(
    answers: Sequence[GroundedLabel],
    read: Sequence[tuple[list[tuple[int, int]], np.ndarray]],
    flagged: np.ndarray,
    rate: float,
) -> float:
    """The logit for the best span F1 at this rate of hallucinated answers; 0 without spans."""
    nothing: tuple[list[tuple[int, int]], np.ndarray] = ([], np.zeros(0))
    rows = [
        (one, found if is_flagged else nothing)
        for one, found, is_flagged in zip(answers, read, flagged, strict=True)
        if one.spans is not None
    ]
    share = float(np.mean([one.hallucinated for one, _ in rows])) if rows else 0.0
    if not 0 < share < 1:
        return 0.0
    weights = [rate / share if one.hallucinated else (1 - rate) / (1 - share) for one, _ in rows]
    quality = [
        span_f1(
            [
                count_overlap(find_spans(places, logits, threshold), one.spans or ())
                for one, (places, logits) in rows
            ],
            weights,
        )
        for threshold in _TOKEN_THRESHOLDS
    ]
    return float(_TOKEN_THRESHOLDS[int(np.argmax(quality))])


def token_surprise(tokenizer: Any, answers: Sequence[GroundedLabel]) -> Tensor:
    """The negative log-probability of every token in the sources, each set counting once."""
    size = len(tokenizer)
    shares = np.zeros(size)
    for name in sorted({one.set for one in answers}):
        texts = {source for one in answers if one.set == name for source in one.sources}
        counts = np.zeros(size)
        for tokens in encode_all(tokenizer, sorted(texts)):
            np.add.at(counts, tokens, 1)
        shares += counts / max(1, counts.sum())
    shares = (1 - _ANY_TOKEN) * shares / shares.sum() + _ANY_TOKEN / size
    return torch.from_numpy(-np.log(shares)).half()
