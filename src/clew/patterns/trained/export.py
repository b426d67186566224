"""A trained model as one file without clew: ONNX, or a program for PyTorch alone. Pixels in,
calibrated probabilities out. It is written only if it gives the same predictions."""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from clew.base.errors import ClewError, InputError
from clew.patterns.networks.classifier import Normalize, input_scaling, look_closer
from clew.patterns.photos.decode import read_square
from clew.patterns.photos.opening import PhotoError
from clew.patterns.results_file import USUAL_UNKNOWN
from clew.patterns.trained.model import PatternModel, find_maps, pool_maps, read_results
from clew.patterns.trained.tables import read_splits
from clew.storage.working_copy import working_copy
from clew.storage.writing import replace_file
from clew.version import __version__

INPUT, OUTPUT, TYPICALITY = "image", "probabilities", "typicality"
PROGRAM_SUFFIX = ".pt2"
_TOLERANCE = 1e-4
# Of typicality: between two kept distances, a small difference may be a large share.
_LOOSE = 0.05
_CHECKED = 32
_BATCHES = (1, 7)
_TRIES = 4  # photos to try for each wanted one, as some may be missing
_QUIET = ("torch.onnx", "onnxscript", "onnx_ir")

# Pixels to the outputs: probabilities, and typicality if the model has it.
Run = Callable[[UInt8[np.ndarray, "batch size size 3"]], Sequence[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """An exported model. `difference` is the largest difference between its probabilities and the
    classifier's over `checked` images; `with_photos` says whether these were photos of the training
    set. With `has_typicality` it recognizes unknown photos. `page` is the page for browsers, if one
    was asked for."""

    path: Path
    classes: tuple[str, ...]
    image_size: int
    bytes: int
    difference: float
    checked: int
    with_photos: bool
    has_typicality: bool = False
    page: Path | None = None


def export_onnx(model: PatternModel, path: Path) -> ExportedModel:
    """Export the model to `path`. The input "image" is uint8 [batch, size, size, 3], the output
    "probabilities" float [batch, classes], and for a model that knows unknown photos "typicality"
    float [batch]; classes, size, scaling and calibration are in its metadata.

    An existing file is replaced. Raises InputError if the packages of the extra "onnx" are missing
    or `path` cannot be written, ClewError when the predictions differ.
    """
    onnx, runtime, _ = map(_import, ("onnx", "onnxruntime", "onnxscript"))
    convert, load = partial(_to_onnx, onnx=onnx), partial(_load_onnx, runtime=runtime)
    return _export(model, path, convert, load, runtime="onnxruntime")


def export_program(model: PatternModel, path: Path) -> ExportedModel:
    """Export the model to `path`: `torch.export.load(path).module()` takes uint8 [batch, size,
    size, 3]; its description is in the `extra_files`, as in ONNX metadata.

    An existing file is replaced. Raises InputError if `path` cannot be written, ClewError if the
    network cannot be exported or the predictions differ.
    """
    return _export(model, path, _to_program, _load_program, runtime="torch.export")


def _export(
    model: PatternModel,
    path: Path,
    convert: Callable[[PatternModel], bytes],
    load: Callable[[bytes], Run],
    *,
    runtime: str,
) -> ExportedModel:
    _prepare_file(path)
    # A copy in full precision and plain memory format: the same file with and without a GPU.
    network = copy.deepcopy(model.network).float().cpu().eval()
    network = network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model = replace(model, network=network, device=torch.device("cpu"))
    content = convert(model)
    images, with_photos = sample_images(model, _CHECKED)
    difference = _compare(model, images, load(content), runtime)
    replace_file(path, content)
    return ExportedModel(
        path=path,
        classes=model.classes,
        image_size=model.image_size,
        bytes=len(content),
        difference=difference,
        checked=len(images),
        with_photos=with_photos,
        has_typicality=model.unknown is not None,
    )


def _prepare_file(path: Path) -> None:
    """Make its folder. Raises InputError if a file cannot be written there."""
    if path.is_dir():
        raise InputError(f'"{path}" is a folder: give the name of a file, such as model.onnx.')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{path.parent}" cannot be created ({error.strerror}): choose another path.'
        ) from None


class _Exported(nn.Module):
    """The network with everything between a photo's pixels and its probabilities; for a model that
    knows `unknown` photos, also how typical the photo is."""

    def __init__(self, model: PatternModel) -> None:
        super().__init__()
        self.normalize, self.network = Normalize(input_scaling(model.network)), model.network
        self.temperature, self.looks_closer = model.temperature, model.looks_closer
        self.typicality = model.unknown

    def forward(
        self, image: UInt8[Tensor, "batch size size 3"]
    ) -> Float[Tensor, "batch classes"] | tuple[Tensor, Tensor]:
        network: Any = self.network
        pixels = self.normalize(image.to(torch.float32) / 255)
        if self.typicality is None:
            return self._judge(pixels, network(pixels))
        maps = find_maps(network, pixels)
        probabilities = self._judge(pixels, network.head(maps[-1]))
        return probabilities, self.typicality(pool_maps(network, maps))

    def _judge(self, pixels: Tensor, logits: Tensor) -> Float[Tensor, "batch classes"]:
        if self.looks_closer:
            logits = look_closer(self.network, pixels, logits)
        return torch.softmax(logits / self.temperature, dim=1)


def _example(model: PatternModel) -> tuple[nn.Module, tuple[Tensor], dict[str, Any]]:
    """What both exporters take: the module, its arguments, and that the batch may have any size."""
    # Two, since torch.export treats a batch of one as a constant size.
    images = torch.zeros(2, model.image_size, model.image_size, 3, dtype=torch.uint8)
    return _Exported(model).eval(), (images,), {INPUT: {0: torch.export.Dim("batch")}}


def _import(name: str) -> ModuleType:
    try:
        return __import__(name)
    except ImportError as error:
        raise InputError(
            f"ONNX export requires the packages onnx, onnxscript and onnxruntime, but {name} "
            f'cannot be imported ({error}): run `pip install "clew[onnx]"`, then run the same '
            "command again."
        ) from None


def _to_onnx(model: PatternModel, onnx: ModuleType) -> bytes:
    module, arguments, shapes = _example(model)
    try:
        with _silence():
            program = torch.onnx.export(
                module,
                arguments,
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=[OUTPUT] if model.unknown is None else [OUTPUT, TYPICALITY],
                dynamic_shapes=shapes,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ClewError(
            f'torch {torch.__version__} cannot export the network in "{model.folder}" to ONNX '
            f"({_first_line(error)}): try a newer torch and onnxscript, or train one of clew's "
            "own networks."
        ) from error
    assert program is not None
    proto = _without_traces(program.model_proto)
    onnx.helper.set_model_props(proto, describe_model(model))
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


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


def _load_onnx(content: bytes, runtime: ModuleType) -> Run:
    runtime.set_default_logger_severity(3)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {INPUT: images})


def _to_program(model: PatternModel) -> bytes:
    module, arguments, shapes = _example(model)
    try:
        program = torch.export.export(module, arguments, dynamic_shapes=shapes)
    except (RuntimeError, ValueError) as error:
        raise ClewError(
            f'torch {torch.__version__} cannot export the network in "{model.folder}" '
            f"({_first_line(error)}): export it to ONNX, or train one of clew's own networks."
        ) from error
    file = io.BytesIO()
    torch.export.save(program, file, extra_files=dict(describe_model(model)))
    return file.getvalue()


def _load_program(content: bytes) -> Run:
    loaded = torch.export.load(io.BytesIO(content)).module()

    def run(pixels: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            found = loaded(torch.from_numpy(pixels))
        return [one.numpy() for one in (found if isinstance(found, tuple) else (found,))]

    return run


def _first_line(error: BaseException) -> str:
    """The first line of the original error: the exporter wraps it in advice for its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_model(model: PatternModel) -> dict[str, str]:
    """What a user of the file must know, and what is inside it already: each entry is a text, lists
    and objects as JSON."""
    size, scaling = model.image_size, input_scaling(model.network)
    about: dict[str, Any] = {
        "classes": model.classes,
        "image_size": size,
        "input": {
            "name": INPUT,
            "type": "uint8",
            "shape": ["batch", size, size, 3],
            "colors": "RGB",
            "resize": f"the whole photo, upright, resized to {size} x {size} pixels (Lanczos)",
        },
        "scaling": {
            "inside": True,
            "formula": "(pixel / 255 - mean) / std",
            "mean": scaling.mean,
            "std": scaling.std,
        },
        "calibration": {
            "inside": True,
            "method": "temperature scaling",
            "temperature": model.temperature,
        },
    }
    if model.unknown is not None:
        rule = f"below {USUAL_UNKNOWN}: none of the classes"
        about["unknown"] = {"output": TYPICALITY, "rule": rule}
    about["temperature"] = model.temperature
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}
    return {**texts, "clew": __version__}


def _compare(model: PatternModel, images: np.ndarray, run: Run, runtime: str) -> float:
    """The largest difference between the probabilities that `run` gives, in batches of one and of
    several, and the model's. Raises ClewError, which names the `runtime`, if it is too large."""
    judged = model.judge(images)
    found = [_in_batches(run, images, size) for size in _BATCHES]
    difference = max(float(np.abs(one[0] - judged.probabilities).max()) for one in found)
    if judged.typicality is not None:
        farthest = max(float(np.abs(one[1] - judged.typicality).max()) for one in found)
        _refuse_difference(runtime, "typicalities", farthest, _LOOSE)
    _refuse_difference(runtime, "probabilities", difference, _TOLERANCE)
    return difference


def _refuse_difference(runtime: str, what: str, difference: float, most: float) -> None:
    if not difference < most:  # also true for NaN
        raise ClewError(
            f"{runtime} and the classifier give different predictions ({what} differ by up to "
            f"{difference:.2g}, but at most {most:g} is allowed), so no file was written: please "
            f"report the network and the versions of torch and {runtime}."
        )


def _in_batches(run: Run, images: np.ndarray, batch: int) -> list[np.ndarray]:
    parts = [run(images[at : at + batch]) for at in range(0, len(images), batch)]
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def sample_images(
    model: PatternModel, count: int
) -> tuple[UInt8[np.ndarray, "count size size 3"], bool]:
    """Up to `count` photos from all over the training folder, and True; random images, and False,
    if none can be found."""
    photos: list[np.ndarray] = []
    for path in _find_photos(model.folder, count * _TRIES):
        try:
            photos.append(read_square(path, model.image_size))
        except PhotoError:
            continue
        if len(photos) == count:
            break
    if photos:
        return np.stack(photos), True
    shape = (count, model.image_size, model.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), False


def _find_photos(folder: Path, count: int) -> list[Path]:
    try:
        with working_copy(folder) as here:
            root = Path(read_results(here)["data"]["folder"])
            names = [row.name for row in read_splits(here)]
    except (ClewError, KeyError, TypeError):
        return []
    step = max(1, len(names) // count)
    return [root / name for name in names[::step]]
