"""Known answers beside which a new one is placed: the nearest of them, and a linear probe per layer
fitted on their labels. Kept with a detector, in a file of its own."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from clew.base.errors import StoreError
from clew.base.typed_json import read_as
from clew.hallucination.samples.answers import SEQUENCE
from clew.hallucination.samples.mixed import AnswerData
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.calibration import PlattScale
from clew.metrics.ranking import auroc

if TYPE_CHECKING:
    from clew.engine.model_files import ModelFile


KNOWN_FILE = "known.safetensors"
LONGEST_TEXT = 600
_FORMAT = 1
_MOST_ANSWERS = 1500
_SAMPLE_BYTES = 128 << 20
_FOLDS = 3
# For states scaled to variance 1; the same as on the page of a stored answer.
_RIDGE = 0.1
_FEWEST_PER_LABEL = 12
_NO_LABEL = 2
# The arrays of the file and their axes; those behind "states" are the probes'.
_AXES = {
    "numbers": ("answers",),
    "labels": ("answers",),
    "center": ("dim",),
    "states": ("answers", "dim"),
    "weights": ("folds", "layers", "dim"),
    "biases": ("folds", "layers"),
    "scales": ("layers", "scale"),
    "aurocs": ("layers",),
}
_SCALE = ("slope", "intercept", "middle", "spread")
# Their types, as safetensors names them.
_FLOATS = ("F16", "F32", "F64")
_DTYPES = {"numbers": ("I64",), "labels": ("U8",)}

Label = Literal["correct", "hallucinated"]
# The states of all answers in a layer, `[answers, dim]`.
ReadLayer = Callable[[int], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class KnownTexts:
    """The answers themselves; `hallucinated` is 1 or 0, NaN where there is no label. Long texts are
    cut."""

    numbers: Int64[np.ndarray, " answers"]
    questions: Sequence[str]
    answers: Sequence[str]
    hallucinated: Float32[np.ndarray, " answers"]

    def __len__(self) -> int:
        return len(self.numbers)

    def label_at(self, row: int) -> Label | None:
        value = self.hallucinated[row]
        return None if np.isnan(value) else "hallucinated" if value else "correct"


@dataclass(frozen=True, kw_only=True)
class LayerProbes:
    """A linear probe per fold and layer, calibrated on the answers that it was not fitted on."""

    weights: Float32[np.ndarray, "folds layers dim"]
    biases: Float32[np.ndarray, "folds layers"]
    scales: tuple[PlattScale, ...]
    aurocs: tuple[float, ...]

    def risks(self, states: Float[np.ndarray, "layers dim"], fold: int | None) -> list[float]:
        """The risk at every layer, from the probes that did not see the answers of `fold`, or from
        the mean of all probes for an answer that none has seen."""
        outputs = (self.weights * states).sum(-1) + self.biases
        own = outputs.mean(0) if fold is None else outputs[fold]
        pairs = zip(self.scales, own, strict=True)
        return [float(scale.probabilities(np.array([value]))[0]) for scale, value in pairs]


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """A known answer by its row."""

    row: int
    similarity: float


@dataclass(frozen=True, kw_only=True)
class KnownAnswers:
    """`layer` is the one whose states are compared; `probes` are None without enough labels."""

    texts: KnownTexts
    layers: int
    layer: int
    center: Float32[np.ndarray, " dim"]
    states: Float32[np.ndarray, "answers dim"]  # centered, of unit length
    probes: LayerProbes | None

    @property
    def base_rate(self) -> float:
        return float(np.nanmean(self.texts.hallucinated))

    def risks(
        self, states: Float[np.ndarray, "layers dim"], number: int | None
    ) -> list[float] | None:
        """The risk at every layer of an answer, whose states have unit length; `number` is that of
        a known one. None without probes, or for states of another model."""
        if self.probes is None or not self._suits(states):
            return None
        known = self.texts.numbers == number if number is not None else np.zeros(0, bool)
        places = np.flatnonzero(known).tolist()
        return self.probes.risks(states, places[0] % _FOLDS if places else None)

    def nearest(
        self, states: Float[np.ndarray, "layers dim"], number: int | None, count: int
    ) -> list[Neighbor]:
        """The answers whose states are most similar, without the known answer `number`."""
        if not self._suits(states):
            return []
        similarity = self.states @ _unit(states[self.layer] - self.center)
        order = np.argsort(-similarity, kind="stable")[: count + 1].tolist()
        others = [row for row in order if number is None or self.texts.numbers[row] != number]
        return [Neighbor(row=row, similarity=float(similarity[row])) for row in others[:count]]

    def _suits(self, states: np.ndarray) -> bool:
        return states.shape == (self.layers, len(self.center))


def choose_known(
    hallucinated: Float32[np.ndarray, " answers"], layers: int, dim: int
) -> Int64[np.ndarray, " chosen"]:
    """Rows evenly spaced, as many as the memory set aside holds: with a label where there are
    enough labels."""
    labeled = np.flatnonzero(~np.isnan(hallucinated))
    rows = labeled if _are_enough(hallucinated) else np.arange(len(hallucinated))
    count = max(2, min(_MOST_ANSWERS, _SAMPLE_BYTES // max(1, 2 * layers * dim), len(rows)))
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(np.int64)
    return rows[places]


def fit_known(texts: KnownTexts, layers: int, read_layer: ReadLayer) -> KnownAnswers:
    """Fit the probes layer by layer; only one layer's states are in memory."""
    probes = _fit_probes(texts, layers, read_layer) if _are_enough(texts.hallucinated) else None
    layer = int(np.argmax(probes.aurocs)) if probes else 2 * layers // 3
    states = _unit(read_layer(layer))
    center = states.mean(0)
    return KnownAnswers(
        texts=texts,
        layers=layers,
        layer=layer,
        center=center,
        states=_unit(states - center),
        probes=probes,
    )


