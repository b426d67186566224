"""A trained model as one ONNX file that requires neither clew nor torch: a photo's pixels in,
calibrated probabilities out. It is written only if onnxruntime gives the same predictions."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from clew.base.errors import ClewError, InputError
from clew.patterns.trained.exporting import (
    CHECKED,
    INPUT,
    ExportedModel,
    Photographed,
    Run,
    compare,
    describe_model,
    first_line,
    on_cpu,
    output_names,
    prepare_file,
    sample_images,
)
from clew.patterns.trained.model import PatternModel
from clew.storage.writing import replace_file

_QUIET = ("torch.onnx", "onnxscript", "onnx_ir")


def export_onnx(model: PatternModel, path: Path) -> ExportedModel:
    """Export the model to `path`. The input "image" is uint8 [batch, size, size, 3], the output
    "probabilities" float [batch, classes], and for a model that knows unknown photos "typicality"
    float [batch]; classes, size, scaling and calibration are in its
    metadata.

    An existing file is replaced. Raises InputError if the packages of the extra "onnx" are missing
    or `path` cannot be written, ClewError when the predictions differ.
    """
    onnx, runtime = _import("onnx"), _import("onnxruntime")
    _import("onnxscript")
    prepare_file(path)
    model = on_cpu(model)
    images, with_photos = sample_images(model, CHECKED)
    content = _convert(model, onnx)
    difference = compare(model, images, _open(content, runtime), "onnxruntime")
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


def _import(name: str) -> ModuleType:
    try:
        return __import__(name)
    except ImportError as error:
        raise InputError(
            f"ONNX export requires the packages onnx, onnxscript and onnxruntime, but {name} "
            f'cannot be imported ({error}): run `pip install "clew[onnx]"`, then run the same '
            "command again."
        ) from None


def _convert(model: PatternModel, onnx: ModuleType) -> bytes:
    proto = _without_traces(_trace(model))
    onnx.helper.set_model_props(proto, describe_model(model))
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def _trace(model: PatternModel) -> Any:
    # Two, since torch.export treats a batch of one as a constant size.
    example = torch.zeros(2, model.image_size, model.image_size, 3, dtype=torch.uint8)
    try:
        with _silence():
            program = torch.onnx.export(
                Photographed(model).eval(),
                (example,),
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=output_names(model),
                dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}},
            )
    except torch.onnx.OnnxExporterError as error:
        raise ClewError(
            f'torch {torch.__version__} cannot export the network in "{model.folder}" to ONNX '
            f"({first_line(error)}): try a newer torch and onnxscript, or train one of clew's "
            "own networks."
        ) from error
    assert program is not None
    return program.model_proto


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


def _open(content: bytes, runtime: ModuleType) -> Run:
    runtime.set_default_logger_severity(3)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {INPUT: images})
