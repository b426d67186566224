"""Model files: tensors with a header that describes them, and JSON beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clew.errors import StoreError
from clew.storage.writing import replace_file, replacing

_HEADER = "clew"


def write_json(path: Path, value: Any) -> None:
    replace_file(path, f"{json.dumps(value, indent=1)}\n".encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """A safetensors file whose header bears `about` as JSON; raises StoreError when the disk is
    full."""
    try:
        with replacing(path) as file:
            save_file(_apart(tensors), file.name, metadata={_HEADER: json.dumps(about)})
    except SafetensorError as error:  # it hides what the system says of a full disk
        raise StoreError(
            f'"{path}" cannot be written ({error}): make room on the disk, then give the same '
            f"command again. What was written before is kept."
        ) from error


def read_about(path: Path) -> dict[str, Any]:
    """What the header tells, without reading the tensors."""
    return _read(path, with_tensors=False)[1]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Raises StoreError when the file is damaged or not one of clew's."""
    return _read(path, with_tensors=True)


def _read(path: Path, *, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()[_HEADER])
            names = file.keys() if with_tensors else []
            return {name: file.get_tensor(name) for name in names}, about
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): it is damaged or was not written by clew. Delete '
            f"it to train anew, or give another output folder."
        ) from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own, as the format wants it; tied weights are stored twice."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        whole = value.untyped_storage().nbytes() == value.nbytes
        apart[name] = value if whole and place not in seen else value.clone()
        seen.add(place)
    return apart
