"""Model files: safetensors whose header has a description in JSON and a checksum per tensor, no
pickle. The one reader and writer of checkpoints, detectors and classifiers: nothing in a file is
believed unchecked."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import psutil
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from clew.base.errors import StoreError
from clew.base.texts import bytes_text, shortened
from clew.base.typed_json import read_as, to_json
from clew.storage.reading import open_regular, parse_file, seal
from clew.storage.writing import replacing

# What a header must have: the type of each value, as for `read_as`, or the names to choose from.
Wanted = Mapping[str, Any]

Network = TypeVar("Network", bound=nn.Module)

_HEADER, _CHECKSUMS = "clew", "tensor_checksums"
_REASON_LETTERS = 300
# A description of 100,000 classes or 10,000 epochs takes a few MB.
_MAX_HEADER_BYTES = 1 << 24
_LENGTH_BYTES = 8
_FLOATS = {"F16", "BF16", "F32", "F64"}
_OTHERS = {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


class TensorKind(NamedTuple):
    """The type (as safetensors names it) and the shape of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]

    def suits(self, tensor: Tensor) -> bool:
        """Whether the tensor can take its values: floating-point types are converted."""
        known = _FLOATS if tensor.is_floating_point() else {_OTHERS.get(tensor.dtype)}
        return self.shape == tuple(tensor.shape) and self.dtype in known


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model file whose header was read: `about` is its description, `kinds` are the types and
    shapes of its tensors, which are read on demand and compared with `checksums`; files of earlier
    versions have none."""

    path: Path
    about: dict[str, Any]
    kinds: dict[str, TensorKind]
    checksums: dict[str, str] | None = None

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        with _explained(self.path), safe_open(self.path, framework="pt") as file:
            return {name: self._check_tensor(name, file.get_tensor(name)) for name in names}

    def _check_tensor(self, name: str, tensor: Tensor) -> Tensor:
        if self.checksums is not None and self.checksums.get(name) != _checksum(name, tensor):
            raise ValueError(
                f"it was changed after clew wrote it: the checksum of {shortened(name)} does not "
                "match"
            )
        return tensor

    def build(self, make: Callable[[], nn.Module], *, name: str, prefix: str = "") -> nn.Module:
        """Build a network and load its weights. A network that does not match the file is refused
        before memory is allocated for it. Raises StoreError as `load_into` does."""
        try:
            with torch.device("meta"):
                outline = make()
        except (RuntimeError, TypeError, ValueError) as error:
            raise misfit(self.path, name, error) from None
        self.check(outline, name=name, prefix=prefix)
        network = allocate(outline) if _consists_of_weights(outline) else make()
        self.load_into(network, name=name, prefix=prefix)
        return network

    def load_into(self, network: nn.Module, *, name: str, prefix: str = "") -> None:
        """Loads a network's weights, whose names in the file start with `prefix`.

        Raises StoreError when one is missing, unexpected, of another shape or type, or not finite;
        `name` is the name of the network for the message.
        """
        self.check(network, name=name, prefix=prefix)
        inside = [key for key in self.kinds if key.startswith(prefix)]
        weights = self.read(inside)
        network.load_state_dict({key.removeprefix(prefix): weights[key] for key in inside})
        refuse_non_finite(self.path, network)

    def check(self, network: nn.Module, *, name: str, prefix: str = "") -> None:
        """Compare the names, shapes and types of the weights with those of a network, from the
        header alone. Raises StoreError."""
        wanted = {f"{prefix}{key}": value for key, value in network.state_dict().items()}
        found = {key: kind for key, kind in self.kinds.items() if key.startswith(prefix)}
        for key in (*wanted, *found):
            if key not in found:
                raise misfit(self.path, name, f"{key} is missing")
            if key not in wanted:
                raise misfit(self.path, name, f"{shortened(key)} is unexpected")
            if not found[key].suits(wanted[key]):
                there, needed = found[key], wanted[key]
                raise misfit(
                    self.path,
                    name,
                    f"{key} has shape {shortened(list(there.shape))} and type {there.dtype} "
                    f"instead of {list(needed.shape)} and {needed.dtype}",
                )


def allocate(outline: Network) -> Network:
    """Memory for a network built on the device "meta", whose weights are to be loaded: random ones
    would take longer than loading them."""
    return outline.to_empty(device="cpu")


def _consists_of_weights(network: nn.Module) -> bool:
    """Whether all its tensors are in its state dict, each under one name."""
    tensors = [*network.parameters(), *network.buffers()]
    kept = [id(value) for value in network.state_dict(keep_vars=True).values()]
    attributes = [
        tree_leaves(value)
        for module in network.modules()
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules")
    ]
    others = (one for leaves in attributes for one in leaves if isinstance(one, Tensor))
    return sorted(map(id, tensors)) == sorted(kept) and not any(True for _ in others)


def refuse_non_finite(path: Path, network: nn.Module) -> None:
    """Raise StoreError if a network was loaded with weights that give NaN for every input."""
    spoiled = [
        key
        for key, value in network.state_dict().items()
        if not value.isfinite().all()
        or (key.rpartition(".")[2] == "running_var" and (value < 0).any())
    ]
    if spoiled:
        raise StoreError(
            f'the weights in "{path}" are damaged ({spoiled[0]} contains NaN, infinity or a '
            "negative variance): train again, or restore the file from a backup."
        )


def write_model(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a model file atomically. Raises StoreError if the disk is full."""
    apart = _apart(tensors)
    checksums = {name: _checksum(name, tensor) for name, tensor in apart.items()}
    # One entry: safetensors writes several in random order.
    metadata = {_HEADER: seal(to_json({**about, _CHECKSUMS: checksums})).decode()}
    try:
        with replacing(path) as file:
            save_file(apart, file.name, metadata=metadata)
    except SafetensorError as error:  # its error hides the operating system's "disk full"
        raise StoreError(
            f'"{path}" cannot be written ({error}). Everything written so far is kept. Free '
            "some space on the disk, then run the same command again to resume."
        ) from error


