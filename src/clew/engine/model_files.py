"""Model files: safetensors whose header describes the weights in JSON, no pickle. The one reader
and writer of checkpoints, detectors and classifiers."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from clew.errors import StoreError
from clew.storage.writing import replacing

_Kind = type | UnionType | Collection[str]
# What a header must have: the type of each value, or the names to choose from.
Wanted = Mapping[str, _Kind]

_HEADER = "clew"
_REASON_LETTERS = 300


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """Tensors by name, and `about`, the description in the header; read from `path`."""

    path: Path
    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def load_into(self, network: nn.Module, *, name: str, prefix: str = "") -> None:
        """Loads a network's weights, whose names in the file start with `prefix`.

        Raises StoreError when one is missing, unexpected or of another shape; `name` is the name of
        the network for the message.
        """
        weights = {
            key.removeprefix(prefix): value
            for key, value in self.tensors.items()
            if key.startswith(prefix)
        }
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise misfit(self.path, name, error) from None


def write_model(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a model file atomically. Raises StoreError if the disk is full."""
    try:
        with replacing(path) as file:
            save_file(_apart(tensors), file.name, metadata={_HEADER: json.dumps(about)})
    except SafetensorError as error:  # its error hides the operating system's "disk full"
        raise StoreError(
            f'"{path}" cannot be written ({error}). Everything written so far is kept. Free '
            "some space on the disk, then run the same command again to resume."
        ) from error


def read_model(path: Path) -> ModelFile:
    """Read a model file. Raises StoreError if it is missing, damaged or not written by clew."""
    tensors, about = _read(path, with_tensors=True)
    return ModelFile(path=path, tensors=tensors, about=about)


def read_about(path: Path) -> dict[str, Any]:
    """The header's description, without reading the tensors; raises like `read_model`."""
    return _read(path, with_tensors=False)[1]


def check_about(
    path: Path,
    about: Mapping[str, Any],
    wanted: Wanted,
    *,
    what: str,
    advice: str,
) -> None:
    """Check the description in the header of `path`. Raises StoreError, which says that the file is
    not `what`, if an entry of `wanted` ("settings.classes": list) is missing, has another type or
    names an unknown choice."""
    for name, kind in wanted.items():
        value: Any = about
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if not _is_of(value, kind):
            raise StoreError(f'"{path}" is not {what} (its {name} is {value!r:.60}): {advice}.')


def _is_of(value: Any, kind: _Kind) -> bool:
    if isinstance(kind, type | UnionType):
        return isinstance(value, kind)
    return isinstance(value, str) and value in kind


def misfit(path: Path, network: str, error: Exception) -> StoreError:
    """The error for weights that belong to another network."""
    reason = " ".join(str(error).split())[:_REASON_LETTERS]
    return StoreError(
        f'the weights in "{path}" do not match the network "{network}" in this version of clew '
        f"({reason}): train again."
    )


def _read(path: Path, *, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()[_HEADER])
            if not isinstance(about, dict):
                raise TypeError(f"its header contains {about!r:.60}")
            names = file.keys() if with_tensors else []
            return {name: file.get_tensor(name) for name in names}, about
    except FileNotFoundError:
        raise StoreError(f'there is no "{path}": train first.') from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): it is damaged or was not written by clew. '
            "Delete it to train again, or choose another output folder."
        ) from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in its own memory, as the format requires; tied weights are stored twice."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        whole = value.untyped_storage().nbytes() == value.nbytes
        apart[name] = value if whole and place not in seen else value.clone()
        seen.add(place)
    return apart
