"""A detector's folder: detector.json says what it is, for which model, and how to use it;
detector.safetensors has its weights. Both are checked when they are read. Also a network alone: the
best.safetensors of `clew train`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    Required,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from torch import Tensor, nn

from clew.base.errors import ClewError, InputError, StoreError
from clew.base.texts import for_terminal
from clew.base.typed_json import Bounds, Count, read_as, to_json, without_nan
from clew.base.urls import as_path
from clew.engine.config import BEST
from clew.engine.model_files import (
    ModelFile,
    Wanted,
    check_about,
    hash_tensors,
    misfit,
    read_model,
    write_model,
)
from clew.engine.state import Threshold
from clew.hallucination.detectors.adaptation import Adaptation
from clew.hallucination.detectors.detector import (
    Detector,
    Fallback,
    Origin,
    Part,
    Probability,
    as_tensor,
    describe_samples,
    has_arrays,
    on_host,
)
from clew.hallucination.detectors.folder import DETECTOR_JSON, WEIGHTS, explain_missing, find_folder
from clew.hallucination.detectors.probes.gated import Distance
from clew.hallucination.detectors.probes.registry import find_scorer_class, kind_of
from clew.hallucination.detectors.registry import NETWORKS
from clew.hallucination.detectors.similar_answers import KNOWN_FILE, KnownAnswers, write_known
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.hub import fetch_detector
from clew.hallucination.llm.prompts import Prompt, check_template
from clew.hallucination.samples.source import SampleShape
from clew.hallucination.traces.compact import Basis
from clew.hallucination.traces.schema import TraceShape
from clew.metrics.calibration import PlattScale
from clew.storage.manifest import Sha256
from clew.storage.ownership import OWN_FILE, claim
from clew.storage.reading import hash_file, hash_text, read_bounded, read_json
from clew.storage.working_copy import working_copy
from clew.storage.writing import replace_file
from clew.version import __version__

FILES = (DETECTOR_JSON, WEIGHTS, KNOWN_FILE)
_FORMAT = 1
_NETWORK = "network"
_MISFITS = (AttributeError, ClewError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
_Text = Annotated[str, Bounds(most=200)]
_Size = Annotated[int, Bounds(least=0, most=2**20)]
_Settings = dict[str, Any]
# Of one field of one answer; the largest models have two million.
_MOST_VALUES = 1 << 24
_MOST_PARTS = 4096
_PARTS: dict[str, type[Any]] = {
    "calibration": PlattScale,
    "fallback": Fallback,
    "distance": Distance,
    "tokens": TokenProbe,
    "basis": Basis,
    "adaptation": Adaptation,
}
# The network's prefix inside the engine's Classifier.
_PREFIX = "network."
_WANTED: Wanted = {
    "settings.network": NETWORKS,
    "settings.network_config": dict,
    "best.threshold": Threshold | None,
    "best.metrics": dict[str, float | None],
}
# Where validation had no hallucinated answer to choose one by.
_USUAL_THRESHOLD = 0.5


def load_detector(path: str | Path, device: str | torch.device = "cpu") -> Detector:
    """Load a hallucination detector.

    Args:
        path: The folder "detector" that "clew compare" or "clew train" wrote (or a comparison that
            contains it), or a best.safetensors of "clew train" or its folder: a network alone,
            without calibration. Also at a URL, or on the Hub: "hf://owner/name[@revision]".
        device: Where to put it, such as "cuda".

    Returns:
        The detector, ready to score.

    Raises:
        StoreError: The folder or file is missing, damaged, or not a detector.
        InputError: It cannot be fetched from the Hub.
    """
    with working_copy(as_path(fetch_detector(path))) as here:
        kept = find_folder(here)
        if kept is not None:
            return read_detector(kept, device)
        if here.is_dir() and not (here / BEST).exists():
            raise explain_missing(here)
        return _load_network(here / BEST if here.is_dir() else here, device)


class _Model(TypedDict, total=False):
    id: Required[Annotated[str, Bounds(least=1, most=4096)]]
    revision: _Text | None
    dtype: _Text | None
    quantize: Literal["4bit", "8bit"] | None
    fingerprint: _Text | None


class _Preprocess(TypedDict, total=False):
    top_k: _Size | None
    node_dim: Annotated[int, Bounds(least=0)] | None
    attn_threshold: Probability | None


class _Results(TypedDict, total=False):
    test_auroc: Probability | None
    parameters: Count | None
    at_chance: _Text | None


@dataclass(frozen=True, kw_only=True)
class _Method:
    """`kind` is the class of a probe's scorer, or "network"; `fitted` are its numbers."""

    name: _Text
    title: _Text
    family: Literal["no training", "probe", "network"]
    kind: str
    fitted: _Settings


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """The entries of detector.json."""

    format: Literal[1]
    clew: _Text
    created: _Text
    method: _Method
    threshold: Probability
    calibration: _Settings
    fallback: _Settings | None
    distance: _Settings | None
    tokens: _Settings | None
    basis: bool
    model: _Model
    prompt: Prompt
    generation: _Settings
    shape: TraceShape
    capture: _Settings
    preprocess: _Preprocess
    results: _Results
    data: _Settings
    weights_sha256: Sha256
    known_sha256: Sha256 | None = None
    calibrated: _Settings = field(default_factory=dict)
    adaptation: _Settings | None = None
    adapted: _Settings = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """`about` is JSON; the names of the tensors are paths, such as "linear.weights"."""

    about: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def under(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.{key}": tensor for key, tensor in self.tensors.items()}

    def inside(self, name: str) -> dict[str, Tensor]:
        """The tensors below a path."""
        start = f"{name}."
        return {k.removeprefix(start): t for k, t in self.tensors.items() if k.startswith(start)}


def pack(part: Any) -> Packed:
    """A fitted part as JSON and tensors. Arrays whose values all fit in half precision are kept in
    it."""
    packed = Packed()
    for one in fields(part):
        _pack_value(packed, one.name, getattr(part, one.name))
    return packed


def unpack(kind: type[Part], packed: Packed) -> Part:
    """The part with float32 tensors on the CPU. Raises ValueError, which names the entry, if
    something is missing, unexpected, of another type, or not finite."""
    left = dict(packed.tensors)
    found = _Unpacking(left).read_part(kind, packed.about, "")
    if left:
        raise ValueError(f"{next(iter(left))[:100]!r} is unexpected")
    return found


def _pack_value(packed: Packed, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray | Tensor):
        packed.tensors[name] = _as_small(as_tensor(value))
    elif is_dataclass(value):
        inner = pack(value)
        packed.about[name] = inner.about
        packed.tensors.update(inner.under(name))
    elif isinstance(value, list | tuple) and any(map(has_arrays, value)):
        parts = Packed()
        for number, one in enumerate(value):
            _pack_value(parts, str(number), one)
        packed.about[name] = [parts.about.get(str(number)) for number in range(len(value))]
        packed.tensors.update(parts.under(name))
    else:
        packed.about[name] = list(value) if isinstance(value, tuple) else value


def _as_small(tensor: Tensor) -> Tensor:
    tensor = tensor.float().cpu().contiguous()
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


@dataclass(frozen=True)
class _Unpacking:
    """Takes tensors out of `left` as they are used."""

    left: dict[str, Tensor]

    def read_part(self, kind: Any, about: Any, path: str) -> Any:
        hints = get_type_hints(kind, include_extras=True)
        known = {one.name: one for one in fields(kind) if one.init}
        about = read_as(dict[str, Any], about, path.rstrip(".") or "it")
        for name in about.keys() - known.keys():
            raise ValueError(f"{path}{name[:100]} is unknown")
        values = {
            name: self.read_value(hints[name], about, name, path)
            for name, one in known.items()
            if name in about or _is_array(hints[name]) or one.default is MISSING
        }
        try:
            return kind(**values)
        except InputError as error:
            raise ValueError(str(error).rstrip(".")) from None

    def read_value(self, hint: Any, about: Mapping[str, Any], name: str, path: str) -> Any:
        place = f"{path}{name}"
        if _is_array(hint):
            return self.take(hint, place)
        if name not in about:
            raise ValueError(f"{place} is missing")
        if is_dataclass(hint):
            return self.read_part(hint, about[name], f"{place}.")
        inner = get_args(hint)[0] if get_origin(hint) in (Sequence, tuple, list) else None
        if inner is None or not (is_dataclass(inner) or _is_array(inner)):
            return read_as(hint, about[name], place)
        items = read_as(list[Any], about[name], place)
        if len(items) > _MOST_PARTS:
            raise ValueError(f"{place} has {len(items):,} entries")
        named = {str(number): item for number, item in enumerate(items)}
        return tuple(self.read_value(inner, named, number, f"{place}.") for number in named)

    def take(self, hint: Any, path: str) -> Tensor:
        if path not in self.left:
            raise ValueError(f"{path} is missing")
        found = self.left.pop(path)
        dims = getattr(hint, "dims", None)  # a plain array has any
        if not found.is_floating_point() or dims is not None and found.ndim != len(dims):
            raise ValueError(f"{path} has shape {list(found.shape)} and type {found.dtype}")
        if not found.isfinite().all():
            raise ValueError(f"{path} contains NaN or infinity")
        return found.float()


def _is_array(hint: Any) -> bool:
    """Whether a hint is np.ndarray or jaxtyping's, such as `Float32[np.ndarray, " features"]`."""
    return hint is np.ndarray or (hasattr(hint, "array_type") and hasattr(hint, "dims"))


def save_detector(detector: Detector, folder: Path, known: KnownAnswers | None = None) -> Path:
    """Write a detector's folder, with the answers beside which new ones are shown; an existing
    detector in it is replaced. The JSON comes last: a folder without it has no detector."""
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder, FILES)
    remove_detector(folder, FILES)
    packed = _pack_detector(detector)
    write_model(folder / WEIGHTS, packed.tensors, {"clew": __version__, "detector": detector.name})
    if known is not None:
        write_known(folder, known)
    _write_json(folder, {**packed.about, **_hash_files(folder)})
    return folder