def read_model(path: Path) -> ModelFile:
    """Read the header of a model file. Raises StoreError if it is missing, damaged or not written
    by clew."""
    with _explained(path):
        _check_size(path)
        with safe_open(path, framework="pt") as file:
            described = (file.metadata() or {}).get(_HEADER)
            if described is None:
                raise ValueError("its header has no description")
            about = parse_file(described.encode(), finite=False, encodable=False)
            if not isinstance(about, dict):
                raise ValueError(f"its header contains {shortened(about)}")
            if _CHECKSUMS in about and next(reversed(about)) != _CHECKSUMS:
                raise ValueError("its description has no checksum, but its tensors have some")
            checksums = read_as(dict[str, str] | None, about.pop(_CHECKSUMS, None), _CHECKSUMS)
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
            kinds = {
                name: TensorKind(one.get_dtype(), tuple(one.get_shape()))
                for name, one in slices.items()
            }
    return ModelFile(path=path, about=about, kinds=kinds, checksums=checksums)


def read_about(path: Path) -> dict[str, Any]:
    """The header's description alone; raises like `read_model`."""
    return read_model(path).about


def check_about(
    path: Path, about: Mapping[str, Any], wanted: Wanted, *, what: str, advice: str
) -> None:
    """Check the description in the header of `path`. Raises StoreError, which says that the file is
    not `what`, if an entry of `wanted` ("settings.classes": list[str]) is missing, has another type
    or names an unknown choice."""
    for name, kind in wanted.items():
        value: Any = about
        try:
            for part in name.split("."):
                if not isinstance(value, Mapping) or part not in value:
                    raise ValueError(f"{name} is missing")
                value = value[part]
            read_as(Literal[tuple(kind)] if isinstance(kind, Collection) else kind, value, name)
        except ValueError as error:
            raise StoreError(f'"{path}" is not {what} (its {error}): {advice}.') from None


def misfit(path: Path, network: str, error: Exception | str) -> StoreError:
    """The error for weights that belong to another network."""
    reason = " ".join(str(error).split())[:_REASON_LETTERS]
    return StoreError(
        f'the weights in "{path}" do not match the network "{network}" in this version of clew '
        f"({reason}): train again."
    )


def _check_size(path: Path) -> None:
    """Raise ValueError for a header that claims more bytes than there can be, StoreError for a file
    that does not fit into memory."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        size = file.seek(0, os.SEEK_END)
    if length > min(size, _MAX_HEADER_BYTES):
        raise ValueError(f"its header claims {length:,} bytes")
    memory = psutil.virtual_memory().total
    if size > memory:
        raise StoreError(
            f'"{path}" takes {bytes_text(size)}, but this machine has {bytes_text(memory)} of '
            "memory: use a machine with more memory."
        )


def _checksum(name: str, tensor: Tensor) -> str:
    digest = xxhash.xxh3_64(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
    digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f'there is no "{path}": train first.') from None
    except (SafetensorError, OSError, ValueError) as error:
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


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A hash over the names, types, shapes and values of weights."""
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