def _are_enough(labels: np.ndarray) -> bool:
    return min(int((labels == 1).sum()), int((labels == 0).sum())) >= _FEWEST_PER_LABEL


def _unit(states: np.ndarray) -> Float32[np.ndarray, "*rows dim"]:
    wide = np.nan_to_num(np.asarray(states, np.float32))  # a damaged state is like none
    return wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-20)


def _fit_probes(texts: KnownTexts, layers: int, read_layer: ReadLayer) -> LayerProbes:
    hallucinated = texts.hallucinated == 1
    folds = np.arange(len(texts)) % _FOLDS
    fitted, scales, aurocs = [], [], []
    for layer in range(layers):
        states, held_out = _unit(read_layer(layer)), np.zeros(len(texts))
        fitted.append([_fit_one(states, hallucinated, folds != fold) for fold in range(_FOLDS)])
        for fold, (weights, bias) in enumerate(fitted[-1]):
            held_out[folds == fold] = states[folds == fold] @ weights + bias
        scales.append(PlattScale.fit(hallucinated, held_out))
        aurocs.append(float(auroc(hallucinated, held_out)))
    return LayerProbes(
        weights=np.stack([np.stack([weights for weights, _ in of]) for of in fitted], axis=1),
        biases=np.array([[bias for _, bias in of] for of in fitted], np.float32).T.copy(),
        scales=tuple(scales),
        aurocs=tuple(aurocs),
    )


def _fit_one(
    states: Float32[np.ndarray, "answers dim"],
    hallucinated: Bool[np.ndarray, " answers"],
    used: Bool[np.ndarray, " answers"],
) -> tuple[np.ndarray, float]:
    """Weights and bias of a ridge regression on the answers used."""
    from sklearn.linear_model import Ridge

    center = states[used].mean(0)
    scale = max(float(np.sqrt(((states[used] - center) ** 2).sum(1).mean())), 1e-12)
    target = np.where(hallucinated[used], 1.0, -1.0).astype(np.float32)
    probe = Ridge(alpha=_RIDGE).fit((states[used] - center) / scale, target)
    weights = probe.coef_.astype(np.float32) / scale
    return weights, float(probe.intercept_ - weights @ center)