def remove_detector(folder: Path, names: Iterable[str] = (*FILES, OWN_FILE)) -> None:
    """Remove the files of a detector, if there is one."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def change_detector(folder: Path, detector: Detector, out: Path | None = None) -> Path:
    """Write another calibration and threshold of the detector in this folder, atomically: its
    weights stay. With `out`, they go to a new folder, with a copy of the other files."""
    place = folder if out is None else out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        claim(out, FILES)
        (out / DETECTOR_JSON).unlink(missing_ok=True)
        for file in sorted(folder.glob("*.safetensors")):
            replace_file(out / file.name, read_bounded(file, file.stat().st_size))
    _write_json(place, {**_pack_detector(detector).about, **_hash_files(place)})
    return place


def read_detector(folder: Path, device: str | torch.device = "cpu") -> Detector:
    """Load a detector's folder. Raises StoreError if it is missing, damaged or not a detector."""
    path = folder / DETECTOR_JSON
    try:
        contents = _read_contents(path)
        _refuse_other_files(folder, contents)
        saved = read_model(folder / WEIGHTS)
        detector = _unpack_detector(contents, saved)
        _try_out(detector)
    except (OSError, *_MISFITS) as error:
        cause = error.__cause__ if isinstance(error, StoreError) else None  # without its advice
        reason = " ".join(str(cause or error).split())[:300] or type(error).__name__
        raise StoreError(
            f'the detector in "{folder}" cannot be used ({reason}): it is damaged or was not '
            "written by this version of clew. Restore it from a backup, or make it again with "
            '"clew compare" or "clew train".'
        ) from None
    return replace(detector, folder=folder).to(device)


