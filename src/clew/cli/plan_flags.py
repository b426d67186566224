"""The flags that override the hardware plan, declared once for `clew train` and `clew plan`."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from clew.engine import PlanRequest

_PANEL = "Hardware (what is not given is measured)"

Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="cpu, cuda, or cuda:1. [default: the GPU if there is one]",
        rich_help_panel=_PANEL,
    ),
]
Amp = Annotated[
    bool | None,
    typer.Option(
        "--use-amp/--no-amp",
        help="16-bit arithmetic (bf16, or fp16 where a GPU lacks it), or none. "
        "[default: if faster]",
        rich_help_panel=_PANEL,
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--use-compile/--no-compile",
        help="torch.compile. [default: if the run is long enough to earn it back]",
        rich_help_panel=_PANEL,
    ),
]
CudaGraph = Annotated[
    bool | None,
    typer.Option(
        "--use-cuda-graph/--no-cuda-graph",
        help="Record the whole step on a GPU and replay it. [default: if faster]",
        rich_help_panel=_PANEL,
    ),
]
NoChannelsLast = Annotated[
    bool,
    typer.Option(
        "--no-channels-last",
        help="Keep images as [channels, height, width]; else the faster layout is taken.",
        rich_help_panel=_PANEL,
    ),
]
NumWorkers = Annotated[
    int | None,
    typer.Option(
        "--num-workers",
        help="Threads that read batches ahead; 0 reads when asked. [default: what keeps up]",
        rich_help_panel=_PANEL,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        help="Samples at a time, over all processes. [default: the fastest]",
        rich_help_panel=_PANEL,
    ),
]
GradAccum = Annotated[
    int | None,
    typer.Option(
        "--grad-accum",
        help="Batches that make one optimiser step. [default: 1]",
        rich_help_panel=_PANEL,
    ),
]
GradientCheckpointing = Annotated[
    bool,
    typer.Option(
        "--use-gradient-checkpointing",
        help="Make activations twice instead of keeping them: less memory, more time.",
        rich_help_panel=_PANEL,
    ),
]
MaxCacheBatches = Annotated[
    int | None,
    typer.Option(
        "--max-cache-batches",
        help="Shards kept open at a time. [default: all]",
        rich_help_panel=_PANEL,
    ),
]


def read_request(
    *,
    device: str | None,
    amp: bool | None,
    compile_: bool | None,
    cuda_graph: bool | None,
    no_channels_last: bool,
    num_workers: int | None,
    batch_size: int | None,
    grad_accum: int | None,
    gradient_checkpointing: bool,
    max_cache_batches: int | None,
) -> "PlanRequest":
    """What the flags fix; raises InputError for values that make no sense."""
    from clew.engine import PlanRequest

    return PlanRequest(
        device=device,
        amp=amp,
        compile=compile_,
        cuda_graph=cuda_graph,
        channels_last=False if no_channels_last else None,
        num_workers=num_workers,
        batch_size=batch_size,
        grad_accum=grad_accum,
        gradient_checkpointing=gradient_checkpointing,
        max_cache_batches=max_cache_batches,
    )
