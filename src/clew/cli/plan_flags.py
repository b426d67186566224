"""The flags that override the hardware plan, declared once for all commands that train."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from clew.engine import PlanRequest

Command = Callable[..., None]


def _option(flags: str, help_: str) -> Any:
    panel = "Hardware (what is not given is measured)"
    return typer.Option(flags, help=help_, rich_help_panel=panel)


Device = Annotated[
    str | None, _option("--device", "cpu, cuda, or cuda:1. [default: the GPU if there is one]")
]
# In the order in which help shows them. All but `no_channels_last` are fields of `PlanRequest`.
_FLAGS: dict[str, Any] = {
    "device": Device,
    "amp": Annotated[
        bool | None,
        _option(
            "--use-amp/--no-amp",
            "16-bit arithmetic (bf16, or fp16 where a GPU lacks it), or none. [default: if faster]",
        ),
    ],
    "compile": Annotated[
        bool | None,
        _option(
            "--use-compile/--no-compile",
            "torch.compile. [default: if the run is long enough to earn it back]",
        ),
    ],
    "cuda_graph": Annotated[
        bool | None,
        _option(
            "--use-cuda-graph/--no-cuda-graph",
            "Record the whole step on a GPU and replay it. [default: if faster]",
        ),
    ],
    "no_channels_last": Annotated[
        bool,
        _option(
            "--no-channels-last",
            "Keep images as [channels, height, width]; else the faster layout is taken.",
        ),
    ],
    "num_workers": Annotated[
        int | None,
        _option(
            "--num-workers",
            "Threads that read batches ahead; 0 reads when asked. [default: what keeps up]",
        ),
    ],
    "batch_size": Annotated[
        int | None,
        _option("--batch-size", "Samples at a time, over all processes. [default: the fastest]"),
    ],
    "grad_accum": Annotated[
        int | None,
        _option("--grad-accum", "Batches that make one optimiser step. [default: 1]"),
    ],
    "gradient_checkpointing": Annotated[
        bool,
        _option(
            "--use-gradient-checkpointing",
            "Make activations twice instead of keeping them: less memory, more time.",
        ),
    ],
    "max_cache_batches": Annotated[
        int | None,
        _option("--max-cache-batches", "Shards kept open at a time. [default: all]"),
    ],
}


def with_plan_flags(*, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """For a command with a keyword-only `request: PlanRequest`: it has the flags in the place of
    that, and is given the request that they make. `without` names flags that it does not offer."""
    names = [name for name in _FLAGS if name not in without]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**given: Any) -> None:
            command(request=_read_request({name: given.pop(name) for name in names}), **given)

        # What typer reads.
        call.__signature__ = _replace_request(signature(command), names)  # type: ignore[attr-defined]
        call.__annotations__ = {
            name: kind for name, kind in command.__annotations__.items() if name != "request"
        }
        return call

    return decorate


def _replace_request(written: Signature, names: list[str]) -> Signature:
    parameters: list[Parameter] = []
    for parameter in written.parameters.values():
        parameters += _flags(parameter, names) if parameter.name == "request" else [parameter]
    return written.replace(parameters=parameters)


def _flags(request: Parameter, names: list[str]) -> list[Parameter]:
    def default(name: str) -> bool | None:
        return False if _FLAGS[name].__origin__ is bool else None

    return [
        request.replace(name=name, annotation=_FLAGS[name], default=default(name)) for name in names
    ]


def _read_request(given: dict[str, Any]) -> "PlanRequest":
    """Raises InputError for values that make no sense."""
    from clew.engine import PlanRequest

    channels_last = False if given.pop("no_channels_last", False) else None
    return PlanRequest(channels_last=channels_last, **given)