def _hash_files(folder: Path) -> dict[str, str]:
    found = {"weights_sha256": hash_file(folder / WEIGHTS)}
    if (folder / KNOWN_FILE).exists():
        found["known_sha256"] = hash_file(folder / KNOWN_FILE)
    return found


def _refuse_other_files(folder: Path, contents: _Contents) -> None:
    """Raises ValueError for a file that was not written with the JSON. The known answers may be
    deleted; folders of earlier versions of clew have no hash of them."""
    files = {WEIGHTS: contents.weights_sha256}
    if contents.known_sha256 is not None and (folder / KNOWN_FILE).exists():
        files[KNOWN_FILE] = contents.known_sha256
    for name, expected in files.items():
        if hash_file(folder / name) != expected:
            raise ValueError(f"{name} is not the file that was written with it")


def hash_weights(detector: Detector) -> str:
    """The SHA-256 of everything that was fitted, whether or not the detector was saved."""
    return hash_tensors(_pack_detector(detector).tensors)


def hash_method(detector: Detector) -> str:
    """The SHA-256 of what gives scores: calibration and the like may change."""
    packed = _pack_detector(detector)
    method = {name: packed.about["method"][name] for name in ("kind", "fitted")}
    return hash_text(_hash(without_nan(method)), hash_tensors(packed.inside("fitted")))


