"""What a result may depend on besides its settings."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from clew.version import __version__

_LIBRARIES = ("torch", "lightning-fabric", "torchmetrics", "numpy", "pyarrow")


def read_versions(*more: str) -> dict[str, str]:
    """Of clew, Python, the libraries that every run stands on and `more` of them, and the GPU.
    "unknown" where there is none to be found."""
    found = {name: _find_version(name) for name in (*_LIBRARIES, *more)}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"clew": __version__, "python": platform.python_version(), **found, "gpu": gpu}


def _find_version(library: str) -> str:
    """A library that came inside another one (lightning_fabric in pytorch-lightning) has no
    metadata of its own."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
