"""A trained model as one ONNX file that requires neither clew nor torch: a photo's pixels in,
calibrated probabilities out. It is written only if onnxruntime gives the same predictions."""

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from clew.errors import ClewError, InputError
from clew.patterns.classifier import Normalize
from clew.patterns.networks import input_scaling
from clew.patterns.photos.decode import PhotoError, read_square
from clew.patterns.trained.model import PatternModel, read_results
from clew.patterns.trained.tables import read_splits
from clew.storage.writing import replace_file
from clew.version import __version__

INPUT, OUTPUT = "image", "probabilities"
TOLERANCE = 1e-4
_CHECKED, _BATCHES = 32, (1, 7)
_QUIET = ("torch.onnx", "onnxscript", "onnx_ir")
_TRIES = 4  # photos to try for each wanted one, as some may be missing


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """An exported ONNX file. `difference` is the largest difference between the probabilities of
    onnxruntime and torch over `checked` images; `with_photos` says whether these were photos of the
    training set."""

    path: Path
    classes: tuple[str, ...]
    image_size: int
    bytes: int
    difference: float
    checked: int
    with_photos: bool


class _Photographed(nn.Module):
    """The network with everything between a photo's pixels and its probabilities."""

    def __init__(self, model: PatternModel) -> None:
        super().__init__()
        self.normalize, self.network = Normalize(input_scaling(model.network)), model.network
        self.temperature = model.temperature

    def forward(self, image: UInt8[Tensor, "batch size size 3"]) -> Float[Tensor, "batch classes"]:
        logits = self.network(self.normalize(image.to(torch.float32) / 255))
        return torch.softmax(logits / self.temperature, dim=1)


def export_onnx(model: PatternModel, path: Path) -> ExportedModel:
    """Export the model to `path`. The input "image" is uint8 [batch, size, size, 3], the output
    "probabilities" float [batch, classes]; classes and size are in its metadata.

    An existing file is replaced. Raises InputError if the packages of the extra "onnx" are missing
    or `path` cannot be written, ClewError when the predictions differ.
    """
    onnx, runtime = _import("onnx"), _import("onnxruntime")
    _import("onnxscript")
    _prepare(path)
    model = _on_cpu(model)
    images, with_photos = sample_images(model, _CHECKED)
    content = _convert(model, onnx)
    difference = _compare(model, content, images, runtime)
    replace_file(path, content)
    return ExportedModel(
        path=path,
        classes=model.classes,
        image_size=model.image_size,
        bytes=len(content),
        difference=difference,
        checked=len(images),
        with_photos=with_photos,
    )


def _import(name: str) -> ModuleType:
    try:
        return __import__(name)
    except ImportError as error:
        raise InputError(
            f"ONNX export requires the packages onnx, onnxscript and onnxruntime, but {name} "
            f'cannot be imported ({error}): run `pip install "clew[onnx]"`, then run the same '
            "command again."
        ) from None


def _prepare(path: Path) -> None:
    if path.is_dir():
        raise InputError(f'"{path}" is a folder: give the name of a file, such as model.onnx.')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{path.parent}" cannot be created ({error.strerror}): choose another path.'
        ) from None


def _on_cpu(model: PatternModel) -> PatternModel:
    """A copy in full precision and plain memory format, so that the file is the same with and
    without a GPU."""
    network = copy.deepcopy(model.network).float().cpu().eval()
    network = network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return replace(model, network=network, device=torch.device("cpu"))


def _convert(model: PatternModel, onnx: ModuleType) -> bytes:
    proto = _without_traces(_trace(model))
    onnx.helper.set_model_props(proto, _about(model))
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def _trace(model: PatternModel) -> Any:
    # Two, since torch.export treats a batch of one as a constant size.
    example = torch.zeros(2, model.image_size, model.image_size, 3, dtype=torch.uint8)
    try:
        with _silence():
            program = torch.onnx.export(
                _Photographed(model).eval(),
                (example,),
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}},
            )
    except torch.onnx.OnnxExporterError as error:
        raise ClewError(
            f'torch {torch.__version__} cannot export the network in "{model.folder}" to ONNX '
            f"({_first_line(error)}): try a newer torch and onnxscript, or train one of clew's "
            "own networks."
        ) from error
    assert program is not None
    return program.model_proto


def _first_line(error: BaseException) -> str:
    """The first line of the original error: the exporter wraps it in advice for its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _silence() -> Iterator[None]:
    """The exporter warns about packages that nobody needs here, and about its own deprecations."""
    loggers = [logging.getLogger(name) for name in _QUIET]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


def _without_traces(proto: Any) -> Any:
    """The exporter records lines of code, with the paths of this machine, beside every node."""
    proto.doc_string = proto.graph.doc_string = ""
    graph = proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        part.ClearField("metadata_props")
    for node in graph.node:
        node.doc_string = ""
    return proto


def _about(model: PatternModel) -> dict[str, str]:
    return {
        "classes": json.dumps(model.classes, ensure_ascii=False),
        "image_size": str(model.image_size),
        "temperature": repr(model.temperature),
        "clew": __version__,
    }


def _compare(model: PatternModel, content: bytes, images: np.ndarray, runtime: ModuleType) -> float:
    """The largest difference, in batches of one and of several."""
    expected = model.probabilities(images)
    session = _open(content, runtime)
    found = [_run(session, images, size) for size in _BATCHES]
    difference = max(float(np.abs(one - expected).max()) for one in found)
    if not difference < TOLERANCE:  # also true for NaN
        raise ClewError(
            "onnxruntime and torch give different predictions (probabilities differ by up to "
            f"{difference:.2g}, but at most {TOLERANCE:g} is allowed), so no file was written: "
            "please report the network and the versions of torch, onnx and onnxruntime."
        )
    return difference


def _open(content: bytes, runtime: ModuleType) -> Any:
    runtime.set_default_logger_severity(3)
    return runtime.InferenceSession(content, providers=["CPUExecutionProvider"])


def _run(session: Any, images: np.ndarray, batch: int) -> np.ndarray:
    starts = range(0, len(images), batch)
    parts = [session.run([OUTPUT], {INPUT: images[at : at + batch]})[0] for at in starts]
    return np.concatenate(parts)


def sample_images(
    model: PatternModel, count: int
) -> tuple[UInt8[np.ndarray, "count size size 3"], bool]:
    """Up to `count` photos from all over the training folder, and True; random images, and False,
    if none can be found."""
    photos = _read_photos(_find_photos(model.folder, count * _TRIES), model.image_size, count)
    if photos:
        return np.stack(photos), True
    shape = (count, model.image_size, model.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), False


def _find_photos(folder: Path, count: int) -> list[Path]:
    try:
        root = Path(read_results(folder)["data"]["folder"])
        names = [row.name for row in read_splits(folder)]
    except (ClewError, KeyError, TypeError):
        return []
    step = max(1, len(names) // count)
    return [root / name for name in names[::step]]


def _read_photos(paths: list[Path], size: int, count: int) -> list[np.ndarray]:
    photos: list[np.ndarray] = []
    for path in paths:
        if len(photos) == count:
            break
        try:
            photos.append(read_square(path, size))
        except PhotoError:
            continue
    return photos
