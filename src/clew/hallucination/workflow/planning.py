"""How training would use this machine."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.hallucination.workflow.results import Plans


def plan(
    *,
    preprocessed_dir: str | Path | None = None,
    epochs: int = 50,
    device: str | None = None,
    amp: bool | None = None,
    compile: bool | None = None,
    cuda_graph: bool | None = None,
    channels_last: bool | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    grad_accum: int | None = None,
    gradient_checkpointing: bool = False,
    max_cache_batches: int | None = None,
    threads: int | None = None,
) -> "Plans":
    """Show how training would use this machine (device, precision, batch size, ...), and why.

    With samples, each network is benchmarked on them for a few seconds, as "clew train" does at
    startup. Without samples, the plan shows which choices would be measured.

    Args:
        preprocessed_dir: Folder of samples to benchmark on, written by "clew preprocess".
        epochs: Number of epochs of the planned run.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        amp: Train in mixed precision: bf16, or fp16 on GPUs that do not support bf16. [default: if
            faster]
        compile: Use torch.compile. [default: if the run is long enough to benefit]
        cuda_graph: Capture the training step as a CUDA graph. [default: if faster]
        channels_last: Use the channels-last memory format for images. [default: if faster]
        num_workers: Number of threads that prefetch batches; 0 loads them on demand. [default: as
            many as needed]
        batch_size: Samples per batch, over all processes. [default: the fastest]
        grad_accum: Batches per optimizer step. [default: 1]
        gradient_checkpointing: Recompute activations instead of storing them: less memory, more
            time.
        max_cache_batches: Number of shards to keep open. [default: all]
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]

    Returns:
        `machine`, and `plans`: one `HardwarePlan` per network (with samples) or for "all networks",
        with a reason for every choice.

    Raises:
        InputError: The samples or a setting cannot be used.

    Examples:
        >>> clew.plan().plans["all networks"].reasons["precision"]
    """
    from clew.engine import PlanRequest, TrainConfig, plan_hardware
    from clew.engine.planning.hardware import look_at_machine
    from clew.hallucination.workflow.results import Plans

    machine, config = look_at_machine(), TrainConfig(epochs=epochs)
    request = PlanRequest(
        device=device,
        amp=amp,
        compile=compile,
        cuda_graph=cuda_graph,
        channels_last=channels_last,
        num_workers=num_workers,
        batch_size=batch_size,
        grad_accum=grad_accum,
        gradient_checkpointing=gradient_checkpointing,
        max_cache_batches=max_cache_batches,
        threads=threads,
    )
    if preprocessed_dir is None:
        made = plan_hardware(request, config=config, machine=machine)
        return Plans(machine=machine, plans={"all networks": made})
    from clew.hallucination.detectors.training.settings import TrainRunConfig
    from clew.hallucination.detectors.training.train import plan_models

    folder = Path(preprocessed_dir)
    plans = plan_models(TrainRunConfig(preprocessed_dir=folder, train=config, request=request))
    return Plans(machine=machine, plans=plans)
