"""What GPUs could do at most, from their data sheets, and how much of it a capture reaches."""

from dataclasses import dataclass

from clew.base.errors import InputError
from clew.base.texts import suggest

# The share of both limits together that a capture reaches: 290 traces/s at Llama-2-7B's shape on an
# H200 (docs/benchmarks.md, "Capture"), where the limits alone would allow about 850.
REACHED = 0.34


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: dense 16-bit matrix products per second (without sparsity), bytes per second from its
    memory, and the size of that memory."""

    name: str
    flops: float
    bandwidth: float
    memory_bytes: int


def _gpu(name: str, teraflops: float, gigabytes_per_second: float, gigabytes: int) -> Gpu:
    return Gpu(
        name=name,
        flops=teraflops * 1e12,
        bandwidth=gigabytes_per_second * 1e9,
        memory_bytes=gigabytes * 10**9,
    )


# NVIDIA's data sheets of the SXM modules, or of the PCIe card where there is no module: BF16 or
# FP16 Tensor Core (half of what is given "with sparsity"), memory bandwidth, memory.
GPUS = {
    "t4": _gpu("T4", 65, 320, 16),
    "v100": _gpu("V100", 125, 900, 32),
    "a10": _gpu("A10", 125, 600, 24),
    "a100": _gpu("A100 80GB", 312, 2039, 80),
    "a100-40gb": _gpu("A100 40GB", 312, 1555, 40),
    "l4": _gpu("L4", 121, 300, 24),
    "l40s": _gpu("L40S", 362, 864, 48),
    "rtx4090": _gpu("GeForce RTX 4090", 165, 1008, 24),
    "h100": _gpu("H100", 989, 3350, 80),
    "h100-pcie": _gpu("H100 PCIe", 756, 2000, 80),
    "h200": _gpu("H200", 989, 4800, 141),
    "b200": _gpu("B200", 2250, 8000, 180),
}


def find_gpu(name: str) -> Gpu:
    """Raises InputError for one that is not in the table."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        known = ", ".join(GPUS)
        raise InputError(
            f"unknown GPU{suggest(name, [*GPUS])}. Choose from: {known}.", setting="gpu", value=name
        )
    return gpu


def recognize_gpu(device_name: str) -> Gpu | None:
    """The GPU of the table that the driver calls "NVIDIA H100 80GB HBM3"; None if it is none."""
    words = device_name.lower().replace("-", " ").replace("rtx ", "rtx").split()
    fitting = [key for key in GPUS if {*key.split("-")} <= {*words}]
    return GPUS[max(fitting, key=len)] if fitting else None