def _write_json(folder: Path, contents: dict[str, Any]) -> None:
    contents = without_nan(contents)
    text = to_json({"sha256": _hash(contents), **contents}, indent=1)
    replace_file(folder / DETECTOR_JSON, f"{text}\n".encode())


def _read_contents(path: Path) -> _Contents:
    about = read_as(dict[str, Any], read_json(path))
    sha256 = about.pop("sha256", None)
    if about.get("format") != _FORMAT:
        raise ValueError(f"{path.name} has format {str(about.get('format'))[:20]}, not {_FORMAT}")
    if sha256 != _hash(about):
        raise ValueError(f"{path.name} was changed after it was written")
    return read_as(_Contents, about)


def _hash(contents: dict[str, Any]) -> str:
    return hash_text(json.dumps(contents, sort_keys=True))


def _pack_detector(detector: Detector) -> Packed:
    origin = detector.kept
    fitted = (
        Packed(about=asdict(detector.config), tensors=dict(detector.network.state_dict()))
        if detector.scorer is None
        else pack(detector.scorer)
    )
    parts = {
        "fitted": fitted,
        **{name: pack(p) for name in _PARTS if (p := getattr(detector, name)) is not None},
    }
    tensors = {k: v for name, part in parts.items() for k, v in part.under(name).items()}
    about = {name: part.about for name, part in parts.items()}
    kind = _NETWORK if detector.scorer is None else kind_of(detector.scorer)
    method = {"name": detector.name, "title": detector.title, "family": detector.family}
    return Packed(
        about={
            "format": _FORMAT,
            "clew": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "method": {**method, "kind": kind, "fitted": fitted.about},
            "threshold": detector.threshold,
            **{name: about.get(name) for name in _PARTS},
            "basis": detector.basis is not None,
            **{one.name: getattr(origin, one.name) for one in fields(Origin)},
            "prompt": origin.prompt.describe(),
            "shape": origin.shape.describe(),
        },
        tensors=tensors,
    )


def _unpack_detector(contents: _Contents, saved: ModelFile) -> Detector:
    method = contents.method
    check_template(contents.prompt.template)
    every = Packed(tensors=saved.read(saved.kinds))
    scorer, network, config = _unpack_method(method, saved, every)

    def part(name: str, about: dict[str, Any] | None) -> Any:
        found = every.inside(name)
        if about is None and not found:
            return None
        return unpack(_PARTS[name], Packed(about=about or {}, tensors=found))

    for name in every.tensors:
        if name.partition(".")[0] not in ("fitted", *_PARTS):
            raise ValueError(f"{name[:100]!r} is unexpected in {WEIGHTS}")
    return Detector(
        name=method.name,
        title=for_terminal(method.title),
        family=method.family,
        threshold=contents.threshold,
        metrics=dict(contents.results),
        scorer=scorer,
        network=network,
        config=config,
        calibration=part("calibration", contents.calibration),
        fallback=part("fallback", contents.fallback),
        distance=part("distance", contents.distance),
        tokens=part("tokens", contents.tokens),
        basis=part("basis", {} if contents.basis else None),
        adaptation=on_host(part("adaptation", contents.adaptation)),
        origin=Origin(**{one.name: getattr(contents, one.name) for one in fields(Origin)}),
    )


