"""A trained model as one file for PyTorch alone (torch.export): a photo's pixels in, calibrated
probabilities out, for Python or for C++ without Python. It is written only if it gives the same
predictions."""

import io
from pathlib import Path

import numpy as np
import torch

from clew.base.errors import ClewError
from clew.patterns.trained.exporting import (
    CHECKED,
    INPUT,
    ExportedModel,
    Photographed,
    compare,
    describe_model,
    first_line,
    on_cpu,
    prepare_file,
    sample_images,
)
from clew.patterns.trained.model import PatternModel
from clew.storage.writing import replace_file

SUFFIX = ".pt2"


def export_program(model: PatternModel, path: Path) -> ExportedModel:
    """Export the model to `path`: `torch.export.load(path).module()` takes uint8 [batch, size,
    size, 3]; its description is in the `extra_files`, as in ONNX metadata.

    An existing file is replaced. Raises InputError if `path` cannot be written, ClewError if the
    network cannot be exported or the predictions differ.
    """
    prepare_file(path)
    model = on_cpu(model)
    content = _convert(model)
    images, with_photos = sample_images(model, CHECKED)
    loaded = torch.export.load(io.BytesIO(content)).module()

    def run(pixels: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            found = loaded(torch.from_numpy(pixels))
        return [one.numpy() for one in (found if isinstance(found, tuple) else (found,))]

    difference = compare(model, images, run, "torch.export")
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


def _convert(model: PatternModel) -> bytes:
    # Two, since torch.export treats a batch of one as a constant size.
    example = torch.zeros(2, model.image_size, model.image_size, 3, dtype=torch.uint8)
    shapes = {INPUT: {0: torch.export.Dim("batch")}}
    try:
        program = torch.export.export(Photographed(model).eval(), (example,), dynamic_shapes=shapes)
    except (RuntimeError, ValueError) as error:
        raise ClewError(
            f'torch {torch.__version__} cannot export the network in "{model.folder}" '
            f"({first_line(error)}): export it to ONNX, or train one of clew's own networks."
        ) from error
    file = io.BytesIO()
    torch.export.save(program, file, extra_files=dict(describe_model(model)))
    return file.getvalue()
