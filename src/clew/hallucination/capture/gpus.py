"""The GPUs that a dry run can plan for. Importing this loads nothing heavy."""

import json
from importlib.resources import files
from typing import NamedTuple

from clew.base.errors import InputError
from clew.base.texts import suggest


class Gpu(NamedTuple):
    """A GPU by NVIDIA's data sheet of the SXM module, or of the PCIe card where there is none:
    dense BF16 or FP16 Tensor Core (half of what is given "with sparsity"), memory bandwidth,
    memory."""

    name: str
    teraflops: float
    gigabytes_per_second: float
    gigabytes: int


_TABLE = json.loads(files(__package__).joinpath("gpus.json").read_text("utf-8"))
GPUS = {key: Gpu(*figures) for key, figures in _TABLE.items()}


def find_gpu(name: str) -> Gpu:
    """Raises InputError for one that is not in the table."""
    if name.lower() not in GPUS:
        known = f"unknown GPU{suggest(name, [*GPUS])}. Choose from: {', '.join(GPUS)}."
        raise InputError(known, setting="gpu", value=name)
    return GPUS[name.lower()]


def recognize_gpu(device_name: str) -> Gpu | None:
    """The GPU of the table that the driver calls "NVIDIA H100 80GB HBM3"; None if it is none."""
    words = device_name.lower().replace("-", " ").replace("rtx ", "rtx").split()
    fitting = [key for key in GPUS if {*key.split("-")} <= {*words}]
    return GPUS[max(fitting, key=len)] if fitting else None