def _unpack_method(method: _Method, saved: ModelFile, every: Packed) -> tuple[Any, nn.Module, Any]:
    """The scorer of a probe; the network and its hyperparameters of a network."""
    if method.kind != _NETWORK:
        found = Packed(about=method.fitted, tensors=every.inside("fitted"))
        return unpack(find_scorer_class(method.kind), found), nn.Identity(), None
    if method.name not in NETWORKS:
        raise ValueError(f"method.name is {method.name!r}")
    kind = NETWORKS[method.name]
    config = read_as(kind.config, method.fitted, "method.fitted")
    network = saved.build(lambda: kind.network(config), name=kind.name, prefix="fitted.")
    return None, network.eval(), config


def _try_out(detector: Detector) -> None:
    """Score an answer of the detector's shape. Whatever does not fit fails here, not while a server
    answers. A network is checked by its sizes."""
    origin = detector.kept
    shape = origin.shape
    samples = describe_samples(origin)
    widest = max(shape.dim, shape.heads * samples.source.eigenvalues, samples.features)
    if shape.layers * widest > _MOST_VALUES:  # memory for one answer
        raise ValueError(f"shape has {shape.layers:,} layers of up to {widest:,} values")
    if detector.basis is not None and (
        tuple(detector.basis.components.shape) != (shape.layers, shape.dim, shape.node_dim)
        or tuple(detector.basis.mean.shape) != (shape.layers, shape.dim)
    ):
        raise ValueError("basis has another shape than the traces")
    _check_numbers(detector)
    _ = detector.promise
    detector.score_blank()
    if detector.tokens is not None:
        _check_tokens(detector.tokens, samples)
    if detector.scorer is None:
        _check_network(detector, origin)


def _check_numbers(detector: Detector) -> None:
    """Raise ValueError for a number that others are divided by and that is not positive."""
    fallback, distance = detector.fallback, detector.distance
    scales = {
        "calibration": detector.calibration,
        "fallback.calibration": fallback.calibration if fallback else None,
    }
    numbers = {
        f"{name}.{part}": getattr(scale, part)
        for name, scale in scales.items()
        if scale is not None
        for part in ("slope", "spread")
    }
    if distance is not None:
        numbers |= {"distance.limit": distance.limit, "distance.rest": distance.rest}
        numbers["distance.variances"] = float(distance.variances.min())
    if detector.adaptation is not None:
        region = detector.adaptation.region
        numbers |= {"adaptation.limit": region.limit, "adaptation.rest": region.shape.rest}
        numbers["adaptation.variances"] = float(region.shape.variances.min())
    for name, value in numbers.items():
        if value <= 0:
            raise ValueError(f"{name} is {value}")


def _check_tokens(probe: TokenProbe, shape: SampleShape) -> None:
    layers = shape.source.layers
    if not probe.layers or not all(0 <= layer < layers for layer in probe.layers):
        raise ValueError(f"tokens.layers is {list(probe.layers)[:20]}")
    token = torch.zeros(1)
    inputs = probe.inputs(token.new_zeros(1, len(probe.layers), shape.features), token, token)
    probe.pool(inputs)


def _check_network(detector: Detector, origin: Origin) -> None:
    shape, samples = origin.shape, describe_samples(origin)
    is_heads = detector.samples == "heads"
    sizes = {
        "input_dim": shape.dim,
        "layers": shape.layers,
        "node_dim": shape.attention_layers * shape.heads if is_heads else samples.features,
    }
    for name, size in sizes.items():
        if getattr(detector.config, name, size) != size:
            raise ValueError(f"{name} is {getattr(detector.config, name)}, but samples have {size}")


def _load_network(path: Path, device: str | torch.device) -> Detector:
    saved = read_model(path)
    check_about(
        saved.path,
        saved.about,
        _WANTED,
        what="a detector of this version of clew",
        advice='give a best.safetensors that "clew train" wrote',
    )
    settings, best = saved.about["settings"], saved.about["best"]
    kind = NETWORKS[settings["network"]]
    try:
        config = read_as(kind.config, settings["network_config"])
    except ValueError as error:
        raise misfit(saved.path, kind.name, error) from None
    network = saved.build(lambda: kind.network(config), name=kind.name, prefix=_PREFIX)
    threshold = best["threshold"]
    return Detector(
        name=kind.name,
        title=kind.title,
        network=network.to(device).eval(),
        config=config,
        threshold=_USUAL_THRESHOLD if threshold is None else float(threshold),
        metrics=best["metrics"],
    )
