"""What a result may depend on besides its settings."""

import platform
from importlib.metadata import version

import torch

from clew.version import __version__

_LIBRARIES = ("torch", "lightning-fabric", "torchmetrics", "numpy", "pyarrow")


def read_versions(*more: str) -> dict[str, str]:
    """Of clew, Python, the libraries that every run stands on and `more` of them, and the GPU."""
    found = {name: version(name) for name in (*_LIBRARIES, *more)}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"clew": __version__, "python": platform.python_version(), **found, "gpu": gpu}