def write_known(folder: Path, known: KnownAnswers) -> None:
    """Write the file into a detector's folder."""
    import torch

    from clew.engine.model_files import write_model

    texts, probes = known.texts, known.probes
    labels = np.where(np.isnan(texts.hallucinated), _NO_LABEL, texts.hallucinated)
    arrays: dict[str, np.ndarray] = {
        "numbers": texts.numbers,
        "labels": labels.astype(np.uint8),
        "center": known.center,
        "states": known.states.astype(np.float16),
    }
    if probes is not None:
        scales = [[getattr(one, name) for name in _SCALE] for one in probes.scales]
        arrays |= {"weights": probes.weights, "biases": probes.biases}
        arrays |= {"scales": np.array(scales), "aurocs": np.array(probes.aurocs)}
    about = {
        "format": _FORMAT,
        "layers": known.layers,
        "layer": known.layer,
        "questions": [text[:LONGEST_TEXT] for text in texts.questions],
        "answers": [text[:LONGEST_TEXT] for text in texts.answers],
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    write_model(folder / KNOWN_FILE, tensors, about)


def read_known(folder: Path) -> KnownAnswers | None:
    """The known answers of a detector's folder, None if it has none. Raises StoreError if the file
    is damaged."""
    from clew.engine.model_files import read_model

    path = folder / KNOWN_FILE
    if not path.exists():
        return None
    try:
        return _build(read_model(path))
    except (StoreError, ValueError, KeyError) as error:
        cause = error.__cause__ or error  # without the advice for other files
        raise StoreError(
            f'"{path}" is damaged ({cause}): delete it, or make the detector again.'
        ) from None


def _build(file: "ModelFile") -> KnownAnswers:
    """Raises ValueError or KeyError if the parts of the file do not belong together."""
    about = file.about
    layers, layer = (read_as(int, about.get(name), name) for name in ("layers", "layer"))
    questions, answers = (
        read_as(list[str], about.get(name), name) for name in ("questions", "answers")
    )
    sizes = {"answers": len(questions), "layers": layers, "folds": _FOLDS, "scale": len(_SCALE)}
    sizes["dim"] = math.prod(file.kinds["center"].shape)
    names = list(_AXES) if "weights" in file.kinds else list(_AXES)[:4]
    for name in names:
        found, shape = file.kinds[name], tuple(sizes[axis] for axis in _AXES[name])
        if found.shape != shape or found.dtype not in _DTYPES.get(name, _FLOATS):
            raise ValueError(f"{name} has shape {list(found.shape)} and type {found.dtype}")
    arrays = {name: tensor.numpy() for name, tensor in file.read(names).items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} contains NaN or infinity")
    if len(answers) != len(questions) or not 0 <= layer < layers:
        raise ValueError("its texts and its layers do not match its states")
    labels = arrays["labels"]
    return KnownAnswers(
        texts=KnownTexts(
            numbers=arrays["numbers"],
            questions=questions,
            answers=answers,
            hallucinated=np.where(labels == _NO_LABEL, np.nan, labels).astype(np.float32),
        ),
        layers=layers,
        layer=layer,
        center=arrays["center"].astype(np.float32),
        states=arrays["states"].astype(np.float32),
        probes=_build_probes(arrays) if "weights" in arrays else None,
    )


def _build_probes(arrays: dict[str, Any]) -> LayerProbes:
    rows = arrays["scales"].tolist()
    return LayerProbes(
        weights=arrays["weights"].astype(np.float32),
        biases=arrays["biases"].astype(np.float32),
        scales=tuple(PlattScale(**dict(zip(_SCALE, row, strict=True))) for row in rows),
        aurocs=tuple(arrays["aurocs"].tolist()),
    )


def gather_known(features: AnswerData) -> KnownAnswers | None:
    """Some answers of all splits; None if the samples hold no states or no texts. A linear probe
    per layer is fitted, which takes a second per thousand answers of a small model."""
    if not {SEQUENCE, "question", "answer"} <= features.fields:
        return None
    labels = _join(features.labels).astype(np.float32)
    rows = choose_known(labels, features.layers, features.dim)
    if len(rows) < 2:
        return None
    texts = {
        name: [text for split in SPLIT_NAMES for text in features.read(name, split)]
        for name in ("question", "answer")
    }
    known = KnownTexts(
        numbers=_join(features.ids)[rows].astype(np.int64),
        questions=[texts["question"][row] or "" for row in rows],
        answers=[texts["answer"][row] or "" for row in rows],
        hallucinated=labels[rows],
    )

    def read_layer(layer: int) -> np.ndarray:
        parts = [features.read(SEQUENCE, split, layer=layer) for split in SPLIT_NAMES]
        return np.concatenate(parts)[rows]

    return fit_known(known, features.layers, read_layer)


def _join(by_split: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([by_split[split] for split in SPLIT_NAMES])
